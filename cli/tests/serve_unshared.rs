//! A store process on a Unix socket where the system lets it share no memory: it says so once, and serves.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real processes")]

mod common;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use common::serving::{Serving, command, hits, json};

#[cfg(target_arch = "x86_64")]
const MEMFD_CREATE: i64 = 319;
#[cfg(not(target_arch = "x86_64"))]
const MEMFD_CREATE: i64 = 279;

/// What `start` starts, where `memfd_create` fails with EPERM, as a container's filter has it.
fn without_memfd<T: Send>(start: impl FnOnce() -> T + Send) -> T {
    const EPERM: u32 = 1;
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with seccomp");
    let filter = seccompiler::SeccompFilter::new(
        BTreeMap::from([(MEMFD_CREATE, Vec::new())]),
        seccompiler::SeccompAction::Allow,
        seccompiler::SeccompAction::Errno(EPERM),
        arch,
    );
    let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
    // A thread cannot take it off again, so it is one of its own.
    std::thread::scope(|scope| {
        let started = scope.spawn(move || {
            seccompiler::apply_filter(&program).expect("put on");
            start()
        });
        started.join().expect("started")
    })
}

const WARNING: &str = "memory cannot be shared with clients of this host";

/// It serves, and has said why nothing is shared.
fn serves(mut server: Serving, cause: &str) {
    server.says(WARNING);
    let args =
        ["replay", "--json", "--requests", "20", "--object-bytes", "8KiB", "--attach", &server.address];
    let report = json(&command(&args).output().expect("run"));
    assert!(hits(&report, "dram") > 0 && report["wrong_bytes"] == 0, "{report}");
    assert!(Command::new("kill").arg(server.child.id().to_string()).status().expect("run").success());
    assert_eq!(server.child.wait().expect("reaped").code(), Some(0), "{cause}");
}

#[test]
fn unix_socket_is_served_where_no_memory_can_be_shared() {
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
    serves(without_memfd(|| Serving::of(command(&flags).stderr(Stdio::piped()))), "memfd_create");
    // Files, and so shared memory, of 16 MiB at most: less than `--transfer`.
    let program = env!("CARGO_BIN_EXE_pagelith");
    let mut shell = common::without_settings(Command::new("sh"));
    let limited = format!("ulimit -f 32768 && exec {program} serve --dram 8MiB --listen {address}");
    serves(Serving::of(shell.args(["-c", &limited]).stderr(Stdio::piped())), "RLIMIT_FSIZE");
}

#[test]
fn sharing_that_is_asked_for_by_name_is_not_done_without() {
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", dir.path().join("socket").display());
    let mut asked = command(&["serve", "--dram", "8MiB", "--listen", &address]);
    asked.env("PAGELITH_DRAM__SHARED", "true");
    let output = without_memfd(|| asked.output().expect("run"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && !said.contains(WARNING), "{said}");
    let mut declined = command(&["serve", "--dram", "8MiB", "--listen", &address]);
    declined.env("PAGELITH_DRAM__SHARED", "false").stderr(Stdio::piped());
    let mut server = without_memfd(|| Serving::of(&mut declined));
    assert!(Command::new("kill").arg(server.child.id().to_string()).status().expect("run").success());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut server.log(), &mut said).expect("its log");
    assert!(!said.contains(WARNING) && said.contains("closed durable_objects=0"), "{said}");
}
