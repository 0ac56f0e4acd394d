//! The DRAM tier's memory: the arena's bytes, and who has which part of it.

pub mod arena;
pub mod space;
