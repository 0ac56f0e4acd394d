//! FIFO eviction by the request that filled the frame: later requests for the frame do not extend
//! its stay.

use super::frame::{FrameId, FramePolicy, Recency};
use super::order::Order;
use super::slab::Slab;

/// FIFO eviction. The order is that of the request numbers, not of the calls, so that the pages
/// of two concurrent requests do not interleave and each chain leaves from its tail. Memory is
/// about 50 bytes per frame of a request with many pages, and three times that for a request with
/// one page.
#[derive(Debug)]
pub struct Fifo {
    order: Order,
    at: Slab<Recency>,
}

impl Fifo {
    /// An empty one.
    pub fn new() -> Fifo {
        Fifo { order: Order::new(), at: Slab::new() }
    }
}

impl Default for Fifo {
    fn default() -> Fifo {
        Fifo::new()
    }
}

impl FramePolicy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn reserve(&mut self, frames: usize) {
        self.at.reserve(frames);
    }

    fn insert(&mut self, frame: FrameId, _bytes: u64, _fingerprint: u128, at: Recency) {
        self.remove(frame);
        self.order.insert(frame, at);
        self.at.set(frame, at);
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
    use super::*;

    #[test]
    fn fifo_evicts_chains_of_interleaved_requests_from_tail() {
        let mut fifo = Fifo::new();
        // Two requests whose pages arrive interleaved.
        for depth in 0..3 {
            fifo.insert(FrameId(depth), 1, 0, Recency { request: 1, depth });
            fifo.insert(FrameId(10 + depth), 1, 0, Recency { request: 2, depth });
        }
        let order: Vec<u32> =
            std::iter::from_fn(|| fifo.victim(&mut |_| true)).map(|f| f.0).collect();
        assert_eq!(order, [2, 1, 0, 12, 11, 10]);
        assert!(fifo.is_empty());
    }

    #[test]
    fn fifo_skips_pinned_frame_and_keeps_its_place() {
        let mut fifo = Fifo::new();
        for frame in 0..4 {
            fifo.insert(FrameId(frame), 1, 0, Recency { request: u64::from(frame), depth: 0 });
        }
        assert_eq!(fifo.victim(&mut |frame| frame.0 > 1), Some(FrameId(2)));
        assert_eq!(fifo.victim(&mut |_| true), Some(FrameId(0)));
        fifo.remove(FrameId(1));
        assert_eq!(fifo.victim(&mut |_| true), Some(FrameId(3)));
        assert_eq!(fifo.victim(&mut |_| true), None);
    }
}
