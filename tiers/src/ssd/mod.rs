//! The SSD tier: a log of fixed-size segments.
//!
//! A single writer ([`log::Log`]) appends records to one open segment, seals it with a footer, and
//! maintains manifest and checkpoint. Readers need only a [`volume::Volume`] and a record's
//! location. This module does not know the index: the engine submits records, and the log reports
//! their locations.
//!
//! The order of durable steps; the code of each step states its reason:
//! 1. [`log`] raises a segment's incarnation in both copies of the manifest, each synced, before
//!    the first write to the segment.
//! 2. [`log`] syncs a segment's data before it writes the footer.
//! 3. The engine's reclaim frees a segment only after a sync that covers every record reinserted
//!    from it.
//! 4. The engine copies the index, then syncs the data, and only then completes the checkpoint.
//!    [`checkpoint`] syncs its chunks before it writes its header, and syncs the header before the
//!    checkpoint is used.
//! 5. A clear is answered after the generation is in both copies of the manifest, each synced; a
//!    removal after its tombstones were synced and read back.

pub mod append;
pub mod checkpoint;
mod completions;
mod dir_check;
pub mod footer;
pub mod guards;
mod incarnations;
pub mod log;
pub mod manifest_writer;
pub mod read;
pub mod recover;
mod recovered;
mod scan_result;
pub mod segment_walk;
pub mod segments;
pub mod serial_queue;
pub mod sync;
pub mod volume;
mod volume_error;
mod volume_geometry;
mod volume_lock;
