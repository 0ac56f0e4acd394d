//! A network of one connection between two ends of a link, in one process and of one seed.
//!
//! Left alone it is what [`pagelith_transport::link`] promises: frames whole and in order, after a delay. Faults go
//! beyond that promise, and what is built on links must bear them as misses: packets that are dropped, come twice, or
//! are overtaken, as on a fabric that is defective or between connections; connections that break; ends that hear
//! nothing any more and are not told; partitions, behind which everything is late.
//!
//! Ends of one host show each other bytes where they lie ([`SimLink::sharing`]), as a link through shared memory does.
//!
//! Invariants: an end's memory is written by that end's `poll` alone, and only while it is exposed there; the same seed
//! and the same calls give the same trace.

mod end;
mod landing;
mod owed;
mod plant;
mod shares;
mod watch;
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

/// How packets fare. A packet is a control frame, or at most [`PACKET_BYTES`] of bulk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFaults {
    /// Shortest delay of a packet.
    pub delay_min: Duration,
    /// Longest delay of a packet.
    pub delay_max: Duration,
    /// So many of a million packets never arrive.
    pub drop: u32,
    /// So many of a million arrive twice.
    pub duplicate: u32,
    /// So many of a million are overtaken by those behind them.
    pub reorder: u32,
    /// At so many of a million the connection breaks: nothing behind arrives, and both ends are told.
    pub cut: u32,
    /// Of so many of a million packets of bulk a bit is changed. Nothing but what verifies bytes notices.
    pub flip: u32,
    /// Longest that a push waits before its bytes are looked at: the memory is the link's until then, as with a device that
    /// reads it by itself.
    pub hold_max: Duration,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Sent.
    pub packets: u64,
    /// Of those, that never arrived: lost by chance, or sent over a connection that was broken.
    pub dropped: u64,
    /// That came twice.
    pub duplicated: u64,
    /// That were overtaken.
    pub reordered: u64,
    /// That had a bit changed.
    pub flipped: u64,
    /// That arrived at an end which had given their operation up, or was done with it.
    pub late: u64,
    /// Connections that broke.
    pub cuts: u64,
    /// Stretches that were shown where they lie in memory.
    pub shown: u64,
    /// Batches that a client copied without asking.
    pub unasked: u64,
    /// Of both, those that were looked at when they were shown no more.
    pub looked_late: u64,
    /// Requests of stores to their peers.
    pub questions: u64,
    /// Of both, those that changed while they were shown, or are not what the outcome vouches for.
    pub broken: u64,
    /// Requests that were cancelled and have no outcome, and outcomes that nobody is owed.
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

/// The connection, seen from outside: where tests break it. Clones are the same connection.
#[derive(Clone)]
pub struct SimNet(Arc<Mutex<Wire>>);

impl SimNet {
    /// A connection and its two ends, the client's first. Time is `clock`'s; waiting goes through `runtime`, so that the
    /// tasks of the other end are stepped meanwhile.
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

    /// How packets fare from now on.
    pub fn set_faults(&self, faults: LinkFaults) {
        self.wire().faults = faults;
    }

    /// It is between two stores: what is asked over it is counted there, too.
    pub fn of_stores(&self, questions: Arc<AtomicU64>) {
        self.wire().of_stores = Some(questions);
    }

    /// Hold every packet for so long, as a network that is apart does; what is late arrives behind it, in order.
    pub fn partition(&self, time: Duration) {
        self.wire().partition(time);
    }

    /// Half-open: this side hears nothing any more, and nobody is told.
    pub fn deafen(&self, side: Side) {
        self.wire().deafen(side);
    }

    /// Break the connection: what is under way is lost, both ends are told.
    pub fn cut(&self) {
        self.wire().cut();
    }

    /// Packets sent so far.
    pub fn packets(&self) -> u64 {
        self.wire().fates.packets
    }

    /// What became of packets so far.
    pub fn fates(&self) -> Fates {
        self.wire().fates
    }

    /// Whether both ends are closed, or the connection is broken.
    pub fn is_over(&self) -> bool {
        self.wire().is_over()
    }

    /// How long until something arrives at this side, or it must find that nothing does.
    pub fn due(&self, side: Side) -> Option<Duration> {
        self.wire().due(side)
    }

    /// Raised when something is on its way to this side.
    pub fn signal(&self, side: Side) -> Signal {
        self.wire().signal(side)
    }

    /// A hash of everything that was sent and arrived, when and how: equal for equal runs.
    pub fn trace(&self) -> u64 {
        self.wire().trace
    }
}
