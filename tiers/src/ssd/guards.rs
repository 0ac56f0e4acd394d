//! Guards that prevent the reuse of segments while threads read them without the store's lock.
//!
//! A reader finds a location in the index, enters its segment, and then validates its index read.
//! Only this validation proves that the entered incarnation is that of the location.
//!
//! Invariants:
//! 1. A segment is freed only after it was closed with no reader inside and no index entry pointed
//!    to it.
//! 2. Its incarnation changes only while it is closed, or while no index entry points to it.

use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::guarded_table::ReaderCount;
use pagelith_io::sync::AtomicU64;
use pagelith_layouts::ids::{Incarnation, SegmentId};

use super::segments::{SegmentState, SegmentTable};

struct Guard {
    readers: ReaderCount,
    incarnation: AtomicU64,
}

/// One guard per segment.
pub struct SegmentGuards(Box<[Guard]>);

impl SegmentGuards {
    /// Guards of `segments`; those that are not free may be read.
    pub fn of(segments: &SegmentTable) -> SegmentGuards {
        let guard = |incarnation| Guard { readers: ReaderCount::default(), incarnation };
        let guards = segments.iter().map(|(_, s)| guard(AtomicU64::new(s.incarnation.0)));
        let guards = SegmentGuards(guards.collect());
        let used = segments.iter().filter(|(_, s)| s.state() != SegmentState::Free);
        used.for_each(|(id, s)| guards.open(id, s.incarnation));
        guards
    }

    /// Open a segment for readers under this incarnation.
    pub fn open(&self, id: SegmentId, incarnation: Incarnation) {
        if let Some(guard) = self.guard(id) {
            guard.incarnation.store(incarnation.0, Relaxed);
            guard.readers.open();
        }
    }

    /// Enter a segment and return its incarnation; `None` if it is closed. Each enter needs a
    /// [`SegmentGuards::leave`].
    #[inline]
    #[must_use]
    pub fn enter(&self, id: SegmentId) -> Option<Incarnation> {
        let guard = self.guard(id).filter(|guard| guard.readers.enter())?;
        Some(Incarnation(guard.incarnation.load(Relaxed)))
    }

    /// Enter without a check. The caller must know that a reader is inside, or be the thread that
    /// would close the segment.
    pub fn enter_again(&self, id: SegmentId) {
        self.guard(id).into_iter().for_each(|guard| guard.readers.enter_again());
    }

    /// Leave a segment.
    pub fn leave(&self, id: SegmentId) {
        if let Some(guard) = self.guard(id) {
            guard.readers.leave();
        }
    }

    /// Close the segment if no reader is inside; returns whether it is closed.
    pub fn close_if_empty(&self, id: SegmentId) -> bool {
        self.guard(id).is_none_or(|guard| guard.readers.close_if_empty())
    }

    /// Close the segment for new readers, even if readers are inside.
    pub fn close(&self, id: SegmentId) {
        if let Some(guard) = self.guard(id) {
            guard.readers.close();
        }
    }

    /// Number of readers inside all segments.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|guard| u64::from(guard.readers.count())).sum()
    }

    /// An index read that is not validated yet may name any segment, so `id` may be out of range.
    fn guard(&self, id: SegmentId) -> Option<&Guard> {
        self.0.get(id.0 as usize)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn used_segment_is_entered_and_closes_after_last_reader() {
        let mut segments = SegmentTable::new(2);
        let (used, free) = (SegmentId(0), SegmentId(1));
        segments.set_state(used, SegmentState::Sealed);
        segments.get_mut(used).incarnation = Incarnation(3);
        let guards = SegmentGuards::of(&segments);
        assert_eq!((guards.enter(free), guards.enter(SegmentId(2))), (None, None));
        assert_eq!(guards.enter(used), Some(Incarnation(3)));
        guards.enter_again(used);
        guards.leave(used);
        assert!(!guards.close_if_empty(used) && guards.count() == 1);
        guards.leave(used);
        assert!(guards.close_if_empty(used) && guards.close_if_empty(free));
        assert_eq!(guards.enter(used), None);
        guards.open(used, Incarnation(4));
        assert_eq!(guards.enter(used), Some(Incarnation(4)));
    }
}
