//! The DRAM tier: the memory of the arena, and the allocator of its 4 KiB units.

pub mod arena;
pub mod space;
