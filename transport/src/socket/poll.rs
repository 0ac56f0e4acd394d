//! Waits for sockets.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Wait at most `timeout` until one of these can be read, or written if its flag is set; false if
/// none can.
pub(super) fn wait_for(sockets: &[(BorrowedFd<'_>, bool)], timeout: Duration) -> bool {
    let flags = |write: &bool| if *write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds: Vec<_> =
        sockets.iter().map(|(fd, write)| PollFd::from_borrowed_fd(*fd, flags(write))).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // A signal may end the wait early: callers check the clock.
    !matches!(poll(&mut fds, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
}
