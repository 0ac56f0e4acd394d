//! The open data files of a disk, by number. Every operation in flight holds its file, so a file's
//! lock is held until each transfer that this process started has ended.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use rustix::fs::{FlockOperation, flock};

use crate::disk::FileId;
use crate::fork::Descriptors;

/// One open file: the lock and the transfers share its open description.
#[derive(Debug)]
pub(crate) struct DataFile {
    /// The open file description that holds the lock.
    pub(crate) fd: OwnedFd,
    /// For messages.
    pub(crate) path: String,
    /// Index of its directory.
    pub(crate) dir: usize,
    /// Name within the directory.
    pub(crate) name: String,
    /// Allocated bytes; no write goes past them.
    pub(crate) len: u64,
}

impl Drop for DataFile {
    fn drop(&mut self) {
        // Closing alone is not enough: io_uring may hold its reference to the description a moment
        // longer than the completion is visible, and the next open would find the file locked.
        // Every transfer holds an Arc of this value, so none is in flight now. A killed process
        // does not run this, and its lock lasts as long as its last transfer.
        let _ = flock(&self.fd, FlockOperation::Unlock);
    }
}

/// The table of open files.
#[derive(Debug, Default)]
pub(crate) struct Files {
    table: RwLock<Vec<Option<Arc<DataFile>>>>,
    /// How many times a file was removed from the table.
    removals: AtomicU64,
}

impl Files {
    /// Add `file` to the table and return its number; numbers are not reused.
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
        self.table
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Close a removed file as soon as its last transfer ends, so that its blocks become free.
    pub(crate) fn remove(&self, dir: usize, name: &str) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for slot in table.iter_mut() {
            if slot.as_ref().is_some_and(|f| f.dir == dir && f.name == name) {
                *slot = None;
            }
        }
        self.removals.fetch_add(1, Ordering::Release);
    }
}

impl Descriptors for Files {
    fn try_each(&self, each: &mut dyn FnMut(&OwnedFd)) {
        if let Ok(table) = self.table.try_read() {
            table.iter().flatten().for_each(|file| each(&file.fd));
        }
    }
}

/// A file in one queue's cache. The queue's operations count references to the outer Arc, so queues
/// of different threads write to no common memory.
#[derive(Clone, Debug)]
#[allow(
    clippy::redundant_allocation,
    reason = "the outer count is per queue, the inner one is shared"
)]
pub(crate) struct CachedFile(Arc<Arc<DataFile>>);

impl CachedFile {
    /// The file, for another thread that continues an operation of the queue.
    pub(crate) fn shared(&self) -> Arc<DataFile> {
        Arc::clone(&self.0)
    }
}

impl Deref for CachedFile {
    type Target = DataFile;
    fn deref(&self) -> &DataFile {
        &self.0
    }
}

/// The files that one queue has looked up. A removed file stays open until the queue looks up
/// another, or is dropped.
#[derive(Debug)]
pub(crate) struct FileCache {
    files: Arc<Files>,
    removals: u64,
    cached: Vec<Option<CachedFile>>,
}

impl FileCache {
    /// An empty cache.
    pub(crate) fn new(files: Arc<Files>) -> FileCache {
        FileCache { files, removals: 0, cached: Vec::new() }
    }

    /// The file of a number, unless it was never given or the file was removed.
    pub(crate) fn get(&mut self, id: FileId) -> Option<CachedFile> {
        let removals = self.files.removals.load(Ordering::Acquire);
        if removals != self.removals {
            self.removals = removals;
            self.cached.clear();
        }
        let at = id.0 as usize;
        if let Some(Some(file)) = self.cached.get(at) {
            return Some(file.clone());
        }
        let file = CachedFile(Arc::new(self.files.get(id)?));
        self.cached.resize(self.cached.len().max(at + 1), None);
        self.cached[at] = Some(file.clone());
        Some(file)
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn file_cache_returns_open_files_and_drops_removed_ones() {
        let dir = TempDir::new().unwrap();
        let files = Arc::new(Files::default());
        let mut cache = FileCache::new(files.clone());
        let open = |name: &str| {
            let fd =
                crate::create::create(dir.path(), name, 4096, false, &Default::default()).unwrap();
            files.insert(DataFile {
                fd,
                path: name.to_owned(),
                dir: 0,
                name: name.to_owned(),
                len: 4096,
            })
        };
        let (a, b) = (open("a"), open("b"));
        assert_eq!(cache.get(b).map(|f| f.name.clone()).as_deref(), Some("b"));
        assert_eq!(cache.get(a).map(|f| f.name.clone()).as_deref(), Some("a"));
        let c = open("c");
        assert_eq!(cache.get(c).map(|f| f.name.clone()).as_deref(), Some("c"));
        let in_flight = cache.get(a);
        files.remove(0, "a");
        assert!(cache.get(a).is_none());
        assert!(cache.get(b).is_some() && cache.get(c).is_some());
        assert_eq!(
            in_flight.map(|f| f.name.clone()).as_deref(),
            Some("a"),
            "a transfer keeps its file"
        );
        assert!(cache.get(FileId(9)).is_none());
    }

    #[test]
    fn file_lock_is_released_with_last_transfer() {
        let dir = TempDir::new().unwrap();
        let fd = crate::create::create(dir.path(), "a", 4096, false, &Default::default()).unwrap();
        // Represents the reference that the kernel may keep a moment longer than an operation.
        let lingering = fd.try_clone().unwrap();
        let files = Files::default();
        let file = DataFile { fd, path: "a".to_owned(), dir: 0, name: "a".to_owned(), len: 4096 };
        let id = files.insert(file);
        let in_flight = files.get(id).unwrap();
        let other = open(dir.path().join("a"), OFlags::RDWR, Mode::empty()).unwrap();
        let lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);

        drop(files);
        assert!(lock().is_err(), "unlocked while an operation is in flight");
        drop(in_flight);
        lock().unwrap();
        drop(lingering);
    }
}
