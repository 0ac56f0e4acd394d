//! `config`: what is wrong with a configuration, all of it at once, and what it comes to.
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
fn every_problem_is_named_and_nothing_is_made() {
    let (dir, path) = file("[ssd]\nbytes = \"1GiB\"\nwrite_depth = 0\n[dram]\npolcy = \"lru\"\n");
    let ran = pagelith_with(&["config", "check", "--config", &path], &[("PAGELITH_STAGING__RATIO", "7")]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for problem in ["ssd.write_depth", "polcy", "staging.ratio"] {
        assert!(ran.stdout.contains(problem), "{problem} is not named: {ran:?}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn every_wrong_peer_is_named_and_flags_that_name_none_are_refused() {
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
fn peers_that_are_shown_are_a_configuration_again() {
    let (_dir, path) = file(
        "[remote]\nkey = \"/key\"\npeers = [\"tcp:[::1]:7411\", {address = \"unix:/b\", name = \"b\", weight = 2.5, preferred = true}]",
    );
    let shown = pagelith(&["config", "show", "--config", &path]).json();
    let plain =
        r#"{"address": "tcp:[::1]:7411", "name": "tcp:[::1]:7411", "weight": 1.0, "preferred": false}"#;
    let table = r#"{"address": "unix:/b", "name": "b", "weight": 2.5, "preferred": true}"#;
    let right = format!(r#"{{"peers": [{plain}, {table}], "key": "/key"}}"#);
    assert_eq!(shown["remote"], serde_json::from_str::<serde_json::Value>(&right).unwrap());
    let again = tempfile::tempdir().unwrap();
    let json = again.path().join("pagelith.json");
    std::fs::write(&json, shown.to_string()).unwrap();
    let json = json.to_str().unwrap();
    assert_eq!(pagelith(&["config", "show", "--config", json]).json(), shown);
    // The environment goes before the file.
    let env = [("PAGELITH_REMOTE__PEERS", "unix:/c")];
    let shown = pagelith_with(&["config", "show", "--config", json], &env).json();
    assert_eq!(shown["remote"]["peers"][0]["address"], "unix:/c");
    assert_eq!(shown["remote"]["peers"].as_array().unwrap().len(), 1);
}

#[test]
fn flags_come_before_the_environment_and_that_before_the_file() {
    let (_dir, path) = file("[dram]\nbytes = \"64MiB\"\npolicy = \"fifo\"\n[staging]\nbytes = \"5MiB\"\n");
    let env = [("PAGELITH_DRAM__BYTES", "96MiB"), ("PAGELITH_STAGING__BYTES", "6MiB")];
    let args = ["config", "show", "--config", &path, "--staging", "7MiB"];
    let shown = pagelith_with(&args, &env).json();
    assert_eq!(shown["dram"]["policy"], "fifo");
    assert_eq!(shown["dram"]["bytes"], "96MiB");
    assert_eq!(shown["staging"]["bytes"], "7MiB");
    // What is shown is a configuration again.
    let again = tempfile::tempdir().unwrap();
    let json = again.path().join("pagelith.json");
    std::fs::write(&json, shown.to_string()).unwrap();
    let args = ["config", "check", "--config", json.to_str().unwrap()];
    assert_eq!(pagelith(&args).code, Some(0));
}
