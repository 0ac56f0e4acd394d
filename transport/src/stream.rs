//! The byte stream under a link: a socket, or a pipe in memory in tests.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pagelith_layouts::wire::LinkRole;

use crate::link_error::LinkError;
use crate::shown::LinkRegions;

/// Result of one read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamResult {
    /// Number of bytes moved, at least 1.
    Bytes(usize),
    /// No byte can be moved now.
    Blocked,
    /// The peer closed the stream.
    Ended,
    /// The system call failed.
    Failed {
        /// Which operation.
        operation: &'static str,
        /// The kernel's errno.
        errno: i32,
    },
}

/// Directions for which a stream must be ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    /// Bytes can be read.
    pub read: bool,
    /// Bytes can be sent.
    pub write: bool,
}

impl Awaited {
    /// Bytes can be read.
    pub const READ: Awaited = Awaited { read: true, write: false };

    /// Bytes can be read, or sent if the caller waits for that.
    pub fn reading(write: bool) -> Awaited {
        Awaited { read: true, write }
    }
}

/// A bidirectional stream of bytes. Bytes arrive in order or not at all.
pub trait Stream: Send {
    /// Fill `parts` in order with received bytes. Never waits.
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> StreamResult;
    /// Send from `parts` in order. Never waits.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> StreamResult;
    /// The address of the peer's host, if it has one.
    fn peer_ip(&self) -> Option<IpAddr> {
        None
    }

    /// Whether the stream moves to a faster carrier after the handshake if these features are
    /// agreed.
    fn will_upgrade(&self, _features: u64) -> bool {
        false
    }

    /// Move to the faster carrier. Called after all bytes of the handshake are sent. False if more
    /// must arrive first. Never waits.
    fn upgrade_carrier(&mut self, _side: LinkRole, _features: u64) -> Result<bool, LinkError> {
        Ok(true)
    }

    /// Memory that the two ends share, after [`Stream::upgrade_carrier`] has returned true.
    fn regions(&self) -> LinkRegions {
        LinkRegions::default()
    }

    /// As `write`, but without waking the peer: it finds the bytes when it next polls.
    fn write_without_wake(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        self.write(parts)
    }

    /// See [`Link::wake_peer`](crate::link::Link::wake_peer).
    fn wake_peer(&mut self) {}

    /// Wait at most `timeout` until bytes can be read or, with `write`, sent. Returns false if
    /// neither is possible, which may be before the timeout.
    fn ready(&mut self, write: bool, timeout: Duration) -> bool;

    /// As `ready`, but wait only until bytes can be sent; received bytes stay unread.
    fn ready_to_write(&mut self, timeout: Duration) -> bool {
        self.ready(true, timeout)
    }

    /// As `ready` and `ready_to_write`, but also return true when one of `others` can be read. Only
    /// streams under an RDMA data plane need it; this one does not look at them.
    fn ready_with(
        &mut self,
        awaited: Awaited,
        _others: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> bool {
        match awaited.read {
            true => self.ready(awaited.write, timeout),
            false => self.ready_to_write(timeout),
        }
    }
}
