//! A simulated network with one connection between two ends of a link, in one process, decided by
//! one seed.
//!
//! Without faults it keeps the promises of [`pagelith_transport::link`]: frames arrive whole and in
//! order, after a delay. Faults go beyond those promises, and code built on links must treat them
//! as misses. Packets are dropped, duplicated or overtaken, as on a defective fabric or between
//! connections; connections break; ends receive nothing any more without notification; partitions
//! delay everything.
//!
//! Ends on one host pass bytes by reference ([`SimLink::sharing`]), as a link through shared memory
//! does.
//!
//! Invariants: only an end's own `poll` writes its memory, and only while it is exposed there. The
//! same seed and the same calls give the same trace.

mod end;
mod exposed;
mod owed_outcomes;
mod plant;
mod reference_check;
mod shares;
mod wire;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_shares;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::runtime::Runtime;
use pagelith_io::signal::Signal;
use pagelith_layouts::wire::Side;
use pagelith_transport::limits::Limits;

use crate::clock::SimClock;
use wire::Wire;

pub use end::SimLink;
pub use plant::Plant;

/// Delays and fault rates of packets. A packet is a control frame, or at most [`PACKET_BYTES`] of
/// bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFaults {
    /// Shortest delay of a packet.
    pub delay_min: Duration,
    /// Longest delay of a packet.
    pub delay_max: Duration,
    /// Packets of a million that never arrive.
    pub drop: u32,
    /// Packets of a million that arrive twice.
    pub duplicate: u32,
    /// Packets of a million that later packets overtake.
    pub reorder: u32,
    /// Packets of a million at which the connection breaks: no later packet arrives, and both ends
    /// are notified.
    pub cut: u32,
    /// Bulk packets of a million in which one bit is flipped. Only verification detects that.
    pub flip: u32,
    /// Longest time between a push and the read of its memory. The link owns the memory until then,
    /// as with a device that reads it by DMA.
    /// reads it by itself.
    pub hold_max: Duration,
}

/// Counters of packets and of violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Sent.
    pub packets: u64,
    /// Packets that never arrived: lost by chance, or sent over a broken connection.
    pub dropped: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets that were overtaken.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub flipped: u64,
    /// Packets that arrived at an end that had given up or finished their operation.
    pub late: u64,
    /// Connections that broke.
    pub cuts: u64,
    /// Ranges passed by reference to memory.
    pub shown: u64,
    /// Of `shown`, ranges read after the reference was withdrawn.
    pub looked_late: u64,
    /// Requests of stores to their peers.
    pub questions: u64,
    /// Of `shown`, ranges that changed while referenced, or that do not match the
    /// checksums of the outcome.
    pub broken: u64,
    /// Cancelled requests without an outcome, and outcomes without a request.
    pub unowed: u64,
}

/// Most bulk bytes of a packet.
pub const PACKET_BYTES: usize = 16 << 10;

impl Default for LinkFaults {
    fn default() -> LinkFaults {
        let (delay_min, delay_max) = (Duration::from_micros(5), Duration::from_micros(50));
        let (drop, duplicate, reorder, cut, flip, hold_max) = Default::default();
        LinkFaults { delay_min, delay_max, drop, duplicate, reorder, cut, flip, hold_max }
    }
}

/// Controls the connection from outside, where tests break it. Clones control the same connection.
#[derive(Clone)]
pub struct SimNet(Arc<Mutex<Wire>>);

impl SimNet {
    /// A connection and its two ends, the client's first. Time is `clock`; waiting goes through
    /// `runtime`, so that the tasks of the other end are stepped meanwhile.
    pub fn new(
        seed: u64,
        clock: SimClock,
        runtime: &Arc<dyn Runtime>,
        limits: Limits,
    ) -> (SimNet, SimLink, SimLink) {
        let net = SimNet(Arc::new(Mutex::new(Wire::new(seed, clock, limits.dead_after))));
        let end = |side| SimLink::new(side, net.clone(), runtime.clone(), limits);
        let (client, server) = (end(Side::Client), end(Side::Server));
        (net, client, server)
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults of later packets.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.wire().faults = faults;
    }

    /// Marks the connection as one between two stores: its requests are added to `questions`.
    pub fn count_requests(&self, questions: Arc<AtomicU64>) {
        self.wire().request_counter = Some(questions);
    }

    /// Delays every packet by `time`, as a network partition does; delayed packets then arrive in
    /// order.
    pub fn partition(&self, time: Duration) {
        self.wire().partition(time);
    }

    /// Half-open connection: this side receives nothing any more, and no end is notified.
    pub fn stop_receiving(&self, side: Side) {
        self.wire().stop_receiving(side);
    }

    /// Breaks the connection: packets in transit are lost, both ends are notified.
    pub fn cut(&self) {
        self.wire().cut();
    }

    /// Packets sent so far.
    pub fn packets(&self) -> u64 {
        self.wire().net_stats.packets
    }

    /// Counters so far.
    pub fn net_stats(&self) -> NetStats {
        self.wire().net_stats
    }

    /// Whether both ends are closed, or the connection is broken.
    pub fn is_over(&self) -> bool {
        self.wire().is_over()
    }

    /// Time until a packet arrives at this side, or until it must detect that none does.
    pub fn due(&self, side: Side) -> Option<Duration> {
        self.wire().due(side)
    }

    /// Raised when a packet is sent to this side.
    pub fn signal(&self, side: Side) -> Signal {
        self.wire().signal(side)
    }

    /// A hash of every packet sent and received, with time and fate: equal runs have equal hashes.
    pub fn trace(&self) -> u64 {
        self.wire().trace
    }
}
