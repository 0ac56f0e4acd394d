//! Shared code of the crash tests: plans of operations, the driver that runs a plan against a store
//! and feeds the model, and the checker that reads every object of a reopened store.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod check;
pub mod objects;
pub mod plan;
pub mod puts;
pub mod run;
