//! Control of a connection from outside, where tests break it.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::signal::Signal;
use pagelith_layouts::wire::LinkRole;

use super::wire::{LinkFaults, NetStats, Wire};

/// Controls the connection from outside, where tests break it. Clones control the same connection.
#[derive(Clone)]
pub struct SimNet(pub(super) Arc<Mutex<Wire>>);

impl SimNet {
    pub(super) fn wire(&self) -> MutexGuard<'_, Wire> {
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
    pub fn stop_receiving(&self, side: LinkRole) {
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
        let wire = self.wire();
        let fabric = wire.fabric.as_ref().map(|fabric| fabric.stats).unwrap_or_default();
        NetStats { fabric, ..wire.net_stats }
    }

    /// The server's process ends at once: nothing more is read from its memory.
    pub fn crash_server(&self) {
        self.wire().with_fabric(|fabric, _| fabric.crash_server());
    }

    /// Whether a queue pair is up, although both ends have closed.
    pub fn holds_queue_pairs(&self) -> bool {
        self.wire().fabric.as_ref().is_some_and(|fabric| !fabric.is_over())
    }

    /// Whether both ends are closed, or the connection is broken.
    pub fn is_over(&self) -> bool {
        self.wire().is_over()
    }

    /// Time until a packet arrives at this side, or until it must detect that none does.
    pub fn due(&self, side: LinkRole) -> Option<Duration> {
        self.wire().due(side)
    }

    /// Raised when a packet is sent to this side.
    pub fn signal(&self, side: LinkRole) -> Signal {
        self.wire().signal(side)
    }

    /// A hash of every packet sent and received, with time and fate: equal runs have equal hashes.
    pub fn trace(&self) -> u64 {
        let wire = self.wire();
        wire.fabric.as_ref().map_or(wire.trace, |fabric| wire.trace ^ fabric.trace)
    }
}
