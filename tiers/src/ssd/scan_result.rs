//! The result of one or several scans of a segment without a footer.

use std::collections::BTreeMap;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{SegmentOrder, Sequence};
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::scan::ScanItem;
use pagelith_layouts::segment::SegmentIdentity;

use super::footer::Footer;

/// The records found by scans of a segment.
#[derive(Default)]
pub(super) struct ScanResult {
    /// Kind, sequence, end and footer entries of each record, by offset.
    records: BTreeMap<u64, (RecordKind, Sequence, u64, Vec<FooterEntry>)>,
    /// Number of incomplete records.
    pub torn: u64,
    /// Whether a header of another store or place was found.
    pub misplaced: bool,
}

impl ScanResult {
    /// Add an item that the scan found.
    pub fn add(&mut self, item: ScanItem<'_>) {
        match item {
            ScanItem::Record { record, payload: Ok(()) } => {
                let r = record.facts();
                let end = r.offset + record.record_bytes();
                let entries = footer::entries_of(&record).collect();
                self.records.insert(r.offset, (r.kind, r.sequence, end, entries));
            }
            ScanItem::Record { payload: Err(_), .. } => self.torn += 1,
            // Records of an old incarnation are expected and not damage.
            ScanItem::Unrecognized { error: FormatError::Identity { field, .. }, .. } => {
                self.misplaced |= field != "incarnation";
            }
            ScanItem::Unrecognized { .. } => self.torn += 1,
        }
    }

    /// Whether the device may have returned wrong data.
    pub fn is_doubtful(&self) -> bool {
        self.misplaced || self.torn > 0 || self.records.is_empty() || self.has_gap()
    }

    /// Whether there is a gap before a record: a record was lost in the crash, or the scan missed
    /// it.
    fn has_gap(&self) -> bool {
        let mut expected = ALIGN;
        self.records
            .iter()
            .any(|(at, (_, _, end, _))| std::mem::replace(&mut expected, *end) != *at)
    }

    /// Offset at which the next record would begin.
    pub fn end(&self) -> u64 {
        self.records.values().map(|(_, _, end, _)| *end).max().unwrap_or(ALIGN).max(ALIGN)
    }

    /// Whether no valid record was found.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The footer of the segment.
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
    fn gap_before_record_makes_scan_doubtful() {
        let scanned = |records: &[(u64, u64)]| {
            let record =
                |(at, end): &(u64, u64)| (*at, (RecordKind::Data, Sequence(1), *end, Vec::new()));
            ScanResult { records: records.iter().map(record).collect(), ..ScanResult::default() }
        };
        assert!(!scanned(&[(4096, 16_384), (16_384, 20_480)]).is_doubtful());
        assert!(scanned(&[(8192, 16_384)]).is_doubtful(), "the first record is missing");
        assert!(
            scanned(&[(4096, 16_384), (20_480, 24_576)]).is_doubtful(),
            "a middle record is missing"
        );
        assert!(scanned(&[]).is_doubtful());
        assert_eq!((scanned(&[(4096, 16_384)]).end(), scanned(&[]).end()), (16_384, ALIGN));
    }
}
