//! What DRAM holds: the index, frames of the arena, pins.

pub(crate) mod frames;
pub(crate) mod index;
pub(crate) mod pins;
pub(crate) mod visibility;
