//! What a scan of a segment without a footer finds, in one look or two.

use std::collections::BTreeMap;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{SegmentOrder, Sequence};
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::scan::Found;
use pagelith_layouts::segment::SegmentIdentity;

use super::recover::Footer;

/// What a scan of a segment has found.
#[derive(Default)]
pub(super) struct Scanned {
    /// By offset: kind, sequence, end, and what a footer says of it.
    records: BTreeMap<u64, (RecordKind, Sequence, u64, Vec<FooterEntry>)>,
    /// Records that are not whole.
    pub torn: u64,
    /// Whether something was there that belongs elsewhere.
    pub misplaced: bool,
}

impl Scanned {
    /// The next thing found.
    pub fn take(&mut self, what: Found<'_>) {
        match what {
            Found::Record { record, payload: Ok(()) } => {
                let r = record.facts();
                let end = r.offset + record.record_bytes();
                let entries = footer::entries_of(&record).collect();
                self.records.insert(r.offset, (r.kind, r.sequence, end, entries));
            }
            Found::Record { payload: Err(_), .. } => self.torn += 1,
            // Old incarnations' records are no ruins of this one.
            Found::Junk { error: FormatError::Identity { field, .. }, .. } => {
                self.misplaced |= field != "incarnation";
            }
            Found::Junk { .. } => self.torn += 1,
        }
    }

    /// Whether the device may have brought something else than what is there.
    pub fn is_doubtful(&self) -> bool {
        self.misplaced || self.torn > 0 || self.records.is_empty() || self.has_gap()
    }

    /// Whether records lie behind a place where none was found: one that the crash took, or one that was not read.
    fn has_gap(&self) -> bool {
        let mut expected = ALIGN;
        self.records.iter().any(|(at, (_, _, end, _))| std::mem::replace(&mut expected, *end) != *at)
    }

    /// Where the next record would begin.
    pub fn end(&self) -> u64 {
        self.records.values().map(|(_, _, end, _)| *end).max().unwrap_or(ALIGN).max(ALIGN)
    }

    /// Whether nothing whole was found.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What its footer would say.
    pub fn footer(self, identity: SegmentIdentity, order: SegmentOrder) -> Footer {
        let sequences = || self.records.values().map(|(kind, sequence, ..)| (*kind, *sequence));
        let facts = FooterFacts {
            identity,
            order,
            min_sequence: sequences()
                .filter(|(kind, _)| *kind == RecordKind::Data)
                .map(|(_, sequence)| sequence)
                .min()
                .unwrap_or(Sequence(u64::MAX)),
            max_sequence: sequences().map(|(_, sequence)| sequence).max().unwrap_or(Sequence(0)),
            data_end: self.end(),
        };
        (facts, self.records.into_values().flat_map(|(.., entries)| entries).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_a_record_before_others_is_looked_at_again() {
        let scanned = |records: &[(u64, u64)]| {
            let record = |(at, end): &(u64, u64)| (*at, (RecordKind::Data, Sequence(1), *end, Vec::new()));
            Scanned { records: records.iter().map(record).collect(), ..Scanned::default() }
        };
        assert!(!scanned(&[(4096, 16_384), (16_384, 20_480)]).is_doubtful());
        assert!(scanned(&[(8192, 16_384)]).is_doubtful(), "the first is missing");
        assert!(scanned(&[(4096, 16_384), (20_480, 24_576)]).is_doubtful(), "one between is missing");
        assert!(scanned(&[]).is_doubtful());
        assert_eq!((scanned(&[(4096, 16_384)]).end(), scanned(&[]).end()), (16_384, ALIGN));
    }
}
