//! The eviction order of frames, searched for an eligible victim in bounded steps.
//!
//! A walk examines frames at the front, where the right victim is, for the first half of its steps.
//! If all of them are ineligible, it jumps to the position where the last long walk stopped, so
//! that successive calls cover the whole order, and then wraps to the frames that it jumped over.
//! If the order is no longer than one walk, the walk does not jump, and the victim is always the
//! first eligible frame.

use super::frame::{FrameId, Recency};
use super::ordered_frames::{OrderKey, OrderedFrames};

/// Most frames that one walk examines. At about 100 ns per frame, this takes about 0.1 ms under the
/// store's lock.
pub(super) const STEPS_MAX: usize = 1024;

/// Frames in eviction order.
#[derive(Debug)]
pub(super) struct Order {
    frames: OrderedFrames,
    /// The position where the last walk that reached its limit stopped.
    resume: Option<OrderKey>,
    steps_max: usize,
}

/// State of one walk through an [`Order`].
#[derive(Debug, Default)]
pub(super) struct Walk {
    last: Option<OrderKey>,
    steps: usize,
    jumped: bool,
    /// The position before the jump, until the walk has wrapped to it.
    skipped_from: Option<OrderKey>,
}

impl Order {
    pub(super) fn new() -> Order {
        Order { frames: OrderedFrames::default(), resume: None, steps_max: STEPS_MAX }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn insert(&mut self, frame: FrameId, at: Recency) {
        self.frames.insert(OrderKey { at, frame });
    }

    pub(super) fn remove(&mut self, frame: FrameId, at: Recency) {
        self.frames.remove(&OrderKey { at, frame });
    }

    /// The next frame to examine, which stays in the order; `None` at the end of the walk. Frames
    /// may be removed and added between steps.
    pub(super) fn examine_next(&mut self, walk: &mut Walk) -> Option<OrderKey> {
        if walk.steps == self.steps_max {
            self.resume = walk.last;
            return None;
        }
        if walk.steps == self.steps_max / 2 && self.frames.len() > self.steps_max {
            walk.jumped = true;
            if self.resume > walk.last {
                walk.skipped_from = walk.last;
                walk.last = self.resume;
            }
        }
        walk.steps += 1;
        let next = self.frames.after(walk.last).or_else(|| {
            let front = walk.skipped_from.take()?;
            self.frames.after(Some(front))
        });
        match next {
            Some(_) => walk.last = next,
            None => self.resume = None,
        }
        next
    }

    /// Remove `key`, which the walk examined last, from the order as the walk's victim.
    pub(super) fn take(&mut self, walk: &Walk, key: OrderKey) {
        self.frames.remove(&key);
        if walk.jumped {
            self.resume = walk.last;
        }
    }

    /// Remove and return the first frame for which `evictable` is true, within one walk.
    pub(super) fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut walk = Walk::default();
        while let Some(key) = self.examine_next(&mut walk) {
            if evictable(key.frame) {
                self.take(&walk, key);
                return Some(key.frame);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(frames: u32, steps_max: usize) -> Order {
        let mut order = Order { steps_max, ..Order::new() };
        for frame in 0..frames {
            order.insert(FrameId(frame), Recency { request: u64::from(frame), depth: 0 });
        }
        order
    }

    /// The victim, and the number of calls until it was found; each call examines at most
    /// `steps_max` frames.
    fn calls_to_victim(order: &mut Order, evictable: impl Fn(u32) -> bool) -> (u32, usize) {
        for call in 1..=1000 {
            let mut steps = 0;
            let victim = order.victim(&mut |frame| {
                steps += 1;
                evictable(frame.0)
            });
            assert!(steps <= order.steps_max, "steps={steps}");
            if let Some(frame) = victim {
                return (frame.0, call);
            }
        }
        panic!("an eligible frame was never found");
    }

    #[test]
    fn short_order_gives_first_eligible_frame_in_one_call() {
        for first in 0..8 {
            let mut order = order(8, 8);
            order.resume =
                Some(OrderKey { at: Recency { request: 6, depth: 0 }, frame: FrameId(6) });
            assert_eq!(calls_to_victim(&mut order, |frame| frame >= first), (first, 1));
        }
    }

    #[test]
    fn long_run_of_ineligible_frames_delays_but_never_hides_victim() {
        for only in 0..100 {
            let mut order = order(100, 8);
            let (frame, calls) = calls_to_victim(&mut order, |frame| frame == only);
            assert_eq!(frame, only);
            assert!(calls <= 100 / 4 + 1, "frame {only} took {calls} calls");
        }
    }

    #[test]
    fn calls_after_long_ineligible_run_find_victim_at_once() {
        let mut order = order(100, 8);
        let evictable = |frame| frame >= 50 && frame % 3 == 0;
        let (first, calls) = calls_to_victim(&mut order, evictable);
        assert_eq!(first, 51);
        assert!(calls > 1);
        for next in [54, 57, 60, 63, 66, 69] {
            assert_eq!(calls_to_victim(&mut order, evictable), (next, 1));
        }
    }

    #[test]
    fn frames_skipped_by_jump_are_found_in_same_call() {
        let mut order = order(20, 16);
        order.resume = Some(OrderKey { at: Recency { request: 17, depth: 0 }, frame: FrameId(17) });
        assert_eq!(calls_to_victim(&mut order, |frame| frame == 9), (9, 1));
    }

    #[test]
    fn front_frames_that_become_eligible_leave_first() {
        let mut order = order(100, 8);
        calls_to_victim(&mut order, |frame| frame >= 50);
        assert_eq!(calls_to_victim(&mut order, |_| true), (0, 1));
        assert_eq!(calls_to_victim(&mut order, |_| true), (1, 1));
    }
}
