//! RDMA as the data plane of links: devices and registered memory of this process.
//!
//! A link's control frames stay on its byte stream. [`host::RdmaHost`] has what all links of a
//! process share: open devices, their ports as rails, and registered regions.

pub mod counters;
pub mod host;
pub mod rail;
pub mod rail_health;
pub mod region;
