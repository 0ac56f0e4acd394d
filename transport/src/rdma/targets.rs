//! Where a client wants the bytes of its operations, as a server knows it.
//!
//! Bounded: a client that names more ends its link.

use std::collections::BTreeMap;

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::placement::{self, TargetItem};

use super::peer_regions::PeerRegions;
use crate::link_error::LinkError;

/// Maximum targets of all operations of a link.
pub(crate) const TARGETS_MAX: usize = 1 << 16;

/// The targets of one link.
#[derive(Default)]
pub(crate) struct Targets {
    /// Of each operation, by item and offset. They do not overlap.
    ops: BTreeMap<OpId, BTreeMap<(u32, u64), TargetItem>>,
    count: usize,
}

/// Destination of the bytes of an item from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// This number of bytes has no target.
    OnStream(u64),
    /// `length` bytes have one, from the offset `at` of this region on.
    In { region: u32, at: u64, length: u64 },
}

impl Targets {
    /// Add the targets of a frame.
    pub fn receive(
        &mut self,
        op: OpId,
        body: &[u8],
        regions: &PeerRegions,
    ) -> Result<(), LinkError> {
        let items = placement::decode_targets(body)?;
        let of_op = self.ops.entry(op).or_default();
        for item in items.iter() {
            if !regions.has(item.region, item.at, item.length) {
                return Err(LinkError::bad_field("region", item.region));
            }
            let key = (item.item, item.offset);
            let before = of_op.range(..key).next_back().map(|(_, before)| before);
            let after = of_op.range(key..).next().map(|(_, after)| after);
            let overlaps = |first: &TargetItem, second: &TargetItem| {
                first.item == second.item && second.offset < first.offset + first.length
            };
            if before.is_some_and(|before| overlaps(before, &item))
                || after.is_some_and(|after| overlaps(&item, after))
            {
                return Err(LinkError::violation(format_args!(
                    "targets overlap item={} offset={}",
                    item.item, item.offset
                )));
            }
            of_op.insert(key, item);
            self.count += 1;
        }
        if self.count > TARGETS_MAX {
            Err(LinkError::violation(format_args!(
                "too many targets count={} max={TARGETS_MAX}",
                self.count
            )))
        } else {
            Ok(())
        }
    }

    /// Destination of bytes of an item.
    pub fn at(&self, op: OpId, item: u32, offset: u64) -> Wanted {
        let Some(of_op) = self.ops.get(&op) else { return Wanted::OnStream(u64::MAX) };
        let last = of_op.range(..=(item, offset)).next_back().map(|(_, last)| last);
        if let Some(found) = last.filter(|found| found.item == item)
            && let Some(inside) = offset.checked_sub(found.offset)
            && inside < found.length
        {
            let (region, at) = (found.region, found.at + inside);
            return Wanted::In { region, at, length: found.length - inside };
        }
        let next = of_op.range((item, offset)..).next();
        match next.filter(|((after, _), _)| *after == item) {
            Some((_, after)) => Wanted::OnStream(after.offset - offset),
            None => Wanted::OnStream(u64::MAX),
        }
    }

    /// Forget the targets of an operation.
    pub fn remove(&mut self, op: OpId) {
        self.count -= self.ops.remove(&op).map_or(0, |items| items.len());
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::wire::rdma_regions::{self, RegionItem};

    use super::*;

    fn regions() -> PeerRegions {
        let mut regions = PeerRegions::new(1);
        let item =
            RegionItem { number: 7, rail: 0, base: 1 << 20, length: 1000, chunk_bytes: 4096 };
        regions.receive(&rdma_regions::encode(&[item], &[5])).expect("a region");
        regions
    }

    fn item(item: u32, offset: u64, at: u64, length: u64) -> TargetItem {
        TargetItem { item, region: 7, offset, at, length }
    }

    #[test]
    fn ranges_between_targets_travel_on_the_stream() {
        let mut targets = Targets::default();
        let body = placement::encode_targets(&[item(1, 100, 0, 50), item(0, 10, 500, 5)]);
        targets.receive(OpId(1), &body, &regions()).expect("targets");
        let at = |item, offset| targets.at(OpId(1), item, offset);
        assert_eq!(at(0, 0), Wanted::OnStream(10));
        assert_eq!(at(0, 12), Wanted::In { region: 7, at: 502, length: 3 });
        assert_eq!(at(0, 15), Wanted::OnStream(u64::MAX));
        assert_eq!(at(1, 0), Wanted::OnStream(100));
        assert_eq!(at(1, 100), Wanted::In { region: 7, at: 0, length: 50 });
        assert_eq!(at(2, 0), Wanted::OnStream(u64::MAX));
        targets.remove(OpId(1));
        assert_eq!(targets.at(OpId(1), 1, 100), Wanted::OnStream(u64::MAX));
        assert_eq!(targets.count, 0);
    }

    #[test]
    fn targets_outside_of_a_region_or_overlapping_are_refused() {
        let regions = regions();
        for (first, second) in [
            (item(0, 0, 0, 1001), None),
            (item(0, 0, u64::MAX - 5, 1), None),
            (TargetItem { region: 8, ..item(0, 0, 0, 1) }, None),
            (item(0, 10, 0, 10), Some(item(0, 19, 0, 1))),
            (item(0, 10, 0, 10), Some(item(0, 0, 0, 11))),
            (item(0, 10, 0, 10), Some(item(0, 10, 50, 1))),
        ] {
            let items: Vec<TargetItem> = [first].into_iter().chain(second).collect();
            let body = placement::encode_targets(&items);
            let received = Targets::default().receive(OpId(1), &body, &regions);
            assert!(received.is_err(), "{items:?}");
        }
        let mut targets = Targets::default();
        let body = placement::encode_targets(&[item(0, 10, 0, 10)]);
        targets.receive(OpId(1), &body, &regions).expect("the first");
        assert!(targets.receive(OpId(1), &body, &regions).is_err(), "named twice");
    }
}
