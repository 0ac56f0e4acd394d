//! The embedded store: open and close, sessions, and the calls of the public API.

pub(crate) mod blocking_calls;
pub(crate) mod builder;
pub(crate) mod close;
pub(crate) mod configured_peers;
pub(crate) mod device_calls;
pub(crate) mod device_store;
pub(crate) mod devices;
pub(crate) mod embedded;
pub(crate) mod exists_groups;
pub(crate) mod flush;
pub(crate) mod group;
pub(crate) mod hint;
pub mod key_file;
pub(crate) mod log_use;
pub(crate) mod open;
mod open_volume;
pub(crate) mod page_store;
pub(crate) mod prefetch;
pub(crate) mod put_parts;
pub mod rdma;
pub(crate) mod registered_memory;
pub(crate) mod remote_counts;
pub(crate) mod remove;
pub(crate) mod session;
pub(crate) mod session_pool;
pub(crate) mod stats;
#[cfg(test)]
pub(crate) mod stepped_runtime;
