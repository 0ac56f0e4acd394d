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
        self.misplaced || self.torn > 0 || self.records.is_empty()
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
            data_end: self.records.values().map(|(_, _, end, _)| *end).max().unwrap_or(ALIGN).max(ALIGN),
        };
        (facts, self.records.into_values().flat_map(|(.., entries)| entries).collect())
    }
}
