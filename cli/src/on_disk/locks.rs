//! Whether a store is in use. Its owner holds an exclusive lock on every file; a shared one beside it is refused.
//! Who repairs takes exclusive locks as an owner does, and writes through the descriptions that carry them.
//!
//! After `kill -9` the kernel keeps the lock for as long as a write of the dead process is under way, which may
//! be seconds: then, and only then, waiting is worth while.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::machine::{Access, has_ended, open_own};

/// Longest wait for the last writes of an owner that is gone.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Beside whom a lock may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Others who only read.
    Shared,
    /// Nobody; the files are opened for writing.
    Exclusive,
}

/// Locked files, by path. The locks last as long as the value lives.
pub(crate) struct Locks {
    pub(super) held: BTreeMap<PathBuf, File>,
}

/// Take a lock on each file; the first that somebody holds if that cannot be done. Files that cannot be opened are
/// passed over: whoever writes refuses them ([`Files::check_all`](super::files::Files::check_all)), whoever reads names them there.
pub(crate) fn take(files: &[PathBuf], kind: Kind, owner: Option<&str>) -> Result<Locks, PathBuf> {
    let start = Instant::now();
    let mut held = BTreeMap::new();
    for path in files {
        let access = if kind == Kind::Exclusive { Access::Write } else { Access::Read };
        let Ok(file) = open_own(path, access).map(File::from) else { continue };
        let locked = || match kind {
            Kind::Shared => file.try_lock_shared(),
            Kind::Exclusive => file.try_lock(),
        };
        while let Err(TryLockError::WouldBlock) = locked() {
            if start.elapsed() >= PATIENCE || !owner.is_some_and(has_ended) {
                return Err(path.clone());
            }
            std::thread::sleep(PAUSE);
        }
        held.insert(path.clone(), file);
    }
    Ok(Locks { held })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_left_by_the_dead_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segments");
        let left = File::create(&path).unwrap();
        left.lock().unwrap();
        let files = [path.clone()];
        for kind in [Kind::Shared, Kind::Exclusive] {
            assert_eq!(take(&files, kind, Some("pid=1")).err(), Some(path.clone()));
            assert_eq!(take(&files, kind, None).err(), Some(path.clone()));
        }
        let waiting = std::thread::spawn(move || take(&files, Kind::Shared, Some("pid=4194305")).is_ok());
        left.unlock().unwrap();
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn readers_share_and_a_writer_is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let files = [dir.path().join("segments"), dir.path().join("missing")];
        std::fs::write(&files[0], "").unwrap();
        let readers = [(); 2].map(|()| take(&files, Kind::Shared, None).ok().map(|l| l.held.len()));
        assert_eq!(readers, [Some(1); 2], "those that are there");
        let reader = take(&files, Kind::Shared, None).ok();
        assert_eq!(take(&files, Kind::Exclusive, None).err().as_ref(), Some(&files[0]));
        drop(reader);
        let writer = take(&files, Kind::Exclusive, None).ok();
        assert_eq!(take(&files, Kind::Shared, None).err().as_ref(), Some(&files[0]));
        drop(writer);
    }
}
