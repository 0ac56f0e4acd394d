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
//! - A request counts once per frame, and only if it reads it: callers of a batched store look
//!   pages up, perhaps repeatedly, before they read them. Threads count requests without the
//!   store's lock ([`LastRequests`]).
//! - Frames that enter main shortly after each other are ordered by depth.
//! - Second chances, and frames examined in one call, are bounded.

use std::sync::Arc;

use super::frame::{FrameId, FramePolicy, Recency};
use super::ghost::Ghost;
use super::last_requests::{LastRequests, USES_MAX};
use super::order::{Order, Walk};
use super::ordered_frames::OrderKey;
use super::slab::Slab;

/// Frames are evicted from the small queue while it has at least 1/10 of the bytes (the paper's 10
/// %).
const SMALL_SHARE: u64 = 10;
/// Number of requests after which a frame of the small queue moves to main (the paper's `freq >
/// 1`).
const USES_TO_MAIN: u8 = 2;
/// Frames are counted in units of this many bytes, the arena's.
const UNIT_BYTES: u64 = 4096;
/// Frames that enter main share a value of its clock until they are 1/256 of main. Each value costs
/// memory, and so would a value for each frame.
const CLOCK_SHARE: usize = 256;
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
    /// Its position in its queue: request number, or value of main's clock, and depth.
    number: u64,
    depth: u32,
    units: u32,
    /// By which the ghost queue knows the frame's first object ([`hash_of`]).
    hash: u32,
    queue: Queue,
}

const _: () = assert!(size_of::<Option<Entry>>() == 24);

impl Entry {
    fn position(&self) -> Recency {
        Recency { request: self.number, depth: self.depth }
    }
}

/// S3-FIFO eviction. Memory is that of [`Lru`](super::Lru) and of the ghost queue; there are at
/// most as many ghosts as frames.
#[derive(Debug)]
pub struct S3Fifo {
    entries: Slab<Entry>,
    last_requests: Arc<LastRequests>,
    small: Order,
    main: Order,
    ghost: Ghost,
    small_units: u64,
    units: u64,
    /// Logical clock of the main queue, and the frames that entered at its current value.
    main_clock: u64,
    frames_at_clock: usize,
    /// Number of the last request that entered main directly, and its value of the clock.
    entered: Option<(u64, u64)>,
}

impl S3Fifo {
    /// An empty policy, of frames whose last requests `last_requests` has.
    pub fn new(last_requests: Arc<LastRequests>) -> S3Fifo {
        S3Fifo {
            entries: Slab::new(),
            last_requests,
            small: Order::new(),
            main: Order::new(),
            ghost: Ghost::default(),
            small_units: 0,
            units: 0,
            main_clock: 0,
            frames_at_clock: 0,
            entered: None,
        }
    }

    /// The clock's value for a request that enters main directly. All its frames share one value,
    /// so that depth orders them.
    fn main_clock_of(&mut self, request: u64) -> u64 {
        match self.entered {
            Some((known, main_clock)) if known == request => main_clock,
            _ => {
                self.advance_main_clock();
                self.entered = Some((request, self.main_clock));
                self.main_clock
            }
        }
    }

    fn advance_main_clock(&mut self) {
        self.main_clock += 1;
        self.frames_at_clock = 0;
    }

    /// Append a frame, which was just removed from a queue, to main, and subtract `spent` from its
    /// count of requests.
    fn append_to_main(&mut self, frame: FrameId, spent: u8) {
        let Some(entry) = self.entries.get(frame) else { return };
        // A frame of the current value must move on too: the walk has passed its old position.
        let moves_on = entry.queue == Queue::Small || entry.number < self.main_clock;
        if !moves_on || self.frames_at_clock * CLOCK_SHARE >= self.main.len() {
            self.advance_main_clock();
        }
        self.frames_at_clock += 1;
        let Some(entry) = self.entries.get_mut(frame) else { return };
        if entry.queue == Queue::Small {
            self.small_units -= u64::from(entry.units);
        }
        entry.queue = Queue::Main;
        entry.number = self.main_clock;
        let position = entry.position();
        self.last_requests.spend_uses(frame, spent);
        self.main.insert(frame, position);
    }

    fn uses(&self, frame: FrameId) -> u8 {
        self.last_requests.uses(frame)
    }

    fn victim_of_small(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut walk = Walk::default();
        let mut chances = CHANCES_MAX;
        while let Some(OrderKey { at, frame }) = self.small.examine_next(&mut walk) {
            if chances > 0 && self.uses(frame) >= USES_TO_MAIN {
                chances -= 1;
                self.small.remove(frame, at);
                self.append_to_main(frame, USES_MAX);
            } else if evictable(frame) {
                self.small.take(&walk, OrderKey { at, frame });
                let entry = self.entries.take(frame)?;
                self.small_units -= u64::from(entry.units);
                self.units -= u64::from(entry.units);
                // As many ghosts as main has frames; while main is still short, as many as it will
                // have.
                let ghosts = self.main.len().max(self.len() * 9 / 10);
                self.ghost.remember(entry.hash, ghosts);
                return Some(frame);
            }
        }
        None
    }

    fn victim_of_main(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut walk = Walk::default();
        let mut chances = CHANCES_MAX;
        while let Some(OrderKey { at, frame }) = self.main.examine_next(&mut walk) {
            if chances > 0 && self.uses(frame) > 0 {
                chances -= 1;
                self.main.remove(frame, at);
                self.append_to_main(frame, 1);
            } else if evictable(frame) {
                self.main.take(&walk, OrderKey { at, frame });
                let entry = self.entries.take(frame)?;
                self.units -= u64::from(entry.units);
                return Some(frame);
            }
        }
        None
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
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let hash = hash_of(fingerprint);
        let (queue, position) = if self.ghost.recall(hash) {
            (Queue::Main, Recency { request: self.main_clock_of(at.request), depth: at.depth })
        } else {
            self.small_units += u64::from(units);
            (Queue::Small, at)
        };
        match queue {
            Queue::Small => self.small.insert(frame, position),
            Queue::Main => self.main.insert(frame, position),
        }
        self.units += u64::from(units);
        let Recency { request: number, depth } = position;
        self.entries.set(frame, Entry { number, depth, units, hash, queue });
    }

    fn remove(&mut self, frame: FrameId) {
        let Some(entry) = self.entries.take(frame) else { return };
        self.units -= u64::from(entry.units);
        match entry.queue {
            Queue::Small => {
                self.small.remove(frame, entry.position());
                self.small_units -= u64::from(entry.units);
            }
            Queue::Main => self.main.remove(frame, entry.position()),
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        if self.small_units.saturating_mul(SMALL_SHARE) >= self.units {
            self.victim_of_small(evictable).or_else(|| self.victim_of_main(evictable))
        } else {
            self.victim_of_main(evictable).or_else(|| self.victim_of_small(evictable))
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

/// A hash of a fingerprint; all of its bits scatter.
fn hash_of(fingerprint: u128) -> u32 {
    let folded = (fingerprint >> 64) as u64 ^ fingerprint as u64;
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn policy() -> S3Fifo {
        S3Fifo::new(Arc::new(LastRequests::new(5000).expect("memory")))
    }

    /// Insert a frame as the store does.
    fn insert(policy: &mut S3Fifo, frame: u32, bytes: u64, fingerprint: u128, at: Recency) {
        policy.last_requests.set(FrameId(frame), at);
        policy.insert(FrameId(frame), bytes, fingerprint, at);
    }

    /// A cache of `capacity` frames of 4096 bytes; each request is for one page.
    struct Cache {
        policy: S3Fifo,
        capacity: usize,
        frames: BTreeMap<u32, u128>,
        resident: BTreeMap<u128, u32>,
        request: u64,
    }

    impl Cache {
        fn new(capacity: usize) -> Cache {
            let (frames, resident) = (BTreeMap::new(), BTreeMap::new());
            Cache { policy: policy(), capacity, frames, resident, request: 0 }
        }

        /// Request a page; returns whether it was resident.
        fn request(&mut self, page: u128) -> bool {
            self.request += 1;
            let at = Recency { request: self.request, depth: 0 };
            if let Some(frame) = self.resident.get(&page) {
                self.policy.last_requests.raise(FrameId(*frame), at);
                return true;
            }
            if self.resident.len() == self.capacity {
                let frame = self.policy.victim(&mut |_| true).expect("nothing is pinned");
                let left = self.frames.remove(&frame.0).expect("a victim is resident");
                self.resident.remove(&left);
            }
            let frame =
                (0..).find(|frame| !self.frames.contains_key(frame)).expect("a free number");
            insert(&mut self.policy, frame, 4096, page, at);
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
        assert_eq!((cache.policy.len(), cache.policy.units), (0, 0));
        cache.request(7);
        assert_eq!(cache.queue_of(7), Some(Queue::Small));
    }

    #[test]
    fn main_queue_gives_one_second_chance_per_request() {
        let mut policy = policy();
        for frame in 0..4u32 {
            policy.ghost.remember(hash_of(u128::from(frame)), 4);
        }
        let at = |request| Recency { request, depth: 0 };
        for frame in 0..4u32 {
            insert(&mut policy, frame, 4096, u128::from(frame), at(1 + u64::from(frame)));
        }
        // Frame 0 is requested twice, frame 2 once, frame 1 more often than the count saturates at.
        for (frame, requests) in [(0, 10..12), (2, 12..13), (1, 13..18)] {
            requests.for_each(|request| policy.last_requests.raise(FrameId(frame), at(request)));
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
        let mut policy = policy();
        for frame in 0..2 {
            insert(&mut policy, frame, 4096, u128::from(frame), Recency { request: 1, depth: 0 });
        }
        for _ in 0..5 {
            policy.last_requests.raise(FrameId(0), Recency { request: 1, depth: 0 });
            policy.last_requests.raise(FrameId(0), Recency { request: 2, depth: 0 });
        }
        assert_eq!(policy.uses(FrameId(0)), 1);
        policy.last_requests.raise(FrameId(0), Recency { request: 3, depth: 0 });
        assert_eq!(policy.uses(FrameId(0)), 2);
    }

    #[test]
    fn s3fifo_evicts_chain_from_tail_of_both_queues() {
        let mut policy = policy();
        let insert_chain = |policy: &mut S3Fifo, request| {
            for depth in 0..4u32 {
                insert(policy, depth, 4096, u128::from(depth), Recency { request, depth });
            }
        };
        let drain = |policy: &mut S3Fifo| -> Vec<u32> {
            std::iter::from_fn(|| policy.victim(&mut |_| true)).map(|frame| frame.0).collect()
        };
        // Filler frames, so that the ghost queue is long enough for the chain.
        for frame in 10..30 {
            insert(&mut policy, frame, 4096, u128::from(frame), Recency { request: 9, depth: 0 });
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
        let mut policy = policy();
        for frame in 0..5000 {
            let at = Recency { request: 1, depth: frame };
            insert(&mut policy, frame, 4096, u128::from(frame), at);
            for request in 2..6 {
                policy.last_requests.raise(FrameId(frame), Recency { request, depth: frame });
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
            let mut policy = policy();
            let mut known: BTreeMap<u32, u64> = BTreeMap::new();
            for (request, (kind, frame, bytes, depth)) in steps.into_iter().enumerate() {
                let at = Recency { request: request as u64, depth };
                match kind {
                    0 => {
                        insert(&mut policy, frame, bytes, u128::from(frame % 16), at);
                        known.insert(frame, bytes.div_ceil(UNIT_BYTES));
                    }
                    1 => policy.last_requests.raise(FrameId(frame), at),
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
                prop_assert_eq!(policy.units, known.values().sum::<u64>());
            }
            while let Some(victim) = policy.victim(&mut |_| true) {
                known.remove(&victim.0);
            }
            prop_assert!(known.is_empty());
            prop_assert_eq!((policy.units, policy.small_units), (0, 0));
        }
    }
}
