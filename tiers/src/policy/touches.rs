//! When each frame was last asked for, where threads note it without the store's lock.

use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::prefetch;
use pagelith_io::words::Words;

use super::{FrameId, Recency};

/// Bits of a word that are the depth: 16 million pages of a prefix, and a million million requests.
const DEPTH_BITS: u32 = 24;
const DEPTH_MAX: u64 = (1 << DEPTH_BITS) - 1;
const EPOCH_MAX: u64 = u64::MAX >> DEPTH_BITS;

/// One [`Recency`] a frame, in eight bytes. Depths above 2^24 - 1 and epochs above 2^40 - 1 are noted as those.
///
/// A thread that looked a frame up may note so when its number is another page's already: that page then counts as asked
/// for, which costs it nothing but a later eviction.
pub struct Touches {
    words: Words,
}

impl Touches {
    /// Of frames numbered below `frames`. Fails if the system has no memory.
    pub fn new(frames: usize) -> std::io::Result<Touches> {
        Ok(Touches { words: Words::new(frames)? })
    }

    /// When a frame was last asked for; `None` for a number that it was not made for.
    #[inline]
    pub fn get(&self, frame: FrameId) -> Option<Recency> {
        self.words.get(frame.0 as usize).map(|word| unpack(word.load(Relaxed)))
    }

    /// A frame is filled: when for.
    pub fn set(&self, frame: FrameId, at: Recency) {
        if let Some(word) = self.words.get(frame.0 as usize) {
            word.store(pack(at), Relaxed);
        }
    }

    /// A frame was asked for. Requests may report out of order: an older one changes nothing.
    #[inline]
    pub fn raise(&self, frame: FrameId, at: Recency) {
        let at = pack(at);
        // A look first: most of a batch's frames are other threads' too, and a locked operation waits for the line.
        if let Some(word) = self.words.get(frame.0 as usize).filter(|word| word.load(Relaxed) < at) {
            word.fetch_max(at, Relaxed);
        }
    }

    /// Starts bringing the notes of these frames into the cache, all at once. Changes nothing.
    #[inline]
    pub fn prefetch(&self, frames: impl Iterator<Item = u32>) {
        frames.filter_map(|frame| self.words.get(frame as usize)).for_each(prefetch::line);
    }
}

impl std::fmt::Debug for Touches {
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
    fn packed_they_are_in_the_same_order() {
        let at = |epoch, depth| Recency { epoch, depth };
        let all = [at(0, DEPTH), at(0, 0), at(1, DEPTH), at(1, 7), at(1, 0), at(2, 7), at(EPOCH_MAX, 0)];
        assert!(all.is_sorted() && all.map(pack).is_sorted());
        assert_eq!(all.map(|r| unpack(pack(r))), all);
        assert_eq!(unpack(pack(at(u64::MAX, u32::MAX))), at(EPOCH_MAX, DEPTH));
    }

    #[test]
    fn the_last_request_counts_whoever_notes_it_first() {
        let touches = Touches::new(2).expect("memory");
        let (early, late) = (Recency { epoch: 4, depth: 0 }, Recency { epoch: 5, depth: 9 });
        touches.raise(FrameId(1), late);
        touches.raise(FrameId(1), early);
        assert_eq!(touches.get(FrameId(1)), Some(late));
        touches.set(FrameId(1), early);
        assert_eq!(touches.get(FrameId(1)), Some(early));
        assert_eq!(touches.get(FrameId(0)).map(|r| r.epoch), Some(0));
        touches.raise(FrameId(2), late);
        assert_eq!(touches.get(FrameId(2)), None, "it was not made for so many");
    }
}
