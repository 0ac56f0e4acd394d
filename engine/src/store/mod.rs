//! The embedded store: open and close, sessions, and the calls of the public API.

pub(crate) mod close;
pub(crate) mod configured_peers;
pub(crate) mod embedded;
pub(crate) mod flush;
pub(crate) mod group;
pub(crate) mod hits_peers;
pub mod key_file;
pub(crate) mod open;
pub(crate) mod parts;
pub(crate) mod pooled;
pub(crate) mod prefetch;
pub(crate) mod registered;
pub(crate) mod remove;
pub(crate) mod session;
pub(crate) mod stats;
#[cfg(test)]
pub(crate) mod stepped;
