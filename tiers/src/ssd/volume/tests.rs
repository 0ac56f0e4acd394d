//! Two openers of the same directories, and directories with files of several stores.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::disk::{DiskFacts, Queue};
use pagelith_io::probe::{BackendChoice, open_disk};
use tempfile::TempDir;

use super::*;

struct Fixed;

impl Entropy for Fixed {
    fn fill(&self, out: &mut [u8]) {
        out.fill(7);
    }
}

type Hook = Box<dyn FnOnce() + Send>;

/// A disk on which another opener does something right after the first listing.
struct Overtaken {
    disk: Arc<dyn Disk>,
    other: Mutex<Option<Hook>>,
}

impl Disk for Overtaken {
    fn facts(&self) -> DiskFacts {
        self.disk.facts()
    }

    fn dirs(&self) -> usize {
        self.disk.dirs()
    }

    fn dir_name(&self, dir: usize) -> String {
        self.disk.dir_name(dir)
    }

    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        let listed = self.disk.list(dir);
        let other = self.other.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(other) = other {
            other();
        }
        listed
    }

    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault> {
        self.disk.create(dir, name, len)
    }

    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault> {
        self.disk.open(dir, name)
    }

    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault> {
        self.disk.remove(dir, name)
    }

    fn check_names(&self) -> Result<(), IoFault> {
        self.disk.check_names()
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        self.disk.queue(depth)
    }
}

fn disk(dirs: &[&Path]) -> Arc<dyn Disk> {
    let dirs: Vec<PathBuf> = dirs.iter().map(|dir| dir.to_path_buf()).collect();
    open_disk(&dirs, BackendChoice::Blocking).expect("a disk")
}

fn try_open(disk: Arc<dyn Disk>) -> Result<OpenedVolume, VolumeError> {
    let dirs = disk.dirs() as u32;
    let geometry = VolumeGeometry::fit(8 << 20, 1 << 20, dirs, 1000, 100).expect("it fits");
    let timeout = Duration::from_secs(30);
    let opening = Opening { owner: "a test", timeout, retry_locked: &|_| false };
    open_or_create(disk, geometry, &Fixed, &opening)
}

/// Names and content of all files.
fn files(dirs: &[&Path]) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).expect("a directory"));
    entries
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.clone(), std::fs::read(path).expect("readable")))
        .collect()
}

/// Open `dir` on a disk on which `other` runs after the first listing.
fn open_overtaken(dir: &Path, other: Hook) -> Result<OpenedVolume, VolumeError> {
    try_open(Arc::new(Overtaken { disk: disk(&[dir]), other: Mutex::new(Some(other)) }))
}

#[test]
fn store_created_after_listing_is_neither_removed_nor_shared() {
    let temp = TempDir::new().expect("a directory");
    let dir = temp.path().join("made/by/open");
    let winner = Arc::new(Mutex::new(None));
    let (theirs, at) = (winner.clone(), dir.clone());
    let other = Box::new(move || {
        *theirs.lock().expect("one thread") = Some(try_open(disk(&[&at])).expect("created"));
    });
    let refused = open_overtaken(&dir, other).map(|_| ());
    assert!(matches!(refused, Err(VolumeError::Locked { .. })), "{refused:?}");
    let winner = winner.lock().expect("one thread").take().expect("created");
    winner.volume.disk.check_names().expect("all files are there");
    assert!(!files(&[&dir]).contains_key(&dir.join(names::CREATING)));
    drop(winner);
    assert!(!try_open(disk(&[&dir])).expect("opened").made);
}

#[test]
fn store_under_creation_after_listing_is_left_to_its_creator() {
    let temp = TempDir::new().expect("a directory");
    let dir = temp.path().to_owned();
    let creator = disk(&[&dir]);
    let theirs = creator.clone();
    let other = Box::new(move || {
        theirs.create(0, names::CREATING, ALIGN).expect("created");
        theirs.create(0, names::SEGMENTS, ALIGN).expect("created");
    });
    let refused = open_overtaken(&dir, other).map(|_| ());
    assert!(matches!(refused, Err(VolumeError::Locked { .. })), "{refused:?}");
    creator.check_names().expect("both files are there");
}

#[test]
fn store_under_creation_in_some_of_the_directories_is_left_to_its_creator() {
    let temp = TempDir::new().expect("a directory");
    let [a, b, c] = ["a", "b", "c"].map(|name| temp.path().join(name));
    let creator = disk(&[&b, &c]);
    let theirs = creator.clone();
    let other = Box::new(move || {
        theirs.create(0, names::CREATING, ALIGN).expect("created");
        theirs.create(0, names::SEGMENTS, ALIGN).expect("created");
    });
    let ours = Overtaken { disk: disk(&[&a, &b]), other: Mutex::new(Some(other)) };
    let refused = try_open(Arc::new(ours)).map(|_| ());
    assert!(matches!(refused, Err(VolumeError::Misplaced { .. })), "{refused:?}");
    creator.check_names().expect("both files are there");
    assert!(!a.exists(), "the marker of the refused open");
}

#[test]
fn marker_in_another_directory_than_the_first_removes_nothing() {
    let temp = TempDir::new().expect("a directory");
    let [a, b] = ["a", "b"].map(|name| temp.path().join(name));
    std::fs::create_dir(&b).expect("made");
    drop(try_open(disk(&[&a])).expect("created"));
    std::fs::write(b.join(names::CREATING), []).expect("written");
    let before = files(&[&a, &b]);
    // The marker is of a store with `b` as its first directory, the other files of one without it.
    for dirs in [[&*a, &*b], [&*b, &*a]] {
        let refused = try_open(disk(&dirs)).map(|_| ());
        assert!(matches!(refused, Err(VolumeError::Misplaced { .. })), "{dirs:?} {refused:?}");
        assert!(before == files(&[&a, &b]), "{dirs:?}");
    }
}

#[test]
fn unfinished_creation_removes_no_file_in_use() {
    let temp = TempDir::new().expect("a directory");
    let [a, b] = ["a", "b"].map(|name| temp.path().join(name));
    std::fs::create_dir(&b).expect("made");
    std::fs::write(b.join(names::CREATING), []).expect("written");
    let user = disk(&[&a]);
    user.create(0, names::SEGMENTS, ALIGN).expect("created");
    let refused = try_open(disk(&[&b, &a])).map(|_| ());
    assert!(matches!(refused, Err(VolumeError::Locked { .. })), "{refused:?}");
    user.check_names().expect("the file is there");
    drop(user);
    assert!(try_open(disk(&[&b, &a])).expect("created").made);
}

#[test]
fn manifest_copy_of_absurd_length_is_replaced_from_the_other() {
    let temp = TempDir::new().expect("a directory");
    let dir = temp.path();
    let manifest = dir.join(names::MANIFESTS[0]);
    drop(try_open(disk(&[dir])).expect("created"));
    let before = std::fs::read(&manifest).expect("readable");
    // No memory would suffice for it; the file is sparse.
    let file = std::fs::File::options().write(true).open(&manifest).expect("opened");
    file.set_len(1 << 42).expect("extended");
    assert!(!try_open(disk(&[dir])).expect("opened").made);
    assert!(std::fs::read(&manifest).expect("readable") == before);
}
