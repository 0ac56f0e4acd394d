//! Least recently used, exactly: by [`Recency`], so within a request the chain's tail goes before its head.

use super::order::Order;
use super::slab::Slab;
use super::{FrameId, FramePolicy, Recency};

/// Least recently used. About 50 bytes a frame.
#[derive(Debug)]
pub struct Lru {
    order: Order,
    at: Slab<Recency>,
}

impl Lru {
    /// An empty one.
    pub fn new() -> Lru {
        Lru { order: Order::new(), at: Slab::new() }
    }
}

impl Default for Lru {
    fn default() -> Lru {
        Lru::new()
    }
}

impl FramePolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn insert(&mut self, frame: FrameId, _bytes: u64, _fingerprint: u128, at: Recency) {
        self.remove(frame);
        self.order.insert(frame, at);
        self.at.set(frame, at);
    }

    fn touch(&mut self, frame: FrameId, at: Recency) {
        let Some(known) = self.at.get_mut(frame) else { return };
        if at > *known {
            self.order.remove(frame, *known);
            self.order.insert(frame, at);
            *known = at;
        }
    }

    fn remove(&mut self, frame: FrameId) {
        if let Some(at) = self.at.take(frame) {
            self.order.remove(frame, at);
        }
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let frame = self.order.victim(evictable)?;
        self.at.take(frame);
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

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32, Recency),
        Touch(u32, Recency),
        Remove(u32),
        Victim(BTreeSet<u32>),
    }

    fn recency() -> impl Strategy<Value = Recency> {
        (0u64..12, 0u32..6).prop_map(|(epoch, depth)| Recency { epoch, depth })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u32..24, recency()).prop_map(|(frame, at)| Step::Insert(frame, at)),
            3 => (0u32..24, recency()).prop_map(|(frame, at)| Step::Touch(frame, at)),
            1 => (0u32..24).prop_map(Step::Remove),
            2 => prop::collection::btree_set(0u32..24, 0..12).prop_map(Step::Victim),
        ]
    }

    /// A list that is searched from end to end each time.
    #[derive(Default)]
    struct Model(Vec<(u32, u64, u32)>);

    impl Model {
        fn victim(&mut self, pinned: &BTreeSet<u32>) -> Option<u32> {
            let candidates = self.0.iter().filter(|(frame, ..)| !pinned.contains(frame));
            let (frame, ..) =
                *candidates.min_by_key(|(frame, epoch, depth)| (*epoch, u32::MAX - *depth, *frame))?;
            self.0.retain(|(known, ..)| *known != frame);
            Some(frame)
        }
    }

    proptest! {
        #[test]
        fn equals_a_brute_force_model(steps in prop::collection::vec(step(), 1..200)) {
            let mut lru = Lru::new();
            let mut model = Model::default();
            for step in steps {
                match step {
                    Step::Insert(frame, at) => {
                        lru.insert(FrameId(frame), 1, 0, at);
                        model.0.retain(|(known, ..)| *known != frame);
                        model.0.push((frame, at.epoch, at.depth));
                    }
                    Step::Touch(frame, at) => {
                        lru.touch(FrameId(frame), at);
                        for (known, epoch, depth) in &mut model.0 {
                            let newer = at.epoch > *epoch || (at.epoch == *epoch && at.depth < *depth);
                            if *known == frame && newer {
                                (*epoch, *depth) = (at.epoch, at.depth);
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
    fn a_chain_leaves_from_its_tail() {
        let mut lru = Lru::new();
        for depth in 0..5 {
            lru.insert(FrameId(depth), 1, 0, Recency { epoch: 1, depth });
        }
        lru.touch(FrameId(0), Recency { epoch: 2, depth: 0 });
        lru.touch(FrameId(1), Recency { epoch: 2, depth: 1 });
        let order: Vec<u32> = std::iter::from_fn(|| lru.victim(&mut |_| true)).map(|f| f.0).collect();
        assert_eq!(order, [4, 3, 2, 1, 0]);
    }

    #[test]
    fn a_pinned_frame_is_passed_over_and_keeps_its_place() {
        let mut lru = Lru::new();
        for frame in 0..4 {
            lru.insert(FrameId(frame), 1, 0, Recency { epoch: u64::from(frame), depth: 0 });
        }
        assert_eq!(lru.victim(&mut |frame| frame.0 != 0), Some(FrameId(1)));
        assert_eq!(lru.victim(&mut |_| false), None);
        assert_eq!(lru.victim(&mut |_| true), Some(FrameId(0)));
        assert_eq!(lru.len(), 2);
    }
}
