//! Reclaims the oldest segment: the log is a ring, which causes the fewest possible writes.

use super::segment::{LiveRecordFacts, SegmentFacts, SegmentPolicy, pinned_records};

/// The victim is the oldest segment; only pinned records are reinserted.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentFifo;

impl SegmentPolicy for SegmentFifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn reinsert_ratio(&self) -> f64 {
        0.0
    }

    fn victim(&self, sealed: &[SegmentFacts]) -> Option<usize> {
        (0..sealed.len()).min_by_key(|&i| sealed[i].order)
    }

    fn reinsert(
        &self,
        records: &[LiveRecordFacts],
        _mean_tick: u64,
        _budget_bytes: u64,
    ) -> Vec<usize> {
        pinned_records(records).0
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::SegmentId;

    use super::*;

    fn segment(order: u64) -> SegmentFacts {
        SegmentFacts {
            segment: SegmentId(order as u32),
            order,
            live_objects: 1,
            recency_sum: 100 - order,
        }
    }

    #[test]
    fn oldest_segment_is_victim() {
        assert_eq!(SegmentFifo.victim(&[]), None);
        assert_eq!(SegmentFifo.victim(&[9, 5, 7].map(segment)), Some(1));
    }

    #[test]
    fn only_pinned_records_are_reinserted_for_any_budget() {
        let record = |tick, pinned| LiveRecordFacts { bytes: 4096, tick, depth: 0, pinned };
        let records = [record(50, false), record(9, true), record(70, false), record(3, true)];
        assert_eq!(SegmentFifo.reinsert(&records, 0, 1 << 30), [3, 1]);
        assert_eq!(SegmentFifo.reinsert(&records, 0, 0), [3, 1]);
        assert!(SegmentFifo.reinsert(&[], 0, 0).is_empty());
    }
}
