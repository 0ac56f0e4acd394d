//! A directory of one's own under the system's temporary directory, removed at the end whatever the outcome.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use crate::output::log;

/// The directory; not made before it is asked for. Removed, with all that is in it, when the value goes: the
/// process must not exit before. A process that is killed leaves it behind.
pub(crate) struct FreshDir {
    path: PathBuf,
    made: bool,
}

impl FreshDir {
    /// A name that nobody has: the process, and the moment.
    pub(crate) fn named(prefix: &str) -> FreshDir {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("{prefix}-{}-{:x}", std::process::id(), now.as_nanos());
        FreshDir { path: std::env::temp_dir().join(name), made: false }
    }

    /// Where it is, or would be.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Make it if one of `dirs` lies in it. An error if it is there already, since then it is somebody else's.
    pub(crate) fn make_for(&mut self, dirs: &[PathBuf]) -> anyhow::Result<()> {
        if dirs.iter().any(|dir| dir.starts_with(&self.path)) {
            let made = std::fs::create_dir(&self.path);
            made.with_context(|| format!("cannot make a directory dir={}", self.path.display()))?;
            self.made = true;
        }
        Ok(())
    }
}

impl Drop for FreshDir {
    fn drop(&mut self) {
        if self.made
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            log!("cannot remove the directory: {error} dir={}", self.path.display());
        }
    }
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
}
