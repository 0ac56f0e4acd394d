//! Sends from where the bytes lie: memory comes back when the kernel says that it is not read any more, and not before.

mod common;
#[path = "zero_copy/kernel.rs"]
mod kernel;
#[path = "zero_copy/memory.rs"]
mod memory;
