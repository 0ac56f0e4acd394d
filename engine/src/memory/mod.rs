//! DRAM state: the index, the frames of the arena, pins, and the visibility filter.

pub(crate) mod departed;
pub(crate) mod frames;
pub(crate) mod index;
pub(crate) mod namespaces;
pub(crate) mod pins;
pub(crate) mod tenants;
pub(crate) mod undecided;
pub(crate) mod visibility;
