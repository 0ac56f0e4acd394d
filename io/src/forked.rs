//! A child that was forked without `exec` has its parent's descriptors, and with them the locks of its stores: nobody could
//! open them as long as the child lives, though the parent is gone.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;

use crate::files::Files;

/// The open files of every disk, and the process that opened them.
static DISKS: Mutex<Vec<(u32, Weak<Files>)>> = Mutex::new(Vec::new());

/// A disk has these files.
pub(crate) fn note(files: &Arc<Files>) {
    let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    disks.retain(|(_, files)| files.strong_count() > 0);
    disks.push((std::process::id(), Arc::downgrade(files)));
}

/// For a child that was just forked: let go of the data files of stores that its parent has open. The stores are not to be used
/// here anyway. What a thread of the parent's had locked at the fork is left as it is.
pub fn leave_files() {
    let Ok(disks) = DISKS.try_lock() else { return };
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let here = std::process::id();
    let others = disks.iter().filter(|(process, _)| *process != here);
    for file in others.filter_map(|(_, files)| files.upgrade()).flat_map(|files| files.try_all()) {
        // SAFETY: `file` owns the descriptor, which stays open, and its owner: of what it stands for another thing is made, as
        // dup3(2) does, and this value is not dropped.
        let mut fd = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(file.fd.as_raw_fd()) });
        let _ = rustix::io::dup3(&null, &mut fd, DupFlags::CLOEXEC);
    }
}
