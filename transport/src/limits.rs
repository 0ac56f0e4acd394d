//! How much a link may hold, and how long it waits. Every bound here is one that a peer cannot move.

use std::time::Duration;

use crate::capability::CONTROL_BYTES_MAX;
use crate::inbound::{AHEAD_BYTES, TURN_CONTROL_BYTES};
use crate::outbound::STAGE_BYTES;

/// Most bytes that are held for a peer before it is known.
pub const UNKNOWN_PEER_BYTES_MAX: usize = 16 << 10;

/// Most bytes that a link holds of what arrives: control frames that its user has not looked at, with the one that exceeds their bound, and what
/// is read ahead.
pub const RECEIVED_BYTES_MAX: usize = TURN_CONTROL_BYTES + CONTROL_BYTES_MAX as usize + AHEAD_BYTES;

/// Most bytes of control frames that a link is writing, beside the last of these and beside what waits.
pub const WRITTEN_BYTES_MAX: usize = STAGE_BYTES;

/// Bounds of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most control frames that wait to be sent. Default 1024.
    pub frames_max: usize,
    /// Most bytes of their bodies. Default 8 MiB.
    pub frame_bytes_max: usize,
    /// Most pushes that wait to be sent. Default 4096.
    pub pushes_max: usize,
    /// Most stretches exposed. Default 65536.
    pub exposures_max: usize,
    /// A peer that was silent for so long is asked whether it is there. Default 2 s.
    pub ping_after: Duration,
    /// A peer that was silent for so long is dead. Default 6 s.
    pub dead_after: Duration,
    /// Longest that connecting, greeting and proof may take together. Default 5 s.
    pub handshake: Duration,
    /// Longest that a peer may take of that until it has greeted. Default 1 s.
    pub greeting: Duration,
    /// Most connections of a listener that are not known yet, half of them from one source: an address, or a user of this host. One more
    /// takes the place of one of its source, or of the source that has most: the oldest that has not greeted, or the oldest. Default 64.
    pub unknown_max: usize,
    /// Most links of a listener at a time; one more is refused. Default 4096.
    pub links_max: usize,
    /// Most bytes of clients' own memory that a server maps, of all its clients' together; what is more is read by calls. Default `u64::MAX`.
    pub mapped_max: u64,
    /// The same of one client's process. Default `u64::MAX`.
    pub mapped_of_peer_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            frames_max: 1024,
            frame_bytes_max: 8 << 20,
            pushes_max: 4096,
            exposures_max: 65_536,
            ping_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            handshake: Duration::from_secs(5),
            greeting: Duration::from_secs(1),
            unknown_max: 64,
            links_max: 4096,
            mapped_max: u64::MAX,
            mapped_of_peer_max: u64::MAX,
        }
    }
}
