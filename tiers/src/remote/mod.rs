//! Peers as a tier: the owner of a page, and a circuit breaker per peer. This module does not know
//! links; the engine connects the two.

pub mod breaker;
pub mod owners;
