//! Writes to the files of a store while no other process has it open. Each file is written through
//! the file description that holds its lock, so that no engine can open the store before the last
//! write ends.

use std::fs::{File, TryLockError};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::locks::{self, LockKind, Locks};
use crate::machine::{Access, open_store_file, write_in_place};

/// Bytes of zeros written at once.
const ZEROS: usize = 1 << 20;

/// The files of a store, each locked exclusively.
pub(crate) struct Files {
    locks: Locks,
}

impl Files {
    /// Lock these files, as an engine does when it opens the store. The error is a file that
    /// another process has locked. `owner` is the content of the LOCK file.
    pub(crate) fn lock(files: &[PathBuf], owner: Option<&str>) -> Result<Files, PathBuf> {
        locks::lock_all(files, LockKind::Exclusive, owner).map(|locks| Files { locks })
    }

    /// An error if one of these files exists and could not be opened: it is not locked, so the
    /// store may be in use.
    pub(crate) fn require_all_locked(&self, files: &[PathBuf]) -> anyhow::Result<()> {
        let exists = |path: &&PathBuf| path.symlink_metadata().is_ok();
        match files.iter().filter(exists).find(|path| !self.locks.held.contains_key(*path)) {
            Some(path) => bail!("cannot repair, a file cannot be locked: {}", open_error(path)),
            None => Ok(()),
        }
    }

    fn file(&self, path: &Path) -> anyhow::Result<&File> {
        #[cfg(test)]
        tests::step()?;
        self.locks
            .held
            .get(path)
            .with_context(|| format!("cannot write, it was not opened: {}", open_error(path)))
    }

    /// Write `bytes` at an offset. Durable after [`Files::sync`].
    pub(crate) fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.file(path)?;
        #[cfg(test)]
        tests::refuse(path, offset)?;
        let written = file.write_all_at(bytes, offset);
        #[cfg(test)]
        super::read::block_was_written(path, offset, bytes.len() as u64);
        written.with_context(|| format!("cannot write offset={offset} file={}", path.display()))
    }

    /// Write zeros. Durable after [`Files::sync`].
    pub(crate) fn zero(&self, path: &Path, offset: u64, bytes: u64) -> anyhow::Result<()> {
        let zeros = vec![0; ZEROS.min(usize::try_from(bytes).unwrap_or(ZEROS))];
        let mut done = 0;
        while done < bytes {
            let now = (bytes - done).min(zeros.len() as u64);
            self.write(path, offset + done, &zeros[..now as usize])?;
            done += now;
        }
        Ok(())
    }

    /// Make all writes to a file durable. Never retried: after a failed sync the content on disk is
    /// unknown.
    pub(crate) fn sync(&self, path: &Path) -> anyhow::Result<()> {
        self.file(path)?.sync_all().with_context(|| format!("cannot sync file={}", path.display()))
    }

    /// Truncate a file, or extend it with allocated blocks that read as zeros. Created if it is
    /// missing. Durable on return.
    pub(crate) fn resize(&mut self, path: &Path, bytes: u64) -> anyhow::Result<()> {
        if !self.locks.held.contains_key(path) {
            return self.create(path, bytes);
        }
        let file = self.file(path)?;
        let sized = file
            .metadata()
            .and_then(|m| if m.len() > bytes { file.set_len(bytes) } else { Ok(()) });
        sized.with_context(|| format!("cannot resize bytes={bytes} file={}", path.display()))?;
        allocate(file, bytes)
            .with_context(|| format!("cannot allocate bytes={bytes} file={}", path.display()))?;
        self.sync(path)
    }

    /// Create a file of `bytes` zeros, and replace an existing one. Durable on return; a crash in
    /// between leaves no file.
    pub(crate) fn create(&mut self, path: &Path, bytes: u64) -> anyhow::Result<()> {
        let context = || format!("cannot create bytes={bytes} file={}", path.display());
        self.remove(path)?;
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            // As the store's own: other users must not read pages.
            .mode(0o600)
            .open(path)
            .with_context(context)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            bail!("the store is in use file={}", path.display());
        }
        write_in_place(&file);
        allocate(&file, bytes).with_context(context)?;
        file.sync_all().with_context(context)?;
        self.locks.held.insert(path.to_owned(), file);
        sync_dir(path)
    }

    /// Remove a file durably, if it exists.
    pub(crate) fn remove(&mut self, path: &Path) -> anyhow::Result<()> {
        #[cfg(test)]
        tests::step()?;
        #[cfg(test)]
        super::read::block_was_written(path, 0, u64::MAX);
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => {
                return Err(e).with_context(|| format!("cannot remove file={}", path.display()));
            }
        }
        self.locks.held.remove(path);
        sync_dir(path)
    }
}

/// The reason why a file cannot be opened for writing.
fn open_error(path: &Path) -> String {
    match open_store_file(path, Access::Write) {
        Ok(_) => format!("it was created meanwhile file={}", path.display()),
        Err(fault) => fault.to_string(),
    }
}

/// Allocate blocks up to `bytes`, so that later writes cannot fail with a full file system.
fn allocate(file: &File, bytes: u64) -> std::io::Result<()> {
    let have = file.metadata()?.len();
    if bytes == 0 {
        return Ok(());
    }
    match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        answer => return Ok(answer?),
    }
    let zeros = vec![0; ZEROS];
    let mut at = have;
    while at < bytes {
        let now = (bytes - at).min(ZEROS as u64);
        file.write_all_at(&zeros[..now as usize], at)?;
        at += now;
    }
    Ok(())
}

/// Make a directory's entries durable.
fn sync_dir(path: &Path) -> anyhow::Result<()> {
    let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(dir).and_then(|d| d.sync_all());
    synced.with_context(|| format!("cannot sync the directory dir={}", dir.display()))
}

#[cfg(test)]
pub(crate) use tests::{refuse_writes_at, stop_after};

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    thread_local! {
        static STEPS: Cell<Option<u32>> = const { Cell::new(None) };
        static REFUSED: RefCell<Option<(PathBuf, u64)>> = const { RefCell::new(None) };
    }

    /// Refuse writes of this thread at this offset of a file, as a device with a bad sector does.
    pub(crate) fn refuse_writes_at(place: Option<(PathBuf, u64)>) {
        REFUSED.set(place);
    }

    pub(super) fn refuse(path: &Path, offset: u64) -> anyhow::Result<()> {
        let refused =
            REFUSED.with_borrow(|r| r.as_ref().is_some_and(|(p, at)| p == path && *at == offset));
        match refused {
            true => {
                bail!("cannot write offset={offset} file={}: refused by a test", path.display())
            }
            false => Ok(()),
        }
    }

    /// Let only this number of further steps (writes, syncs, creations, removals) of this thread
    /// succeed, as if the process was killed after them.
    pub(crate) fn stop_after(steps: Option<u32>) {
        STEPS.set(steps);
    }

    pub(super) fn step() -> anyhow::Result<()> {
        match STEPS.get() {
            Some(0) => bail!("stopped by a test"),
            left => STEPS.set(left.map(|n| n - 1)),
        }
        Ok(())
    }

    #[test]
    fn files_are_created_resized_written_and_removed_under_their_locks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segments");
        let mut files = Files::lock(&[], None).unwrap_or_else(|p| panic!("held {p:?}"));
        assert!(files.write(&path, 0, &[1]).is_err(), "a write needs the lock");
        files.resize(&path, 8192).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "for the owner only");
        files.write(&path, 4096, &[7; 4096]).unwrap();
        files.zero(&path, 4096, 100).unwrap();
        files.sync(&path).unwrap();
        assert!(Files::lock(std::slice::from_ref(&path), None).is_err(), "the new file is locked");
        files.resize(&path, 4196).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), vec![0; 4196]);
        files.resize(&path, 5000).unwrap();
        assert_eq!(
            std::fs::read(&path).unwrap(),
            vec![0; 5000],
            "truncated bytes do not come back"
        );
        files.write(&path, 0, &[9]).unwrap();
        files.create(&path, 3).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [0; 3]);
        files.remove(&path).unwrap();
        files.remove(&path).unwrap();
        assert!(!path.exists());
    }
}
