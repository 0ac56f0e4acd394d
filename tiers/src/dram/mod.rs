//! The DRAM tier: the memory of the arena, and the allocator of its pages.

pub mod arena;
pub mod space;
