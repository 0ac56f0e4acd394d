//! What a replay counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::latency::Latencies;
use super::series::{Series, Window};

/// Counts of a whole replay. A page asked for is either a prefix hit or a miss of exactly one cause.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Requests made.
    pub(crate) requests: u64,
    /// Pages asked for.
    pub(crate) pages_requested: u64,
    /// Prefix hits whose every object came from memory, in pages.
    pub(crate) hits_dram: u64,
    /// Other prefix hits, in pages.
    pub(crate) hits_ssd: u64,
    /// Pages that were no prefix hit, by cause.
    pub(crate) misses: BTreeMap<String, u64>,
    /// Bytes of objects that the store took.
    pub(crate) bytes_put: u64,
    /// Bytes of objects that the store delivered.
    pub(crate) bytes_got: u64,
    /// Delivered bytes that were not the ones put.
    pub(crate) wrong_bytes: u64,
    /// Pages of which one answer showed some objects and not others.
    pub(crate) partial_groups: u64,
    /// Times that the store was busy and the replay had to wait.
    pub(crate) busy_waits: u64,
    /// Time in get calls.
    pub(crate) get_time: Duration,
    /// Time in put calls.
    pub(crate) put_time: Duration,
    /// Time of each get call.
    pub(crate) get_batches: Latencies,
    /// Hit ratio over time.
    pub(crate) series: Series,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            requests: 0,
            pages_requested: 0,
            hits_dram: 0,
            hits_ssd: 0,
            misses: BTreeMap::new(),
            bytes_put: 0,
            bytes_got: 0,
            wrong_bytes: 0,
            partial_groups: 0,
            busy_waits: 0,
            get_time: Duration::ZERO,
            put_time: Duration::ZERO,
            get_batches: Latencies::new(),
            series: Series::new(),
        }
    }

    /// Count pages that were no prefix hit.
    pub(crate) fn miss(&mut self, cause: &str) {
        // The causes are few; only a new one costs an allocation.
        match self.misses.get_mut(cause) {
            Some(n) => *n += 1,
            None => {
                self.misses.insert(cause.to_owned(), 1);
            }
        }
    }

    /// Count a finished request of `pages` pages and its prefix hits by tier.
    pub(crate) fn request(&mut self, pages: u64, dram: u64, ssd: u64) {
        self.requests += 1;
        self.pages_requested += pages;
        self.hits_dram += dram;
        self.hits_ssd += ssd;
        self.series.add(Window { pages, dram, ssd });
    }
}
