//! What the crash tests share: plans of operations, the driver that runs one against a store and tells the
//! model, and the checker that asks a reopened store for everything.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod check;
pub mod plan;
pub mod puts;
pub mod run;
pub mod world;
