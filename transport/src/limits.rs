//! Bounds on the memory and the waiting time of a link. No peer can change any of them.

use std::time::Duration;

use crate::capability::CONTROL_BYTES_MAX;
use crate::inbound::{POLL_CONTROL_BYTES_MAX, READ_AHEAD_BYTES};

/// Maximum bytes held for a peer before it is authenticated.
pub const UNAUTHENTICATED_PEER_BYTES_MAX: usize = 16 << 10;

/// Maximum bytes of incoming data that a link holds: control frames that its user has not polled,
/// including the frame that exceeds their bound, and the read-ahead buffer.
pub const RECEIVED_BYTES_MAX: usize =
    POLL_CONTROL_BYTES_MAX + CONTROL_BYTES_MAX as usize + READ_AHEAD_BYTES;

/// Maximum bytes of control frames in the write buffer, which are written together. The last frame
/// staged may exceed it by its own length. Frames in the send queue are bounded separately
/// ([`LinkLimits::frame_bytes_max`]).
pub const WRITTEN_BYTES_MAX: usize = 64 << 10;

/// Queued releases at which a server stops reading from its client.
pub(crate) const RELEASES_QUEUED_MAX: usize = 4096;

/// Maximum queued pings, pongs and goodbyes.
pub(crate) const URGENT_MAX: usize = 16;

/// Bounds of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Maximum control frames in the send queue. Default 1024.
    pub frames_max: usize,
    /// Maximum bytes of their bodies. Default 8 MiB.
    pub frame_bytes_max: usize,
    /// Maximum pushes in the send queue. Default 4096.
    pub pushes_max: usize,
    /// Maximum exposed ranges. Default 65536.
    pub exposures_max: usize,
    /// Silence after which the peer gets a ping. Default 2 s.
    pub ping_after: Duration,
    /// Silence after which the peer is taken for dead. Default 6 s.
    pub dead_after: Duration,
    /// Time after which a link is closed whose retracted memory the peer's device may still access.
    /// Default 100 ms.
    pub revoke_timeout: Duration,
    /// Maximum duration of connecting, greeting and proof together. Default 5 s.
    pub handshake: Duration,
    /// Maximum duration of the part of it that ends with the peer's greeting. Default 1 s.
    pub greeting: Duration,
    /// Maximum unauthenticated connections of a listener. One source (an IP address, or a user of
    /// this host) has at most half of them. A new connection evicts one of its own source if that
    /// has its half, else one of the source that has most: the oldest that has not sent a greeting,
    /// or else the oldest. Default 64.
    pub unauthenticated_max: usize,
    /// Maximum links of a listener; it refuses another one. Default 4096.
    pub links_max: usize,
    /// Maximum bytes of memory of all clients together that a server maps. Memory beyond that is
    /// read by system calls. Default `u64::MAX`.
    pub mapped_max: u64,
    /// The same bound for one client process. Default `u64::MAX`.
    pub mapped_of_peer_max: u64,
}

impl Default for LinkLimits {
    fn default() -> LinkLimits {
        LinkLimits {
            frames_max: 1024,
            frame_bytes_max: 8 << 20,
            pushes_max: 4096,
            exposures_max: 65_536,
            ping_after: Duration::from_secs(2),
            dead_after: Duration::from_secs(6),
            revoke_timeout: Duration::from_millis(100),
            handshake: Duration::from_secs(5),
            greeting: Duration::from_secs(1),
            unauthenticated_max: 64,
            links_max: 4096,
            mapped_max: u64::MAX,
            mapped_of_peer_max: u64::MAX,
        }
    }
}
