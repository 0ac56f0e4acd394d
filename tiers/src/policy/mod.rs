//! Eviction policies as small traits. They choose the next frame to evict from DRAM, the next
//! segment of the SSD log to reclaim, and the extents of that segment to reinsert.
//!
//! Invariants:
//! - A policy decides only an order. It owns no memory of the store and no pin. The caller decides,
//!   under its own lock, whether a candidate may be evicted.
//! - A candidate that may not be evicted keeps its place in the order.
//! - Policies are deterministic: no clock, no randomness, no order that depends on an address or on
//!   a hasher.
//! - One call examines a bounded number of candidates, independent of the size of the store.
//!
//! The interfaces follow those of CacheLib Navy: a few methods, and everything except the order
//! stays outside.

mod fifo;
mod ghost;
mod lowest_mean_recency;
mod lru;
mod order;
mod places;
mod s3fifo;
mod segment_fifo;
mod slab;
mod touches;

#[cfg(test)]
mod replay_test;

use std::cmp::Ordering;
use std::sync::Arc;

use pagelith_layouts::ids::SegmentId;

pub use fifo::Fifo;
pub use lowest_mean_recency::LowestMeanRecency;
pub use lru::Lru;
pub use s3fifo::S3Fifo;
pub use segment_fifo::SegmentFifo;
pub use touches::LastRequests;

/// Names that [`frame_policy`] accepts, for configuration messages.
pub const FRAME_POLICIES: [&str; 3] = ["lru", "fifo", "s3fifo"];

/// Names that [`segment_policy`] accepts, for configuration messages.
pub const SEGMENT_POLICIES: [&str; 2] = ["fifo", "lowest-mean-recency"];

/// Largest share of a segment's payload that a policy may reinsert. At this share, reinsertion
/// alone raises write amplification to at most 1 / (1 - 0.25) = 1.33, and a pass over the log still
/// frees three quarters of the reclaimed bytes.
pub const REINSERT_RATIO_MAX: f64 = 0.25;

/// Number of a frame: the memory of one page's group of objects. The store assigns numbers from 0
/// and reuses them, because policies keep a table as long as the largest number they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// The last request for a frame. The smallest value leaves first: that of the older request, and
/// within a request that of the deeper page, so that children leave before their parents. A parent
/// serves every prefix that includes it; a child without its parent serves none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recency {
    /// Number of the request, increasing with time.
    pub epoch: u64,
    /// Position of the page in its prefix chain, 0 for the head.
    pub depth: u32,
}

impl Ord for Recency {
    fn cmp(&self, other: &Recency) -> Ordering {
        self.epoch.cmp(&other.epoch).then(other.depth.cmp(&self.depth))
    }
}

impl PartialOrd for Recency {
    fn partial_cmp(&self, other: &Recency) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Chooses the frame that leaves DRAM next.
///
/// **Cost.** Every method is O(log frames), plus one call of `evictable` for each frame that
/// `victim` examines. The order is that of [`Recency`], not of the calls. So a store may insert a
/// dirty frame once it is clean, with the recency of its put, without changing the order. It should
/// do so if much of the arena can be dirty: `victim` of LRU and FIFO examines dirty frames last,
/// since they are the newest, but S3-FIFO examines its small queue first, which has exactly the
/// newest frames.
pub trait FramePolicy: Send {
    /// The name under which [`frame_policy`] creates it.
    fn name(&self) -> &'static str;
    /// Reserve memory for at most `frames` frames, if that is better done at once.
    fn expect(&mut self, _frames: usize) {}
    /// Add a frame of `bytes` that was filled for a request at `at`. `fingerprint` identifies its
    /// page across evictions. A frame that is already known is replaced.
    fn insert(&mut self, frame: FrameId, bytes: u64, fingerprint: u128, at: Recency);
    /// Note a request for the frame. Unknown frames are ignored. Requests may arrive out of order:
    /// an `at` older than the known one changes nothing.
    fn touch(&mut self, frame: FrameId, at: Recency);
    /// Whether every request must be reported with [`touch`](FramePolicy::touch). If not, only the
    /// last request of a frame counts, which [`LastRequests`] records without the store's lock.
    fn counts_touches(&self) -> bool;
    /// Remove a frame that leaves without being a victim (removed, cleared, damaged). Unknown
    /// frames are ignored.
    fn remove(&mut self, frame: FrameId);
    /// The next frame to evict for which `evictable` is true (it is false for pinned, dirty and
    /// leased frames). The frame is removed from the policy. `None` if there is none, or none among
    /// the frames that one call examines. The next call continues where this one stopped, so that a
    /// long run of ineligible frames delays a victim but never hides it.
    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId>;
    /// Number of frames known.
    fn len(&self) -> usize;
    /// Whether no frame is known.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
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
    /// Padded bytes of the live objects.
    pub live_bytes: u64,
    /// Sum of the ticks of the last requests for the live objects.
    pub recency_sum: u64,
    /// Whether a reader uses it, so that it may not be the victim now.
    pub pinned: bool,
    /// Lowest sequence number of a record in it.
    pub min_sequence: u64,
}

/// The facts about a live extent of the victim that a policy uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentFacts {
    /// Bytes to write if it is reinserted, header and padding included.
    pub bytes: u64,
    /// Tick of its last request; within a request, a page nearer to the head has the larger tick.
    pub tick: u64,
    /// Whether it must survive, regardless of the budget.
    pub pinned: bool,
}

/// Chooses the segment to reclaim, and the extents of it to reinsert.
pub trait SegmentPolicy: Send {
    /// The name under which [`segment_policy`] creates it.
    fn name(&self) -> &'static str;
    /// Share of a segment's payload (0 to [`REINSERT_RATIO_MAX`]) that is the budget of `reinsert`.
    fn reinsert_ratio(&self) -> f64;
    /// The segment to reclaim, as an index into `sealed`; never a pinned one. `None` if there is
    /// none. O(segments); called once per reclaim.
    fn victim(&self, sealed: &[SegmentFacts]) -> Option<usize>;
    /// The victim's live extents to reinsert: indices in the order in which they are appended.
    /// Pinned extents come first and are included even beyond `budget_bytes`; their bytes count
    /// against it. Other extents qualify with a tick above `mean_tick`, the mean over the store.
    /// They follow oldest first, so that the last used extent is the newest in the log.
    fn reinsert(&self, extents: &[ExtentFacts], mean_tick: u64, budget_bytes: u64) -> Vec<usize>;
}

/// The DRAM policy with this name, `None` if it is unknown (see [`FRAME_POLICIES`]). `touches` has
/// the last requests for its frames.
pub fn frame_policy(name: &str, touches: &Arc<LastRequests>) -> Option<Box<dyn FramePolicy>> {
    match name {
        "lru" => Some(Box::new(Lru::new(touches.clone()))),
        "fifo" => Some(Box::new(Fifo::new())),
        "s3fifo" => Some(Box::new(S3Fifo::new())),
        _ => None,
    }
}

/// The SSD policy with this name, which may reinsert `ratio` of a segment's payload (`fifo` ignores
/// it). `None` if the name is unknown (see [`SEGMENT_POLICIES`]), or if the ratio is not from 0 to
/// [`REINSERT_RATIO_MAX`].
pub fn segment_policy(name: &str, ratio: f64) -> Option<Box<dyn SegmentPolicy>> {
    if !(0.0..=REINSERT_RATIO_MAX).contains(&ratio) {
        return None;
    }
    match name {
        "fifo" => Some(Box::new(SegmentFifo)),
        "lowest-mean-recency" => Some(Box::new(LowestMeanRecency { ratio })),
        _ => None,
    }
}

/// Indices of the pinned extents, oldest tick first, and their bytes: every policy reinserts these.
fn pinned_extents(extents: &[ExtentFacts]) -> (Vec<usize>, u64) {
    let mut pinned: Vec<usize> = (0..extents.len()).filter(|&i| extents[i].pinned).collect();
    pinned.sort_by_key(|&i| extents[i].tick);
    let bytes = pinned.iter().fold(0u64, |sum, &i| sum.saturating_add(extents[i].bytes));
    (pinned, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recency_orders_older_requests_then_deeper_pages_first() {
        let at = |epoch, depth| Recency { epoch, depth };
        let mut all = vec![at(2, 0), at(1, 0), at(2, 7), at(1, 3), at(1, 9)];
        all.sort();
        assert_eq!(all, vec![at(1, 9), at(1, 3), at(1, 0), at(2, 7), at(2, 0)]);
    }

    #[test]
    fn policies_are_found_only_by_their_names() {
        let touches = Arc::new(LastRequests::new(1).expect("memory"));
        for name in FRAME_POLICIES {
            assert_eq!(frame_policy(name, &touches).map(|p| p.name()), Some(name));
        }
        for name in SEGMENT_POLICIES {
            assert_eq!(segment_policy(name, 0.1).map(|p| p.name()), Some(name));
        }
        for name in ["", "LRU", "lru ", "lfu"] {
            assert!(frame_policy(name, &touches).is_none(), "frame policy {name:?}");
            assert!(segment_policy(name, 0.1).is_none(), "segment policy {name:?}");
        }
    }

    #[test]
    fn reinsertion_ratio_out_of_range_is_refused() {
        for ratio in [-0.01, REINSERT_RATIO_MAX + 0.01, f64::NAN, f64::INFINITY] {
            assert!(segment_policy("lowest-mean-recency", ratio).is_none(), "ratio {ratio}");
        }
        for ratio in [0.0, REINSERT_RATIO_MAX] {
            let policy = segment_policy("lowest-mean-recency", ratio).expect("in range");
            assert_eq!(policy.reinsert_ratio(), ratio);
        }
    }
}
