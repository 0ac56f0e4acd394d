//! Writes: puts, groups, and copies into the arena.

pub(crate) mod cache_remote;
pub(crate) mod open_group;
pub(crate) mod put;
pub(crate) mod put_batch;
