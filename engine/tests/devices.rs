//! A store with devices of the fake drivers.

#![allow(clippy::disallowed_methods, reason = "tests copy files and start threads")]
#![allow(missing_docs, reason = "a test crate")]

#[allow(dead_code, reason = "the file is shared with the tests of io")]
#[path = "../../io/tests/devices/fake.rs"]
mod fake;

#[path = "devices/bind.rs"]
mod bind;
#[path = "devices/clients.rs"]
mod clients;
#[path = "devices/copies.rs"]
mod copies;
#[path = "devices/faults.rs"]
mod faults;
#[path = "devices/support.rs"]
mod support;
