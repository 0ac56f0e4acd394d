//! State that the reads of all sessions share: their counters, and the latency of the device.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::{AtomicBool, AtomicU64};

use crate::state::counters::StripedCounters;
use crate::state::load_rate::LoadRate;
use crate::state::read_latency::ReadLatency;

/// Value of [`ReadState::last_at`] before the first read.
const NEVER_READ: u64 = u64::MAX;
/// How long after [`ReadState::note`] the device still counts as read from. Longer than a session's
/// wait for the device between two such calls.
const READER_TIMEOUT: Duration = Duration::from_millis(50);

pub(crate) struct ReadState {
    /// Counters of gets; the core has all others.
    pub counters: StripedCounters,
    /// A direct read missed its deadline. Reads go through staging memory until `late` is 0 and a
    /// read has completed in time.
    pub direct_suspended: AtomicBool,
    /// Direct reads that are past their deadline and not completed by the kernel.
    pub late: AtomicU64,
    /// Recent read latency.
    pub latency: ReadLatency,
    /// Recent time of loads.
    pub loads: LoadRate,
    /// Clock time of the last [`ReadState::note`]; [`NEVER_READ`] at first.
    last_at: AtomicU64,
}

impl Default for ReadState {
    fn default() -> ReadState {
        ReadState {
            counters: StripedCounters::default(),
            direct_suspended: AtomicBool::new(false),
            late: AtomicU64::new(0),
            latency: ReadLatency::default(),
            loads: LoadRate::default(),
            last_at: AtomicU64::new(NEVER_READ),
        }
    }
}

impl ReadState {
    /// Record that a session has reads in flight on the device.
    pub fn note(&self, now: Mono) {
        // Stored at most once a millisecond, since all sessions share the cache line.
        if now.0.abs_diff(self.last_at.load(Ordering::Relaxed)) > 1_000_000 {
            self.last_at.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether a session had reads in flight within the last [`READER_TIMEOUT`].
    pub fn are_recent(&self, now: Mono) -> bool {
        let at = self.last_at.load(Ordering::Relaxed);
        at != NEVER_READ && now.since(Mono(at)) < READER_TIMEOUT
    }
}
