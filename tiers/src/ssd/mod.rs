//! The SSD tier: a log of fixed-size segments.
//!
//! One writer ([`log::Log`]) appends records to one open segment, seals it with a footer, and keeps manifest
//! and checkpoint. Readers need only a [`volume::Volume`] and a record's place. Nothing here knows the index:
//! the engine tells the log what to write and hears where it lies.
//!
//! The order of durable steps, each with its reason where it is taken:
//! 1. [`log`] raises a segment's incarnation in both copies of the manifest, each synced, before the first
//!    write to the segment.
//! 2. [`log`] syncs a segment's data before it writes its footer.
//! 3. The engine's reclaim frees a segment only after a sync that covers every extent moved out of it.
//! 4. [`checkpoint`] syncs its chunks before its head, and the head before it counts.

pub mod append;
pub mod checkpoint;
pub mod guards;
pub mod log;
pub mod manifest_writer;
mod order;
mod pump;
pub mod read;
pub mod recover;
mod refusal;
mod scanned;
pub mod segments;
pub mod serial;
pub mod sync;
mod unused;
pub mod volume;
pub mod walk;
