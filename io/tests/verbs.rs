//! Verbs over the fake library, or over the devices of the library that `TEST_PAGELITH_VERBS`
//! names. `TEST_PAGELITH_VM=1` makes a test without a device fail, where it would be skipped.

#![allow(clippy::disallowed_methods, reason = "tests copy files, start threads and have deadlines")]
#![allow(missing_docs, reason = "a test crate")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "tests of other crates need all of it")]
#[path = "verbs/fake.rs"]
mod fake;
#[path = "verbs/support.rs"]
mod support;

#[path = "verbs/discovery.rs"]
mod discovery;
#[path = "verbs/faults.rs"]
mod faults;
#[path = "verbs/operations.rs"]
mod operations;
#[path = "verbs/registration.rs"]
mod registration;
#[path = "verbs/take_down.rs"]
mod take_down;
