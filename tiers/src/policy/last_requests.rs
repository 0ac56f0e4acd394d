//! The last request for each frame, recorded by threads without the store's lock.

use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::atomic_array::AtomicArray;
use pagelith_io::prefetch;

use super::frame::{FrameId, Recency};

/// Bits of a word for the depth: 16 million pages of a prefix. The other 40 bits are the epoch:
/// 10^12 requests.
const DEPTH_BITS: u32 = 24;
const DEPTH_MAX: u64 = (1 << DEPTH_BITS) - 1;
const EPOCH_MAX: u64 = u64::MAX >> DEPTH_BITS;

/// One [`Recency`] per frame, in eight bytes. Depths saturate at 2^24 - 1 and epochs at 2^40 - 1.
///
/// A thread may record a request after the frame's number was reused for another page. That page
/// then counts as requested, and the only effect is that it is evicted later.
pub struct LastRequests {
    words: AtomicArray,
}

impl LastRequests {
    /// A table for frame numbers below `frames`. Fails if the system has no memory.
    pub fn new(frames: usize) -> std::io::Result<LastRequests> {
        Ok(LastRequests { words: AtomicArray::new(frames)? })
    }

    /// The last request for a frame; `None` for a number beyond the table.
    #[inline]
    pub fn get(&self, frame: FrameId) -> Option<Recency> {
        self.words.get(frame.0 as usize).map(|word| unpack(word.load(Relaxed)))
    }

    /// Set the recency of a frame that is being filled.
    pub fn set(&self, frame: FrameId, at: Recency) {
        if let Some(word) = self.words.get(frame.0 as usize) {
            word.store(pack(at), Relaxed);
        }
    }

    /// Record a request for a frame. Requests may arrive out of order: an older one changes
    /// nothing.
    #[inline]
    pub fn raise(&self, frame: FrameId, at: Recency) {
        let at = pack(at);
        // Load first: other threads use most frames of a batch too, and an atomic update waits for
        // the cache line.
        if let Some(word) = self.words.get(frame.0 as usize).filter(|word| word.load(Relaxed) < at)
        {
            word.fetch_max(at, Relaxed);
        }
    }

    /// Prefetch the entries of these frames into the CPU cache. Changes nothing.
    #[inline]
    pub fn prefetch(&self, frames: impl Iterator<Item = u32>) {
        frames.filter_map(|frame| self.words.get(frame as usize)).for_each(prefetch::line);
    }
}

impl std::fmt::Debug for LastRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Touches(frames={})", self.words.len())
    }
}

/// In the order of [`Recency`].
fn pack(at: Recency) -> u64 {
    at.epoch.min(EPOCH_MAX) << DEPTH_BITS | (DEPTH_MAX - u64::from(at.depth).min(DEPTH_MAX))
}

fn unpack(word: u64) -> Recency {
    Recency { epoch: word >> DEPTH_BITS, depth: (DEPTH_MAX - (word & DEPTH_MAX)) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: u32 = DEPTH_MAX as u32;

    #[test]
    fn packed_recency_keeps_order() {
        let at = |epoch, depth| Recency { epoch, depth };
        let all =
            [at(0, DEPTH), at(0, 0), at(1, DEPTH), at(1, 7), at(1, 0), at(2, 7), at(EPOCH_MAX, 0)];
        assert!(all.is_sorted() && all.map(pack).is_sorted());
        assert_eq!(all.map(|r| unpack(pack(r))), all);
        assert_eq!(unpack(pack(at(u64::MAX, u32::MAX))), at(EPOCH_MAX, DEPTH));
    }

    #[test]
    fn latest_request_wins_in_any_order() {
        let touches = LastRequests::new(2).expect("memory");
        let (early, late) = (Recency { epoch: 4, depth: 0 }, Recency { epoch: 5, depth: 9 });
        touches.raise(FrameId(1), late);
        touches.raise(FrameId(1), early);
        assert_eq!(touches.get(FrameId(1)), Some(late));
        touches.set(FrameId(1), early);
        assert_eq!(touches.get(FrameId(1)), Some(early));
        assert_eq!(touches.get(FrameId(0)).map(|r| r.epoch), Some(0));
        touches.raise(FrameId(2), late);
        assert_eq!(touches.get(FrameId(2)), None, "beyond the table");
    }
}
