//! Releasing the file locks of a parent process in a forked child. A child that was forked without
//! `exec` inherits its parent's descriptors, and with them the locks of its stores. While the child
//! lives no process could open those stores, even after the parent has ended.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;

use crate::files::Files;
use crate::sync::{LOCK_TRIES, StaticMutex, try_lock_static};

/// The open files of every disk, and the process that opened them.
static DISKS: StaticMutex<Vec<(u32, Weak<Files>)>> = StaticMutex::new(Vec::new());

/// Register the files of a disk. If a thread of the parent held the list at the fork, they are not
/// registered, and children of this process keep their locks.
pub(crate) fn track(files: &Arc<Files>) {
    let Some(mut disks) = try_lock_static(&DISKS, LOCK_TRIES) else { return };
    disks.retain(|(_, files)| files.strong_count() > 0);
    disks.push((std::process::id(), Arc::downgrade(files)));
}

/// For a child that was just forked: release the data files of stores that its parent has open. The
/// child must not use those stores anyway. Files that a parent's thread had locked at the time of
/// the fork are left as they are.
pub fn release_files_after_fork() {
    let Some(disks) = try_lock_static(&DISKS, 1) else { return };
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let own_pid = std::process::id();
    let others = disks.iter().filter(|(process, _)| *process != own_pid);
    for file in others.filter_map(|(_, files)| files.upgrade()).flat_map(|files| files.try_all()) {
        // SAFETY: `file` owns the descriptor, which stays open and stays owned by it. As dup3(2)
        // does, only the file description behind the descriptor is replaced, and this value is not
        // dropped.
        let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.fd.as_raw_fd()) });
        let _ = rustix::io::dup3(&null, &mut fd, DupFlags::CLOEXEC);
    }
}
