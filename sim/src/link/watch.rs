//! What an end that shows bytes promises, held against it by who sees both ends: they stay as they are until they were taken or given up,
//! and they are those that the outcome vouches for. Who is shown them finds out about either by its checksums and asks again, so that
//! nothing but this tells a promise that is broken from one that has ended.

use std::collections::BTreeMap;
use std::ops::Range;

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::outcome::{self, Answer, Verdict};
use pagelith_layouts::wire::request::{self, Ask};
use pagelith_layouts::wire::shown::Stretch;
use pagelith_layouts::wire::{Frame, Side};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What each side shows now, by its bytes when it began to.
#[derive(Default)]
pub(super) struct Watch([BTreeMap<Stretch, Checksum>; 2]);

/// Of all bytes together.
pub(super) fn sum(bytes: &[u8]) -> Checksum {
    checksum(bytes)
}

impl Watch {
    fn of(&mut self, side: Side) -> &mut BTreeMap<Stretch, Checksum> {
        &mut self.0[usize::from(side == Side::Server)]
    }

    pub fn show(&mut self, side: Side, stretch: Stretch, bytes: Checksum) {
        self.of(side).insert(stretch, bytes);
    }

    pub fn forget(&mut self, side: Side, stretch: Stretch) {
        self.of(side).remove(&stretch);
    }

    /// The end is gone.
    pub fn forget_all(&mut self, side: Side) {
        self.of(side).clear();
    }

    /// Whether what the other looks at is as it was; `None` if it is not shown any more.
    pub fn look(&mut self, side: Side, stretch: Stretch, bytes: Checksum) -> Option<bool> {
        self.of(side).get(&stretch).map(|shown| *shown == bytes)
    }
}

/// What a server's end was asked for, and what it has shown of that.
#[derive(Default)]
pub(super) struct Vouching {
    asked: BTreeMap<OpId, Vec<Range<u64>>>,
    shown: BTreeMap<(OpId, u32), Vec<Checksum>>,
}

impl Vouching {
    pub fn asked(&mut self, frame: &Frame) {
        if let Ok((_, Ask::Get(items))) = request::decode(&frame.body) {
            self.asked.insert(frame.op, items.iter().map(|item| item.stretch()).collect());
        }
    }

    /// All of an item is shown: other pieces are not looked at.
    pub fn shown(&mut self, (op, item, offset): Stretch, bytes: &[u8]) {
        let stretch = self.asked.get(&op).and_then(|all| all.get(item as usize));
        let whole = |stretch: &&Range<u64>| offset == 0 && stretch.end - stretch.start == bytes.len() as u64;
        if let Some(stretch) = stretch.filter(whole) {
            self.shown.insert((op, item), sums(stretch, bytes));
        }
    }

    /// Whether an outcome vouches for what was shown of its operation, which is over.
    pub fn outcome(&mut self, frame: &Frame) -> bool {
        let said = outcome::decode(&frame.body);
        let Ok((_, Answer::Items(items))) = said else { return true };
        let is_shown = |(item, at): (_, u32)| match item {
            Verdict::Hit { checksums, .. } => {
                self.shown.get(&(frame.op, at)).is_none_or(|own| checksums.iter().eq(own.iter().copied()))
            }
            _ => true,
        };
        let right = items.iter().map(|item| item.verdict).zip(0u32..).all(is_shown);
        self.forget(Some(frame.op));
        right
    }

    pub fn forget(&mut self, op: Option<OpId>) {
        self.asked.retain(|of, _| op.is_some_and(|op| op != *of));
        self.shown.retain(|(of, _), _| op.is_some_and(|op| op != *of));
    }
}

/// Of each block that a stretch of an object lies in, of those of its bytes that are in the stretch.
fn sums(stretch: &Range<u64>, bytes: &[u8]) -> Vec<Checksum> {
    let block = |block: u64| {
        let (from, to) = ((block * BLOCK).max(stretch.start), ((block + 1) * BLOCK).min(stretch.end));
        checksum(&bytes[(from - stretch.start) as usize..(to - stretch.start) as usize])
    };
    (stretch.start / BLOCK..stretch.end.div_ceil(BLOCK)).map(block).collect()
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::checksum::key_hash;
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;
    use pagelith_layouts::wire::outcome::{Item, TierTag, Written};
    use pagelith_layouts::wire::request::{GetItem, Terms, Verb};
    use pagelith_layouts::wire::{Kind, List};

    use super::*;

    #[test]
    fn what_was_taken_or_given_up_is_promised_no_more() {
        let (mut watch, stretch) = (Watch::default(), (OpId(1), 0, 0));
        watch.show(Side::Server, stretch, sum(b"shown"));
        assert_eq!(watch.look(Side::Server, stretch, sum(b"shown")), Some(true));
        assert_eq!(watch.look(Side::Server, stretch, sum(b"other")), Some(false));
        assert_eq!(watch.look(Side::Client, stretch, sum(b"shown")), None);
        watch.forget(Side::Server, stretch);
        assert_eq!(watch.look(Side::Server, stretch, sum(b"other")), None);
    }

    #[test]
    fn an_outcome_vouches_for_what_was_shown_and_for_where_a_range_begins() {
        let key =
            ObjectKey::new(NamespaceId([1; 16]), PrefixHash([2; 32]), Role::Target, "kv", "k", Shard::Whole);
        let key = key.expect("a key");
        let object: Vec<u8> = (0..50_000u32).map(|at| (at / 3) as u8).collect();
        let range = 100..40_000u64;
        let request = |op| {
            let items = [GetItem::new(key, Some(range.clone()), range.end - range.start)];
            Frame::new(
                Kind::Request,
                OpId(op),
                request::encode(Terms::default(), &Ask::Get(List::of(&items))),
            )
        };
        let said = sums(&range, &object[100..40_000]);
        assert_eq!(said, [checksum(&object[100..32_768]), checksum(&object[32_768..40_000])]);
        let outcome = |op| {
            let (tier, length, checksums) = (TierTag::Memory, range.end - range.start, List::of(&said));
            let verdict = Verdict::Hit { tier, length, checksums, members: 1, base: None };
            let items = [Item { key_hash: key_hash(&key), verdict }];
            let body = outcome::encode(Verb::Get, &Written::Items(&items, BLOCK_BYTES));
            Frame::new(Kind::Outcome, OpId(op), body)
        };
        let mut vouching = Vouching::default();
        for (op, from, right) in [(1, 100, true), (2, 0, false)] {
            vouching.asked(&request(op));
            vouching.shown((OpId(op), 0, 0), &object[from..from + 39_900]);
            assert_eq!(vouching.outcome(&outcome(op)), right, "from={from}");
        }
        vouching.asked(&request(3));
        assert!(vouching.outcome(&outcome(3)), "nothing of it was shown");
    }
}
