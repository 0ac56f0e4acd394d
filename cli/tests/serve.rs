//! A store process, and replays whose store has it as a tier.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

fn pagelith(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pagelith"));
    command.args(args).env_remove("RUST_LOG");
    command
}

/// A store process; killed when dropped.
struct Serving {
    child: Child,
    address: String,
    /// Where it answers HTTP, if it was told to.
    metrics: Option<String>,
    said: BufReader<ChildStderr>,
}

impl Serving {
    fn at(address: &str) -> Serving {
        Serving::with(&["--listen", address])
    }

    fn with(flags: &[&str]) -> Serving {
        let mut command = pagelith(&[&["serve", "--dram", "64MiB"], flags].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawned");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let mut metrics = None;
        let address = loop {
            let line = lines.next().expect("where it listens").expect("a line");
            match (line.strip_prefix("listening "), line.strip_prefix("metrics http://")) {
                (Some(address), _) => break address.to_owned(),
                (None, Some(url)) => metrics = url.strip_suffix("/metrics").map(str::to_owned),
                (None, None) => panic!("{line}"),
            }
        };
        let said = BufReader::new(child.stderr.take().expect("stderr"));
        Serving { child, address, metrics, said }
    }

    /// The status and body of an answer over HTTP.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.metrics.as_ref().expect("an address")).expect("connected");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
    }

    /// Wait until it says this.
    fn says(&mut self, what: &str) {
        let mut line = String::new();
        while !line.contains(what) {
            line.clear();
            assert!(self.said.read_line(&mut line).expect("a line") > 0, "it ended without saying {what:?}");
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A replay with little memory of its own.
fn replay(remote: &str, requests: &str) -> Command {
    let own = ["replay", "--json", "--dram", "2MiB", "--ssd", "0", "--object-bytes", "8KiB"];
    pagelith(&[&own[..], &["--remote", remote, "--requests", requests]].concat())
}

fn json(output: &std::process::Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn hits(report: &Value, tier: &str) -> u64 {
    report["prefix_hits"][tier].as_u64().expect("a number")
}

#[test]
fn a_replay_finds_at_a_peer_what_its_own_memory_has_no_room_for() {
    let server = Serving::at("tcp:127.0.0.1:0");
    let report = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&report, "remote") > 0 && hits(&report, "dram") > 0, "{report}");
    assert_eq!((&report["wrong_bytes"], &report["partial_groups"]), (&0.into(), &0.into()), "{report}");
    // What the first left there is there for the next.
    let again = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&again, "remote") > hits(&report, "remote"), "{report} {again}");
    assert_eq!(again["wrong_bytes"], 0, "{again}");
}

#[test]
fn a_peer_that_is_killed_in_the_middle_and_started_again_costs_misses() {
    let mut server = Serving::at("tcp:127.0.0.1:0");
    let running = replay(&server.address, "1000")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawned");
    server.says("serving peer=");
    server.kill();
    let mut server = Serving::at(&server.address.clone());
    let report = json(&running.wait_with_output().expect("ended"));
    assert_eq!((&report["wrong_bytes"], &report["partial_groups"]), (&0.into(), &0.into()), "{report}");
    let warm = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&warm, "remote") > 0 && warm["wrong_bytes"] == 0, "{warm}");
    server.kill();
    let alone = json(&replay(&server.address, "150").output().expect("run"));
    assert_eq!((hits(&alone, "remote"), &alone["wrong_bytes"]), (0, &0.into()), "{alone}");
}

#[test]
fn a_terminated_server_closes_its_store_and_ends_well() {
    let mut server = Serving::at("tcp:127.0.0.1:0");
    let killed = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status();
    assert!(killed.expect("run").success());
    server.says("closed durable_objects=0");
    assert!(server.child.wait().expect("reaped").success());
}

#[test]
fn an_address_that_others_can_reach_is_refused() {
    let output = pagelith(&["serve", "--dram", "1MiB", "--listen", "tcp:0.0.0.0:0"]).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the address is not loopback"), "{said}");
}

/// A file of new keys of these names, which only its owner can read.
fn keys(dir: &Path, names: &[&str]) -> String {
    let path = dir.join(names.join("+"));
    let entry = |name: &&str| pagelith(&["key", name]).output().expect("run").stdout;
    std::fs::write(&path, names.iter().flat_map(entry).collect::<Vec<u8>>()).expect("written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("kept to oneself");
    path.to_str().expect("text").to_owned()
}

#[test]
fn who_has_a_key_is_served_and_who_has_none_or_another_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let (known, stranger) = (keys(dir.path(), &["rank-0"]), keys(dir.path(), &["rank-1"]));
    let server = Serving::with(&["--listen", "tcp:127.0.0.1:0", "--keys", &known]);
    let with = |key: &[&str]| json(&replay(&server.address, "150").args(key).output().expect("run"));
    assert!(hits(&with(&["--key", &known]), "remote") > 0);
    assert!(hits(&with(&["--key", &known]), "remote") > 0);
    for key in [&["--key", &stranger][..], &[]] {
        let report = with(key);
        assert_eq!((hits(&report, "remote"), &report["wrong_bytes"]), (0, &0.into()), "{report}");
    }
}

#[test]
fn a_key_that_may_not_write_finds_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = keys(dir.path(), &["reader"]);
    let rights = std::fs::read_to_string(&key).expect("read") + "rights = [\"read\"]\n";
    let ring = dir.path().join("ring");
    std::fs::write(&ring, rights).expect("written");
    std::fs::set_permissions(&ring, PermissionsExt::from_mode(0o600)).expect("kept to oneself");
    let flags =
        ["--listen", "tcp:127.0.0.1:0", "--keys", ring.to_str().expect("text"), "--metrics", "127.0.0.1:0"];
    let server = Serving::with(&flags);
    let report = json(&replay(&server.address, "150").args(["--key", &key]).output().expect("run"));
    assert_eq!((hits(&report, "remote"), &report["wrong_bytes"]), (0, &0.into()), "{report}");
    assert!(server.get("/metrics").1.contains("\npagelith_puts_stored_total 0\n"));
}

#[test]
fn keys_that_others_can_read_and_files_of_no_use_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (keys(dir.path(), &["a"]), keys(dir.path(), &["b", "c"]));
    let refused = |mut command: Command, why: &str| {
        let output = command.output().expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{said}");
        said.into_owned()
    };
    let serve =
        |path: &str| pagelith(&["serve", "--dram", "1MiB", "--listen", "tcp:127.0.0.1:0", "--keys", path]);
    let mut replay = replay("tcp:127.0.0.1:1", "1");
    replay.args(["--key", &two]);
    refused(replay, "a client's file has one key keys=2");
    std::fs::set_permissions(&one, PermissionsExt::from_mode(0o640)).expect("shared");
    refused(serve(&one), "other users can read the keys");
    let secret = "c0ffee".repeat(10);
    for wrong in
        [format!("secret = \"{secret}\""), format!("sceret = \"{secret}\""), format!("secret = {secret}")]
    {
        std::fs::write(&two, format!("[[key]]\nname = \"a\"\n{wrong}\n")).expect("written");
        let said = refused(serve(&two), "");
        assert!(!said.contains(&secret), "a secret is said: {said}");
    }
    // No name twice, and no network without keys.
    std::fs::write(
        &two,
        "[[key]]\nname = \"a\"\nsecret = \"".to_owned() + &"00".repeat(32) + "\"\nrights = [\"all\"]",
    )
    .expect("written");
    refused(serve(&two), "unknown variant `all`");
    refused(pagelith(&["serve", "--beyond-this-host"]), "--keys <FILE>");
}

#[test]
fn it_tells_over_http_what_it_did() {
    let server = Serving::with(&["--listen", "tcp:127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
    let report = json(&replay(&server.address, "150").output().expect("run"));
    let (status, metrics) = server.get("/metrics");
    assert_eq!(status, 200);
    let served = hits(&report, "remote");
    let line = metrics.lines().find_map(|line| line.strip_prefix("pagelith_hits_memory_total "));
    let told: u64 = line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{metrics}"));
    // A page is two objects.
    assert!(served > 0 && told >= 2 * served, "served={served} told={told}");
    assert_eq!(server.get("/healthz"), (200, "ok ssd_state=off\n".to_owned()));
    assert_eq!(server.get("/").0, 404);
    let refused = pagelith(&["serve", "--dram", "1MiB", "--metrics", "0.0.0.0:0"]).output().expect("run");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it would be answered to other hosts"));
}

#[test]
fn a_unix_socket_serves_like_any_other_address() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("socket");
    let mut server = Serving::at(&format!("unix:{}", path.display()));
    let report = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&report, "remote") > 0 && report["wrong_bytes"] == 0, "{report}");
    // What a killed one leaves behind does not keep the next one out.
    server.kill();
    assert!(path.exists());
    let server = Serving::at(&server.address.clone());
    let report = json(&replay(&server.address, "150").output().expect("run"));
    assert!(hits(&report, "remote") > 0 && report["wrong_bytes"] == 0, "{report}");
}
