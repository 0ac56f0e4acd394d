//! Sends from where the bytes lie: memory comes back when the kernel says that it is not read any more, and not before.

#![expect(clippy::disallowed_methods, reason = "a thread goes to each host; nothing here ships")]

mod common;
#[path = "zero_copy/cost.rs"]
mod cost;
#[path = "zero_copy/hosts.rs"]
mod hosts;
#[path = "zero_copy/kernel.rs"]
mod kernel;
#[path = "zero_copy/memory.rs"]
mod memory;
#[path = "zero_copy/network.rs"]
mod network;
