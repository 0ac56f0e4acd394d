//! A directory of one's own under the system's temporary directory, removed at the end whatever the outcome.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::output::log;

/// The directory; not made before it is asked for. Removed, with all that is in it, when the value goes, or when the process is
/// told to end; what a process leaves that is killed, the next one removes.
pub(crate) struct FreshDir {
    prefix: String,
    path: PathBuf,
    /// Held for its lock, by which others know that the directory is used.
    made: Option<OwnedFd>,
}

impl FreshDir {
    /// A name that nobody has: the process, and the moment.
    pub(crate) fn named(prefix: &str) -> FreshDir {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let prefix = format!("{prefix}.");
        let name = format!("{prefix}{}.{:x}", std::process::id(), now.as_nanos());
        FreshDir { prefix, path: std::env::temp_dir().join(name), made: None }
    }

    /// Where it is, or would be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Make it if one of `dirs` lies in it. An error if it is there already, since then it is somebody else's.
    pub(crate) fn make_for(&mut self, dirs: &[PathBuf]) -> anyhow::Result<()> {
        if dirs.iter().any(|dir| dir.starts_with(&self.path)) {
            remove_left_over(&self.prefix);
            let made = make(&self.path);
            let made =
                made.with_context(|| format!("cannot make a directory dir={}", self.path.display()))?;
            self.made = Some(made);
            remove_at_signals(self.path.clone()).context("cannot take signals")?;
        }
        Ok(())
    }
}

impl Drop for FreshDir {
    fn drop(&mut self) {
        if self.made.is_some()
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            log!("cannot remove the directory: {error} dir={}", self.path.display());
        }
    }
}

/// Make a directory, and hold its lock from when others can know its name.
fn make(path: &Path) -> io::Result<OwnedFd> {
    if path.exists() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // Not named as a directory that may be left over.
    let unlocked = path.with_file_name(format!("new-{}", path.file_name().unwrap_or_default().display()));
    std::fs::create_dir(&unlocked)?;
    let dir = OwnedFd::from(File::open(&unlocked)?);
    flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    std::fs::rename(&unlocked, path)?;
    Ok(dir)
}

/// Remove directories of this user whose processes were killed: their locks are free. A directory that cannot be removed stays.
fn remove_left_over(prefix: &str) {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        if named && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::open(entry.path(), flags, Mode::empty());
            if dir.is_ok_and(|dir| flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Have the directory go before a signal ends the process as it would have.
fn remove_at_signals(path: PathBuf) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new().name("pagelith-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            // A file that is made meanwhile has it begin anew.
            while std::fs::remove_dir_all(&path).is_err_and(|e| e.kind() == io::ErrorKind::DirectoryNotEmpty)
            {
            }
            let _ = emulate_default_handler(signal);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_only_if_used_and_removed_with_what_is_in_it() {
        let mut dir = FreshDir::named("pagelith-test");
        let path = dir.path().to_owned();
        dir.make_for(&[PathBuf::from("/elsewhere")]).unwrap();
        assert!(!path.exists());
        dir.make_for(&[path.join("store")]).unwrap();
        std::fs::write(path.join("file"), "x").unwrap();
        let said = dir.make_for(std::slice::from_ref(&path)).unwrap_err().to_string();
        assert!(said.starts_with("cannot make a directory dir="), "{said}");
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn directory_in_use_stays_and_one_left_over_goes() {
        let (mut used, left) = (FreshDir::named("pagelith-test-used"), FreshDir::named("pagelith-test-used"));
        used.make_for(&[used.path().to_owned()]).unwrap();
        std::fs::create_dir(left.path()).unwrap();
        std::fs::write(left.path().join("file"), "x").unwrap();
        remove_left_over("pagelith-test-used.");
        assert!(used.path().exists() && !left.path().exists());
    }
}
