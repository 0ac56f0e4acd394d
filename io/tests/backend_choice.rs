//! The choice of the I/O backend, and its reported reason.

#![allow(clippy::disallowed_methods, reason = "tests access the directories without the disk")]
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::path::{Path, PathBuf};

use common::{BLOCK, filled, kind, perform, read};
use pagelith_io::disk::{IoBackend, Op};
use pagelith_io::fault::FaultKind;
use pagelith_io::probe::{BackendChoice, open_disk};
use tempfile::TempDir;

/// A directory on tmpfs, if the machine has one at the usual path.
fn on_tmpfs() -> Option<TempDir> {
    let shm = Path::new("/dev/shm");
    let is_tmpfs = rustix::fs::statfs(shm).is_ok_and(|fs| fs.f_type as u64 == 0x0102_1994);
    if !is_tmpfs {
        eprintln!("skipped: /dev/shm is no tmpfs");
        return None;
    }
    Some(TempDir::new_in(shm).unwrap())
}

#[test]
fn tmpfs_is_never_used_as_device() {
    let Some(dir) = on_tmpfs() else { return };
    let dirs = [dir.path().to_owned()];
    let refused = open_disk(&dirs, BackendChoice::Uring).err().unwrap();
    assert_eq!(refused.kind, FaultKind::Unsupported);
    assert!(refused.to_string().contains("tmpfs"), "{refused}");

    let disk = open_disk(&dirs, BackendChoice::Auto).unwrap();
    let facts = disk.facts();
    assert_eq!((facts.backend, facts.direct), (IoBackend::Blocking, false));
    assert!(
        facts.reason.contains("tmpfs") && facts.reason.contains("using blocking"),
        "{}",
        facts.reason
    );

    let file = disk.create(0, "a", 4 * BLOCK as u64).unwrap();
    let mut queue = disk.queue(2).unwrap();
    perform(&mut *queue, Op::Write { file, offset: 0, parts: vec![filled(4, 3)] }).result.unwrap();
    perform(&mut *queue, Op::Sync { file }).result.unwrap();
    assert!(read(&mut *queue, file, BLOCK as u64, 2) == [3; 2 * BLOCK]);
}

#[test]
fn one_refusing_directory_decides_for_all() {
    let Some(shm) = on_tmpfs() else { return };
    let tmp = TempDir::new().unwrap();
    let dirs = [tmp.path().to_owned(), shm.path().to_owned()];
    assert_eq!(kind(open_disk(&dirs, BackendChoice::Uring).map(drop)), FaultKind::Unsupported);
    let facts = open_disk(&dirs, BackendChoice::Auto).unwrap().facts();
    assert_eq!((facts.backend, facts.direct), (IoBackend::Blocking, false));
}

#[test]
fn side_is_reported_and_probing_leaves_nothing() {
    let dir = TempDir::new().unwrap();
    for choice in [BackendChoice::Auto, BackendChoice::Uring, BackendChoice::Blocking] {
        match open_disk(&[dir.path().to_owned()], choice) {
            Ok(disk) => eprintln!("{choice:?}: {:?}", disk.facts()),
            Err(fault) => {
                assert_eq!((choice, fault.kind), (BackendChoice::Uring, FaultKind::Unsupported));
                eprintln!("skipped: {fault}");
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{choice:?}");
    }
    let facts = open_disk(&[dir.path().to_owned()], BackendChoice::Blocking).unwrap().facts();
    assert!(facts.reason.contains("is configured"), "{}", facts.reason);
}

#[test]
fn empty_list_and_unusable_directory_are_refused() {
    assert_eq!(kind(open_disk(&[], BackendChoice::Auto).map(drop)), FaultKind::Invalid);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    for path in [file.clone(), file.join("below"), PathBuf::from("/proc/self/x")] {
        let fault = open_disk(std::slice::from_ref(&path), BackendChoice::Auto).err();
        let fault = fault.unwrap_or_else(|| panic!("opened path={}", path.display()));
        assert!(!fault.path.is_empty(), "{fault}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
}
