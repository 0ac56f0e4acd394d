//! The interfaces to the operating system and their implementations on a real machine: disk, clock,
//! randomness, background work, aligned memory.
//!
//! Everything the store takes from the outside world comes through this crate, so that a simulator
//! can replace it. See `docs/architecture.md`.

pub mod atomic_array;
pub mod buffer;
pub mod clock;
pub mod copy_on_write;
pub mod device;
pub mod disk;
pub mod entropy;
pub mod event_fd;
pub mod fault;
pub mod fork;
pub mod guarded_table;
pub mod hashed_copy;
pub mod hugepage;
pub mod limits;
#[allow(clippy::disallowed_methods, reason = "the implementation for real processes: reads /proc")]
pub mod lock_owner;
pub mod nontemporal;
pub mod page_allocator;
pub mod peer;
pub mod registered;
pub mod runtime;
pub mod seqlock;
pub mod shm;
pub mod signal;
pub mod staging;
pub mod sync;
pub mod syscall_count;

#[allow(
    clippy::disallowed_methods,
    reason = "the implementation for real files: looks up file systems"
)]
pub mod file_system;
#[allow(
    clippy::disallowed_methods,
    reason = "the implementation for real files: reads /proc and the cgroup file systems"
)]
pub mod memory_facts;
pub mod prefetch;
pub mod probe;
#[allow(
    clippy::disallowed_methods,
    reason = "the implementation for real files: opens files by name"
)]
pub mod regular_file;
#[allow(clippy::disallowed_methods, reason = "the implementation for the real clock")]
pub mod system;

#[allow(
    clippy::disallowed_methods,
    reason = "the implementation for real files and threads, with deadlines"
)]
mod blocking;
mod buffer_cache;
mod create;
mod dynamic_library;
mod files;
mod op_check;
mod real_disk;
#[allow(clippy::disallowed_methods, reason = "the runtime for real threads starts them")]
pub mod threads;
#[allow(clippy::disallowed_methods, reason = "waits for the kernel with a deadline")]
mod uring;
pub mod verbs;
