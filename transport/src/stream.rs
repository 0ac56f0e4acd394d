//! The byte stream under a link: a socket, or a pipe in memory in tests.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use pagelith_layouts::wire::Side;

use crate::closed::Closed;
use crate::shown::LinkRegions;

/// Result of one read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoResult {
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

/// A bidirectional stream of bytes. Bytes arrive in order or not at all.
pub trait Stream: Send {
    /// Fill `parts` in order with received bytes. Never waits.
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> IoResult;
    /// Send from `parts` in order. Never waits.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> IoResult;
    /// Whether the stream moves to a faster carrier after the handshake if these features are
    /// agreed.
    fn goes_over(&self, _features: u64) -> bool {
        false
    }

    /// Move to the faster carrier. Called after all bytes of the handshake are sent. False if more
    /// must arrive first. Never waits.
    fn go_over(&mut self, _side: Side, _features: u64) -> Result<bool, Closed> {
        Ok(true)
    }

    /// Memory that the two ends share, after [`Stream::go_over`] has returned true.
    fn regions(&self) -> LinkRegions {
        LinkRegions::default()
    }

    /// As `write`, but without waking the peer: it finds the bytes when it next polls.
    fn write_quietly(&mut self, parts: &[IoSlice<'_>]) -> IoResult {
        self.write(parts)
    }

    /// See [`Link::nudge`](crate::link::Link::nudge).
    fn nudge(&mut self) {}

    /// Wait at most `timeout` until bytes can be read or, with `write`, sent. Returns false if
    /// neither is possible, which may be before the timeout.
    fn ready(&mut self, write: bool, timeout: Duration) -> bool;

    /// As `ready`, but wait only until bytes can be sent; received bytes stay unread.
    fn ready_to_write(&mut self, timeout: Duration) -> bool {
        self.ready(true, timeout)
    }
}
