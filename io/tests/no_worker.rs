//! Operations for which the kernel cannot start a worker thread. Limits apply to a process, so the
//! test runs in a child process.

#![allow(clippy::disallowed_methods, reason = "the child has threads of its own")]
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::io::Write as _;

use common::{BLOCK, drain, filled, read, submit};
use pagelith_io::disk::Op;
use pagelith_io::probe::BackendChoice;
use rustix::process::{Resource, Rlimit, Uid, getrlimit, getuid, setrlimit};
use tempfile::TempDir;

const CHILD: &str = "TEST_PAGELITH_NO_WORKER";
const NAME: &str = "writes_and_syncs_complete_without_kernel_workers";
const WRITES: usize = 32;

/// No further thread of this user can start, the kernel's workers included.
fn no_more_threads() {
    if getuid().is_root() {
        // The limit does not apply to root.
        let nobody = Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
    let maximum = getrlimit(Resource::Nproc).maximum;
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum }).unwrap();
}

fn child() {
    let dir = TempDir::new().unwrap();
    let Some(disk) = common::disk(dir.path(), BackendChoice::Uring) else { return };
    // The blocks were never written: the kernel does the first write to each in a worker thread, as
    // it does every sync.
    let file = disk.create(0, "a", (WRITES * BLOCK) as u64).unwrap();
    let mut queue = disk.queue(2 * WRITES).unwrap();
    no_more_threads();
    for n in 0..WRITES {
        let op = Op::Write { file, offset: (n * BLOCK) as u64, parts: vec![filled(1, n as u8)] };
        submit(&mut *queue, n as u64, op);
    }
    for done in drain(&mut *queue) {
        assert_eq!(done.result, Ok(()), "{:?}", done.op);
    }
    submit(&mut *queue, 100, Op::Sync { file });
    assert_eq!(drain(&mut *queue)[0].result, Ok(()));
    for n in 0..WRITES {
        assert_eq!(read(&mut *queue, file, (n * BLOCK) as u64, 1), [n as u8; BLOCK], "n={n}");
    }
}

#[test]
fn writes_and_syncs_complete_without_kernel_workers() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let program = std::env::current_exe().unwrap();
    let output = std::process::Command::new(program)
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .output();
    let output = output.unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    for line in stdout.lines().chain(stderr.lines()).filter(|line| line.contains("skipped")) {
        // Written past the test harness's capture, so that skips are visible.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
