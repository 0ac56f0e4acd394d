//! Reclaims the segment with the lowest mean recency of its objects, and reinserts its most
//! recently used objects.

use super::segment::{LiveRecordFacts, SegmentFacts, SegmentPolicy, by_recency, pinned_records};

/// The victim is the segment with the lowest mean tick of its live objects; a segment without live
/// objects precedes all others. Up to `ratio` of a segment's payload is reinserted. A store creates
/// it with [`super::segment_policy`], which checks the ratio.
#[derive(Clone, Copy, Debug)]
pub struct LowestMeanRecency {
    /// Share of a segment's payload that may be reinserted, 0 to [`super::REINSERT_RATIO_MAX`].
    pub ratio: f64,
}

impl SegmentPolicy for LowestMeanRecency {
    fn name(&self) -> &'static str {
        "lowest-mean-recency"
    }

    fn reinsert_ratio(&self) -> f64 {
        self.ratio
    }

    fn victim(&self, sealed: &[SegmentFacts]) -> Option<usize> {
        (0..sealed.len()).min_by(|&a, &b| {
            let (a, b) = (&sealed[a], &sealed[b]);
            mean_cmp(a, b).then(a.order.cmp(&b.order))
        })
    }

    fn reinsert(
        &self,
        records: &[LiveRecordFacts],
        mean_tick: u64,
        budget_bytes: u64,
    ) -> Vec<usize> {
        let (mut chosen, pinned_bytes) = pinned_records(records);
        let pinned = chosen.len();
        let mut budget = budget_bytes.saturating_sub(pinned_bytes);

        let warm = |i: &usize| !records[*i].pinned && records[*i].tick > mean_tick;
        let mut recent: Vec<usize> = (0..records.len()).filter(warm).collect();
        recent.sort_by(|&a, &b| by_recency(&records[a], &records[b]));
        for i in recent {
            // Stop at the first record that does not fit, instead of searching for smaller ones:
            // later records are older or deeper in their chain, where they would be useless after
            // the gap that this one leaves.
            if records[i].bytes > budget {
                break;
            }
            budget -= records[i].bytes;
            chosen.push(i);
        }
        chosen[pinned..].reverse();
        chosen
    }
}

/// Compare means without division; a segment without live objects has a mean below all others.
fn mean_cmp(a: &SegmentFacts, b: &SegmentFacts) -> std::cmp::Ordering {
    match (a.live_objects, b.live_objects) {
        (0, _) | (_, 0) => a.live_objects.min(1).cmp(&b.live_objects.min(1)),
        (a_count, b_count) => {
            let a_scaled = u128::from(a.recency_sum) * u128::from(b_count);
            let b_scaled = u128::from(b.recency_sum) * u128::from(a_count);
            a_scaled.cmp(&b_scaled)
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::SegmentId;

    use super::*;

    const POLICY: LowestMeanRecency = LowestMeanRecency { ratio: 0.25 };

    fn segment(order: u64, live_objects: u32, recency_sum: u64) -> SegmentFacts {
        SegmentFacts { segment: SegmentId(order as u32), order, live_objects, recency_sum }
    }

    fn record(bytes: u64, tick: u64) -> LiveRecordFacts {
        LiveRecordFacts { bytes, tick, depth: 0, pinned: false }
    }

    fn page(tick: u64, depth: u32) -> LiveRecordFacts {
        LiveRecordFacts { bytes: 4, tick, depth, pinned: false }
    }

    #[test]
    fn segment_with_lowest_mean_is_victim() {
        let sealed = [segment(1, 10, 1000), segment(2, 1, 200), segment(3, 3, 297)];
        assert_eq!(POLICY.victim(&sealed), Some(2), "99 is below 100 and 200");
        assert_eq!(POLICY.victim(&[]), None);
    }

    #[test]
    fn means_differing_by_less_than_one_are_distinguished() {
        // 299 / 3 and 199 / 2 both divide to 99.
        assert_eq!(POLICY.victim(&[segment(1, 3, 299), segment(2, 2, 199)]), Some(1));
        let huge = [segment(1, u32::MAX, u64::MAX), segment(2, u32::MAX, u64::MAX - 1)];
        assert_eq!(POLICY.victim(&huge), Some(1), "no overflow");
    }

    #[test]
    fn empty_segment_is_first_victim_and_oldest_wins_ties() {
        let sealed = [segment(1, 1, 0), segment(8, 0, 0), segment(7, 0, 0)];
        assert_eq!(POLICY.victim(&sealed), Some(2));
        assert_eq!(
            POLICY.victim(&[segment(5, 2, 8), segment(4, 1, 4), segment(6, 3, 12)]),
            Some(1)
        );
    }

    #[test]
    fn most_recent_records_are_reinserted_oldest_first() {
        let records = [record(4, 30), record(4, 50), record(4, 10), record(4, 40)];
        assert_eq!(POLICY.reinsert(&records, 0, 12), [0, 3, 1]);
        assert_eq!(POLICY.reinsert(&records, 0, 11), [3, 1]);
        assert_eq!(POLICY.reinsert(&records, 0, 4), [1]);
        assert!(POLICY.reinsert(&records, 0, 3).is_empty());
    }

    #[test]
    fn records_of_equal_ticks_are_reinserted_from_the_head() {
        let deepest_first = [page(7, 3), page(7, 2), page(7, 1), page(7, 0), page(6, 0)];
        assert_eq!(POLICY.reinsert(&deepest_first, 0, 8), [2, 3]);
        assert_eq!(POLICY.reinsert(&deepest_first, 0, 20), [4, 0, 1, 2, 3]);
        let pinned = deepest_first.map(|record| LiveRecordFacts { pinned: true, ..record });
        assert_eq!(POLICY.reinsert(&pinned, 0, 0), [4, 0, 1, 2, 3]);
    }

    #[test]
    fn only_records_above_mean_are_reinserted() {
        let records = [record(4, 30), record(4, 31), record(4, 29)];
        assert_eq!(POLICY.reinsert(&records, 30, 1 << 20), [1]);
        assert!(POLICY.reinsert(&records, 31, 1 << 20).is_empty());
    }

    #[test]
    fn reinsertion_stops_at_first_record_over_budget() {
        let records = [record(4, 50), record(16, 40), record(4, 30)];
        assert_eq!(POLICY.reinsert(&records, 0, 12), [0]);
    }

    #[test]
    fn pinned_records_are_reinserted_first_and_count_against_budget() {
        let mut records = [record(8, 90), record(8, 5), record(4, 80), record(8, 2)];
        records[1].pinned = true;
        records[3].pinned = true;
        assert_eq!(POLICY.reinsert(&records, 10, 0), [3, 1]);
        assert_eq!(POLICY.reinsert(&records, 10, 23), [3, 1]);
        assert_eq!(POLICY.reinsert(&records, 10, 24), [3, 1, 0]);
        assert_eq!(POLICY.reinsert(&records, 10, 28), [3, 1, 2, 0]);
    }
}
