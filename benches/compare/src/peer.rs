//! What a store has to be able to do to take part, and what a whole side is.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::cost::Phase;
use crate::work::Work;

/// What a store is opened with.
#[derive(Clone)]
pub(crate) struct Setup {
    /// An empty directory.
    pub(crate) dir: PathBuf,
    /// The work.
    pub(crate) work: Work,
    /// Takes the values that come back; has those that are put.
    pub(crate) check: Arc<Check>,
}

/// How a side does its work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manner {
    /// What is in flight while it reads.
    pub(crate) in_flight: String,
    /// Who verifies a value within the time measured.
    pub(crate) verified_by: String,
    /// Whether its reads go through the page cache, dropped before them.
    pub(crate) page_cache: bool,
}

/// A store in this process. Dropping it closes it. Numbers name objects.
pub(crate) trait Peer {
    /// Put a batch of new objects. May return before they are durable.
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()>;

    /// Make durable what was put.
    fn sync(&mut self) -> anyhow::Result<()>;

    /// Close and open again, with nothing of the objects in its own memory.
    fn reopen(&mut self) -> anyhow::Result<()>;

    /// Batches that may be between [`Peer::begin_get`] and [`Peer::end_get`].
    fn batches_in_flight(&self) -> usize;

    /// Begin to get a batch. Each value is shown to [`Check`] before the batch ends.
    fn begin_get(&mut self, numbers: Vec<u64>) -> anyhow::Result<()>;

    /// Wait for a batch to end; how long it took, its values' check with it.
    fn end_get(&mut self) -> anyhow::Result<Duration>;
}

/// One round of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// Until all is durable.
    pub(crate) put: Phase,
    /// Every object once.
    pub(crate) get: Phase,
    /// Seconds from durable to open again.
    pub(crate) reopen_s: f64,
    /// Values that came back or should have.
    pub(crate) values: u64,
    /// Values that were not what was put.
    pub(crate) wrong: u64,
    /// Values that were not there.
    pub(crate) absent: u64,
}

/// One who takes part: a store in this process, or a program of its own.
pub(crate) trait Side {
    /// Its name in the table.
    fn name(&self) -> &'static str;

    /// How it works.
    fn manner(&self) -> Manner;

    /// Do all of the work once, from an empty directory to an empty directory.
    fn round(&mut self, number: u32) -> anyhow::Result<Round>;
}
