//! The promises of a disk about its files, tested on each real backend.

#![allow(clippy::disallowed_methods, reason = "tests access the directories without the disk")]
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{BLOCK, disk, drain, filled, kind, on_each_side, perform, read, submit};
use pagelith_io::disk::{Disk, Op};
use pagelith_io::fault::FaultKind;
use pagelith_io::probe::{BackendChoice, open_disk};
use tempfile::TempDir;

const LEN: u64 = 16 * BLOCK as u64;

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn created_file_is_allocated_zeroed_and_listed() {
    on_each_side(|disk, dir| {
        let file = disk.create(0, "a", LEN).unwrap();
        let empty = disk.create(0, "empty", 0).unwrap();
        std::fs::create_dir(dir.join("subdirectory")).unwrap();
        assert_ne!(file, empty);
        assert_eq!(disk.list(0).unwrap(), [("a".to_owned(), LEN), ("empty".to_owned(), 0)]);
        assert!(read(&mut *disk.queue(1).unwrap(), file, 0, 16).iter().all(|b| *b == 0));
        let blocks =
            std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(dir.join("a")).unwrap());
        assert!(blocks * 512 >= LEN, "not allocated: blocks={blocks}");
    });
}

#[test]
fn file_has_one_owner_at_a_time() {
    on_each_side(|first, dir| {
        let file = first.create(0, "a", LEN).unwrap();
        perform(
            &mut *first.queue(1).unwrap(),
            Op::Write { file, offset: 0, parts: vec![filled(1, 5)] },
        )
        .result
        .unwrap();
        for choice in [BackendChoice::Auto, BackendChoice::Blocking] {
            let second = open_disk(&[dir.to_owned()], choice).unwrap();
            assert_eq!(kind(second.open(0, "a")), FaultKind::Locked);
        }
        assert_eq!(kind(first.open(0, "a")), FaultKind::Locked, "twice in one disk");
    });
}

#[test]
fn dropped_disk_unlocks_files_at_once() {
    for choice in [BackendChoice::Uring, BackendChoice::Blocking] {
        let dir = TempDir::new().unwrap();
        let Some(first) = disk(dir.path(), choice) else { continue };
        first.create(0, "a", LEN).unwrap();
        drop(first);
        for round in 0..50u8 {
            let disk = disk(dir.path(), choice).unwrap();
            let (file, len) =
                disk.open(0, "a").unwrap_or_else(|fault| panic!("round={round} {fault}"));
            assert_eq!(len, LEN);
            let mut queue = disk.queue(8).unwrap();
            if round > 0 {
                assert!(read(&mut *queue, file, 0, 1) == [round; BLOCK]);
            }
            submit(
                &mut *queue,
                0,
                Op::Write { file, offset: 0, parts: vec![filled(1, round + 1)] },
            );
            submit(&mut *queue, 1, Op::Sync { file });
            if round % 2 == 0 {
                drain(&mut *queue);
            }
            // In odd rounds the drop finishes the operations in flight.
            drop(queue);
        }
    }
}

#[test]
fn existing_file_is_not_overwritten_by_create() {
    on_each_side(|disk, _| {
        let file = disk.create(0, "a", LEN).unwrap();
        let mut queue = disk.queue(1).unwrap();
        perform(&mut *queue, Op::Write { file, offset: 0, parts: vec![filled(1, 5)] })
            .result
            .unwrap();
        assert_eq!(kind(disk.create(0, "a", LEN)), FaultKind::Exists);
        assert!(read(&mut *queue, file, 0, 1) == [5; BLOCK]);
        assert_eq!(disk.list(0).unwrap(), [("a".to_owned(), LEN)]);
    });
}

#[test]
fn failed_create_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    let below = dir.path().join("x/y/z");
    for choice in [BackendChoice::Auto, BackendChoice::Blocking] {
        let disk = open_disk(std::slice::from_ref(&below), choice).unwrap();
        assert_eq!(names(dir.path()), Vec::<String>::new(), "probing left a file");
        for len in [1 << 60, u64::MAX] {
            assert_eq!(kind(disk.create(0, "a", len)), FaultKind::NoSpace, "len={len}");
            assert_eq!(names(dir.path()), Vec::<String>::new(), "len={len}");
        }
    }
    // In an existing directory only the file is removed.
    let disk = open_disk(&[dir.path().to_owned()], BackendChoice::Auto).unwrap();
    disk.create(0, "kept", LEN).unwrap();
    assert_eq!(kind(disk.create(0, "a", 1 << 60)), FaultKind::NoSpace);
    assert_eq!(names(dir.path()), ["kept"]);
}

#[test]
fn created_directory_is_removed_with_last_file() {
    let dir = TempDir::new().unwrap();
    let disk =
        open_disk(&[dir.path().join("x/y"), dir.path().to_owned()], BackendChoice::Auto).unwrap();
    disk.create(0, "a", LEN).unwrap();
    disk.create(0, "b", LEN).unwrap();
    disk.remove(0, "a").unwrap();
    assert_eq!(disk.list(0).unwrap(), [("b".to_owned(), LEN)]);
    disk.remove(0, "b").unwrap();
    assert!(!dir.path().join("x").exists());
    // An existing directory stays.
    disk.create(1, "a", LEN).unwrap();
    disk.remove(1, "a").unwrap();
    assert!(dir.path().exists());
}

#[test]
fn directories_are_created_as_needed_and_numbered() {
    let dir = TempDir::new().unwrap();
    let dirs = [dir.path().join("one/deep"), dir.path().join("two")];
    let disk = open_disk(&dirs, BackendChoice::Auto).unwrap();
    assert_eq!(disk.dirs(), 2);
    assert_eq!(disk.list(0).unwrap(), []);
    disk.create(0, "a", LEN).unwrap();
    disk.create(1, "a", 2 * LEN).unwrap();
    assert_eq!(disk.list(0).unwrap(), [("a".to_owned(), LEN)]);
    assert_eq!(disk.list(1).unwrap(), [("a".to_owned(), 2 * LEN)]);
    assert_eq!(disk.dir_name(1), dirs[1].display().to_string());
    assert_eq!(kind(disk.create(2, "a", LEN)), FaultKind::Invalid);
    assert_eq!(kind(disk.list(2)), FaultKind::Invalid);
}

#[test]
fn operation_on_removed_file_is_refused() {
    on_each_side(|disk, dir| {
        let file = disk.create(0, "a", LEN).unwrap();
        let mut queue = disk.queue(1).unwrap();
        disk.remove(0, "a").unwrap();
        disk.remove(0, "a").unwrap();
        disk.remove(0, "never").unwrap();
        assert_eq!(names(dir), Vec::<String>::new());
        assert_eq!(kind(disk.open(0, "a")), FaultKind::NotFound);
        let done = perform(&mut *queue, Op::Read { file, offset: 0, parts: vec![filled(1, 0)] });
        assert_eq!(kind(done.result), FaultKind::Invalid);
        // The name may be reused, and the old number does not refer to the new file.
        let again = disk.create(0, "a", LEN).unwrap();
        assert_ne!(file, again);
    });
}

#[test]
fn path_names_and_irregular_files_are_refused() {
    on_each_side(|disk, dir| {
        let outside = dir.parent().unwrap();
        for name in ["", ".", "..", "/etc/a", "../a", "a/b", "a/", "a\0b"] {
            assert_eq!(kind(disk.create(0, name, LEN)), FaultKind::Invalid, "create {name:?}");
            assert_eq!(kind(disk.open(0, name)), FaultKind::Invalid, "open {name:?}");
            assert_eq!(kind(disk.remove(0, name)), FaultKind::Invalid, "remove {name:?}");
        }
        assert!(outside.is_dir());
        let fifo = dir.join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        assert_eq!(kind(disk.open(0, "fifo")), FaultKind::ReadOnly);
        assert_eq!(disk.list(0).unwrap(), []);
    });
}

#[test]
fn data_of_one_side_is_readable_by_other() {
    let dir = TempDir::new().unwrap();
    let sides = [BackendChoice::Auto, BackendChoice::Blocking, BackendChoice::Auto];
    open_disk(&[dir.path().to_owned()], BackendChoice::Auto).unwrap().create(0, "a", LEN).unwrap();
    for (round, choice) in sides.into_iter().enumerate() {
        let disk: Arc<dyn Disk> = open_disk(&[dir.path().to_owned()], choice).unwrap();
        let (file, _) = disk.open(0, "a").unwrap();
        let mut queue = disk.queue(2).unwrap();
        assert!(read(&mut *queue, file, 0, 1) == [round as u8; BLOCK], "round={round}");
        let parts = vec![filled(1, round as u8 + 1)];
        perform(&mut *queue, Op::Write { file, offset: 0, parts }).result.unwrap();
    }
}
