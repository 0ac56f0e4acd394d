//! The open data files of a disk, by number. Every operation in flight holds its file, so that a file's
//! lock outlives each transfer that this process started.

use std::os::fd::OwnedFd;
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

    /// Close a removed file as soon as its last transfer ends, so that its blocks become free.
    pub(crate) fn forget(&self, dir: usize, name: &str) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        for slot in table.iter_mut() {
            if slot.as_ref().is_some_and(|f| f.dir == dir && f.name == name) {
                *slot = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags, open};
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_lock_goes_with_the_last_user_not_with_the_description() {
        let dir = TempDir::new().unwrap();
        let fd = crate::create::create(dir.path(), "a", 4096, false).unwrap();
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
