//! Whether a store is in use. Its owner holds an exclusive lock on every file; a shared one beside it is refused.
//!
//! After `kill -9` the kernel keeps the lock for as long as a write of the dead process is under way, which may
//! be seconds: then, and only then, waiting is worth while.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait for the last writes of an owner that is gone.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Shared locks, held as long as the value lives.
pub(super) struct Locks {
    _held: Vec<File>,
}

/// Take a shared lock on each file; the first that somebody holds if that cannot be done. Files that cannot be
/// opened are passed over: they are named where they are read.
pub(super) fn take(files: &[PathBuf], owner: Option<&str>) -> Result<Locks, PathBuf> {
    let start = Instant::now();
    let mut held = Vec::new();
    for path in files {
        let Ok(file) = File::open(path) else { continue };
        while let Err(TryLockError::WouldBlock) = file.try_lock_shared() {
            if start.elapsed() >= PATIENCE || !owner.is_some_and(is_gone) {
                return Err(path.clone());
            }
            std::thread::sleep(PAUSE);
        }
        held.push(file);
    }
    Ok(Locks { _held: held })
}

/// Whether the owner that a LOCK file names (`pid=N`) is no process any more.
fn is_gone(owner: &str) -> bool {
    let pid = owner.split_whitespace().find_map(|word| word.strip_prefix("pid=")?.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_owner_that_is_named_and_gone_is_waited_for() {
        // Above the kernel's largest process number, 2^22.
        assert!(is_gone("pid=4194305"));
        assert!(!is_gone(&format!("pid={}\n", std::process::id())));
        assert!(!is_gone("somebody") && !is_gone(""));
    }

    #[test]
    fn a_lock_left_by_the_dead_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segments");
        let left = File::create(&path).unwrap();
        left.lock().unwrap();
        let files = [path.clone()];
        assert_eq!(take(&files, Some("pid=1")).err(), Some(path.clone()));
        assert_eq!(take(&files, None).err(), Some(path));
        let waiting = std::thread::spawn(move || take(&files, Some("pid=4194305")).is_ok());
        left.unlock().unwrap();
        assert!(waiting.join().unwrap());
    }
}
