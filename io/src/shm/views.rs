//! Views of the same memory, mapped once: a process has a link for each of its threads, and is handed the same file on each.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::fstat;

use super::region::View;
use crate::sync::{PoisonError, StaticMutex};

/// A file, as the system tells them apart as long as it is there: a view that is kept keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    number: u64,
}

static MAPPED: StaticMutex<Vec<(File, Weak<View>)>> = StaticMutex::new(Vec::new());

impl View {
    /// As [`View::of`]; of what this process has mapped already, as long as it is now, that mapping.
    pub fn shared(fd: OwnedFd) -> std::io::Result<Arc<View>> {
        let stat = fstat(fd.as_fd())?;
        let file = File { device: stat.st_dev, number: stat.st_ino };
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|(_, view)| view.strong_count() > 0);
        let same = mapped.iter().filter(|(other, _)| *other == file).filter_map(|(_, view)| view.upgrade());
        let same = same.into_iter().find(|view| view.len() as i64 == stat.st_size);
        if let Some(view) = same {
            return Ok(view);
        }
        let view = Arc::new(View::of(fd)?);
        // What is not mapped is read through its own descriptor.
        if view.is_mapped() {
            mapped.push((file, Arc::downgrade(&view)));
        }
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::Region;
    use super::*;

    fn handed(region: &Region) -> OwnedFd {
        region.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    #[test]
    fn the_same_memory_is_mapped_once_as_long_as_somebody_looks_at_it() {
        let (region, other) = (Region::new(8192).expect("memory"), Region::new(8192).expect("memory"));
        let view = View::shared(handed(&region)).expect("a view");
        let again = View::shared(handed(&region)).expect("a view");
        assert!(Arc::ptr_eq(&view, &again));
        assert!(!Arc::ptr_eq(&view, &View::shared(handed(&other)).expect("a view")), "other memory");
        let gone = Arc::downgrade(&view);
        drop((view, again));
        assert!(gone.upgrade().is_none(), "nobody keeps it");
        let anew = View::shared(handed(&region)).expect("a view");
        assert_eq!(anew.len(), 8192);
    }

    #[test]
    fn what_has_grown_is_mapped_anew() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, 4096).expect("memory");
        fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seals");
        let short = View::shared(fd.try_clone().expect("a descriptor")).expect("a view");
        ftruncate(&fd, 8192).expect("memory");
        let long = View::shared(fd).expect("a view");
        assert_eq!((short.len(), long.len()), (4096, 8192));
    }
}
