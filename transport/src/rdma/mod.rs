//! RDMA as the data plane of links: devices and registered memory of this process.
//!
//! A link's control frames stay on its byte stream. [`host::RdmaHost`] has what all links of a
//! process share: open devices, their ports as rails, and registered regions. Each link has a data
//! plane, with a queue pair for each rail: the client tells where it wants bytes (`client_plane`),
//! the server writes them there and reads those of puts (`server_plane`). `take_down` ends it.

pub mod counters;
pub mod host;
pub mod rail;
pub mod rail_health;
pub mod rdma_use;
pub mod region;
pub mod registration;

mod client_plane;
mod data_plane;
mod own_regions;
mod peer_regions;
mod rail_queue;
mod rails;
mod rails_exchange;
mod requests;
mod server_plane;
mod take_down;
mod take_down_progress;
mod targets;

pub(crate) use client_plane::ClientPlane;
pub(crate) use data_plane::DataPlane;
pub(crate) use rail_queue::WrittenBytes;
pub(crate) use rails_exchange::{Exchanged, PendingRails, RailsExchange};
pub(crate) use server_plane::{Completed, Placement, ReadDone, STRIPE_BYTES, ServerPlane};
pub(crate) use take_down::TakeDown;
pub(crate) use take_down_progress::TakenDown;
