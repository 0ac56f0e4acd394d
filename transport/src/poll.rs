//! Waits for descriptors.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::stream::Awaited;

/// Wait at most `timeout` until one of these can be read, or written if its flag is set; false if
/// none can.
pub(crate) fn wait_for(descriptors: &[(BorrowedFd<'_>, bool)], timeout: Duration) -> bool {
    let awaited = descriptors.iter().map(|(fd, write)| (*fd, Awaited::reading(*write)));
    wait_for_any(awaited, timeout)
}

/// Wait at most `timeout` until one of these is ready as requested; false if none has. A
/// descriptor of which nothing is awaited is ignored.
pub(crate) fn wait_for_any<'a>(
    descriptors: impl Iterator<Item = (BorrowedFd<'a>, Awaited)>,
    timeout: Duration,
) -> bool {
    let flag = |set, flag| if set { flag } else { PollFlags::empty() };
    let flags =
        |awaited: Awaited| flag(awaited.read, PollFlags::IN) | flag(awaited.write, PollFlags::OUT);
    let mut fds: Vec<_> = descriptors
        .filter(|(_, awaited)| *awaited != Awaited::default())
        .map(|(fd, awaited)| PollFd::from_borrowed_fd(fd, flags(awaited)))
        .collect();
    let timeout = Timespec::try_from(timeout).ok();
    // A signal may end the wait early: callers check the clock.
    !matches!(poll(&mut fds, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
}
