//! A store process on a Unix socket that cannot share memory: it logs a warning, and serves.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::process::{Command, Stdio};

use common::seccomp::without_call;
use common::store_process::{StoreProcess, command, hits, json};

#[cfg(target_arch = "x86_64")]
const MEMFD_CREATE: i64 = 319;
#[cfg(not(target_arch = "x86_64"))]
const MEMFD_CREATE: i64 = 279;

const WARNING: &str = "memory cannot be shared with clients of this host";

/// Check that the server has logged the warning, and serves.
fn serves(mut server: StoreProcess, cause: &str) {
    server.says(WARNING);
    let args = [
        "replay",
        "--json",
        "--requests",
        "20",
        "--object-bytes",
        "8KiB",
        "--attach",
        &server.address,
    ];
    let report = json(&command(&args).output().expect("run"));
    assert!(hits(&report, "dram") > 0 && report["wrong_bytes"] == 0, "{report}");
    assert!(
        Command::new("kill").arg(server.child.id().to_string()).status().expect("run").success()
    );
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0), "{cause}");
}

#[test]
fn server_without_shared_memory_warns_and_serves() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, socket) = (dir.path().join("store"), dir.path().join("socket"));
    let address = format!("unix:{}", socket.display());
    let flags = [
        "serve",
        "--dram",
        "8MiB",
        "--ssd",
        "64MiB",
        "--dir",
        store.to_str().expect("text"),
        "--listen",
        &address,
    ];
    serves(
        without_call(MEMFD_CREATE, || StoreProcess::of(command(&flags).stderr(Stdio::piped()))),
        "memfd_create",
    );
    // A limit of 16 MiB for files, and so for shared memory: less than `--transfer`.
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut shell = common::without_settings(Command::new("sh"));
    let limited = format!("ulimit -f 32768 && exec {program} serve --dram 8MiB --listen {address}");
    serves(StoreProcess::of(shell.args(["-c", &limited]).stderr(Stdio::piped())), "RLIMIT_FSIZE");
}

#[test]
fn explicitly_requested_sharing_that_fails_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", dir.path().join("socket").display());
    let mut asked = command(&["serve", "--dram", "8MiB", "--listen", &address]);
    asked.env("PAGELITH_DRAM__SHARED", "true");
    let output = without_call(MEMFD_CREATE, || asked.output().expect("run"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && !message.contains(WARNING), "{message}");
    let mut declined = command(&["serve", "--dram", "8MiB", "--listen", &address]);
    declined.env("PAGELITH_DRAM__SHARED", "false").stderr(Stdio::piped());
    let mut server = without_call(MEMFD_CREATE, || StoreProcess::of(&mut declined));
    assert!(
        Command::new("kill").arg(server.child.id().to_string()).status().expect("run").success()
    );
    let mut message = String::new();
    std::io::Read::read_to_string(&mut server.log(), &mut message).expect("its log");
    assert!(
        !message.contains(WARNING) && message.contains("closed durable_objects=0"),
        "{message}"
    );
}
