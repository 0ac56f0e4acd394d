//! `config`: reports all problems of a configuration at once, and shows the resulting settings.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use common::{pagelith, pagelith_with};

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pagelith.toml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn every_problem_is_reported_and_nothing_is_created() {
    let (dir, path) = file("[ssd]\nbytes = \"1GiB\"\nwrite_depth = 0\n[dram]\npolcy = \"lru\"\n");
    let ran =
        pagelith_with(&["config", "check", "--config", &path], &[("PAGELITH_STAGING__RATIO", "7")]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for problem in ["ssd.write_depth", "polcy", "staging.ratio"] {
        assert!(ran.stdout.contains(problem), "{problem} is not named: {ran:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_invalid_peer_is_reported_and_an_unknown_preferred_peer_is_refused() {
    let (_dir, path) =
        file("remote.peers = [\"here\", {address = \"unix:/a\", weight = \"1\"}, {name = \"b\"}]");
    let ran = pagelith(&["config", "check", "--config", &path]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for entry in ["entry 0", "entry 1", "entry 2"] {
        assert!(ran.stdout.contains(entry), "{entry} is not named: {ran:?}");
    }
    let (_dir, path) = file("remote.peers = [\"unix:/a\"]");
    let ran = pagelith(&["replay", "--requests", "1", "--config", &path, "--prefer", "unix:/b"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("is not one of"), "{ran:?}");
}

#[test]
fn shown_peers_are_a_valid_configuration() {
    let (_dir, path) = file(
        "[remote]\nkey = \"/key\"\npeers = [\"tcp:[::1]:7411\", {address = \"unix:/b\", name = \"b\", weight = 2.5, preferred = true}]",
    );
    let shown = pagelith(&["config", "show", "--config", &path]).json();
    let plain = r#"{"address": "tcp:[::1]:7411", "name": "tcp:[::1]:7411", "weight": 1.0, "preferred": false, "transport": "tcp"}"#;
    let table = r#"{"address": "unix:/b", "name": "b", "weight": 2.5, "preferred": true, "transport": "tcp"}"#;
    let right =
        format!(r#"{{"peers": [{plain}, {table}], "key": "/key", "local_hostname": null}}"#);
    assert_eq!(shown["remote"], serde_json::from_str::<serde_json::Value>(&right).unwrap());
    let again = tempfile::tempdir().unwrap();
    let json = again.path().join("pagelith.json");
    std::fs::write(&json, shown.to_string()).unwrap();
    let json = json.to_str().unwrap();
    assert_eq!(pagelith(&["config", "show", "--config", json]).json(), shown);
    // The environment overrides the file.
    let env = [("PAGELITH_REMOTE__PEERS", "unix:/c")];
    let shown = pagelith_with(&["config", "show", "--config", json], &env).json();
    assert_eq!(shown["remote"]["peers"][0]["address"], "unix:/c");
    assert_eq!(shown["remote"]["peers"].as_array().unwrap().len(), 1);
}

#[test]
fn flags_override_the_environment_and_that_overrides_the_file() {
    let (_dir, path) =
        file("[dram]\nbytes = \"64MiB\"\npolicy = \"fifo\"\n[staging]\nbytes = \"5MiB\"\n");
    let env = [("PAGELITH_DRAM__BYTES", "96MiB"), ("PAGELITH_STAGING__BYTES", "6MiB")];
    let args = ["config", "show", "--config", &path, "--staging", "7MiB"];
    let shown = pagelith_with(&args, &env).json();
    assert_eq!(shown["dram"]["policy"], "fifo");
    assert_eq!(shown["dram"]["bytes"], "96MiB");
    assert_eq!(shown["staging"]["bytes"], "7MiB");
    // The output is a valid configuration.
    let again = tempfile::tempdir().unwrap();
    let json = again.path().join("pagelith.json");
    std::fs::write(&json, shown.to_string()).unwrap();
    let args = ["config", "check", "--config", json.to_str().unwrap()];
    assert_eq!(pagelith(&args).code, Some(0));
}

/// The error of each command with these flags and variables.
fn refusals(flags: &[&str], env: &[(&str, &str)]) -> Vec<String> {
    // If the store is opened nevertheless, `serve` ends with an error for the metrics address.
    let serve = ["serve", "--listen", "tcp:127.0.0.1:0", "--metrics", "0.0.0.0:0"];
    let commands =
        [&["config", "check"][..], &["config", "show"], &serve, &["replay", "--requests", "1"]];
    let ran = commands.map(|command| pagelith_with(&[command, flags].concat(), env));
    ran.into_iter()
        .map(|ran| {
            assert!(ran.code == Some(1) || ran.code == Some(2), "{ran:?}");
            ran.stdout + &ran.stderr
        })
        .collect()
}

#[test]
fn incomplete_ssd_tier_is_refused_by_every_command() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let dir = dir.to_str().unwrap();
    let (_keep, no_bytes) = file(&format!("ssd.dirs = [{dir:?}]"));
    let (_keep_too, no_dirs) = file("ssd.bytes = \"64MiB\"");
    type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let cases: [Case<'_>; 5] = [
        (&["--config", &no_bytes], &[], "ssd.bytes: must be above 0"),
        (&["--config", &no_dirs], &[], "ssd.dirs: must name a directory"),
        (&[], &[("PAGELITH_SSD__DIRS", dir)], "ssd.bytes: must be above 0"),
        (&[], &[("PAGELITH_SSD__BYTES", "64MiB")], "ssd.dirs: must name a directory"),
        (&["--dir", dir, "--ssd", "0"], &[], "ssd.bytes: must be above 0"),
    ];
    for (flags, env, why) in cases {
        for message in refusals(flags, env) {
            assert!(message.contains(why), "{flags:?} {env:?}: {message}");
        }
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn directory_without_a_size_is_refused_by_commands_without_a_default_size() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let flags = ["--dir", dir.to_str().unwrap()];
    for command in [&["config", "check"][..], &["serve", "--metrics", "0.0.0.0:0"]] {
        let ran = pagelith(&[command, &flags].concat());
        assert!((ran.stdout + &ran.stderr).contains("ssd.bytes: must be above 0"), "{command:?}");
    }
    assert!(!dir.exists());
}

#[test]
fn size_zero_disables_the_ssd_tier_of_a_file() {
    let (_dir, path) = file("ssd.bytes = \"64MiB\"\nssd.dirs = [\"/nowhere\"]");
    let shown = pagelith(&["config", "show", "--config", &path, "--ssd", "0"]).json();
    assert_eq!(
        (&shown["ssd"]["bytes"], &shown["ssd"]["dirs"]),
        (&"0B".into(), &serde_json::json!([]))
    );
}

#[test]
fn help_states_the_defaults_of_its_command() {
    let help = |command: &[&str]| pagelith(&[command, &["--help"]].concat()).stdout;
    for command in [&["serve"][..], &["config", "check"], &["config", "show"]] {
        let message = help(command);
        for default in
            ["[default: 256MiB]", "[default: 0B]", "[default: none; --ssd is needed too]"]
        {
            assert!(message.contains(default), "{default} {message}");
        }
        assert!(
            !message.contains("128MiB")
                && !message.contains("512MiB")
                && !message.contains("temporary"),
            "{message}"
        );
    }
    let message = help(&["replay"]);
    for default in
        ["[default: 128MiB]", "[default: 512MiB]", "[default: a new one under", "[default: 64MiB]"]
    {
        assert!(message.contains(default), "{default} {message}");
    }
}

#[test]
fn kubernetes_service_variables_are_ignored_with_a_debug_event() {
    let env = [
        ("PAGELITH_SERVICE_HOST", "10.96.7.9"),
        ("PAGELITH_PORT", "tcp://10.96.7.9:7411"),
        ("PAGELITH_PORT_7411_TCP_ADDR", "10.96.7.9"),
    ];
    let quiet = pagelith_with(&["config", "check"], &env);
    assert!(quiet.code == Some(0) && quiet.stderr.is_empty(), "{quiet:?}");
    let ran = pagelith_with(&["config", "check"], &[&env[..], &[("RUST_LOG", "debug")]].concat());
    let lines: Vec<&str> =
        ran.stderr.lines().filter(|line| line.contains("PAGELITH_PORT")).collect();
    assert!(ran.code == Some(0) && lines.len() == 1 && lines[0].contains("DEBUG"), "{ran:?}");
}
