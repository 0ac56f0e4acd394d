//! What a replay counts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::series::{Series, Window};
use crate::latency::Latencies;

/// Prefix hits in pages, by the farthest tier that something of the page came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PrefixHits {
    pub(crate) dram: u64,
    pub(crate) ssd: u64,
    pub(crate) remote: u64,
}

/// Objects of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PoolCounts {
    /// Objects got.
    pub(crate) hits: u64,
    /// Objects asked for and not got.
    pub(crate) misses: u64,
    /// Bytes got.
    pub(crate) bytes: u64,
    /// Bytes that the store took.
    pub(crate) bytes_put: u64,
}

/// Groups put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct GroupCounts {
    /// Base groups that became visible.
    pub(crate) committed: u64,
    /// Groups attached to a base that was there.
    pub(crate) attached: u64,
    /// Groups attached to a base that was put after them.
    pub(crate) attached_waiting: u64,
    /// Groups that were there.
    pub(crate) already_present: u64,
    /// Groups that policy said no to.
    pub(crate) refused: u64,
    /// Groups that the store dropped: never complete, or of which a crash left a part.
    pub(crate) waiting_dropped: u64,
}

/// Where prefixes could stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StopCounts {
    /// Lengths that could be restored, over all requests.
    pub(crate) legal: u64,
    /// Requests of which a trailing pool allowed less than every page's objects did.
    pub(crate) cut_short: u64,
    /// Hits dropped because what the last pages must have was not got.
    pub(crate) dropped: u64,
}

/// Counts of a whole replay. A page asked for is either a prefix hit or a miss of exactly one cause.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Requests made.
    pub(crate) requests: u64,
    /// Pages asked for.
    pub(crate) pages_requested: u64,
    /// Prefix hits by tier.
    pub(crate) hits: PrefixHits,
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
    /// By number of the pool.
    pub(crate) pools: Vec<PoolCounts>,
    pub(crate) groups: GroupCounts,
    pub(crate) stops: StopCounts,
    /// Time of each get call.
    pub(crate) get_batches: Latencies,
    /// Hit ratio over time.
    pub(crate) series: Series,
}

impl Tally {
    pub(crate) fn new(pools: usize) -> Tally {
        Tally {
            requests: 0,
            pages_requested: 0,
            hits: PrefixHits::default(),
            misses: BTreeMap::new(),
            bytes_put: 0,
            bytes_got: 0,
            wrong_bytes: 0,
            partial_groups: 0,
            busy_waits: 0,
            get_time: Duration::ZERO,
            put_time: Duration::ZERO,
            pools: vec![PoolCounts::default(); pools],
            groups: GroupCounts::default(),
            stops: StopCounts::default(),
            get_batches: Latencies::new(),
            series: Series::new(),
        }
    }

    /// Count an object got.
    pub(crate) fn got(&mut self, pool: usize, bytes: u64) {
        self.bytes_got += bytes;
        self.pools[pool].hits += 1;
        self.pools[pool].bytes += bytes;
    }

    /// Count an object that the store took.
    pub(crate) fn put(&mut self, pool: usize, bytes: u64) {
        self.bytes_put += bytes;
        self.pools[pool].bytes_put += bytes;
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
    pub(crate) fn request(&mut self, pages: u64, hits: PrefixHits) {
        self.requests += 1;
        self.pages_requested += pages;
        let PrefixHits { dram, ssd, remote } = hits;
        self.hits.dram += dram;
        self.hits.ssd += ssd;
        self.hits.remote += remote;
        self.series.add(Window { pages, dram, ssd, remote });
    }
}
