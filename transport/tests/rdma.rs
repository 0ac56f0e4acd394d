//! Links with an RDMA data plane: TCP on loopback, and queue pairs of the fake verbs library. Both
//! ends are polled by one thread; each poll is a step of the fake devices.

#![allow(clippy::disallowed_methods, reason = "tests copy files")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../io/tests/verbs/fake.rs"]
mod fake;

mod common;
#[path = "rdma/ends.rs"]
mod ends;

#[path = "rdma/gets.rs"]
mod gets;
#[path = "rdma/puts.rs"]
mod puts;
#[path = "rdma/rails.rs"]
mod rails;
#[path = "rdma/revocation.rs"]
mod revocation;
