//! Links with an RDMA data plane over real devices: memory that was handed back is not written,
//! whatever happens to operations, peers and wires. Server and client use two devices.
//!
//! It needs `TEST_PAGELITH_VERBS` with the name of a verbs library; `sim/rdma/run.sh` runs it in a
//! virtual machine. `TEST_PAGELITH_RDMA_CANCELS` and `TEST_PAGELITH_RDMA_KILLS` are the lengths of
//! its campaigns.

#![allow(clippy::disallowed_methods, reason = "tests start processes and look at the clock")]
#![allow(clippy::print_stdout, reason = "tests say what they skip and count")]
#![allow(missing_docs, reason = "a test crate")]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../io/tests/verbs/fake.rs"]
mod fake;

#[path = "rdma_devices/client.rs"]
mod client;
#[path = "rdma_devices/memory.rs"]
mod memory;
#[path = "rdma_devices/server.rs"]
mod server;
#[path = "rdma_devices/setting.rs"]
mod setting;

#[path = "rdma_devices/cancels.rs"]
mod cancels;
#[path = "rdma_devices/kills.rs"]
mod kills;
#[path = "rdma_devices/measure.rs"]
mod measure;
#[path = "rdma_devices/wires.rs"]
mod wires;
