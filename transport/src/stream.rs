//! What a byte-stream link is made over: a socket, or in tests memory that gives a byte at a time.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use pagelith_layouts::wire::Side;

use crate::closed::Closed;
use crate::shown::Regions;

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes, at least 1.
    Bytes(usize),
    /// None can be moved now.
    Blocked,
    /// The peer sends no more.
    Ended,
    /// The system failed it.
    Failed {
        /// Which operation.
        operation: &'static str,
        /// The kernel's errno.
        errno: i32,
    },
}

/// A stream of bytes in both directions. Bytes arrive in order or not at all.
pub trait Stream: Send {
    /// Fill `parts` in order with what has arrived. Never waits.
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> Moved;
    /// Send from `parts` in order. Never waits.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> Moved;
    /// Whether, with these features agreed, the stream goes on over something better than what the handshake came over.
    fn goes_over(&self, _features: u64) -> bool {
        false
    }

    /// Go over, once everything of the handshake is sent; false if more must arrive first. Never waits.
    fn go_over(&mut self, _side: Side, _features: u64) -> Result<bool, Closed> {
        Ok(true)
    }

    /// Memory that the two sides have handed each other, once it has gone over.
    fn regions(&self) -> Regions {
        Regions::default()
    }

    /// As `write`, of what the peer need not hear of before it looks by itself.
    fn write_quietly(&mut self, parts: &[IoSlice<'_>]) -> Moved {
        self.write(parts)
    }

    /// See [`Link::nudge`](crate::link::Link::nudge).
    fn nudge(&mut self) {}

    /// Wait until bytes can be read, or with `write` sent, at most `timeout`; false if none can, also before that time is up.
    fn ready(&mut self, write: bool, timeout: Duration) -> bool;

    /// The same, of bytes that can be sent alone: whatever has arrived is left where it is.
    fn ready_to_write(&mut self, timeout: Duration) -> bool {
        self.ready(true, timeout)
    }
}
