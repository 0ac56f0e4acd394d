//! Helpers of the behaviour tests: a disk of each real backend, each over its own directory.
#![allow(dead_code, reason = "each test crate uses its share")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Completion, Disk, DiskFacts, FileId, IoBackend, Op, Queue};
use pagelith_io::fault::{FaultKind, IoFault};
use pagelith_io::probe::{BackendChoice, open_disk};
use tempfile::TempDir;

/// Longer than any healthy device needs; reaching it fails the test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A block size that every backend accepts.
pub(crate) const BLOCK: usize = 4096;

/// Run `test` on a disk of each backend that this machine supports; prints those that it skips.
pub(crate) fn on_each_side(test: impl Fn(&Arc<dyn Disk>, &Path)) {
    for choice in [BackendChoice::Uring, BackendChoice::Blocking] {
        let dir = TempDir::new().unwrap();
        let Some(disk) = disk(dir.path(), choice) else { continue };
        let facts = disk.facts();
        eprintln!("backend={:?} direct={}", facts.backend, facts.direct);
        test(&disk, dir.path());
    }
}

/// A disk over `dir`, or `None` (and a message) if io_uring or O_DIRECT is not available.
pub(crate) fn disk(dir: &Path, choice: BackendChoice) -> Option<Arc<dyn Disk>> {
    match open_disk(&[PathBuf::from(dir)], choice) {
        Ok(disk) => {
            check_facts(&disk.facts(), choice);
            Some(disk)
        }
        Err(fault) if choice == BackendChoice::Uring && fault.kind == FaultKind::Unsupported => {
            eprintln!("skipped: {fault}");
            None
        }
        Err(fault) => panic!("{fault}"),
    }
}

fn check_facts(facts: &DiskFacts, choice: BackendChoice) {
    let expected =
        if choice == BackendChoice::Uring { IoBackend::Uring } else { IoBackend::Blocking };
    assert_eq!(facts.backend, expected);
    assert!(facts.direct || facts.backend == IoBackend::Blocking, "{facts:?}");
    for align in [facts.memory_align, facts.offset_align] {
        assert!(align.is_power_of_two() && (512..=4096).contains(&align), "{facts:?}");
    }
    assert!(!facts.reason.is_empty());
}

/// `blocks` blocks of `byte`.
pub(crate) fn filled(blocks: usize, byte: u8) -> Part {
    let mut buf = AlignedBuf::new(blocks * BLOCK).unwrap();
    buf.fill(byte);
    buf.into_part()
}

/// Submit to a queue that has room.
pub(crate) fn submit(queue: &mut dyn Queue, token: u64, op: Op) {
    queue.submit(token, op).unwrap_or_else(|op| panic!("no room for {op:?}"));
}

/// Wait until nothing is in flight.
pub(crate) fn drain(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        let before = done.len();
        queue.wait(&mut done, LONG);
        assert!(done.len() > before, "nothing finished in {LONG:?}");
    }
    done
}

/// Perform one operation on an idle queue.
pub(crate) fn perform(queue: &mut dyn Queue, op: Op) -> Completion {
    assert_eq!(queue.in_flight(), 0);
    submit(queue, 77, op);
    let mut done = drain(queue);
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].token, 77);
    done.remove(0)
}

/// The bytes of `blocks` blocks at `offset`.
pub(crate) fn read(queue: &mut dyn Queue, file: FileId, offset: u64, blocks: usize) -> Vec<u8> {
    let done = perform(queue, Op::Read { file, offset, parts: vec![filled(blocks, 0xee)] });
    done.result.unwrap();
    done.op.into_parts()[0].bytes().to_vec()
}

/// The kind of a result's fault; panics if there is none.
pub(crate) fn kind<T>(result: Result<T, IoFault>) -> FaultKind {
    match result {
        Ok(_) => panic!("expected a fault"),
        Err(fault) => fault.kind,
    }
}
