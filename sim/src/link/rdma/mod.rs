//! A link with the rules of RDMA: control on the stream, bytes by one-sided transfers of the server
//! into memory that the client registered, and out of it.
//!
//! The rules are those of a reliable connection, and no more than those:
//! - The bytes of a WRITE land in pieces, in any order, until the client has polled a notice that
//!   the server posted after it, or until the client's own queue pair is down. They land after the
//!   server's completion, after the server flushed its queue or crashed, and after the end of the
//!   stream.
//! - A completion at the server shows that its own memory is free, nothing else.
//! - A READ takes bytes of the client at any time up to its completion.
//! - Taking a queue pair down takes time. Until it is down, bytes land.
//! - A notice needs a receive that the client has posted.

mod client;
mod device;
mod fabric;
mod memory;
mod server;
mod stats;

#[cfg(test)]
mod tests;

pub use client::GIVEN_UP_MAX;
pub(super) use client::RdmaClient;
pub(super) use device::DeviceTask;
pub(super) use fabric::Fabric;
pub use memory::RegisteredRegion;
pub(super) use memory::Target;
pub(super) use server::{Finished, Placement, RdmaServer, Segment};
pub use stats::{FabricStats, RdmaFaults};
