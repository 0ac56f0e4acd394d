//! A store process and its client in different PID namespaces, as in two containers: neither has a
//! process id in the other's namespace. Needs root; skipped otherwise.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use common::store_process::{command, hits, json};

/// Killed on drop, with all of its processes.
struct Container(Child);

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn client_in_another_pid_namespace_is_served() {
    let unshare = ["--pid", "--fork", "--kill-child"];
    let tried = Command::new("unshare").args(unshare).arg("true").output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        // Not captured by the test harness: a skip must be visible.
        let _ = writeln!(std::io::stderr(), "skipped: containers: {tried:?}");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", dir.path().join("socket").display());
    let mut serve = common::without_settings(Command::new("unshare"));
    serve.args(unshare).arg(env!("CARGO_BIN_EXE_pagelith"));
    serve.args(["serve", "--dram", "64MiB", "--listen", &address]);
    let mut server =
        Container(serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawned"));
    let mut line = String::new();
    let stdout = server.0.stdout.take().expect("stdout");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    if line.is_empty() {
        let mut why = String::new();
        server.0.stderr.take().expect("stderr").read_to_string(&mut why).expect("text");
        panic!("it ended before it listened: {:?} {why}", server.0.wait());
    }
    assert_eq!(line.trim(), format!("listening {address}"));
    let replay = command(&["replay", "--json", "--attach", &address, "--requests", "20"]).output();
    let report = json(&replay.expect("run"));
    assert!(hits(&report, "dram") > 0 && report["wrong_bytes"] == 0, "{report}");
}
