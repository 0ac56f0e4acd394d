//! Devices over the fake drivers.

#![allow(clippy::disallowed_methods, reason = "tests copy files and start threads")]
#![allow(missing_docs, reason = "a test crate")]

#[path = "devices/copies.rs"]
mod copies;
#[allow(dead_code, reason = "tests of other crates include the file")]
#[path = "devices/fake.rs"]
mod fake;
#[path = "devices/locked.rs"]
mod locked;
#[path = "devices/no_thread.rs"]
mod no_thread;
#[path = "devices/order.rs"]
mod order;
