//! What becomes of operations for which the kernel can start no worker thread. Limits are a process's, so that is tried in a
//! child of this program.

#![allow(clippy::disallowed_methods, reason = "the child has threads of its own")]
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::io::Write as _;

use common::{BLOCK, drain, filled, read, submit};
use pagelith_io::disk::Op;
use pagelith_io::probe::SideChoice;
use rustix::process::{Resource, Rlimit, Uid, getrlimit, getuid, setrlimit};
use tempfile::TempDir;

const CHILD: &str = "TEST_PAGELITH_NO_WORKER";
const NAME: &str = "writes_and_syncs_complete_without_kernel_workers";
const WRITES: usize = 32;

/// No thread of this one's user starts any more, the kernel's among them.
fn no_more_threads() {
    if getuid().is_root() {
        // Root's are not limited.
        let nobody = Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
    let maximum = getrlimit(Resource::Nproc).maximum;
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum }).unwrap();
}

fn child() {
    let dir = TempDir::new().unwrap();
    let Some(disk) = common::disk(dir.path(), SideChoice::Uring) else { return };
    // No write has touched its blocks yet: the kernel does the first of them in a worker thread, as it does every sync.
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
    let output =
        std::process::Command::new(program).args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").output();
    let output = output.unwrap();
    let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{log}");
    for line in said.lines().chain(log.lines()).filter(|line| line.contains("skipped")) {
        // Past the test harness's capture: what was not tested is said aloud.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}
