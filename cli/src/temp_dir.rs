//! A new directory under the system's temporary directory, removed at the end in every case.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::end_signals::end_signals;
use crate::output::log;

/// A temporary directory, created on demand. It is removed with its content when the value is
/// dropped, and when a signal ends the process. The next process removes the directory of a killed
/// one.
pub(crate) struct TempDir {
    prefix: String,
    path: PathBuf,
    /// The created directory; its lock tells other processes that it is in use.
    made: Option<OwnedFd>,
}

impl TempDir {
    /// A directory with a unique name: prefix, process id and time.
    pub(crate) fn with_prefix(prefix: &str) -> TempDir {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let prefix = format!("{prefix}.");
        let name = format!("{prefix}{}.{:x}", std::process::id(), now.as_nanos());
        TempDir { prefix, path: std::env::temp_dir().join(name), made: None }
    }

    /// The path of the directory, created or not.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Create it if one of `dirs` is inside of it. An error if it exists already, since then it
    /// belongs to another process.
    pub(crate) fn make_for(&mut self, dirs: &[PathBuf]) -> anyhow::Result<()> {
        if dirs.iter().any(|dir| dir.starts_with(&self.path)) {
            remove_stale(&self.prefix);
            let made = make(&self.path);
            let made = made
                .with_context(|| format!("cannot make a directory dir={}", self.path.display()))?;
            self.made = Some(made);
            remove_on_signals(self.path.clone()).context("cannot take signals")?;
        }
        Ok(())
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if self.made.is_some()
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            log!("cannot remove the directory: {error} dir={}", self.path.display());
        }
    }
}

/// Create a directory that is locked as soon as it has its final name.
fn make(path: &Path) -> io::Result<OwnedFd> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // `remove_stale` does not match this name.
    let unlocked =
        path.with_file_name(format!("new-{}", path.file_name().unwrap_or_default().display()));
    std::fs::create_dir(&unlocked)?;
    let dir = OwnedFd::from(File::open(&unlocked)?);
    flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    std::fs::rename(&unlocked, path)?;
    Ok(dir)
}

/// Whether a name is one that [`TempDir::with_prefix`] gives: a user's directory may begin alike.
fn is_own_name(prefix: &str, name: &str) -> bool {
    let numbers = name.strip_prefix(prefix).and_then(|rest| rest.split_once('.'));
    numbers.is_some_and(|(pid, time)| {
        pid.parse::<u32>().is_ok() && u128::from_str_radix(time, 16).is_ok()
    })
}

/// Remove directories of this user whose processes were killed: their locks are free. Errors are
/// ignored.
fn remove_stale(prefix: &str) {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| is_own_name(prefix, name));
        if named && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::open(entry.path(), flags, Mode::empty());
            if dir.is_ok_and(|dir| flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Remove the directory when a signal arrives, before the signal ends the process.
fn remove_on_signals(path: PathBuf) -> io::Result<()> {
    let mut signals = Signals::new(end_signals())?;
    std::thread::Builder::new().name("pagelith-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            // Starts again if a file is created meanwhile.
            while std::fs::remove_dir_all(&path)
                .is_err_and(|e| e.kind() == io::ErrorKind::DirectoryNotEmpty)
            {}
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_created_on_demand_and_removed_with_its_content() {
        let mut dir = TempDir::with_prefix("pagelith-test");
        let path = dir.path().to_owned();
        dir.make_for(&[PathBuf::from("/elsewhere")]).unwrap();
        assert!(!path.exists());
        dir.make_for(&[path.join("store")]).unwrap();
        std::fs::write(path.join("file"), "x").unwrap();
        let error = dir.make_for(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(error.starts_with("cannot make a directory dir="), "{error}");
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn stale_directory_is_removed_and_one_in_use_is_kept() {
        let (mut used, left) = (
            TempDir::with_prefix("pagelith-test-used"),
            TempDir::with_prefix("pagelith-test-used"),
        );
        used.make_for(&[used.path().to_owned()]).unwrap();
        std::fs::create_dir(left.path()).unwrap();
        let users =
            std::env::temp_dir().join(format!("pagelith-test-used.kv.{}", std::process::id()));
        std::fs::create_dir(&users).unwrap();
        std::fs::write(left.path().join("file"), "x").unwrap();
        remove_stale("pagelith-test-used.");
        assert!(used.path().exists() && !left.path().exists());
        std::fs::remove_dir(&users).expect("the directory of a user is kept");
    }
}
