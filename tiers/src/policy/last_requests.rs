//! The last request for each frame, recorded by threads without the store's lock.

use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::atomic_array::AtomicArray;
use pagelith_io::prefetch;

use super::frame::{FrameId, Recency};

/// Bits of a word for the depth: a million pages of a prefix. Two bits count requests that read,
/// one is set if the frame leaves first, one if it was looked up and not read since, and the other
/// 40 number the last request: up to 1.1 * 10^12, which is 125 days of 100,000 calls a second.
const DEPTH_BITS: u32 = 20;
const DEPTH_MAX: u64 = (1 << DEPTH_BITS) - 1;
const USES_BITS: u32 = 2;
/// The frame leaves first. Below the depth, so that the next request in the order clears it.
const LEAVES_FIRST: u64 = 1 << USES_BITS;
/// The frame was looked up, and was not read since.
const LOOKED_UP: u64 = 2 << USES_BITS;
const FLAG_BITS: u32 = USES_BITS + 2;
const REQUEST_MAX: u64 = u64::MAX >> (DEPTH_BITS + FLAG_BITS);

/// Maximum of a frame's count of requests.
pub(super) const USES_MAX: u8 = (1 << USES_BITS) - 1;

/// One [`Recency`] per frame, the number of requests that read it since it was filled, and whether
/// it leaves first, in eight bytes. Depths saturate at 2^20 - 1, numbers at 2^40 - 1, and counts at
/// 3.
///
/// A thread may record a request after the frame's number was reused for another page. That page
/// then counts as requested, and the only effect is that it is evicted later.
pub struct LastRequests {
    words: AtomicArray,
}

/// How a request is recorded for a frame: [`LastRequests::raise`] for a read, or
/// [`LastRequests::refresh`] for a lookup.
pub type RecordRequest = fn(&LastRequests, FrameId, Recency);

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

    /// Set the recency of a frame that is being filled. It was not requested yet.
    pub fn set(&self, frame: FrameId, at: Recency) {
        if let Some(word) = self.words.get(frame.0 as usize) {
            word.store(pack(at), Relaxed);
        }
    }

    /// Record that a request read a frame. Requests may arrive out of order: an older one changes
    /// nothing, unless the frame was looked up and not read since. A request counts once, however
    /// often it reads a frame between lookups.
    #[inline]
    pub fn raise(&self, frame: FrameId, at: Recency) {
        self.record(frame, at, true);
    }

    /// Record that a request looked a frame up: it becomes recent, and is not counted. So a caller
    /// that looks a page up and then reads it counts once, in one request or in two, and one that
    /// repeats a lookup until it may read does not count more often.
    #[inline]
    pub fn refresh(&self, frame: FrameId, at: Recency) {
        self.record(frame, at, false);
    }

    #[inline]
    fn record(&self, frame: FrameId, at: Recency, is_read: bool) {
        let Some(word) = self.words.get(frame.0 as usize) else { return };
        let at = pack(at);
        let mut known = word.load(Relaxed);
        // Load first: other threads use most frames of a batch too, and an atomic update waits for
        // the cache line.
        while let Some(next) = after(known, at, is_read) {
            match word.compare_exchange_weak(known, next, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => known = now,
            }
        }
    }

    /// The frame leaves first, until its next request.
    pub fn leave_first(&self, frame: FrameId) {
        if let Some(word) = self.words.get(frame.0 as usize) {
            word.fetch_or(LEAVES_FIRST, Relaxed);
        }
    }

    /// The frame counts as requested often, and does not leave first.
    pub fn prefer(&self, frame: FrameId) {
        let Some(word) = self.words.get(frame.0 as usize) else { return };
        let prefer = |known| Some(known & !LEAVES_FIRST | u64::from(USES_MAX));
        let _ = word.fetch_update(Relaxed, Relaxed, prefer);
    }

    /// Whether the frame leaves first.
    pub fn leaves_first(&self, frame: FrameId) -> bool {
        let word = self.words.get(frame.0 as usize).map(|word| word.load(Relaxed));
        word.is_some_and(|word| word & LEAVES_FIRST != 0)
    }

    /// Number of requests that read the frame after that for which it was filled, at most 3.
    pub(super) fn uses(&self, frame: FrameId) -> u8 {
        self.words.get(frame.0 as usize).map_or(0, |word| uses_of(word.load(Relaxed)))
    }

    /// Subtract from the number of requests of a frame.
    pub(super) fn spend_uses(&self, frame: FrameId, spent: u8) {
        let Some(word) = self.words.get(frame.0 as usize) else { return };
        let spend = |known| Some(known - u64::from(uses_of(known).min(spent)));
        let _ = word.fetch_update(Relaxed, Relaxed, spend);
    }

    /// Prefetch the entries of these frames into the CPU cache. Changes nothing.
    #[inline]
    pub fn prefetch(&self, frames: impl Iterator<Item = u32>) {
        frames.filter_map(|frame| self.words.get(frame as usize)).for_each(prefetch::line);
    }
}

impl std::fmt::Debug for LastRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LastRequests(frames={})", self.words.len())
    }
}

/// In the order of [`Recency`], with a count of 0.
fn pack(at: Recency) -> u64 {
    let depth = DEPTH_MAX - u64::from(at.depth).min(DEPTH_MAX);
    (at.request.min(REQUEST_MAX) << DEPTH_BITS | depth) << FLAG_BITS
}

/// The word after a request at `at`; `None` if it changes nothing.
fn after(known: u64, at: u64, is_read: bool) -> Option<u64> {
    let is_later = request_of(known) < request_of(at);
    // Also for another request, which may have begun before the lookup.
    let was_looked_up = known & LOOKED_UP != 0;
    let counts = is_read && (is_later || was_looked_up);
    let uses = u64::from((uses_of(known) + u8::from(counts)).min(USES_MAX));
    let looked_up = if !is_read && (is_later || was_looked_up) { LOOKED_UP } else { 0 };
    if known >> FLAG_BITS < at >> FLAG_BITS {
        Some(at | looked_up | uses)
    } else {
        let leaves_first = known & LEAVES_FIRST;
        counts.then_some(known >> FLAG_BITS << FLAG_BITS | leaves_first | looked_up | uses)
    }
}

fn unpack(word: u64) -> Recency {
    let depth = DEPTH_MAX - (word >> FLAG_BITS & DEPTH_MAX);
    Recency { request: request_of(word), depth: depth as u32 }
}

fn request_of(word: u64) -> u64 {
    word >> (DEPTH_BITS + FLAG_BITS)
}

fn uses_of(word: u64) -> u8 {
    word as u8 & USES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: u32 = DEPTH_MAX as u32;

    #[test]
    fn packed_recency_keeps_order() {
        let at = |request, depth| Recency { request, depth };
        let all = [
            at(0, DEPTH),
            at(0, 0),
            at(1, DEPTH),
            at(1, 7),
            at(1, 0),
            at(2, 7),
            at(REQUEST_MAX, 0),
        ];
        assert!(all.is_sorted() && all.map(pack).is_sorted());
        assert_eq!(all.map(|r| unpack(pack(r))), all);
        assert_eq!(unpack(pack(at(u64::MAX, u32::MAX))), at(REQUEST_MAX, DEPTH));
    }

    #[test]
    fn request_after_a_hundred_billion_others_is_a_later_one() {
        let last_requests = LastRequests::new(1).expect("memory");
        let at = |request| Recency { request, depth: 0 };
        last_requests.set(FrameId(0), at(200_000_000_000));
        last_requests.raise(FrameId(0), at(200_000_000_001));
        assert_eq!(last_requests.get(FrameId(0)), Some(at(200_000_000_001)));
        assert_eq!(last_requests.uses(FrameId(0)), 1);
    }

    #[test]
    fn latest_request_wins_in_any_order() {
        let last_requests = LastRequests::new(2).expect("memory");
        let (early, late) = (Recency { request: 4, depth: 0 }, Recency { request: 5, depth: 9 });
        last_requests.raise(FrameId(1), late);
        last_requests.raise(FrameId(1), early);
        assert_eq!(last_requests.get(FrameId(1)), Some(late));
        last_requests.set(FrameId(1), early);
        assert_eq!(last_requests.get(FrameId(1)), Some(early));
        assert_eq!(last_requests.get(FrameId(0)).map(|r| r.request), Some(0));
        last_requests.raise(FrameId(2), late);
        assert_eq!(last_requests.get(FrameId(2)), None, "beyond the table");
    }

    #[test]
    fn frame_leaves_first_until_the_next_later_request() {
        let last_requests = LastRequests::new(1).expect("memory");
        let at = |request, depth| Recency { request, depth };
        let frame = FrameId(0);
        last_requests.set(frame, at(4, 3));
        last_requests.raise(frame, at(5, 3));
        last_requests.leave_first(frame);
        last_requests.raise(frame, at(4, 0));
        last_requests.raise(frame, at(5, 3));
        assert!(last_requests.leaves_first(frame), "no later request");
        assert_eq!((last_requests.get(frame), last_requests.uses(frame)), (Some(at(5, 3)), 1));
        last_requests.raise(frame, at(6, 9));
        assert_eq!((last_requests.leaves_first(frame), last_requests.uses(frame)), (false, 2));
        last_requests.leave_first(frame);
        last_requests.set(frame, at(7, 0));
        assert!(!last_requests.leaves_first(frame), "the number was reused");
        last_requests.leave_first(FrameId(1));
        assert!(!last_requests.leaves_first(FrameId(1)), "beyond the table");
    }

    #[test]
    fn lookups_refresh_and_only_reads_count() {
        let last_requests = LastRequests::new(1).expect("memory");
        let at = |request| Recency { request, depth: 3 };
        let frame = FrameId(0);
        last_requests.set(frame, at(4));
        (5..9).for_each(|request| last_requests.refresh(frame, at(request)));
        assert_eq!((last_requests.get(frame), last_requests.uses(frame)), (Some(at(8)), 0));
        for (case, read_at, uses) in [("of the same request", 8, 1), ("of its own", 9, 2)] {
            last_requests.raise(frame, at(read_at));
            assert_eq!(last_requests.uses(frame), uses, "read {case}");
            last_requests.raise(frame, at(read_at));
            last_requests.refresh(frame, at(read_at));
            last_requests.raise(frame, at(read_at));
            assert_eq!(last_requests.uses(frame), uses, "read {case} again");
        }
        last_requests.refresh(frame, at(11));
        last_requests.raise(frame, at(10));
        last_requests.raise(frame, at(10));
        assert_eq!(last_requests.uses(frame), 3, "looked up by another request meanwhile");
        assert_eq!(last_requests.get(frame), Some(at(11)));
        last_requests.leave_first(frame);
        last_requests.refresh(frame, at(12));
        assert!(!last_requests.leaves_first(frame), "a lookup is a request");
    }

    #[test]
    fn later_requests_are_counted_once_each_and_can_be_spent() {
        let last_requests = LastRequests::new(1).expect("memory");
        let at = |request, depth| Recency { request, depth };
        let frame = FrameId(0);
        last_requests.set(frame, at(4, 3));
        for (request, depth, uses) in [(4, 0, 0), (3, 0, 0), (5, 9, 1), (5, 2, 1), (6, 2, 2)] {
            last_requests.raise(frame, at(request, depth));
            assert_eq!(last_requests.uses(frame), uses, "request={request} depth={depth}");
        }
        last_requests.raise(frame, at(7, 0));
        last_requests.raise(frame, at(8, 1));
        assert_eq!(last_requests.uses(frame), USES_MAX);
        last_requests.spend_uses(frame, 1);
        assert_eq!((last_requests.uses(frame), last_requests.get(frame)), (2, Some(at(8, 1))));
        last_requests.spend_uses(frame, USES_MAX);
        assert_eq!(last_requests.uses(frame), 0);
        last_requests.raise(frame, at(9, 1));
        last_requests.set(frame, at(9, 1));
        assert_eq!(last_requests.uses(frame), 0);
    }
}
