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
//! does. Ends with RDMA ([`SimNet::with_rdma`]) move bytes by one-sided transfers.
//!
//! Invariants: without RDMA only an end's own `poll` writes its memory, and only while it is
//! exposed there. The same seed and the same calls give the same trace.

mod end;
mod exposed;
mod net;
mod owed_outcomes;
mod planted_bug;
mod rdma;
mod reference_check;
mod sharing;
mod wire;

#[cfg(test)]
mod shares_test;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use pagelith_io::runtime::Runtime;
use pagelith_layouts::wire::LinkRole;
use pagelith_transport::limits::LinkLimits;

use crate::clock::SimClock;
use rdma::{DeviceTask, Fabric};
use wire::Wire;

pub use end::SimLink;
pub use net::SimNet;
pub use planted_bug::PlantedBug;
pub use rdma::{FabricStats, GIVEN_UP_MAX, RdmaFaults, RegisteredRegion};
pub use wire::{LinkFaults, NetStats, PACKET_BYTES};

impl SimNet {
    /// A connection and its two ends, the client's first. Time is `clock`; waiting goes through
    /// `runtime`, so that the tasks of the other end are stepped meanwhile.
    pub fn new(
        seed: u64,
        clock: SimClock,
        runtime: &Arc<dyn Runtime>,
        limits: LinkLimits,
    ) -> (SimNet, SimLink, SimLink) {
        let net = SimNet(Arc::new(Mutex::new(Wire::new(seed, clock, limits.dead_after))));
        let end = |side| SimLink::new(side, net.clone(), runtime.clone(), limits);
        let (client, server) = (end(LinkRole::Client), end(LinkRole::Server));
        (net, client, server)
    }

    /// As [`SimNet::new`], with one-sided transfers to and from memory that the client registered;
    /// shorter memory than `least` bytes is not a target of them. The stream of such a connection
    /// neither drops nor reorders packets, see [`LinkFaults::of_stream`].
    pub fn with_rdma(
        seed: u64,
        clock: SimClock,
        runtime: &Arc<dyn Runtime>,
        limits: LinkLimits,
        (regions, least, faults): (Vec<RegisteredRegion>, u64, RdmaFaults),
    ) -> (SimNet, SimLink, SimLink) {
        let (net, client, server) = SimNet::new(seed, clock, runtime, limits);
        net.wire().fabric = Some(Fabric::new(regions, faults, seed));
        let wake = net.wire().device.clone();
        let device = Box::new(DeviceTask(net.clone()));
        // At the end of a run the process is dead. The devices then work while an end is polled.
        drop(runtime.spawn("device", device, wake));
        (net, client.with_rdma(least), server.with_rdma(least))
    }
}
