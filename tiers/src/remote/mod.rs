//! A peer's store as a tier: which peer owns a page, and which is worth asking. Links are not known here; the engine
//! brings the two together.

pub mod breaker;
pub mod owners;
