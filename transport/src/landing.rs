//! Memory that bytes may land in, by operation and item.
//!
//! Invariant: each byte of an exposed item lands once, in order. So an item is whole exactly when its length has
//! landed, and its memory leaves this table in the same step: what comes later finds nothing.

use std::collections::BTreeMap;
use std::io::IoSliceMut;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;

use crate::closed::Closed;
use crate::link::Event;

/// An operation's item.
pub(crate) type Name = (OpId, u32);

/// Most stretches of memory in one system call.
const STRETCHES_MAX: usize = 64;

struct Exposed {
    parts: Vec<Part>,
    len: u64,
    landed: u64,
    /// Where the next byte goes: the part, and the place in it.
    part: usize,
    at: usize,
}

/// The items exposed on one link.
pub(crate) struct Landing {
    items: BTreeMap<Name, Exposed>,
    most: usize,
}

impl Landing {
    pub fn new(most: usize) -> Landing {
        Landing { items: BTreeMap::new(), most }
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.items.len())
    }

    pub fn expose(&mut self, name: Name, parts: Vec<Part>) -> Result<(), Vec<Part>> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let refused = self.room() == 0
            || len == 0
            || self.items.contains_key(&name)
            || parts.iter().any(|part| !part.is_exclusive());
        if refused {
            return Err(parts);
        }
        self.items.insert(name, Exposed { parts, len, landed: 0, part: 0, at: 0 });
        Ok(())
    }

    /// Whether `len` bytes may land at `offset` of an item; false if it is not exposed.
    pub fn begin(&self, name: Name, offset: u64, len: u32) -> Result<bool, Closed> {
        let Some(item) = self.items.get(&name) else { return Ok(false) };
        if offset != item.landed {
            return Err(Closed::broken("offset", offset));
        }
        if u64::from(len) > item.len - item.landed {
            return Err(Closed::broken("body_bytes", len));
        }
        Ok(true)
    }

    /// The next `most` bytes of an item's memory, or those of them that one call can fill.
    pub fn stretches(&mut self, name: Name, most: u64) -> Vec<IoSliceMut<'_>> {
        let Some(item) = self.items.get_mut(&name) else { return Vec::new() };
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
        let Some(item) = self.items.get_mut(&name) else { return };
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

    /// Hand an item back if all of it has landed.
    pub fn finish(&mut self, (op, item): Name) -> Option<Event> {
        let whole = self.items.get(&(op, item)).is_some_and(|found| found.landed == found.len);
        let found = if whole { self.items.remove(&(op, item)) } else { None };
        found.map(|found| Event::Landed { op, item, parts: found.parts })
    }

    /// Hand back what is exposed for `op`, or for all.
    pub fn retract(&mut self, op: Option<OpId>, events: &mut Vec<Event>) {
        let gone: Vec<Name> = match op {
            Some(op) => self.items.range((op, 0)..=(op, u32::MAX)).map(|(name, _)| *name).collect(),
            None => self.items.keys().copied().collect(),
        };
        for (op, item) in gone {
            if let Some(found) = self.items.remove(&(op, item)) {
                events.push(Event::Retracted { op, item, parts: found.parts });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::buffer::AlignedBuf;

    use super::*;

    const NAME: Name = (OpId(1), 0);

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
        assert!(landing.expose((OpId(1), 1), scatter(&[0])).is_err(), "no byte");
        let shared = vec![Part::from_shared(std::sync::Arc::from([1u8].as_slice()))];
        assert!(landing.expose((OpId(1), 1), shared).is_err(), "not to be written");
        assert_eq!((landing.begin(NAME, 0, 8), landing.begin((OpId(2), 0), 0, 8)), (Ok(true), Ok(false)));
        assert!(landing.begin(NAME, 0, 9).is_err() && landing.begin(NAME, 1, 1).is_err());
        landing.copy(NAME, &[1; 3]);
        assert!(landing.begin(NAME, 0, 1).is_err(), "landed already");
        assert_eq!(landing.begin(NAME, 3, 5), Ok(true));
        landing.expose((OpId(2), 7), scatter(&[1])).expect("room");
        assert!(landing.expose((OpId(3), 0), scatter(&[1])).is_err(), "no room");
    }

    #[test]
    fn an_operations_items_come_back_and_no_others() {
        let mut landing = Landing::new(9);
        for name in [(OpId(1), 0), (OpId(1), u32::MAX), (OpId(2), 0), (OpId(0), 5)] {
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
