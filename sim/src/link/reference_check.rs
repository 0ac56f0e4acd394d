//! Checks the promises of an end that passes bytes by reference, with a view of both ends: the
//! bytes stay unchanged until the reference is released or withdrawn, and they match the checksums
//! of the outcome. The receiver detects a violation of either by its checksums and asks again, so
//! only this check distinguishes a broken promise from a promise that has ended.

use std::collections::BTreeMap;
use std::ops::Range;

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::outcome::{self, DecodedOutcome, ItemOutcome};
use pagelith_layouts::wire::request::{self, RequestBody};
use pagelith_layouts::wire::shm_ref::ItemRange;
use pagelith_layouts::wire::{Frame, LinkRole};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Ranges that each side passes by reference now, with the checksum at the start.
#[derive(Default)]
pub(super) struct ReferenceCheck([BTreeMap<ItemRange, Checksum>; 2]);

/// The checksum of all bytes.
pub(super) fn sum(bytes: &[u8]) -> Checksum {
    checksum(bytes)
}

impl ReferenceCheck {
    fn of(&mut self, side: LinkRole) -> &mut BTreeMap<ItemRange, Checksum> {
        &mut self.0[usize::from(side == LinkRole::Server)]
    }

    pub fn show(&mut self, side: LinkRole, range: ItemRange, bytes: Checksum) {
        self.of(side).insert(range, bytes);
    }

    pub fn forget(&mut self, side: LinkRole, range: ItemRange) {
        self.of(side).remove(&range);
    }

    /// The end is closed.
    pub fn forget_all(&mut self, side: LinkRole) {
        self.of(side).clear();
    }

    /// Whether the bytes that the other end reads are unchanged; `None` if the reference was
    /// withdrawn.
    pub fn check(&mut self, side: LinkRole, range: ItemRange, bytes: Checksum) -> Option<bool> {
        self.of(side).get(&range).map(|shown| *shown == bytes)
    }
}

/// Requests that arrived at a server's end, and the checksums of the bytes that it passed by
/// reference.
#[derive(Default)]
pub(super) struct OutcomeCheck {
    requested: BTreeMap<OpId, Vec<Range<u64>>>,
    shown: BTreeMap<(OpId, u32), Vec<Checksum>>,
}

impl OutcomeCheck {
    pub fn on_request(&mut self, frame: &Frame) {
        if let Ok((_, RequestBody::Get(items))) = request::decode(&frame.body) {
            self.requested.insert(frame.op, items.iter().map(|item| item.byte_range()).collect());
        }
    }

    /// Records a reference to all of an item; references to parts are not checked.
    pub fn shown(&mut self, (op, item, offset): ItemRange, bytes: &[u8]) {
        let range = self.requested.get(&op).and_then(|all| all.get(item as usize));
        let whole =
            |range: &&Range<u64>| offset == 0 && range.end - range.start == bytes.len() as u64;
        if let Some(range) = range.filter(whole) {
            self.shown.insert((op, item), sums(range, bytes));
        }
    }

    /// Whether an outcome's checksums match the bytes passed by reference; its operation is
    /// finished.
    pub fn outcome(&mut self, frame: &Frame) -> bool {
        let decoded = outcome::decode(&frame.body);
        let Ok((_, DecodedOutcome::Items(items))) = decoded else { return true };
        let is_shown = |(item, at): (_, u32)| match item {
            ItemOutcome::Hit { checksums, .. } => self
                .shown
                .get(&(frame.op, at))
                .is_none_or(|own| checksums.iter().eq(own.iter().copied())),
            _ => true,
        };
        let right = items.iter().map(|item| item.verdict).zip(0u32..).all(is_shown);
        self.forget(Some(frame.op));
        right
    }

    pub fn forget(&mut self, op: Option<OpId>) {
        self.requested.retain(|of, _| op.is_some_and(|op| op != *of));
        self.shown.retain(|(of, _), _| op.is_some_and(|op| op != *of));
    }
}

/// A checksum for each block that a range of an object overlaps, over the bytes of the block in the
/// range.
fn sums(range: &Range<u64>, bytes: &[u8]) -> Vec<Checksum> {
    let block = |block: u64| {
        let (from, to) = ((block * BLOCK).max(range.start), ((block + 1) * BLOCK).min(range.end));
        checksum(&bytes[(from - range.start) as usize..(to - range.start) as usize])
    };
    (range.start / BLOCK..range.end.div_ceil(BLOCK)).map(block).collect()
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::checksum::key_hash;
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;
    use pagelith_layouts::wire::outcome::{Item, OutcomeToSend, TierTag};
    use pagelith_layouts::wire::request::{GetItem, RequestOptions, Verb};
    use pagelith_layouts::wire::{FrameKind, List};

    use super::*;

    #[test]
    fn released_reference_is_not_checked() {
        let (mut watch, range) = (ReferenceCheck::default(), (OpId(1), 0, 0));
        watch.show(LinkRole::Server, range, sum(b"shown"));
        assert_eq!(watch.check(LinkRole::Server, range, sum(b"shown")), Some(true));
        assert_eq!(watch.check(LinkRole::Server, range, sum(b"other")), Some(false));
        assert_eq!(watch.check(LinkRole::Client, range, sum(b"shown")), None);
        watch.forget(LinkRole::Server, range);
        assert_eq!(watch.check(LinkRole::Server, range, sum(b"other")), None);
    }

    #[test]
    fn outcome_checksums_must_match_referenced_range() {
        let key = ObjectKey::new(
            NamespaceId([1; 16]),
            PrefixHash([2; 32]),
            Role::Target,
            "kv",
            "k",
            Shard::Whole,
        );
        let key = key.expect("a key");
        let object: Vec<u8> = (0..50_000u32).map(|at| (at / 3) as u8).collect();
        let range = 100..40_000u64;
        let request = |op| {
            let items = [GetItem::new(key, Some(range.clone()), range.end - range.start)];
            Frame::new(
                FrameKind::Request,
                OpId(op),
                request::encode(RequestOptions::default(), &RequestBody::Get(List::of(&items))),
            )
        };
        let checksums_sent = sums(&range, &object[100..40_000]);
        assert_eq!(
            checksums_sent,
            [checksum(&object[100..32_768]), checksum(&object[32_768..40_000])]
        );
        let outcome = |op| {
            let (tier, length, checksums) =
                (TierTag::Memory, range.end - range.start, List::of(&checksums_sent));
            let verdict = ItemOutcome::Hit { tier, length, checksums, members: 1, base: None };
            let items = [Item { key_hash: key_hash(&key), verdict }];
            let body = outcome::encode(Verb::Get, &OutcomeToSend::Items(&items, BLOCK_BYTES));
            Frame::new(FrameKind::Outcome, OpId(op), body)
        };
        let mut outcome_check = OutcomeCheck::default();
        for (op, from, right) in [(1, 100, true), (2, 0, false)] {
            outcome_check.on_request(&request(op));
            outcome_check.shown((OpId(op), 0, 0), &object[from..from + 39_900]);
            assert_eq!(outcome_check.outcome(&outcome(op)), right, "from={from}");
        }
        outcome_check.on_request(&request(3));
        assert!(outcome_check.outcome(&outcome(3)), "nothing of it was shown");
    }
}
