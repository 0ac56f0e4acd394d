//! The counters of a replay.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::series::{Series, Window};
use crate::latency::Latencies;

/// Prefix hits in pages, by the farthest tier of each page's objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PrefixHits {
    pub(crate) dram: u64,
    pub(crate) ssd: u64,
    pub(crate) remote: u64,
}

/// Objects of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PoolCounts {
    /// Objects read.
    pub(crate) hits: u64,
    /// Objects requested and missed.
    pub(crate) misses: u64,
    /// Bytes read.
    pub(crate) bytes: u64,
    /// Bytes that the store accepted.
    pub(crate) bytes_put: u64,
}

/// Groups put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct GroupCounts {
    /// Base groups that became visible.
    pub(crate) committed: u64,
    /// Groups attached to a base that was present.
    pub(crate) attached: u64,
    /// Groups attached to a base that was put after them.
    pub(crate) attached_waiting: u64,
    /// Groups that were present.
    pub(crate) already_present: u64,
    /// Groups that the admission policy refused.
    pub(crate) refused: u64,
    /// Groups that the store dropped: never completed, or incomplete after a crash.
    pub(crate) waiting_dropped: u64,
}

/// Permitted prefix lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StopCounts {
    /// Permitted lengths of all requests together.
    pub(crate) legal: u64,
    /// Requests whose prefix was shortened by a trailing pool.
    pub(crate) cut_short: u64,
    /// Prefix hits dropped because a trailing object was a miss.
    pub(crate) dropped: u64,
}

/// Counters of a whole replay. Each requested page is either a prefix hit or a miss of exactly one
/// cause.
#[derive(Clone, Debug)]
pub(crate) struct ReplayCounters {
    pub(crate) requests: u64,
    pub(crate) pages_requested: u64,
    /// Prefix hits by tier.
    pub(crate) hits: PrefixHits,
    /// Pages that were no prefix hit, by cause.
    pub(crate) misses: BTreeMap<String, u64>,
    /// Bytes of objects that the store accepted.
    pub(crate) bytes_put: u64,
    /// Bytes of objects that the store returned.
    pub(crate) bytes_got: u64,
    /// Returned bytes that differ from those put.
    pub(crate) wrong_bytes: u64,
    /// Pages with a partly visible group.
    pub(crate) partial_groups: u64,
    /// Number of pauses because the store was busy.
    pub(crate) busy_waits: u64,
    /// Time in get calls.
    pub(crate) get_time: Duration,
    /// Time in put calls.
    pub(crate) put_time: Duration,
    /// Counts of the pools, by number.
    pub(crate) pools: Vec<PoolCounts>,
    pub(crate) groups: GroupCounts,
    pub(crate) stops: StopCounts,
    /// Time of each get call.
    pub(crate) get_batches: Latencies,
    /// Hit ratio over time.
    pub(crate) series: Series,
}

impl ReplayCounters {
    pub(crate) fn new(pools: usize) -> ReplayCounters {
        ReplayCounters {
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

    /// Count an object that was read.
    pub(crate) fn got(&mut self, pool: usize, bytes: u64) {
        self.bytes_got += bytes;
        self.pools[pool].hits += 1;
        self.pools[pool].bytes += bytes;
    }

    /// Count an object that the store accepted.
    pub(crate) fn put(&mut self, pool: usize, bytes: u64) {
        self.bytes_put += bytes;
        self.pools[pool].bytes_put += bytes;
    }

    /// Count pages that were no prefix hit.
    pub(crate) fn miss(&mut self, cause: &str) {
        // Allocates only for a new cause, of which there are few.
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
