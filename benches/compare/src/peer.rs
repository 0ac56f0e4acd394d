//! The traits of a store in the comparison and of a side.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::cost::Phase;
use crate::work::Work;

/// The parameters with which a store is opened.
#[derive(Clone)]
pub(crate) struct Setup {
    /// An empty directory.
    pub(crate) dir: PathBuf,
    /// The work.
    pub(crate) work: Work,
    /// Checks returned values; has the contents to put.
    pub(crate) check: Arc<Check>,
}

/// How a side works.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SideProperties {
    /// Operations in flight during reads.
    pub(crate) in_flight: String,
    /// Verification of a value within the measured time.
    pub(crate) verified_by: String,
    /// Whether its reads go through the page cache, which is dropped before.
    pub(crate) page_cache: bool,
}

/// A store in this process. Dropping it closes it. Objects are named by numbers.
pub(crate) trait Peer {
    /// Puts a batch of new objects. May return before they are durable.
    fn put_batch(&mut self, numbers: Range<u64>) -> anyhow::Result<()>;

    /// Makes all puts durable.
    fn sync(&mut self) -> anyhow::Result<()>;

    /// Closes and reopens, with no objects left in the store's memory.
    fn reopen(&mut self) -> anyhow::Result<()>;

    /// Most batches between [`Peer::begin_get`] and [`Peer::end_get`].
    fn batches_in_flight(&self) -> usize;

    /// Begins to get a batch. Each value is passed to [`Check`] before the batch ends.
    fn begin_get(&mut self, numbers: Vec<u64>) -> anyhow::Result<()>;

    /// Waits for a batch; returns its duration, including the check of its values.
    fn end_get(&mut self) -> anyhow::Result<Duration>;
}

/// One round of a side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Round {
    /// The puts, until all objects are durable.
    pub(crate) put: Phase,
    /// The gets, every object once.
    pub(crate) get: Phase,
    /// Seconds to close and reopen.
    pub(crate) reopen_s: f64,
    /// Expected values.
    pub(crate) values: u64,
    /// Values other than those put.
    pub(crate) wrong: u64,
    /// Missing values.
    pub(crate) absent: u64,
}

/// A side of the comparison: a store in this process, or a separate program.
pub(crate) trait Side {
    /// Its name in the table.
    fn name(&self) -> &'static str;

    /// How it works.
    fn manner(&self) -> SideProperties;

    /// Does all of the work once, from an empty directory to an empty directory.
    fn round(&mut self, number: u32) -> anyhow::Result<Round>;
}
