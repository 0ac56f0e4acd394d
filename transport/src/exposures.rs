//! The exposed memory of a link, by operation, item, and the offset at which the range begins.
//!
//! Invariants:
//! - Each byte of an exposed range is received once, in order, so `accepted <= len`. The range is
//!   complete when `accepted == len` and no READ into it is in flight. The memory leaves this
//!   table in the same step: bytes that arrive later match no range.
//! - A range of a cancelled operation stays in this table while a device may write to it. Until
//!   then nothing is exposed for another operation of that number, so the end of a READ belongs to
//!   the range that it was begun for.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;

use crate::link::LinkEvent;
use crate::link_error::LinkError;

/// An operation, its item, and the offset in the item at which the range begins.
pub(crate) type ExposureKey = (OpId, u32, u64);

/// Maximum iovecs in one system call.
const IOVECS_MAX: usize = 64;

struct Exposure {
    item: u32,
    /// Offset in the item at which the range begins.
    from: u64,
    parts: Vec<Part>,
    len: u64,
    /// Bytes that were received, or whose READ has begun.
    accepted: u64,
    /// Position of the next byte: the part, and the offset in it.
    part: usize,
    part_offset: usize,
    /// The peer's device may write to it.
    is_target: bool,
    /// READs into it that are in flight.
    reads: u32,
}

impl Exposure {
    fn new((_, item, from): ExposureKey, parts: Vec<Part>, len: u64) -> Exposure {
        let (accepted, part, part_offset) = (0, 0, 0);
        Exposure { item, from, parts, len, accepted, part, part_offset, is_target: false, reads: 0 }
    }

    fn start(&self) -> (u32, u64) {
        (self.item, self.from)
    }
}

/// The ranges exposed on one link.
pub(crate) struct Exposures {
    /// The ranges of each operation, sorted by [`Exposure::start`]. Most are added at the back and
    /// removed from the front. No list is empty.
    ops: BTreeMap<OpId, VecDeque<Exposure>>,
    /// Ranges of cancelled operations to which a device may still write.
    held: BTreeMap<OpId, Vec<Exposure>>,
    /// Ranges in both.
    count: usize,
    capacity: usize,
}

impl Exposures {
    pub fn new(capacity: usize) -> Exposures {
        Exposures { ops: BTreeMap::new(), held: BTreeMap::new(), count: 0, capacity }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.count)
    }

    pub fn expose(&mut self, key: ExposureKey, parts: Vec<Part>) -> Result<(), Vec<Part>> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let refused = self.room() == 0
            || len == 0
            || self.holds(key.0)
            || self.overlaps(key, len)
            || parts.iter().any(|part| !part.is_exclusive());
        if refused {
            return Err(parts);
        }
        let (op, item, from) = key;
        let of_op = self.ops.entry(op).or_default();
        let at = of_op.partition_point(|other| other.start() < (item, from));
        of_op.insert(at, Exposure::new(key, parts, len));
        self.count += 1;
        Ok(())
    }

    fn find(&mut self, (op, item, from): ExposureKey) -> Option<&mut Exposure> {
        let of_op = self.ops.get_mut(&op)?;
        let at = of_op.partition_point(|other| other.start() < (item, from));
        of_op.get_mut(at).filter(|found| found.start() == (item, from))
    }

    /// The last range of an item that begins at or before `offset`.
    fn last_begun_at(&self, op: OpId, item: u32, offset: u64) -> Option<&Exposure> {
        let of_op = self.ops.get(&op)?;
        let next = of_op.partition_point(|other| other.start() <= (item, offset));
        of_op.get(next.checked_sub(1)?).filter(|found| found.item == item)
    }

    fn remove(&mut self, (op, item, from): ExposureKey) -> Option<Exposure> {
        let of_op = self.ops.get_mut(&op)?;
        let at = of_op.partition_point(|other| other.start() < (item, from));
        of_op.get(at).filter(|found| found.start() == (item, from))?;
        let found = of_op.remove(at);
        if of_op.is_empty() {
            self.ops.remove(&op);
        }
        self.count -= 1;
        found
    }

    /// Whether a range overlaps an exposed one, or its end overflows.
    fn overlaps(&self, (op, item, from): ExposureKey, len: u64) -> bool {
        let Some(last) = from.checked_add(len - 1) else { return true };
        self.last_begun_at(op, item, last)
            .is_some_and(|found| found.from.saturating_add(found.len) > from)
    }

    /// The range that receives `len` bytes at `offset` of an item; `None` if they are not exposed.
    pub fn locate(
        &self,
        op: OpId,
        item: u32,
        offset: u64,
        len: u32,
    ) -> Result<Option<ExposureKey>, LinkError> {
        let last = self.last_begun_at(op, item, offset);
        let Some(found) = last.filter(|found| offset - found.from < found.len) else {
            return Ok(None);
        };
        if offset - found.from != found.accepted {
            return Err(LinkError::bad_field("offset", offset));
        }
        if u64::from(len) > found.len - found.accepted {
            return Err(LinkError::bad_field("body_bytes", len));
        }
        Ok(Some((op, item, found.from)))
    }

    /// Remove the range and return its memory if it has `len` bytes and none was received.
    pub fn take_untouched(&mut self, key: ExposureKey, len: u64) -> Option<Vec<Part>> {
        let whole = |found: &Exposure| found.accepted == 0 && found.len == len;
        if !self.find(key).is_some_and(|found| whole(found)) {
            return None;
        }
        self.remove(key).map(|found| found.parts)
    }

    /// Receive `len` bytes through `copy(from, to)`, which writes the bytes from `from` on into
    /// `to`.
    pub fn fill(&mut self, key: ExposureKey, len: u64, mut copy: impl FnMut(u64, &mut [u8])) {
        let mut from = 0;
        while from < len {
            let before = from;
            for slice in &mut self.next_slices(key, len - from) {
                copy(from, slice);
                from += slice.len() as u64;
            }
            if from == before {
                return;
            }
            self.advance(key, (from - before) as usize);
        }
    }

    /// The memory of the next `bytes_max` bytes of a range, or as much as one system call can fill.
    pub fn next_slices(&mut self, key: ExposureKey, bytes_max: u64) -> Vec<IoSliceMut<'_>> {
        let Some(range) = self.find(key) else { return Vec::new() };
        let (mut left, mut skip) = (bytes_max, range.part_offset);
        let mut found = Vec::new();
        for part in range.parts.iter_mut().skip(range.part) {
            if left == 0 || found.len() == IOVECS_MAX {
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

    /// Record that `bytes` more bytes were received.
    pub fn advance(&mut self, key: ExposureKey, bytes: usize) {
        let Some(range) = self.find(key) else { return };
        range.accepted += bytes as u64;
        range.part_offset += bytes;
        while let Some(part) =
            range.parts.get(range.part).filter(|part| range.part_offset >= part.len())
        {
            range.part_offset -= part.len();
            range.part += 1;
        }
    }

    /// Receive bytes from the read-ahead buffer.
    pub fn copy(&mut self, key: ExposureKey, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut slices = self.next_slices(key, bytes.len() as u64);
            let mut moved = 0;
            for slice in &mut slices {
                let (now, rest) = bytes.split_at(slice.len());
                slice.copy_from_slice(now);
                (bytes, moved) = (rest, moved + now.len());
            }
            if moved == 0 {
                return;
            }
            self.advance(key, moved);
        }
    }

    /// Hand a range back if all of it was received.
    pub fn take_complete(&mut self, key: ExposureKey) -> Option<LinkEvent> {
        let whole = |found: &Exposure| found.accepted == found.len && found.reads == 0;
        let whole = self.find(key).is_some_and(|found| whole(found));
        let found = if whole { self.remove(key) } else { None };
        let (op, item, offset) = key;
        found.map(|found| LinkEvent::Received { op, item, offset, parts: found.parts })
    }

    /// Note that the peer's device may write to a range.
    pub fn note_target(&mut self, key: ExposureKey) {
        self.find(key).into_iter().for_each(|found| found.is_target = true);
    }

    /// Addresses and lengths of the next `bytes` bytes of a range.
    pub fn next_addresses(&mut self, key: ExposureKey, bytes: u64) -> Vec<(usize, usize)> {
        let Some(range) = self.find(key) else { return Vec::new() };
        let (mut left, mut skip) = (bytes, range.part_offset);
        let mut found = Vec::new();
        for part in range.parts.iter().skip(range.part) {
            let from = std::mem::take(&mut skip);
            let rest = part.len().saturating_sub(from);
            let len = rest.min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= len as u64;
            if len > 0 {
                found.push((part.addr() + from, len));
            }
        }
        found
    }

    /// Begin a READ of `bytes` bytes into a range. They count at once; the range is complete only
    /// when [`Exposures::end_read`] has ended each READ.
    pub fn begin_read(&mut self, key: ExposureKey, bytes: u64) {
        self.advance(key, usize::try_from(bytes).unwrap_or(usize::MAX));
        self.find(key).into_iter().for_each(|found| found.reads += 1);
    }

    /// End a READ. Hands the range back if it is complete, or if its operation was cancelled and no
    /// READ into it is left.
    pub fn end_read(&mut self, key: ExposureKey) -> Option<LinkEvent> {
        if let Some(found) = self.find(key) {
            found.reads = found.reads.saturating_sub(1);
            return self.take_complete(key);
        }
        let (op, item, from) = key;
        let of_op = self.held.get_mut(&op)?;
        let at = of_op.iter().position(|found| found.start() == (item, from))?;
        of_op[at].reads = of_op[at].reads.saturating_sub(1);
        if of_op[at].reads > 0 {
            return None;
        }
        let found = of_op.swap_remove(at);
        if of_op.is_empty() {
            self.held.remove(&op);
        }
        self.count -= 1;
        Some(found.retracted(op))
    }

    /// Hand back the ranges of `op`. With `is_live`, those to which a device may write stay.
    pub fn retract(&mut self, op: OpId, is_live: bool, events: &mut Vec<LinkEvent>) {
        for found in self.ops.remove(&op).unwrap_or_default() {
            if is_live && (found.is_target || found.reads > 0) {
                self.held.entry(op).or_default().push(found);
                continue;
            }
            self.count -= 1;
            events.push(found.retracted(op));
        }
    }

    /// Whether ranges of a cancelled operation stay.
    pub fn holds(&self, op: OpId) -> bool {
        self.held.contains_key(&op)
    }

    /// Hand back the ranges of a cancelled operation: no device writes to them any more.
    pub fn release(&mut self, op: OpId, events: &mut Vec<LinkEvent>) {
        for found in self.held.remove(&op).unwrap_or_default() {
            self.count -= 1;
            events.push(found.retracted(op));
        }
    }

    /// Hand back all ranges. If `are_leaked`, those to which a device may write are leaked, and
    /// handed back without memory.
    pub fn retract_all(&mut self, are_leaked: bool, events: &mut Vec<LinkEvent>) {
        let ops = std::mem::take(&mut self.ops).into_iter();
        let ops = ops.map(|(op, of_op)| (op, Vec::from(of_op)));
        for (op, of_op) in ops.chain(std::mem::take(&mut self.held)) {
            for mut found in of_op {
                if are_leaked && (found.is_target || found.reads > 0) {
                    std::mem::forget(std::mem::take(&mut found.parts));
                }
                events.push(found.retracted(op));
            }
        }
        self.count = 0;
    }
}

impl Exposure {
    fn retracted(self, op: OpId) -> LinkEvent {
        LinkEvent::Retracted { op, item: self.item, offset: self.from, parts: self.parts }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::buffer::AlignedBuf;

    use super::*;

    const KEY: ExposureKey = (OpId(1), 0, 0);

    /// A scatter list of these lengths over one buffer.
    fn scatter(lengths: &[usize]) -> Vec<Part> {
        let total = lengths.iter().sum::<usize>().max(1);
        let mut rest = AlignedBuf::new(total).expect("memory").into_part();
        let mut parts = Vec::new();
        for len in lengths {
            let (part, tail) = rest.split(*len);
            parts.push(part);
            rest = tail;
        }
        parts
    }

    fn landed(exposures: &mut Exposures) -> Vec<u8> {
        match exposures.take_complete(KEY) {
            Some(LinkEvent::Received { parts, .. }) => {
                parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn scatter_list_is_filled_in_order_for_pieces_of_any_length() {
        let bytes: Vec<u8> = (0..=255).collect();
        for step in 1..=256 {
            let mut exposures = Exposures::new(1);
            let lengths = [[0, 1, 3, 0, 7].as_slice(), &[1; 100], &[145, 0]].concat();
            exposures.expose(KEY, scatter(&lengths)).expect("room");
            for piece in bytes.chunks(step) {
                assert!(exposures.take_complete(KEY).is_none());
                exposures.copy(KEY, piece);
            }
            assert_eq!(landed(&mut exposures), bytes, "step={step}");
            assert!(exposures.is_empty());
        }
    }

    #[test]
    fn bytes_not_exposed_or_too_many_are_refused() {
        let mut exposures = Exposures::new(2);
        exposures.expose(KEY, scatter(&[4, 4])).expect("room");
        assert!(exposures.expose(KEY, scatter(&[1])).is_err(), "exposed already");
        assert!(exposures.expose((OpId(1), 1, 0), scatter(&[0])).is_err(), "no byte");
        let shared = vec![Part::from_shared(std::sync::Arc::from([1u8].as_slice()))];
        assert!(exposures.expose((OpId(1), 1, 0), shared).is_err(), "shared memory is read-only");
        let locate = |exposures: &Exposures, offset, len| exposures.locate(OpId(1), 0, offset, len);
        assert_eq!(
            (locate(&exposures, 0, 8), exposures.locate(OpId(2), 0, 0, 8)),
            (Ok(Some(KEY)), Ok(None))
        );
        assert!(locate(&exposures, 0, 9).is_err() && locate(&exposures, 1, 1).is_err());
        exposures.copy(KEY, &[1; 3]);
        assert!(locate(&exposures, 0, 1).is_err(), "received already");
        assert_eq!((locate(&exposures, 3, 5), locate(&exposures, 8, 1)), (Ok(Some(KEY)), Ok(None)));
        exposures.expose((OpId(2), 7, 0), scatter(&[1])).expect("room");
        assert!(exposures.expose((OpId(3), 0, 0), scatter(&[1])).is_err(), "no room");
    }

    #[test]
    fn ranges_of_one_item_are_adjacent_and_never_overlap() {
        let mut exposures = Exposures::new(9);
        let (second, last) = ((OpId(1), 0, 8), (OpId(1), 0, u64::MAX));
        exposures.expose(second, scatter(&[8])).expect("room");
        for (from, len) in [(0, 9), (7, 2), (8, 1), (15, 9), (0, 100), (u64::MAX, 2)] {
            assert!(
                exposures.expose((OpId(1), 0, from), scatter(&[len])).is_err(),
                "from={from} len={len}"
            );
        }
        exposures.expose(KEY, scatter(&[8])).expect("before it");
        exposures.expose((OpId(1), 0, 16), scatter(&[1])).expect("after it");
        exposures.expose(last, scatter(&[1])).expect("the last possible byte");
        let locate = |offset| exposures.locate(OpId(1), 0, offset, 1);
        assert_eq!((locate(0), locate(8)), (Ok(Some(KEY)), Ok(Some(second))));
        assert_eq!(
            (locate(16), locate(17), locate(u64::MAX)),
            (Ok(Some((OpId(1), 0, 16))), Ok(None), Ok(Some(last)))
        );
        assert!(locate(9).is_err());
    }

    #[test]
    fn retract_returns_only_the_ranges_of_its_operation() {
        let mut exposures = Exposures::new(9);
        for key in [(OpId(1), 0, 0), (OpId(1), u32::MAX, 3), (OpId(2), 0, 0), (OpId(0), 5, 0)] {
            exposures.expose(key, scatter(&[1])).expect("room");
        }
        let mut events = Vec::new();
        exposures.retract(OpId(1), false, &mut events);
        let names = |events: &[LinkEvent]| {
            let key = |event: &LinkEvent| match event {
                LinkEvent::Retracted { op, item, .. } => (op.0, *item),
                other => panic!("{other:?}"),
            };
            events.iter().map(key).collect::<Vec<_>>()
        };
        assert_eq!(names(&events), [(1, 0), (1, u32::MAX)]);
        events.clear();
        exposures.retract_all(false, &mut events);
        assert_eq!((names(&events), exposures.is_empty()), (vec![(0, 5), (2, 0)], true));
    }
}
