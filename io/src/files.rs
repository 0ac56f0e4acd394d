//! The open data files of a disk, by number. Every operation in flight holds its file, so that a file's
//! lock outlives each transfer that this process started.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{FlockOperation, flock};

use crate::disk::FileId;

/// One open file: the lock and the transfers share its open description.
#[derive(Debug)]
pub(crate) struct DataFile {
    /// The open description that carries the lock.
    pub(crate) fd: OwnedFd,
    /// For messages.
    pub(crate) path: String,
    /// Index of its directory.
    pub(crate) dir: usize,
    /// Name within the directory.
    pub(crate) name: String,
    /// Allocated bytes; writes stay below it.
    pub(crate) len: u64,
}

impl Drop for DataFile {
    fn drop(&mut self) {
        // Closing alone is not enough: io_uring may hold its reference to the description a moment longer
        // than the completion is visible, and the next open would find the file locked. Every transfer holds
        // an Arc of this value, so none is in flight here. A killed process does not come here, and its lock
        // lasts as long as its last transfer.
        let _ = flock(&self.fd, FlockOperation::Unlock);
    }
}

/// The table of open files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    table: RwLock<Vec<Option<Arc<DataFile>>>>,
    /// How often a file was forgotten.
    forgotten: AtomicU64,
}

impl Files {
    /// Number `file`; numbers are not used again.
    pub(crate) fn insert(&self, file: DataFile) -> FileId {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.push(Some(Arc::new(file)));
        FileId((table.len() - 1) as u32)
    }

    /// The file of a number, unless it was never given or the file was removed.
    pub(crate) fn get(&self, id: FileId) -> Option<Arc<DataFile>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(id.0 as usize).and_then(Clone::clone)
    }

    /// Every open file.
    pub(crate) fn all(&self) -> Vec<Arc<DataFile>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).iter().flatten().cloned().collect()
    }

    /// The same; none if a thread that is not here was about to change the table.
    pub(crate) fn try_all(&self) -> Vec<Arc<DataFile>> {
        self.table.try_read().map_or_else(|_| Vec::new(), |table| table.iter().flatten().cloned().collect())
    }

    /// Close a removed file as soon as its last transfer ends, so that its blocks become free.
    pub(crate) fn forget(&self, dir: usize, name: &str) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for slot in table.iter_mut() {
            if slot.as_ref().is_some_and(|f| f.dir == dir && f.name == name) {
                *slot = None;
            }
        }
        self.forgotten.fetch_add(1, Ordering::Release);
    }
}

/// A file as one queue knows it, which counts its own operations: queues of several threads share nothing that they write to.
#[derive(Clone, Debug)]
#[allow(clippy::redundant_allocation, reason = "the outer count is one queue's, the inner one everybody's")]
pub(crate) struct KnownFile(Arc<Arc<DataFile>>);

impl KnownFile {
    /// The file, for whoever goes on with an operation of the queue.
    pub(crate) fn shared(&self) -> Arc<DataFile> {
        Arc::clone(&self.0)
    }
}

impl Deref for KnownFile {
    type Target = DataFile;
    fn deref(&self) -> &DataFile {
        &self.0
    }
}

/// What one queue has looked up. A file that is forgotten stays open until the queue looks up another, or ends.
#[derive(Debug)]
pub(crate) struct KnownFiles {
    files: Arc<Files>,
    forgotten: u64,
    known: Vec<Option<KnownFile>>,
}

impl KnownFiles {
    /// Nothing yet.
    pub(crate) fn new(files: Arc<Files>) -> KnownFiles {
        KnownFiles { files, forgotten: 0, known: Vec::new() }
    }

    /// The file of a number, unless it was never given or the file was removed.
    pub(crate) fn get(&mut self, id: FileId) -> Option<KnownFile> {
        let forgotten = self.files.forgotten.load(Ordering::Acquire);
        if forgotten != self.forgotten {
            self.forgotten = forgotten;
            self.known.clear();
        }
        let at = id.0 as usize;
        if let Some(Some(known)) = self.known.get(at) {
            return Some(known.clone());
        }
        let known = KnownFile(Arc::new(self.files.get(id)?));
        self.known.resize(self.known.len().max(at + 1), None);
        self.known[at] = Some(known.clone());
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_queue_knows_what_is_open_and_not_what_was_removed() {
        let dir = TempDir::new().unwrap();
        let files = Arc::new(Files::default());
        let mut known = KnownFiles::new(files.clone());
        let open = |name: &str| {
            let fd = crate::create::create(dir.path(), name, 4096, false, &Default::default()).unwrap();
            files.insert(DataFile { fd, path: name.to_owned(), dir: 0, name: name.to_owned(), len: 4096 })
        };
        let (a, b) = (open("a"), open("b"));
        assert_eq!(known.get(b).map(|f| f.name.clone()).as_deref(), Some("b"));
        assert_eq!(known.get(a).map(|f| f.name.clone()).as_deref(), Some("a"));
        let c = open("c");
        assert_eq!(known.get(c).map(|f| f.name.clone()).as_deref(), Some("c"));
        let in_flight = known.get(a);
        files.forget(0, "a");
        assert!(known.get(a).is_none());
        assert!(known.get(b).is_some() && known.get(c).is_some());
        assert_eq!(in_flight.map(|f| f.name.clone()).as_deref(), Some("a"), "a transfer has its file");
        assert!(known.get(FileId(9)).is_none());
    }

    #[test]
    fn the_lock_goes_with_the_last_user_not_with_the_description() {
        let dir = TempDir::new().unwrap();
        let fd = crate::create::create(dir.path(), "a", 4096, false, &Default::default()).unwrap();
        // Stands for the reference that the kernel may keep a moment longer than an operation.
        let lingering = fd.try_clone().unwrap();
        let files = Files::default();
        let file = DataFile { fd, path: "a".to_owned(), dir: 0, name: "a".to_owned(), len: 4096 };
        let id = files.insert(file);
        let in_flight = files.get(id).unwrap();
        let other = open(dir.path().join("a"), OFlags::RDWR, Mode::empty()).unwrap();
        let lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);

        drop(files);
        assert!(lock().is_err(), "free while an operation is in flight");
        drop(in_flight);
        lock().unwrap();
        drop(lingering);
    }
}
