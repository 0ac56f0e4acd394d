//! Where bytes live: the DRAM arena, the SSD log, and the policies that choose what stays.
//!
//! Nothing here knows keys' meaning or the index; the engine ties tiers together. `unsafe` is confined to
//! `dram::arena`.

pub mod dram;
pub mod policy;
pub mod remote;
pub mod ssd;
