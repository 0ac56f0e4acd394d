//! S3-FIFO: three queues that prevent pages requested once from evicting pages requested often.
//!
//! Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are all you need for cache eviction", SOSP '23,
//! algorithm 1. New frames enter a small queue. At its end, a frame moves to the main queue if it
//! was requested more than once; else it is evicted and a ghost queue records its page. A page in
//! the ghost queue enters main directly. Main is a FIFO with as many second chances as the frame's
//! count of requests (2 bits).
//!
//! Differences from the paper:
//! - The policy does not know the capacity, which the arena owns. The small queue has a share of
//!   the resident bytes, which equal the capacity at the time of an eviction.
//! - Within a request the deeper page leaves first, in both queues. Across requests S3-FIFO keeps
//!   no chain order: an old parent that was requested once leaves before a new child.
//! - A request counts once per frame; in a batched store, a request may look a frame up and then
//!   read it.
//! - Second chances, and frames examined in one call, are bounded.

use super::frame::{FrameId, FramePolicy, Recency};
use super::ghost::Ghost;
use super::order::{Order, Walk};
use super::ordered_frames::OrderKey;
use super::slab::Slab;

/// Frames are evicted from the small queue while it has at least 1/10 of the bytes (the paper's 10
/// %).
const SMALL_SHARE: u64 = 10;
/// Number of requests after which a frame of the small queue moves to main (the paper's `freq >
/// 1`).
const USES_TO_MAIN: u8 = 2;
/// Maximum of a frame's count of requests (2 bits).
const USES_MAX: u8 = 3;
/// Most second chances and moves to main in one walk; later frames are treated as not requested
/// again. This bounds the time under the store's lock if all frames are hot, when any victim is
/// equally good.
const CHANCES_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Small,
    Main,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    queue: Queue,
    place: Recency,
    bytes: u64,
    fingerprint: u128,
    uses: u8,
    counted_epoch: u64,
}

/// S3-FIFO eviction. Memory is about 110 bytes per frame and 60 per ghost; there are at most as
/// many ghosts as frames.
#[derive(Debug)]
pub struct S3Fifo {
    entries: Slab<Entry>,
    small: Order,
    main: Order,
    ghost: Ghost,
    small_bytes: u64,
    bytes: u64,
    /// Logical clock of the main queue.
    turn: u64,
    /// Epoch of the last request that entered main directly, and its turn there.
    entered: Option<(u64, u64)>,
}

impl S3Fifo {
    /// An empty policy.
    pub fn new() -> S3Fifo {
        S3Fifo {
            entries: Slab::new(),
            small: Order::new(),
            main: Order::new(),
            ghost: Ghost::default(),
            small_bytes: 0,
            bytes: 0,
            turn: 0,
            entered: None,
        }
    }

    /// The turn of a request that enters main directly. All its frames share one turn, so that
    /// depth orders them.
    fn turn_of(&mut self, epoch: u64) -> u64 {
        match self.entered {
            Some((known, turn)) if known == epoch => turn,
            _ => {
                self.turn += 1;
                self.entered = Some((epoch, self.turn));
                self.turn
            }
        }
    }

    /// Append a frame, which was just removed from a queue, to main.
    fn append_to_main(&mut self, frame: FrameId, uses: u8) {
        let Some(entry) = self.entries.get_mut(frame) else { return };
        if entry.queue == Queue::Small {
            self.small_bytes -= entry.bytes;
        }
        self.turn += 1;
        entry.queue = Queue::Main;
        entry.place.epoch = self.turn;
        entry.uses = uses;
        self.main.insert(frame, entry.place);
    }

    fn uses(&self, frame: FrameId) -> u8 {
        self.entries.get(frame).map_or(0, |entry| entry.uses)
    }

    fn victim_of_small(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut walk = Walk::default();
        let mut chances = CHANCES_MAX;
        while let Some(OrderKey { at, frame }) = self.small.examine_next(&mut walk) {
            if chances > 0 && self.uses(frame) >= USES_TO_MAIN {
                chances -= 1;
                self.small.remove(frame, at);
                self.append_to_main(frame, 0);
            } else if evictable(frame) {
                self.small.take(&walk, OrderKey { at, frame });
                let entry = self.entries.take(frame)?;
                self.small_bytes -= entry.bytes;
                self.bytes -= entry.bytes;
                // As many ghosts as main has frames; while main is still short, as many as it will
                // have.
                let ghosts = self.main.len().max(self.len() * 9 / 10);
                self.ghost.remember(entry.fingerprint, ghosts);
                return Some(frame);
            }
        }
        None
    }

    fn victim_of_main(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut walk = Walk::default();
        let mut chances = CHANCES_MAX;
        while let Some(OrderKey { at, frame }) = self.main.examine_next(&mut walk) {
            let uses = self.uses(frame);
            if chances > 0 && uses > 0 {
                chances -= 1;
                self.main.remove(frame, at);
                self.append_to_main(frame, uses - 1);
            } else if evictable(frame) {
                self.main.take(&walk, OrderKey { at, frame });
                let entry = self.entries.take(frame)?;
                self.bytes -= entry.bytes;
                return Some(frame);
            }
        }
        None
    }
}

impl Default for S3Fifo {
    fn default() -> S3Fifo {
        S3Fifo::new()
    }
}

impl FramePolicy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn reserve(&mut self, frames: usize) {
        self.entries.reserve(frames);
    }

    fn insert(&mut self, frame: FrameId, bytes: u64, fingerprint: u128, at: Recency) {
        self.remove(frame);
        let (queue, place) = if self.ghost.recall(fingerprint) {
            (Queue::Main, Recency { epoch: self.turn_of(at.epoch), depth: at.depth })
        } else {
            self.small_bytes += bytes;
            (Queue::Small, at)
        };
        match queue {
            Queue::Small => self.small.insert(frame, place),
            Queue::Main => self.main.insert(frame, place),
        }
        self.bytes += bytes;
        let entry = Entry { queue, place, bytes, fingerprint, uses: 0, counted_epoch: at.epoch };
        self.entries.set(frame, entry);
    }

    fn touch(&mut self, frame: FrameId, at: Recency) {
        let Some(entry) = self.entries.get_mut(frame) else { return };
        if at.epoch > entry.counted_epoch {
            entry.counted_epoch = at.epoch;
            entry.uses = (entry.uses + 1).min(USES_MAX);
        }
    }

    fn counts_touches(&self) -> bool {
        true
    }

    fn remove(&mut self, frame: FrameId) {
        let Some(entry) = self.entries.take(frame) else { return };
        self.bytes -= entry.bytes;
        match entry.queue {
            Queue::Small => {
                self.small.remove(frame, entry.place);
                self.small_bytes -= entry.bytes;
            }
            Queue::Main => self.main.remove(frame, entry.place),
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        if self.small_bytes.saturating_mul(SMALL_SHARE) >= self.bytes {
            self.victim_of_small(evictable).or_else(|| self.victim_of_main(evictable))
        } else {
            self.victim_of_main(evictable).or_else(|| self.victim_of_small(evictable))
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A cache of `capacity` frames of 4096 bytes; each request is for one page.
    struct Cache {
        policy: S3Fifo,
        capacity: usize,
        frames: BTreeMap<u32, u128>,
        resident: BTreeMap<u128, u32>,
        epoch: u64,
    }

    impl Cache {
        fn new(capacity: usize) -> Cache {
            let (frames, resident) = (BTreeMap::new(), BTreeMap::new());
            Cache { policy: S3Fifo::new(), capacity, frames, resident, epoch: 0 }
        }

        /// Request a page; returns whether it was resident.
        fn request(&mut self, page: u128) -> bool {
            self.epoch += 1;
            let at = Recency { epoch: self.epoch, depth: 0 };
            if let Some(frame) = self.resident.get(&page) {
                self.policy.touch(FrameId(*frame), at);
                return true;
            }
            if self.resident.len() == self.capacity {
                let frame = self.policy.victim(&mut |_| true).expect("nothing is pinned");
                let left = self.frames.remove(&frame.0).expect("a victim is resident");
                self.resident.remove(&left);
            }
            let frame =
                (0..).find(|frame| !self.frames.contains_key(frame)).expect("a free number");
            self.policy.insert(FrameId(frame), 4096, page, at);
            self.frames.insert(frame, page);
            self.resident.insert(page, frame);
            false
        }

        fn queue_of(&self, page: u128) -> Option<Queue> {
            let frame = self.resident.get(&page)?;
            self.policy.entries.get(FrameId(*frame)).map(|entry| entry.queue)
        }
    }

    #[test]
    fn one_hit_wonders_leave_small_queue_in_order() {
        let mut cache = Cache::new(10);
        for page in 0..50 {
            cache.request(page);
        }
        assert_eq!(cache.policy.main.len(), 0);
        assert_eq!(
            cache.resident.keys().copied().collect::<Vec<_>>(),
            (40..50).collect::<Vec<_>>()
        );
    }

    #[test]
    fn page_moves_to_main_after_two_later_requests() {
        let mut cache = Cache::new(10);
        for page in [0, 1, 0, 1, 0] {
            cache.request(page);
        }
        for page in 100..120 {
            cache.request(page);
        }
        assert_eq!(cache.queue_of(0), Some(Queue::Main));
        assert_eq!(cache.queue_of(1), None);
    }

    #[test]
    fn page_in_ghost_queue_enters_main() {
        let mut cache = Cache::new(10);
        for page in 0..11 {
            cache.request(page);
        }
        assert_eq!(cache.queue_of(0), None, "page 0 was evicted");
        assert!(!cache.request(0));
        assert_eq!(cache.queue_of(0), Some(Queue::Main));
    }

    #[test]
    fn ghost_queue_drops_pages_evicted_long_ago() {
        let mut cache = Cache::new(10);
        for page in 0..40 {
            cache.request(page);
        }
        assert!(cache.policy.ghost.len() <= 9);
        cache.request(0);
        assert_eq!(cache.queue_of(0), Some(Queue::Small));
    }

    #[test]
    fn removed_page_leaves_no_ghost() {
        let mut cache = Cache::new(10);
        cache.request(7);
        let frame = cache.resident.remove(&7).expect("resident");
        cache.frames.remove(&frame);
        cache.policy.remove(FrameId(frame));
        assert_eq!((cache.policy.len(), cache.policy.bytes), (0, 0));
        cache.request(7);
        assert_eq!(cache.queue_of(7), Some(Queue::Small));
    }

    #[test]
    fn main_queue_gives_one_second_chance_per_request() {
        let mut policy = S3Fifo::new();
        for frame in 0..4u32 {
            policy.ghost.remember(u128::from(frame), 4);
        }
        let at = |epoch| Recency { epoch, depth: 0 };
        for frame in 0..4u32 {
            policy.insert(FrameId(frame), 4096, u128::from(frame), at(1 + u64::from(frame)));
        }
        // Frame 0 is requested twice, frame 2 once, frame 1 more often than the count saturates at.
        for (frame, epochs) in [(0, 10..12), (2, 12..13), (1, 13..18)] {
            epochs.for_each(|epoch| policy.touch(FrameId(frame), at(epoch)));
        }
        assert_eq!(policy.uses(FrameId(1)), USES_MAX);
        let order: Vec<u32> =
            std::iter::from_fn(|| policy.victim(&mut |_| true)).map(|f| f.0).collect();
        assert_eq!(order, [3, 2, 0, 1]);
    }

    #[test]
    fn scan_does_not_evict_hot_pages() {
        let mut cache = Cache::new(100);
        for _ in 0..4 {
            for page in 0..50 {
                cache.request(page);
            }
        }
        for page in 1000..11_000 {
            cache.request(page);
        }
        let hits = (0..50).filter(|page| cache.request(*page)).count();
        assert_eq!(hits, 50);
    }

    #[test]
    fn request_counts_once_per_frame() {
        let mut policy = S3Fifo::new();
        for frame in 0..2 {
            policy.insert(FrameId(frame), 4096, u128::from(frame), Recency { epoch: 1, depth: 0 });
        }
        for _ in 0..5 {
            policy.touch(FrameId(0), Recency { epoch: 1, depth: 0 });
            policy.touch(FrameId(0), Recency { epoch: 2, depth: 0 });
        }
        assert_eq!(policy.uses(FrameId(0)), 1);
        policy.touch(FrameId(0), Recency { epoch: 3, depth: 0 });
        assert_eq!(policy.uses(FrameId(0)), 2);
    }

    #[test]
    fn s3fifo_evicts_chain_from_tail_of_both_queues() {
        let mut policy = S3Fifo::new();
        let insert_chain = |policy: &mut S3Fifo, epoch| {
            for depth in 0..4u32 {
                policy.insert(FrameId(depth), 4096, u128::from(depth), Recency { epoch, depth });
            }
        };
        let drain = |policy: &mut S3Fifo| -> Vec<u32> {
            std::iter::from_fn(|| policy.victim(&mut |_| true)).map(|frame| frame.0).collect()
        };
        // Filler frames, so that the ghost queue is long enough for the chain.
        for frame in 10..30 {
            policy.insert(FrameId(frame), 4096, u128::from(frame), Recency { epoch: 9, depth: 0 });
        }
        insert_chain(&mut policy, 1);
        let left: Vec<u32> =
            (0..4).filter_map(|_| policy.victim(&mut |_| true)).map(|f| f.0).collect();
        assert_eq!(left, [3, 2, 1, 0]);
        insert_chain(&mut policy, 10);
        assert_eq!(policy.main.len(), 4, "the ghost queue had all of them");
        (10..30).for_each(|frame| policy.remove(FrameId(frame)));
        assert_eq!(drain(&mut policy), [3, 2, 1, 0]);
    }

    #[test]
    fn victim_call_is_bounded_if_all_frames_are_hot() {
        let mut policy = S3Fifo::new();
        for frame in 0..5000 {
            policy.insert(
                FrameId(frame),
                4096,
                u128::from(frame),
                Recency { epoch: 1, depth: frame },
            );
            for epoch in 2..6 {
                policy.touch(FrameId(frame), Recency { epoch, depth: frame });
            }
        }
        assert_ne!(policy.victim(&mut |_| true), None);
        assert_eq!(policy.main.len(), CHANCES_MAX, "exactly the chances of one call");
    }

    proptest! {
        /// For any sequence of calls: pinned frames never leave, all others do, and the sums are
        /// right.
        #[test]
        fn s3fifo_sums_are_exact_and_pinned_frames_stay(
            steps in prop::collection::vec((0u8..4, 0u32..40, 1u64..9000, 0u32..5), 1..300)
        ) {
            let mut policy = S3Fifo::new();
            let mut known: BTreeMap<u32, u64> = BTreeMap::new();
            for (epoch, (kind, frame, bytes, depth)) in steps.into_iter().enumerate() {
                let at = Recency { epoch: epoch as u64, depth };
                match kind {
                    0 => {
                        policy.insert(FrameId(frame), bytes, u128::from(frame % 16), at);
                        known.insert(frame, bytes);
                    }
                    1 => policy.touch(FrameId(frame), at),
                    2 => {
                        policy.remove(FrameId(frame));
                        known.remove(&frame);
                    }
                    _ => {
                        // Frames whose number is congruent to the drawn one are pinned.
                        let pinned = |other: u32| other % 3 == frame % 3;
                        let victim = policy.victim(&mut |other| !pinned(other.0));
                        prop_assert_eq!(victim.is_some(), known.keys().any(|other| !pinned(*other)));
                        if let Some(victim) = victim {
                            prop_assert!(!pinned(victim.0));
                            prop_assert!(known.remove(&victim.0).is_some());
                        }
                    }
                }
                prop_assert_eq!(policy.len(), known.len());
                prop_assert_eq!(policy.bytes, known.values().sum::<u64>());
                prop_assert!(policy.ghost.len() <= 40);
            }
            while let Some(victim) = policy.victim(&mut |_| true) {
                known.remove(&victim.0);
            }
            prop_assert!(known.is_empty());
            prop_assert_eq!((policy.bytes, policy.small_bytes), (0, 0));
        }
    }
}
