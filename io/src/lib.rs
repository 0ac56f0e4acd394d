//! The seams of Pagelith and their real sides: disk, clock, randomness, background work, aligned memory.
//!
//! Everything the store takes from the outside world comes through this crate, so that a simulator can
//! stand in for it. See `docs/architecture.md`.

pub mod buffer;
pub mod calls;
pub mod clock;
pub mod cow;
pub mod disk;
pub mod entropy;
pub mod fault;
pub mod forked;
pub mod fused;
pub mod gate;
pub mod gated;
pub mod huge;
pub mod kept;
pub mod limits;
#[allow(clippy::disallowed_methods, reason = "the real side of processes: reads /proc")]
pub mod owner;
pub mod peer;
pub mod registered;
pub mod runs;
pub mod runtime;
pub mod shm;
pub mod signal;
pub mod staging;
pub mod stream;
pub mod sync;
pub mod turnstile;
pub mod versions;
pub mod words;

#[allow(
    clippy::disallowed_methods,
    reason = "the real side of files: reads /proc and the cgroup file systems"
)]
pub mod facts;
#[allow(clippy::disallowed_methods, reason = "the real side of files: looks where they would lie")]
pub mod file_system;
pub mod prefetch;
pub mod probe;
#[allow(clippy::disallowed_methods, reason = "the real side of files that are named")]
pub mod regular_file;
#[allow(clippy::disallowed_methods, reason = "the real side of the clock")]
pub mod system;

#[allow(clippy::disallowed_methods, reason = "the real side of files, threads and of waiting for them")]
mod blocking;
mod check;
mod create;
mod files;
mod real;
mod spare;
#[allow(clippy::disallowed_methods, reason = "the real side of the runtime starts threads")]
pub mod threads;
#[allow(clippy::disallowed_methods, reason = "waits for the kernel with a deadline")]
mod uring;
