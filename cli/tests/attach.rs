//! Replays on the store of a store process.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use common::store_process::{StoreProcess, command, hits, json, keys};
use serde_json::Value;

fn replay(attach: &str, requests: &str) -> Command {
    command(&["replay", "--json", "--attach", attach, "--requests", requests])
}

fn is_right(report: &Value) -> bool {
    report["wrong_bytes"] == 0 && report["partial_groups"] == 0
}

fn found(report: &Value) -> u64 {
    hits(report, "dram") + hits(report, "ssd")
}

#[test]
fn client_finds_objects_of_the_previous_client_over_tcp_and_unix_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    for listen in
        ["tcp:127.0.0.1:0".to_owned(), format!("unix:{}", dir.path().join("socket").display())]
    {
        let store = tempfile::tempdir().expect("a directory");
        let ssd = ["--ssd", "256MiB", "--dir", store.path().to_str().expect("text")];
        let server = StoreProcess::with(&[&["--listen", &listen][..], &ssd].concat());
        let first = json(&replay(&server.address, "150").output().expect("run"));
        let second = json(&replay(&server.address, "150").output().expect("run"));
        for report in [&first, &second] {
            assert!(
                is_right(report) && hits(report, "remote") == 0 && report["io"] == "attached",
                "{report}"
            );
        }
        assert!(found(&second) > found(&first) && found(&first) > 0, "{first} {second}");
        assert_eq!(
            (&second["misses"], &second["bytes_put"]),
            (&serde_json::json!({}), &0.into()),
            "{second}"
        );
        // The next process of the store finds the flushed objects.
        drop(server);
        let server = StoreProcess::with(&[&["--listen", &listen][..], &ssd].concat());
        let third = json(&replay(&server.address, "150").output().expect("run"));
        assert!(
            is_right(&third) && found(&third) == found(&second) && hits(&third, "ssd") > 0,
            "{third}"
        );
    }
}

#[test]
fn store_process_logs_the_configured_host_name_of_its_client() {
    let mut server = StoreProcess::at("tcp:127.0.0.1:0");
    let mut client = replay(&server.address, "1");
    client.env("PAGELITH_REMOTE__LOCAL_HOSTNAME", "engine-7.example");
    assert!(is_right(&json(&client.output().expect("run"))));
    server.says("host=engine-7.example");
    client.env("PAGELITH_REMOTE__LOCAL_HOSTNAME", "engine 7");
    let refused = client.output().expect("run");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("remote.local_hostname"), "{text}");
}

#[test]
fn pages_of_several_pools_hit_as_whole_groups() {
    let server = StoreProcess::at("tcp:127.0.0.1:0");
    for model in ["deepseek-v3.2+deepseek-v3.2-mtp", "qwen3-next"] {
        let run = || {
            let mut replay = replay(&server.address, "40");
            json(&replay.args(["--model", model, "--scale", "512"]).output().expect("run"))
        };
        let (first, second) = (run(), run());
        assert!(is_right(&first) && is_right(&second), "{first} {second}");
        assert!(hits(&second, "dram") > hits(&first, "dram"), "{first} {second}");
    }
}

#[test]
fn restart_of_a_killed_store_process_costs_only_misses() {
    let mut server = StoreProcess::at("tcp:127.0.0.1:0");
    let mut client = replay(&server.address, "5000");
    client.env("RUST_LOG", "warn").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = client.spawn().expect("spawned");
    server.says("serving peer=");
    server.kill();
    // Restart it only after the client has noticed its absence: a call tries twice, and it stops
    // after the third failed link in a row. A client that has finished before has noticed it too.
    let mut stderr = BufReader::new(running.stderr.take().expect("stderr"));
    let mut rest = String::new();
    while rest.matches("peer cannot be reached").count() < 3
        && stderr.read_line(&mut rest).expect("a line") > 0
    {}
    let again = StoreProcess::at(&server.address.clone());
    stderr.read_to_string(&mut rest).expect("text");
    let report = json(&running.wait_with_output().expect("ended"));
    assert!(is_right(&report) && report["requests"] == 5000, "{report}");
    assert!(rest.contains("the store process was unreachable times="), "{rest}");
    let warm = json(&replay(&again.address, "150").output().expect("run"));
    assert!(is_right(&warm) && hits(&warm, "dram") > 0, "{warm}");
}

#[test]
fn attached_replay_refuses_store_flags_and_needs_a_valid_key() {
    let refused = |mut command: Command, why: &str| {
        let output = command.output().expect("run");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains(why), "{message}");
    };
    for flag in
        [["--dram", "1MiB"], ["--ssd", "0"], ["--dir", "/tmp"], ["--remote", "tcp:127.0.0.1:1"]]
    {
        let mut own = replay("tcp:127.0.0.1:1", "1");
        own.args(flag);
        refused(own, "cannot be used with");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let (known, stranger) = (keys(dir.path(), &["rank-0"]), keys(dir.path(), &["rank-1"]));
    let server = StoreProcess::with(&["--listen", "tcp:127.0.0.1:0", "--keys", &known]);
    let with = |key: &str| {
        let mut command = replay(&server.address, "20");
        command.args(["--key", key]);
        command
    };
    assert!(is_right(&json(&with(&known).output().expect("run"))));
    refused(with(&stranger), "cannot attach to the store");
    refused(replay(&server.address, "1"), "cannot attach to the store");
    refused(replay("tcp:127.0.0.1:1", "1"), "cannot attach to the store");
    refused(
        command(&["replay", "--key", &known]),
        "remote.key: must be unset without remote.peers",
    );
}

#[test]
fn host_name_works_for_listening_attaching_and_peers() {
    let server = StoreProcess::with(&["--listen", "tcp:localhost:0", "--metrics", "localhost:0"]);
    assert!(server.address.starts_with("tcp:localhost:"), "{}", server.address);
    assert_eq!(server.get("/healthz").0, 200);
    let attached = json(&replay(&server.address, "20").output().expect("run"));
    assert!(is_right(&attached) && attached["bytes_put"] != 0, "{attached}");
    let peer = ["replay", "--json", "--requests", "20", "--remote", &server.address];
    let remote = json(&command(&peer).output().expect("run"));
    assert!(is_right(&remote) && hits(&remote, "remote") > 0, "{remote}");
    let unknown = replay("tcp:no-such-host.invalid:7411", "1").output().expect("run");
    let message = String::from_utf8_lossy(&unknown.stderr);
    let names = message.contains("host=no-such-host.invalid")
        && message.contains("address=tcp:no-such-host.invalid:7411");
    assert!(unknown.status.code() == Some(2) && names, "{message}");
}
