//! Releasing the descriptors of a parent process in a forked child. A child that was forked without
//! `exec` inherits them, and with them the locks of its stores, their shared memory and the sockets
//! at which they listen. While the child lives no process could open those stores or listen there,
//! even after the parent has ended.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;

use crate::sync::{LOCK_TRIES, StaticMutex, try_lock_static};

/// Owner of descriptors that a forked child must not keep.
pub(crate) trait Descriptors: Send + Sync {
    /// Call `each` for all of them, but for those that another thread has locked.
    fn try_each(&self, each: &mut dyn FnMut(&OwnedFd));
}

impl Descriptors for OwnedFd {
    fn try_each(&self, each: &mut dyn FnMut(&OwnedFd)) {
        each(self);
    }
}

/// Owners, with the processes that opened their descriptors. An owner that closes them cannot be
/// upgraded any more, so no number is touched that is in use for something else.
static TRACKED: StaticMutex<Vec<(u32, Weak<dyn Descriptors>)>> = StaticMutex::new(Vec::new());

/// Register an owner. If a thread of the parent held the list at the fork, it is not registered,
/// and children of this process keep its descriptors.
pub(crate) fn track<T: Descriptors + 'static>(owner: &Arc<T>) {
    let Some(mut tracked) = try_lock_static(&TRACKED, LOCK_TRIES) else { return };
    tracked.retain(|(_, owner)| owner.strong_count() > 0);
    let owner = Arc::downgrade(owner);
    tracked.push((std::process::id(), owner));
}

/// Let children forked from this process not keep a descriptor: they call
/// [`release_after_fork`].
pub fn track_descriptor(fd: &Arc<OwnedFd>) {
    track(fd);
}

/// For a child that was just forked: release the data files, shared memory and listening sockets of
/// stores that its parent has open. The child must not use those stores anyway. What a parent's
/// thread had locked at the time of the fork is left as it is.
pub fn release_after_fork() {
    let Some(tracked) = try_lock_static(&TRACKED, 1) else { return };
    release(&tracked, std::process::id());
}

/// Release what other processes than `own_pid` opened.
fn release(tracked: &[(u32, Weak<dyn Descriptors>)], own_pid: u32) {
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let others = tracked.iter().filter(|(process, _)| *process != own_pid);
    for owner in others.filter_map(|(_, owner)| owner.upgrade()) {
        owner.try_each(&mut |fd| replace(fd, &null));
    }
}

/// Let `fd` refer to what `null` does.
fn replace(fd: &OwnedFd, null: &OwnedFd) {
    // SAFETY: `fd` owns the descriptor, which stays open and stays owned by it. As dup3(2) does,
    // only the file description behind the descriptor is replaced, and this value is not dropped.
    let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd.as_raw_fd()) });
    let _ = rustix::io::dup3(null, &mut fd, DupFlags::CLOEXEC);
}

/// Whether this process has registered a descriptor.
#[cfg(test)]
pub(crate) fn is_tracked(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let tracked = try_lock_static(&TRACKED, LOCK_TRIES).expect("a free lock");
    let mut found = false;
    for (process, owner) in tracked.iter() {
        let mut each = |own: &OwnedFd| found |= own.as_raw_fd() == fd.as_raw_fd();
        let owner = owner.upgrade().filter(|_| *process == std::process::id());
        owner.iter().for_each(|owner| owner.try_each(&mut each));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{FileType, MemfdFlags, fstat, memfd_create};

    use super::*;

    fn is_null(fd: impl AsFd) -> bool {
        let stat = fstat(fd).expect("open");
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
    }

    #[test]
    fn descriptors_of_another_process_are_replaced_and_own_ones_kept() {
        let memory = || Arc::new(memfd_create("test", MemfdFlags::CLOEXEC).expect("memory"));
        let (others, own, closed) = (memory(), memory(), memory());
        let of = |process: u32, fd: &Arc<OwnedFd>| -> (u32, Weak<dyn Descriptors>) {
            let fd = Arc::downgrade(fd);
            (process, fd)
        };
        let tracked = [of(1, &others), of(2, &own), of(1, &closed)];
        let number = closed.as_raw_fd();
        drop(closed);
        let reused = memory();
        release(&tracked, 2);
        assert!(is_null(&others));
        assert!(!is_null(&own));
        assert!(!is_null(&reused), "closed={number} reused={}", reused.as_raw_fd());
    }
}
