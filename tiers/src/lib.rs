//! The storage tiers: the DRAM arena, the SSD log, and eviction policies.
//!
//! This crate knows neither the meaning of keys nor the index; the engine connects the tiers.
//! `unsafe` is confined to `dram::arena`.

pub mod dram;
pub mod policy;
pub mod ssd;
