//! The entries of one operation, as ranges of its vectors.

use super::slots::{self, ENTRY_BYTES, IoVec};
use crate::buffer::Part;

/// One entry: a range of an operation's vectors. A read has one vector for each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryRange {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Its start in bytes from the operation's offset.
    pub(super) at: u64,
    /// The registered buffer of its only part.
    pub(super) fixed: Option<u16>,
}

/// The entries of an operation, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryRanges {
    pub(super) first: EntryRange,
    pub(super) rest: Vec<EntryRange>,
}

impl EntryRanges {
    /// One entry for all parts, without a registered buffer.
    pub(super) fn whole(parts: &[Part]) -> EntryRanges {
        EntryRanges {
            first: EntryRange { first: 0, count: parts.len(), at: 0, fixed: None },
            rest: Vec::new(),
        }
    }

    /// The entries of a write whose vectors are split at the ends of entries.
    pub(super) fn of_split(vectors: &[IoVec]) -> EntryRanges {
        let count = slots::entry_count(vectors.iter().map(|vector| vector.len() as u64).sum());
        let none = EntryRange { first: 0, count: 0, at: 0, fixed: None };
        let (mut ranges, mut range, mut bytes) = (Vec::with_capacity(count), none, 0);
        for (i, vector) in vectors.iter().enumerate() {
            (range.count, bytes) = (range.count + 1, bytes + vector.len() as u64);
            if bytes % ENTRY_BYTES == 0 && ranges.len() + 1 < count {
                ranges.push(std::mem::replace(
                    &mut range,
                    EntryRange { first: i + 1, at: bytes, ..none },
                ));
            }
        }
        ranges.push(range);
        EntryRanges { first: ranges.remove(0), rest: ranges }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &EntryRange> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// How many entries use registered buffers.
    pub(super) fn fixed_count(&self) -> usize {
        self.iter().filter(|range| range.fixed.is_some()).count()
    }
}
