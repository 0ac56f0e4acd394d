//! The in-memory table of segments.
//!
//! Invariant: a segment's incarnation is raised after the segment was free and before anything is
//! written to it. It becomes free only when no reader holds it ([`super::guards`]) and every object
//! that must survive is durable in another segment.

use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder, Sequence};

use crate::policy::SegmentFacts;

/// A segment's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Unused; may be opened.
    Free,
    /// Open or spare: the log writes to it, or will.
    Open,
    /// Full; only read.
    Sealed,
    /// Being reclaimed.
    Reclaiming,
    /// Not trusted: neither read nor reused until the store is opened again.
    Quarantined,
}

impl SegmentState {
    const COUNT: usize = SegmentState::Quarantined as usize + 1;
}

/// The in-memory state of one segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its state; changed only by [`SegmentTable::set_state`], which maintains the counts.
    state: SegmentState,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Order in which that incarnation was opened; 0 if never.
    pub order: SegmentOrder,
    /// Smallest sequence of a record of this segment on disk; `u64::MAX` if there is none. It is
    /// kept until the incarnation is raised, because a crash can bring records on disk back.
    pub min_sequence: Sequence,
    /// End of its last record in bytes.
    pub data_end: u64,
    /// Number of objects in it that the index points to.
    pub live_objects: u32,
    /// Sum of the recency ticks of these objects.
    pub recency_sum: u64,
}

impl Segment {
    const NEW: Segment = Segment {
        state: SegmentState::Free,
        incarnation: Incarnation(0),
        order: SegmentOrder(0),
        min_sequence: Sequence(u64::MAX),
        data_end: 0,
        live_objects: 0,
        recency_sum: 0,
    };

    /// Its state.
    pub fn state(&self) -> SegmentState {
        self.state
    }
}

/// All segments of a store.
///
/// Invariant: `counts[s]` is the number of segments with `state == s`.
#[derive(Clone, Debug)]
pub struct SegmentTable {
    segments: Vec<Segment>,
    /// By state. A large store has thousands of segments, and each step of its flusher needs the
    /// number of free ones.
    counts: [usize; SegmentState::COUNT],
}

impl SegmentTable {
    /// `count` segments that were never used.
    pub fn new(count: u32) -> SegmentTable {
        let mut counts = [0; SegmentState::COUNT];
        counts[Segment::NEW.state as usize] = count as usize;
        SegmentTable { segments: vec![Segment::NEW; count as usize], counts }
    }

    /// A segment; identifiers come from this store, so they are in range.
    pub fn get(&self, id: SegmentId) -> &Segment {
        &self.segments[id.0 as usize]
    }

    /// A mutable segment.
    pub fn get_mut(&mut self, id: SegmentId) -> &mut Segment {
        &mut self.segments[id.0 as usize]
    }

    /// All segments by number.
    pub fn iter(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.segments.iter().enumerate().map(|(i, s)| (SegmentId(i as u32), s))
    }

    /// Number of segments in a state.
    pub fn count(&self, state: SegmentState) -> usize {
        self.counts[state as usize]
    }

    /// Put a segment into a state.
    pub fn set_state(&mut self, id: SegmentId, state: SegmentState) {
        let before = std::mem::replace(&mut self.get_mut(id).state, state);
        self.counts[before as usize] -= 1;
        self.counts[state as usize] += 1;
    }

    /// The free segment to open next: the one opened longest ago. This spreads wear, and overwrites
    /// first the records that a crash could bring back.
    pub fn next_free(&self) -> Option<SegmentId> {
        let free = self.iter().filter(|(_, s)| s.state == SegmentState::Free);
        free.min_by_key(|(id, s)| (s.order, id.0)).map(|(id, _)| id)
    }

    /// The sealed segments, in the form that policies use.
    pub fn sealed(&self) -> Vec<SegmentFacts> {
        let sealed = self.iter().filter(|(_, s)| s.state == SegmentState::Sealed);
        sealed
            .map(|(segment, s)| SegmentFacts {
                segment,
                order: s.order.0,
                live_objects: s.live_objects,
                recency_sum: s.recency_sum,
            })
            .collect()
    }

    /// Mean recency tick of all live objects, 0 if there are none.
    pub fn mean_tick(&self) -> u64 {
        let objects: u64 = self.segments.iter().map(|s| u64::from(s.live_objects)).sum();
        self.segments.iter().map(|s| s.recency_sum).sum::<u64>().checked_div(objects).unwrap_or(0)
    }

    /// Whether a tombstone in `segment` may still shadow a record: whether another segment has, on
    /// disk, a record older than `sequence`.
    pub fn tombstone_needed(&self, segment: SegmentId, sequence: Sequence) -> bool {
        self.iter().any(|(id, s)| id != segment && s.min_sequence < sequence)
    }

    /// Add an object with recency `tick` to the counts.
    pub fn add_live(&mut self, id: SegmentId, tick: u64) {
        let s = self.get_mut(id);
        s.live_objects += 1;
        s.recency_sum += tick;
    }

    /// Remove an object with recency `tick` from the counts.
    pub fn remove_live(&mut self, id: SegmentId, tick: u64) {
        let s = self.get_mut(id);
        s.live_objects = s.live_objects.saturating_sub(1);
        s.recency_sum = s.recency_sum.saturating_sub(tick);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstone_is_needed_while_other_segment_has_older_record() {
        let mut t = SegmentTable::new(3);
        t.get_mut(SegmentId(0)).min_sequence = Sequence(5);
        t.get_mut(SegmentId(1)).min_sequence = Sequence(9);
        assert!(t.tombstone_needed(SegmentId(1), Sequence(6)));
        assert!(!t.tombstone_needed(SegmentId(1), Sequence(5)));
        assert!(!t.tombstone_needed(SegmentId(0), Sequence(9)));
        assert!(t.tombstone_needed(SegmentId(0), Sequence(10)));
    }

    #[test]
    fn oldest_free_segment_is_next() {
        let mut t = SegmentTable::new(3);
        for (i, order) in [(0, 7), (1, 3), (2, 5)] {
            t.get_mut(SegmentId(i)).order = SegmentOrder(order);
        }
        assert_eq!(t.next_free(), Some(SegmentId(1)));
        t.set_state(SegmentId(1), SegmentState::Open);
        assert_eq!(t.next_free(), Some(SegmentId(2)));
    }

    #[test]
    fn segment_counts_match_states() {
        use SegmentState::{Free, Open, Quarantined, Reclaiming, Sealed};
        let mut t = SegmentTable::new(4);
        assert_eq!(t.count(Free), 4);
        for (id, state) in [
            (0, Open),
            (1, Open),
            (0, Sealed),
            (2, Quarantined),
            (0, Reclaiming),
            (0, Free),
            (1, Open),
        ] {
            t.set_state(SegmentId(id), state);
            for state in [Free, Open, Sealed, Reclaiming, Quarantined] {
                assert_eq!(
                    t.count(state),
                    t.iter().filter(|(_, s)| s.state() == state).count(),
                    "{state:?}"
                );
            }
        }
    }
}
