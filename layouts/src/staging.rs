//! The staging budget: the cost of an object, and the split of a batch into sub-batches.
//!
//! The cost formula is that of vLLM's Mooncake connector for disk offload staging: `align_up(sum of
//! segments, 4096) + 8192` per key, against 0.9 of the budget. A batch that a caller has sized by
//! that rule is therefore never split.

use std::ops::Range;

use crate::align::align_up;

/// Bytes charged in addition to the payload: one alignment unit before it (the header's block) and
/// one after it (the unaligned tail).
pub const OVERHEAD: u64 = 8192;

/// Staging cost of an object whose parts add up to `bytes`.
pub const fn cost(bytes: u64) -> u64 {
    align_up(bytes).saturating_add(OVERHEAD)
}

/// The share of a budget of `capacity` bytes that one batch may use, at least 1.
pub fn usable(capacity: u64, ratio: f64) -> u64 {
    ((capacity as f64 * ratio) as u64).clamp(1, capacity.max(1))
}

/// Split a batch, in order and greedily, so that the cost of each sub-batch is at most `usable`. An
/// object that costs more forms a sub-batch of its own (it is streamed in chunks). Every object is
/// in exactly one range; an empty batch has no range.
pub fn split(costs: &[u64], usable: u64) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let (mut start, mut sum) = (0, 0u64);
    for (i, &cost) in costs.iter().enumerate() {
        if i > start && sum.saturating_add(cost) > usable {
            out.push(start..i);
            (start, sum) = (i, 0);
        }
        sum = sum.saturating_add(cost);
    }
    if start < costs.len() {
        out.push(start..costs.len());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_cost_equals_client_formula() {
        assert_eq!(cost(256 + 512), 12_288);
        assert_eq!(cost(4096), 12_288);
        assert_eq!(cost(4097), 16_384);
        assert_eq!(usable(1_342_177_280, 0.9), 1_207_959_552);
        assert_eq!(usable(0, 0.9), 1);
    }

    #[test]
    fn split_keeps_order_and_every_object() {
        assert_eq!(split(&[], 10), vec![]);
        assert_eq!(split(&[4, 4, 2], 10), vec![0..3]);
        assert_eq!(split(&[4, 4, 3], 10), vec![0..2, 2..3]);
        assert_eq!(split(&[11, 1, 30, 30, 1], 10), vec![0..1, 1..2, 2..3, 3..4, 4..5]);
        assert_eq!(split(&[u64::MAX, u64::MAX], 10), vec![0..1, 1..2]);
    }
}
