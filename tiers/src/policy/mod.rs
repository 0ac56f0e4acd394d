//! Eviction policies as small traits. They choose the next frame to evict from DRAM, the next
//! segment of the SSD log to reclaim, and the records of that segment to reinsert.
//!
//! Invariants:
//! - A policy decides only an order. It owns no memory of the store and no pin. The caller decides,
//!   under its own lock, whether a candidate may be evicted.
//! - A candidate that may not be evicted keeps its place in the order.
//! - Policies are deterministic: no clock, no randomness, no order that depends on an address or on
//!   a hasher.
//! - A call for a frame examines a bounded number of them, independent of the size of the store. A
//!   call for a segment examines all.
//!
//! The interfaces follow those of CacheLib Navy: a few methods, and everything except the order
//! stays outside.

pub mod admission;
mod expectations;
mod fifo;
mod frame;
mod ghost;
mod last_requests;
mod leaving_first;
mod lowest_mean_recency;
mod lru;
mod order;
mod ordered_frames;
mod predictions;
mod s3fifo;
mod segment;
mod segment_fifo;
mod slab;
mod superseded;
mod tick_clock;

#[cfg(test)]
mod replay_test;

use std::sync::Arc;

use self::leaving_first::LeavingFirst;
pub use expectations::Expectations;
pub use fifo::Fifo;
pub use frame::{FrameId, FramePolicy, Recency};
pub use last_requests::{LastRequests, RecordRequest};
pub use lowest_mean_recency::LowestMeanRecency;
pub use lru::Lru;
pub use predictions::{Predictions, WATCHED_OBJECTS, WATCHED_PAGES};
pub use s3fifo::S3Fifo;
pub use segment::{
    LiveRecordFacts, REINSERT_RATIO_MAX, SegmentFacts, SegmentPolicy, free_segments_min,
};
pub use segment_fifo::SegmentFifo;
pub use superseded::{StateLookup, SupersededStates};
pub use tick_clock::{TICKS_OF_LEAVING, TickClock};

/// Names that [`frame_policy`] accepts.
pub const FRAME_POLICIES: [&str; 3] = ["lru", "fifo", "s3fifo"];

/// Names that [`segment_policy`] accepts.
pub const SEGMENT_POLICIES: [&str; 2] = ["fifo", "lowest-mean-recency"];

/// The DRAM policy with this name, `None` if it is unknown (see [`FRAME_POLICIES`]).
/// `last_requests` has the last requests for its frames.
pub fn frame_policy(name: &str, last_requests: &Arc<LastRequests>) -> Option<Box<dyn FramePolicy>> {
    let policy: Box<dyn FramePolicy> = match name {
        "lru" => Box::new(Lru::new(last_requests.clone())),
        "fifo" => Box::new(Fifo::new()),
        "s3fifo" => Box::new(S3Fifo::new(last_requests.clone())),
        _ => return None,
    };
    Some(Box::new(LeavingFirst::new(policy, last_requests.clone())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_only_by_their_names() {
        let last_requests = Arc::new(LastRequests::new(1).expect("memory"));
        for name in FRAME_POLICIES {
            assert_eq!(frame_policy(name, &last_requests).map(|p| p.name()), Some(name));
        }
        for name in SEGMENT_POLICIES {
            assert_eq!(segment_policy(name, 0.1).map(|p| p.name()), Some(name));
        }
        for name in ["", "LRU", "lru ", "lfu"] {
            assert!(frame_policy(name, &last_requests).is_none(), "frame policy {name:?}");
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
