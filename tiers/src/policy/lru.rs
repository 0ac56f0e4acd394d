//! LRU eviction by [`Recency`]: within a request, the tail of the chain leaves before its head.
//!
//! A request only records its recency, in constant time. A frame is moved to its position in the
//! order when it comes up as a victim, since most requests never affect a victim. The victim is
//! exactly the least recently used frame if the frames that come up fit one walk
//! ([`STEPS_MAX`](super::order::STEPS_MAX)). If a walk meets only frames that were requested again,
//! the victim is the least recently used of those.

use std::sync::Arc;

use super::frame::{FrameId, FramePolicy, Recency};
use super::last_requests::LastRequests;
use super::order::{Order, Walk};
use super::slab::Slab;

/// LRU eviction. Memory is about 50 bytes per frame of a request with many pages, and three times
/// that for a request with one page.
#[derive(Debug)]
pub struct Lru {
    order: Order,
    /// The recency under which each frame is in `order`.
    positions: Slab<Recency>,
    last_requests: Arc<LastRequests>,
}

impl Lru {
    /// An empty one, of frames whose last requests `last_requests` has.
    pub fn new(last_requests: Arc<LastRequests>) -> Lru {
        Lru { order: Order::new(), positions: Slab::new(), last_requests }
    }
}

impl FramePolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn reserve(&mut self, frames: usize) {
        self.positions.reserve(frames);
    }

    fn insert(&mut self, frame: FrameId, _bytes: u64, _fingerprint: u128, at: Recency) {
        self.remove(frame);
        self.order.insert(frame, at);
        self.positions.set(frame, at);
        self.last_requests.set(frame, at);
    }

    fn remove(&mut self, frame: FrameId) {
        if let Some(position) = self.positions.take(frame) {
            self.order.remove(frame, position);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut walk = Walk::default();
        let mut moved: Option<(Recency, FrameId)> = None;
        while let Some(key) = self.order.examine_next(&mut walk) {
            let last_request = self.last_requests.get(key.frame).unwrap_or(key.at);
            if last_request > key.at {
                let newer = (last_request, key.frame);
                self.order.remove(key.frame, key.at);
                self.order.insert(key.frame, last_request);
                self.positions.set(key.frame, last_request);
                if moved.is_none_or(|moved| newer < moved) && evictable(key.frame) {
                    moved = Some(newer);
                }
            } else if evictable(key.frame) {
                self.order.take(&walk, key);
                self.positions.take(key.frame);
                return Some(key.frame);
            }
        }
        let (_, frame) = moved?;
        self.remove(frame);
        Some(frame)
    }

    fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Enough frames for all tests except one.
    const FRAMES: u32 = 32;

    fn lru(frames: u32) -> Lru {
        Lru::new(Arc::new(LastRequests::new(frames as usize).expect("memory")))
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32, Recency),
        Touch(u32, Recency),
        Remove(u32),
        Victim(BTreeSet<u32>),
    }

    fn recency() -> impl Strategy<Value = Recency> {
        (0u64..12, 0u32..6).prop_map(|(request, depth)| Recency { request, depth })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u32..24, recency()).prop_map(|(frame, at)| Step::Insert(frame, at)),
            3 => (0u32..24, recency()).prop_map(|(frame, at)| Step::Touch(frame, at)),
            1 => (0u32..24).prop_map(Step::Remove),
            2 => prop::collection::btree_set(0u32..24, 0..12).prop_map(Step::Victim),
        ]
    }

    /// A list that is searched linearly.
    #[derive(Default)]
    struct Model(Vec<(u32, u64, u32)>);

    impl Model {
        fn victim(&mut self, pinned: &BTreeSet<u32>) -> Option<u32> {
            let candidates = self.0.iter().filter(|(frame, ..)| !pinned.contains(frame));
            let (frame, ..) = *candidates
                .min_by_key(|(frame, request, depth)| (*request, u32::MAX - *depth, *frame))?;
            self.0.retain(|(known, ..)| *known != frame);
            Some(frame)
        }
    }

    proptest! {
        #[test]
        fn lru_equals_brute_force_model(steps in prop::collection::vec(step(), 1..200)) {
            let mut lru = lru(FRAMES);
            let mut model = Model::default();
            for step in steps {
                match step {
                    Step::Insert(frame, at) => {
                        lru.insert(FrameId(frame), 1, 0, at);
                        model.0.retain(|(known, ..)| *known != frame);
                        model.0.push((frame, at.request, at.depth));
                    }
                    Step::Touch(frame, at) => {
                        lru.last_requests.raise(FrameId(frame), at);
                        for (known, request, depth) in &mut model.0 {
                            let newer = at.request > *request || (at.request == *request && at.depth < *depth);
                            if *known == frame && newer {
                                (*request, *depth) = (at.request, at.depth);
                            }
                        }
                    }
                    Step::Remove(frame) => {
                        lru.remove(FrameId(frame));
                        model.0.retain(|(known, ..)| *known != frame);
                    }
                    Step::Victim(pinned) => {
                        let got = lru.victim(&mut |frame| !pinned.contains(&frame.0));
                        prop_assert_eq!(got.map(|frame| frame.0), model.victim(&pinned));
                    }
                }
                prop_assert_eq!(lru.len(), model.0.len());
            }
        }
    }

    #[test]
    fn lru_evicts_chain_from_tail() {
        let mut lru = lru(FRAMES);
        for depth in 0..5 {
            lru.insert(FrameId(depth), 1, 0, Recency { request: 1, depth });
        }
        lru.last_requests.raise(FrameId(0), Recency { request: 2, depth: 0 });
        lru.last_requests.raise(FrameId(1), Recency { request: 2, depth: 1 });
        let order: Vec<u32> =
            std::iter::from_fn(|| lru.victim(&mut |_| true)).map(|f| f.0).collect();
        assert_eq!(order, [4, 3, 2, 1, 0]);
    }

    #[test]
    fn lru_skips_pinned_frame_and_keeps_its_place() {
        let mut lru = lru(FRAMES);
        for frame in 0..4 {
            lru.insert(FrameId(frame), 1, 0, Recency { request: u64::from(frame), depth: 0 });
        }
        assert_eq!(lru.victim(&mut |frame| frame.0 != 0), Some(FrameId(1)));
        assert_eq!(lru.victim(&mut |_| false), None);
        assert_eq!(lru.victim(&mut |_| true), Some(FrameId(0)));
        assert_eq!(lru.len(), 2);
    }

    /// More frames than one walk covers, all requested again: the oldest of the frames that came up
    /// is the victim.
    #[test]
    fn lru_finds_victim_in_one_call_if_all_frames_were_requested_again() {
        let frames = 3 * super::super::order::STEPS_MAX as u32;
        let mut lru = lru(frames);
        for frame in 0..frames {
            lru.insert(FrameId(frame), 1, 0, Recency { request: u64::from(frame), depth: 0 });
        }
        for frame in 0..frames {
            lru.last_requests.raise(
                FrameId(frame),
                Recency { request: u64::from(2 * frames - frame), depth: 0 },
            );
        }
        let mut left: BTreeSet<u32> = (0..frames).collect();
        while let Some(FrameId(frame)) = lru.victim(&mut |_| true) {
            assert!(left.remove(&frame), "frame {frame} twice");
        }
        assert!(left.is_empty(), "{} were never found", left.len());
        assert_eq!(lru.len(), 0);
    }
}
