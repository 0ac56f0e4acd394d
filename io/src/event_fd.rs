//! An eventfd: a descriptor that poll loops wait on.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

use crate::fault::{FaultOp, IoFault};

/// A descriptor that is readable while it is raised.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A descriptor that is not raised.
    ///
    /// # Errors
    /// `Exhausted` if the process has no free descriptor.
    pub fn new() -> Result<EventFd, IoFault> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fault =
            |errno: Errno| IoFault::of_errno(FaultOp::Open, "eventfd", 0, errno.raw_os_error());
        eventfd(0, flags).map(EventFd).map_err(fault)
    }

    /// Make it readable.
    pub fn raise(&self) {
        // It fails only if the counter is full, and then the descriptor is readable.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Make it unreadable until the next raise.
    pub fn clear(&self) {
        // It fails only if the counter is 0.
        let _ = read(&self.0, &mut [0_u8; 8][..]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(event: &EventFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&now)).expect("polled") == 1
    }

    #[test]
    fn event_fd_is_readable_from_raise_to_clear() {
        let event = EventFd::new().expect("a descriptor");
        assert!(!is_readable(&event));
        event.raise();
        event.raise();
        assert!(is_readable(&event));
        event.clear();
        assert!(!is_readable(&event));
        event.clear();
        event.raise();
        assert!(is_readable(&event));
    }
}
