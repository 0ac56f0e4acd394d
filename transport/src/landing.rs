//! Memory that bytes may land in, by operation, item, and the offset at which the stretch begins.
//!
//! Invariant: each byte of an exposed stretch lands once, in order. So it is whole exactly when its length has landed,
//! and its memory leaves this table in the same step: what comes later finds nothing.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;

use crate::closed::Closed;
use crate::link::Event;

/// An operation, its item, and where in the item the stretch begins.
pub(crate) type Name = (OpId, u32, u64);

/// Most stretches of memory in one system call.
const STRETCHES_MAX: usize = 64;

struct Exposed {
    item: u32,
    /// Where in the item it begins.
    from: u64,
    parts: Vec<Part>,
    len: u64,
    landed: u64,
    /// Where the next byte goes: the part, and the place in it.
    part: usize,
    at: usize,
}

impl Exposed {
    fn place(&self) -> (u32, u64) {
        (self.item, self.from)
    }
}

/// The stretches exposed on one link.
pub(crate) struct Landing {
    /// Of each operation, in the order of items and of where they begin in them: mostly added behind, and taken from the front. None is empty.
    ops: BTreeMap<OpId, VecDeque<Exposed>>,
    count: usize,
    most: usize,
}

impl Landing {
    pub fn new(most: usize) -> Landing {
        Landing { ops: BTreeMap::new(), count: 0, most }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.count)
    }

    pub fn expose(&mut self, name: Name, parts: Vec<Part>) -> Result<(), Vec<Part>> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let refused = self.room() == 0
            || len == 0
            || self.overlaps(name, len)
            || parts.iter().any(|part| !part.is_exclusive());
        if refused {
            return Err(parts);
        }
        let (op, item, from) = name;
        let of_op = self.ops.entry(op).or_default();
        let at = of_op.partition_point(|other| other.place() < (item, from));
        of_op.insert(at, Exposed { item, from, parts, len, landed: 0, part: 0, at: 0 });
        self.count += 1;
        Ok(())
    }

    fn find(&mut self, (op, item, from): Name) -> Option<&mut Exposed> {
        let of_op = self.ops.get_mut(&op)?;
        let at = of_op.partition_point(|other| other.place() < (item, from));
        of_op.get_mut(at).filter(|found| found.place() == (item, from))
    }

    /// The last of an item that begins at `offset` or before.
    fn before(&self, op: OpId, item: u32, offset: u64) -> Option<&Exposed> {
        let of_op = self.ops.get(&op)?;
        let behind = of_op.partition_point(|other| other.place() <= (item, offset));
        of_op.get(behind.checked_sub(1)?).filter(|found| found.item == item)
    }

    fn remove(&mut self, (op, item, from): Name) -> Option<Exposed> {
        let of_op = self.ops.get_mut(&op)?;
        let at = of_op.partition_point(|other| other.place() < (item, from));
        of_op.get(at).filter(|found| found.place() == (item, from))?;
        let found = of_op.remove(at);
        if of_op.is_empty() {
            self.ops.remove(&op);
        }
        self.count -= 1;
        found
    }

    /// Whether a stretch has bytes in common with one that is exposed, or does not end.
    fn overlaps(&self, (op, item, from): Name, len: u64) -> bool {
        let Some(last) = from.checked_add(len - 1) else { return true };
        self.before(op, item, last).is_some_and(|found| found.from.saturating_add(found.len) > from)
    }

    /// The stretch that `len` bytes at `offset` of an item land in; `None` if they are not exposed.
    pub fn begin(&self, op: OpId, item: u32, offset: u64, len: u32) -> Result<Option<Name>, Closed> {
        let before = self.before(op, item, offset);
        let Some(found) = before.filter(|found| offset - found.from < found.len) else {
            return Ok(None);
        };
        if offset - found.from != found.landed {
            return Err(Closed::broken("offset", offset));
        }
        if u64::from(len) > found.len - found.landed {
            return Err(Closed::broken("body_bytes", len));
        }
        Ok(Some((op, item, found.from)))
    }

    /// The memory of a stretch of so many bytes, if that is all of it and no byte has landed.
    pub fn unused(&mut self, name: Name, len: u64) -> Option<Vec<Part>> {
        let whole = |found: &Exposed| found.landed == 0 && found.len == len;
        if !self.find(name).is_some_and(|found| whole(found)) {
            return None;
        }
        self.remove(name).map(|found| found.parts)
    }

    /// Land all of `len` bytes that `copy` writes: from which of them on, and where.
    pub fn fill(&mut self, name: Name, len: u64, mut copy: impl FnMut(u64, &mut [u8])) {
        let mut from = 0;
        while from < len {
            let before = from;
            for stretch in &mut self.stretches(name, len - from) {
                copy(from, stretch);
                from += stretch.len() as u64;
            }
            if from == before {
                return;
            }
            self.advance(name, (from - before) as usize);
        }
    }

    /// The next `most` bytes of an item's memory, or those of them that one call can fill.
    pub fn stretches(&mut self, name: Name, most: u64) -> Vec<IoSliceMut<'_>> {
        let Some(item) = self.find(name) else { return Vec::new() };
        let (mut left, mut skip) = (most, item.at);
        let mut found = Vec::new();
        for part in item.parts.iter_mut().skip(item.part) {
            if left == 0 || found.len() == STRETCHES_MAX {
                break;
            }
            let bytes = part.bytes_mut().unwrap_or_default();
            let rest = bytes.get_mut(std::mem::take(&mut skip)..).unwrap_or_default();
            let len = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= len as u64;
            if len > 0 {
                found.push(IoSliceMut::new(&mut rest[..len]));
            }
        }
        found
    }

    /// So many bytes more have landed.
    pub fn advance(&mut self, name: Name, bytes: usize) {
        let Some(item) = self.find(name) else { return };
        item.landed += bytes as u64;
        item.at += bytes;
        while let Some(part) = item.parts.get(item.part).filter(|part| item.at >= part.len()) {
            item.at -= part.len();
            item.part += 1;
        }
    }

    /// Land bytes that were read ahead.
    pub fn copy(&mut self, name: Name, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut stretches = self.stretches(name, bytes.len() as u64);
            let mut moved = 0;
            for stretch in &mut stretches {
                let (now, rest) = bytes.split_at(stretch.len());
                stretch.copy_from_slice(now);
                (bytes, moved) = (rest, moved + now.len());
            }
            if moved == 0 {
                return;
            }
            self.advance(name, moved);
        }
    }

    /// Hand a stretch back if all of it has landed.
    pub fn finish(&mut self, name: Name) -> Option<Event> {
        let whole = self.find(name).is_some_and(|found| found.landed == found.len);
        let found = if whole { self.remove(name) } else { None };
        let (op, item, offset) = name;
        found.map(|found| Event::Landed { op, item, offset, parts: found.parts })
    }

    /// Hand back what is exposed for `op`, or for all.
    pub fn retract(&mut self, op: Option<OpId>, events: &mut Vec<Event>) {
        let gone = match op {
            Some(op) => self.ops.remove_entry(&op).into_iter().collect(),
            None => std::mem::take(&mut self.ops),
        };
        for (op, of_op) in gone {
            self.count -= of_op.len();
            let back = |Exposed { item, from, parts, .. }| Event::Retracted { op, item, offset: from, parts };
            events.extend(of_op.into_iter().map(back));
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::buffer::AlignedBuf;

    use super::*;

    const NAME: Name = (OpId(1), 0, 0);

    /// A scatter list of these lengths over one buffer.
    fn scatter(lengths: &[usize]) -> Vec<Part> {
        let total = lengths.iter().sum::<usize>().max(1);
        let mut rest = AlignedBuf::new(total).expect("memory").into_part();
        let mut parts = Vec::new();
        for len in lengths {
            let (part, behind) = rest.split(*len);
            parts.push(part);
            rest = behind;
        }
        parts
    }

    fn landed(landing: &mut Landing) -> Vec<u8> {
        match landing.finish(NAME) {
            Some(Event::Landed { parts, .. }) => {
                parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bytes_in_any_pieces_fill_a_scatter_list_in_order() {
        let bytes: Vec<u8> = (0..=255).collect();
        for step in 1..=256 {
            let mut landing = Landing::new(1);
            let lengths = [[0, 1, 3, 0, 7].as_slice(), &[1; 100], &[145, 0]].concat();
            landing.expose(NAME, scatter(&lengths)).expect("room");
            for piece in bytes.chunks(step) {
                assert!(landing.finish(NAME).is_none());
                landing.copy(NAME, piece);
            }
            assert_eq!(landed(&mut landing), bytes, "step={step}");
            assert!(landing.is_empty());
        }
    }

    #[test]
    fn what_was_not_exposed_or_does_not_fit_is_refused() {
        let mut landing = Landing::new(2);
        landing.expose(NAME, scatter(&[4, 4])).expect("room");
        assert!(landing.expose(NAME, scatter(&[1])).is_err(), "exposed already");
        assert!(landing.expose((OpId(1), 1, 0), scatter(&[0])).is_err(), "no byte");
        let shared = vec![Part::from_shared(std::sync::Arc::from([1u8].as_slice()))];
        assert!(landing.expose((OpId(1), 1, 0), shared).is_err(), "not to be written");
        let begin = |landing: &Landing, offset, len| landing.begin(OpId(1), 0, offset, len);
        assert_eq!((begin(&landing, 0, 8), landing.begin(OpId(2), 0, 0, 8)), (Ok(Some(NAME)), Ok(None)));
        assert!(begin(&landing, 0, 9).is_err() && begin(&landing, 1, 1).is_err());
        landing.copy(NAME, &[1; 3]);
        assert!(begin(&landing, 0, 1).is_err(), "landed already");
        assert_eq!((begin(&landing, 3, 5), begin(&landing, 8, 1)), (Ok(Some(NAME)), Ok(None)));
        landing.expose((OpId(2), 7, 0), scatter(&[1])).expect("room");
        assert!(landing.expose((OpId(3), 0, 0), scatter(&[1])).is_err(), "no room");
    }

    #[test]
    fn stretches_of_an_item_stand_side_by_side_and_never_overlap() {
        let mut landing = Landing::new(9);
        let (second, last) = ((OpId(1), 0, 8), (OpId(1), 0, u64::MAX));
        landing.expose(second, scatter(&[8])).expect("room");
        for (from, len) in [(0, 9), (7, 2), (8, 1), (15, 9), (0, 100), (u64::MAX, 2)] {
            assert!(landing.expose((OpId(1), 0, from), scatter(&[len])).is_err(), "from={from} len={len}");
        }
        landing.expose(NAME, scatter(&[8])).expect("before it");
        landing.expose((OpId(1), 0, 16), scatter(&[1])).expect("behind it");
        landing.expose(last, scatter(&[1])).expect("the last byte there is");
        let begin = |offset| landing.begin(OpId(1), 0, offset, 1);
        assert_eq!((begin(0), begin(8)), (Ok(Some(NAME)), Ok(Some(second))));
        assert_eq!(
            (begin(16), begin(17), begin(u64::MAX)),
            (Ok(Some((OpId(1), 0, 16))), Ok(None), Ok(Some(last)))
        );
        assert!(begin(9).is_err());
    }

    #[test]
    fn an_operations_items_come_back_and_no_others() {
        let mut landing = Landing::new(9);
        for name in [(OpId(1), 0, 0), (OpId(1), u32::MAX, 3), (OpId(2), 0, 0), (OpId(0), 5, 0)] {
            landing.expose(name, scatter(&[1])).expect("room");
        }
        let mut events = Vec::new();
        landing.retract(Some(OpId(1)), &mut events);
        let names = |events: &[Event]| {
            let name = |event: &Event| match event {
                Event::Retracted { op, item, .. } => (op.0, *item),
                other => panic!("{other:?}"),
            };
            events.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&events), [(1, 0), (1, u32::MAX)]);
        events.clear();
        landing.retract(None, &mut events);
        assert_eq!((names(&events), landing.is_empty()), (vec![(0, 5), (2, 0)], true));
    }
}
