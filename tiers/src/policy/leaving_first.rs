//! Frames that leave before all others: those of pages that are expected not to be requested again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::frame::{FrameId, FramePolicy, Recency};
use super::last_requests::LastRequests;
use super::order::{Order, Walk};

/// A policy, and in front of it the frames that leave first, deeper pages before shallower ones.
/// They stay in the policy, so that the next request for one undoes it. Memory is some 100 bytes
/// for each of them, and none for others.
pub(super) struct LeavingFirst {
    policy: Box<dyn FramePolicy>,
    last_requests: Arc<LastRequests>,
    order: Order,
    /// Places in the order.
    positions: BTreeMap<FrameId, Recency>,
}

impl LeavingFirst {
    /// In front of `policy`, of frames whose last requests `last_requests` has.
    pub(super) fn new(
        policy: Box<dyn FramePolicy>,
        last_requests: Arc<LastRequests>,
    ) -> LeavingFirst {
        LeavingFirst { policy, last_requests, order: Order::new(), positions: BTreeMap::new() }
    }

    fn forget(&mut self, frame: FrameId) {
        if let Some(at) = self.positions.remove(&frame) {
            self.order.remove(frame, at);
        }
    }

    fn victim_that_leaves_first(
        &mut self,
        evictable: &mut dyn FnMut(FrameId) -> bool,
    ) -> Option<FrameId> {
        let mut walk = Walk::default();
        while let Some(position) = self.order.examine_next(&mut walk) {
            if !self.last_requests.leaves_first(position.frame) {
                self.forget(position.frame);
            } else if evictable(position.frame) {
                self.order.take(&walk, position);
                self.positions.remove(&position.frame);
                self.policy.remove(position.frame);
                return Some(position.frame);
            }
        }
        None
    }
}

impl FramePolicy for LeavingFirst {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn reserve(&mut self, frames: usize) {
        self.policy.reserve(frames);
    }

    fn insert(&mut self, frame: FrameId, bytes: u64, fingerprint: u128, at: Recency) {
        self.forget(frame);
        // The policy may record the insertion as a request.
        let leaves_first = self.last_requests.leaves_first(frame);
        self.policy.insert(frame, bytes, fingerprint, at);
        if leaves_first {
            self.last_requests.leave_first(frame);
            self.leave_first(frame);
        }
    }

    fn remove(&mut self, frame: FrameId) {
        self.forget(frame);
        self.policy.remove(frame);
    }

    fn leave_first(&mut self, frame: FrameId) {
        self.forget(frame);
        let depth = self.last_requests.get(frame).map_or(0, |at| at.depth);
        let at = Recency { request: 0, depth };
        self.order.insert(frame, at);
        self.positions.insert(frame, at);
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let victim = self.victim_that_leaves_first(evictable);
        victim.or_else(|| {
            let victim = self.policy.victim(evictable)?;
            self.forget(victim);
            Some(victim)
        })
    }

    fn len(&self) -> usize {
        self.policy.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FRAME_POLICIES, frame_policy};
    use super::*;

    /// A policy by name with frames 0 to 5 of as many requests, and the last requests.
    fn filled(name: &str) -> (Box<dyn FramePolicy>, Arc<LastRequests>) {
        let last_requests = Arc::new(LastRequests::new(8).expect("memory"));
        let mut policy = frame_policy(name, &last_requests).expect("known");
        for frame in 0..6 {
            insert(&mut *policy, &last_requests, frame, u64::from(frame) + 1);
        }
        (policy, last_requests)
    }

    fn insert(
        policy: &mut dyn FramePolicy,
        last_requests: &LastRequests,
        frame: u32,
        request: u64,
    ) {
        let at = Recency { request, depth: frame };
        last_requests.set(FrameId(frame), at);
        policy.insert(FrameId(frame), 4096, u128::from(frame), at);
    }

    fn leave_first(policy: &mut dyn FramePolicy, last_requests: &LastRequests, frames: &[u32]) {
        for frame in frames {
            last_requests.leave_first(FrameId(*frame));
            policy.leave_first(FrameId(*frame));
        }
    }

    fn drain(policy: &mut dyn FramePolicy) -> Vec<u32> {
        std::iter::from_fn(|| policy.victim(&mut |_| true)).map(|frame| frame.0).collect()
    }

    #[test]
    fn leaving_frames_leave_before_all_others_from_their_tail() {
        for name in FRAME_POLICIES {
            let (mut policy, last_requests) = filled(name);
            leave_first(&mut *policy, &last_requests, &[3, 5]);
            assert_eq!(policy.len(), 6, "{name}");
            assert_eq!(drain(&mut *policy), [5, 3, 0, 1, 2, 4], "{name}");
            assert!(policy.is_empty(), "{name}");
        }
    }

    #[test]
    fn frame_that_leaves_first_before_it_is_inserted_does_so() {
        for name in FRAME_POLICIES {
            let (mut policy, last_requests) = filled(name);
            let at = Recency { request: 9, depth: 7 };
            last_requests.set(FrameId(7), at);
            last_requests.leave_first(FrameId(7));
            policy.insert(FrameId(7), 4096, 7, at);
            assert_eq!(drain(&mut *policy), [7, 0, 1, 2, 3, 4, 5], "{name}");
        }
    }

    #[test]
    fn request_undoes_it() {
        for name in FRAME_POLICIES {
            let (mut policy, last_requests) = filled(name);
            leave_first(&mut *policy, &last_requests, &[3, 5]);
            last_requests.raise(FrameId(3), Recency { request: 9, depth: 3 });
            let order = drain(&mut *policy);
            // FIFO does not count requests, and S3-FIFO counts one of them.
            let expected = if name == "lru" { [5, 0, 1, 2, 4, 3] } else { [5, 0, 1, 2, 3, 4] };
            assert_eq!(order, expected, "{name}");
        }
    }

    #[test]
    fn pinned_and_removed_leaving_frames_are_no_victims() {
        for name in FRAME_POLICIES {
            let (mut policy, last_requests) = filled(name);
            leave_first(&mut *policy, &last_requests, &[1, 2, 4]);
            policy.remove(FrameId(2));
            assert_eq!(policy.victim(&mut |frame| frame.0 != 4), Some(FrameId(1)), "{name}");
            assert_eq!(policy.victim(&mut |frame| frame.0 != 4), Some(FrameId(0)), "{name}");
            assert_eq!((policy.victim(&mut |_| true), policy.len()), (Some(FrameId(4)), 2));
        }
    }
}
