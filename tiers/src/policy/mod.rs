//! Eviction policies as small traits: which frame leaves DRAM next, which segment of the SSD log is
//! reclaimed next and which of its extents are worth writing again.
//!
//! Invariants:
//! - A policy decides an order and nothing else. It holds no memory of the store and no pin; whether a
//!   candidate may leave is the caller's answer, asked under the caller's lock.
//! - A candidate that may not leave keeps its place in the order.
//! - Same calls, same answers: no clock, no randomness, no order that depends on an address or on a hasher.
//! - One call looks at a bounded number of candidates, whatever the store holds.
//!
//! The cut follows CacheLib Navy's eviction interfaces: a handful of methods, and everything that is not
//! order stays outside.

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
pub use touches::Touches;

/// Names that [`frame_policy`] knows, for configuration messages.
pub const FRAME_POLICIES: [&str; 3] = ["lru", "fifo", "s3fifo"];

/// Names that [`segment_policy`] knows, for configuration messages.
pub const SEGMENT_POLICIES: [&str; 2] = ["fifo", "lowest-mean-recency"];

/// Most of a segment's payload that a policy may ask to have written again. At this share reinsertion alone
/// raises write amplification to at most 1 / (1 - 0.25) = 1.33, and a lap of the log still frees three
/// quarters of what it reclaims.
pub const REINSERT_RATIO_MAX: f64 = 0.25;

/// Names a frame: the memory of one page's group of objects. The store hands numbers out from 0 and uses
/// them again, because policies keep a table as long as the largest number they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// When a frame was last asked for. Ordered so that the smallest leaves first: the older request, and within
/// a request the deeper page, so that children leave before their parents (a parent serves every prefix
/// that passes through it; a child without its parent serves none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recency {
    /// Number of the request, rising with time.
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
/// **Cost.** Every method is O(log frames), plus one call of `evictable` for each frame that `victim` passes
/// over. Frames are placed by their [`Recency`], not by the moment of the call, so a store may insert a dirty
/// frame only once it is clean, with the recency of its put, and nothing about the order is lost. It should
/// where much of the arena can be dirty: dirty frames are the newest and `victim` of an LRU or a FIFO meets
/// them last, but S3-FIFO keeps exactly the newest frames in its small queue and looks there first.
pub trait FramePolicy: Send {
    /// The name that [`frame_policy`] knows it by.
    fn name(&self) -> &'static str;
    /// There will be at most `frames` frames: make room where that is better done at once.
    fn expect(&mut self, _frames: usize) {}
    /// Take a frame of `bytes` that was filled for a request at `at`. `fingerprint` names its page across
    /// evictions. A frame that is already known is replaced.
    fn insert(&mut self, frame: FrameId, bytes: u64, fingerprint: u128, at: Recency);
    /// The frame was asked for again. Unknown frames are ignored. Requests may report out of order: an older
    /// `at` than the one known changes nothing.
    fn touch(&mut self, frame: FrameId, at: Recency);
    /// Whether every request has to be told of by [`touch`](FramePolicy::touch). Where it need not, the last one that
    /// [`Touches`] has of a frame is all that counts, and that is noted without the store's lock.
    fn counts_touches(&self) -> bool;
    /// The frame left for another reason than being the victim (removed, cleared, damaged). Unknown frames
    /// are ignored.
    fn remove(&mut self, frame: FrameId);
    /// The next frame to drop for which `evictable` is true (pinned, dirty and leased frames answer false);
    /// it is removed from the policy. `None` if there is none, or none within the looks of one call: calls
    /// that follow go on where this one stopped, so that a long stretch of ineligible frames delays a
    /// victim but never hides it.
    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId>;
    /// Number of frames known.
    fn len(&self) -> usize;
    /// Whether no frame is known.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a policy may know of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Which segment.
    pub segment: SegmentId,
    /// Opened as the n-th since the store was made.
    pub order: u64,
    /// Objects in it that the index still points at.
    pub live_objects: u32,
    /// Their padded bytes.
    pub live_bytes: u64,
    /// Sum over the live objects of the tick of their last request.
    pub recency_sum: u64,
    /// A reader holds it; it may not be the victim now.
    pub pinned: bool,
    /// Lowest sequence number of a record in it.
    pub min_sequence: u64,
}

/// What a policy may know of a live extent of the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentFacts {
    /// Bytes that writing it again costs, header and padding included.
    pub bytes: u64,
    /// Tick of its last request; in one request a page nearer to the head has the larger tick.
    pub tick: u64,
    /// It has to survive, whatever the budget.
    pub pinned: bool,
}

/// Chooses the segment to reclaim, and what of it is written again.
pub trait SegmentPolicy: Send {
    /// The name that [`segment_policy`] knows it by.
    fn name(&self) -> &'static str;
    /// Share of a segment's payload (0 to [`REINSERT_RATIO_MAX`]) to pass to `reinsert` as its budget.
    fn reinsert_ratio(&self) -> f64;
    /// The segment to reclaim, as an index into `sealed`; never a pinned one. `None` if there is none.
    /// O(segments); called once a reclaim.
    fn victim(&self, sealed: &[SegmentFacts]) -> Option<usize>;
    /// Which of the victim's live extents to append again: indices in the order of appending. Pinned extents
    /// come first and are included even beyond `budget_bytes`; their bytes count against it. The others
    /// qualify with a tick above `mean_tick`, the mean over the store, and follow oldest first, so that
    /// what was asked for last is youngest in the log again.
    fn reinsert(&self, extents: &[ExtentFacts], mean_tick: u64, budget_bytes: u64) -> Vec<usize>;
}

/// The DRAM policy of that name, or `None` if there is none (see [`FRAME_POLICIES`]). `touches` says when its frames
/// were last asked for.
pub fn frame_policy(name: &str, touches: &Arc<Touches>) -> Option<Box<dyn FramePolicy>> {
    match name {
        "lru" => Some(Box::new(Lru::new(touches.clone()))),
        "fifo" => Some(Box::new(Fifo::new())),
        "s3fifo" => Some(Box::new(S3Fifo::new())),
        _ => None,
    }
}

/// The SSD policy of that name, which may reinsert `ratio` of a segment's payload (`fifo` ignores it).
/// `None` if there is none of that name (see [`SEGMENT_POLICIES`]) or the ratio is not from 0 to
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

/// Indices of the pinned extents, oldest tick first, and their bytes: what every policy reinserts.
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
    fn recency_orders_older_requests_first_and_deeper_pages_first_within_one() {
        let at = |epoch, depth| Recency { epoch, depth };
        let mut all = vec![at(2, 0), at(1, 0), at(2, 7), at(1, 3), at(1, 9)];
        all.sort();
        assert_eq!(all, vec![at(1, 9), at(1, 3), at(1, 0), at(2, 7), at(2, 0)]);
    }

    #[test]
    fn policies_are_found_by_the_names_they_give_and_by_no_other() {
        let touches = Arc::new(Touches::new(1).expect("memory"));
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
    fn a_reinsertion_ratio_out_of_range_is_refused() {
        for ratio in [-0.01, REINSERT_RATIO_MAX + 0.01, f64::NAN, f64::INFINITY] {
            assert!(segment_policy("lowest-mean-recency", ratio).is_none(), "ratio {ratio}");
        }
        for ratio in [0.0, REINSERT_RATIO_MAX] {
            let policy = segment_policy("lowest-mean-recency", ratio).expect("in range");
            assert_eq!(policy.reinsert_ratio(), ratio);
        }
    }
}
