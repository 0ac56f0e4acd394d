//! Locks of a store's files. The owner of a store holds an exclusive lock on every file, which
//! excludes shared locks. Repair takes exclusive locks too, and writes through the locked file
//! descriptions.
//!
//! After `kill -9` the kernel keeps a lock while a write of the dead process is in flight, which
//! may take seconds. Only in that case is it useful to wait for a lock.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::machine::{Access, has_ended, open_store_file};

/// Maximum wait for the last writes of a dead owner.
const DEAD_OWNER_WAIT_MAX: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// For reading; compatible with other shared locks.
    Shared,
    /// For writing; the files are opened for writing.
    Exclusive,
}

/// Locked files, by path. Dropping it releases the locks.
pub(crate) struct Locks {
    pub(super) held: BTreeMap<PathBuf, File>,
}

/// Lock each file; the error is the first file that another process has locked. Files that cannot
/// be opened are skipped: writers refuse them
/// ([`Files::require_all_locked`](super::files::Files::require_all_locked)), and readers report
/// them later.
pub(crate) fn lock_all(
    files: &[PathBuf],
    kind: LockKind,
    owner: Option<&str>,
) -> Result<Locks, PathBuf> {
    let start = Instant::now();
    let mut held = BTreeMap::new();
    for path in files {
        let access = if kind == LockKind::Exclusive { Access::Write } else { Access::Read };
        let Ok(file) = open_store_file(path, access).map(File::from) else { continue };
        let locked = || match kind {
            LockKind::Shared => file.try_lock_shared(),
            LockKind::Exclusive => file.try_lock(),
        };
        while let Err(TryLockError::WouldBlock) = locked() {
            if start.elapsed() >= DEAD_OWNER_WAIT_MAX || !owner.is_some_and(has_ended) {
                return Err(path.clone());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        held.insert(path.clone(), file);
    }
    Ok(Locks { held })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_of_a_dead_owner_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segments");
        let left = File::create(&path).unwrap();
        left.lock().unwrap();
        let files = [path.clone()];
        for kind in [LockKind::Shared, LockKind::Exclusive] {
            assert_eq!(lock_all(&files, kind, Some("pid=1")).err(), Some(path.clone()));
            assert_eq!(lock_all(&files, kind, None).err(), Some(path.clone()));
        }
        let waiting = std::thread::spawn(move || {
            lock_all(&files, LockKind::Shared, Some("pid=4194305")).is_ok()
        });
        left.unlock().unwrap();
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn shared_locks_are_compatible_and_an_exclusive_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("segments"), dir.path().join("missing")];
        std::fs::write(&files[0], "").unwrap();
        let readers =
            [(); 2].map(|()| lock_all(&files, LockKind::Shared, None).ok().map(|l| l.held.len()));
        assert_eq!(readers, [Some(1); 2], "the existing file is locked");
        let reader = lock_all(&files, LockKind::Shared, None).ok();
        assert_eq!(lock_all(&files, LockKind::Exclusive, None).err().as_ref(), Some(&files[0]));
        drop(reader);
        let writer = lock_all(&files, LockKind::Exclusive, None).ok();
        assert_eq!(lock_all(&files, LockKind::Shared, None).err().as_ref(), Some(&files[0]));
        drop(writer);
    }
}
