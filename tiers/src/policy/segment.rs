//! The interface of policies that order the segments of the SSD log.

use std::cmp::Ordering;

use pagelith_layouts::ids::SegmentId;

/// Largest share of a segment's payload that a policy may reinsert. At this share, reinsertion
/// alone raises write amplification to at most 1 / (1 - 0.25) = 1.33, and a pass over the log still
/// frees three quarters of the reclaimed bytes.
pub const REINSERT_RATIO_MAX: f64 = 0.25;

/// Segments that reclaim keeps free in a store of `segments` segments: one to be prepared and, in a
/// store with many, one in reserve.
pub fn free_segments_min(segments: usize) -> usize {
    if segments >= 16 { 2 } else { 1 }
}

/// The facts about a sealed segment that a policy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// The segment.
    pub segment: SegmentId,
    /// Position in the log: count of segments opened in the store, this one included.
    pub order: u64,
    /// Number of objects in it that the index points to.
    pub live_objects: u32,
    /// Sum of the ticks of the last requests for the live objects.
    pub recency_sum: u64,
}

/// The facts about a live record of the victim that a policy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRecordFacts {
    /// Bytes to write if it is reinserted, header and padding included.
    pub bytes: u64,
    /// Tick of its last request. The pages of a request usually have the same.
    pub tick: u64,
    /// Position of its page in its chain; 0 is the head.
    pub depth: u32,
    /// Whether it must survive, regardless of the budget.
    pub pinned: bool,
}

/// Chooses the segment to reclaim, and the records of it to reinsert.
pub trait SegmentPolicy: Send {
    /// The name under which [`segment_policy`](super::segment_policy) creates it.
    fn name(&self) -> &'static str;
    /// Share of a segment's payload (0 to [`REINSERT_RATIO_MAX`]) that is the budget of `reinsert`.
    fn reinsert_ratio(&self) -> f64;
    /// The segment to reclaim, as an index into `sealed`; `None` if there is none. Readers of the
    /// segment finish before it is reused. O(segments); called once per reclaim.
    fn victim(&self, sealed: &[SegmentFacts]) -> Option<usize>;
    /// The victim's live records to reinsert: indices in the order in which they are appended.
    /// Pinned records come first and are included even beyond `budget_bytes`; their bytes count
    /// against it. Other records qualify with a tick above `mean_tick`, the mean over the store;
    /// among equal ticks the heads of chains precede. They are appended in the reverse order, so
    /// that the last requested record is the newest in the log.
    fn reinsert(
        &self,
        records: &[LiveRecordFacts],
        mean_tick: u64,
        budget_bytes: u64,
    ) -> Vec<usize>;
}

/// The order in which records are kept: the last requested first, of these the head first.
pub(super) fn by_recency(a: &LiveRecordFacts, b: &LiveRecordFacts) -> Ordering {
    b.tick.cmp(&a.tick).then(a.depth.cmp(&b.depth))
}

/// Indices of the pinned records, oldest tick first, and their bytes: every policy reinserts these.
pub(super) fn pinned_records(records: &[LiveRecordFacts]) -> (Vec<usize>, u64) {
    let mut pinned: Vec<usize> = (0..records.len()).filter(|&i| records[i].pinned).collect();
    pinned.sort_by(|&a, &b| by_recency(&records[b], &records[a]));
    let bytes = pinned.iter().fold(0u64, |sum, &i| sum.saturating_add(records[i].bytes));
    (pinned, bytes)
}
