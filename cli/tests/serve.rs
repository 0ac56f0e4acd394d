//! A store process, and replays whose store has it as a tier.

use std::io::{BufRead, BufReader};
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
    said: BufReader<ChildStderr>,
}

impl Serving {
    fn at(address: &str) -> Serving {
        let mut command = pagelith(&["serve", "--dram", "64MiB", "--listen", address]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawned");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening ").expect("where it listens").to_owned();
        let said = BufReader::new(child.stderr.take().expect("stderr"));
        Serving { child, address, said }
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
