//! The repair plan of one segment.
//!
//! A damaged record is replaced by tombstones of its members, with the sequence before its own. So
//! its objects are gone, and older objects of the same keys stay invisible. This needs the keys,
//! from an intact footer or header. If the lost content is unknown, it may have included removals,
//! and all older objects are in doubt.

use std::ops::Range;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{Generation, GroupId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{self, GroupKind, MemberSpec, Record, RecordFacts, RecordKind};
use pagelith_layouts::scan::ScanItem;
use pagelith_layouts::segment::encode_head;

use super::check_record::{RecordState, check_record};
use crate::on_disk::OnDisk;
use crate::on_disk::segment::{Footer, Segment, is_damaged_header_of};

/// The repair plan of a segment.
pub(super) enum RepairPlan {
    /// No change: the next open handles the segment.
    Keep,
    /// Zero its head and footer. It has no records: it was prepared, or an earlier repair dropped
    /// it.
    Wipe,
    /// Rewrite parts of it.
    Rewrite(Rewrite),
    /// Drop it, for this reason: its lost content is unknown.
    Drop(String),
}

/// The parts of a segment to rewrite.
#[derive(Default)]
pub(super) struct Rewrite {
    /// The segment has an intact footer.
    pub(super) sealed: bool,
    pub(super) head: Option<Vec<u8>>,
    /// Damaged records: the byte range in the segment, and the bytes that replace the header.
    pub(super) records: Vec<(Range<u64>, Vec<u8>)>,
    pub(super) footer: Option<Vec<u8>>,
    /// Dropped objects.
    pub(super) dropped: Vec<ObjectKey>,
    /// Removals of damaged records, which are written again.
    pub(super) removals: u64,
}

/// Plan the repair of a segment. `covered` is
/// [`StoreMetadata::covered`](super::super::metadata::StoreMetadata::covered); `mark_end` is the
/// end of its last record by the newest checkpoint, if that has entries of it.
pub(super) fn plan(
    disk: &OnDisk,
    superblock: &Superblock,
    segment: &Segment,
    covered: bool,
    mark_end: Option<u64>,
) -> RepairPlan {
    let rewrite = Rewrite { sealed: segment.is_sealed(), ..Rewrite::default() };
    let mut planner = Planner { disk, superblock, segment, mark_end, rewrite };
    let unreadable = disk.unreadable_in(segment.identity.segment, superblock);
    let decided = match &segment.footer {
        Footer::Sealed { facts, entries } => planner.sealed(facts, entries),
        // The next open skips the segment, or handles writes that no sync covered.
        _ if !covered && (segment.head_hides() || unreadable.is_empty()) => {
            return RepairPlan::Keep;
        }
        // A footer is written after a sync of the records.
        _ if covered || planner.claimed_end().is_some() => planner.unsealed(&unreadable),
        _ => planner.uncovered(&unreadable),
    };
    let damaged_footer = segment.has_damaged_footer();
    match decided {
        Err(reason) => RepairPlan::Drop(reason),
        Ok(()) if !planner.rewrite.is_empty() => RepairPlan::Rewrite(planner.rewrite),
        Ok(()) if covered && damaged_footer && !segment.head_hides() => {
            RepairPlan::Drop("footer is damaged, and no record is left".into())
        }
        Ok(()) if damaged_footer || unreadable.contains(&0) => RepairPlan::Wipe,
        Ok(()) => RepairPlan::Keep,
    }
}

impl Rewrite {
    fn is_empty(&self) -> bool {
        self.head.is_none() && self.records.is_empty() && self.footer.is_none()
    }
}

struct Planner<'a> {
    disk: &'a OnDisk,
    superblock: &'a Superblock,
    segment: &'a Segment,
    mark_end: Option<u64>,
    rewrite: Rewrite,
}

/// The reason why the lost content is unknown.
type UnknownLoss = String;

/// A record with an intact header, in a segment without footer.
struct FoundRecord {
    entries: Vec<FooterEntry>,
    /// Its byte range in the segment.
    range: Range<u64>,
    /// Whether its payload is intact.
    whole: bool,
}

impl FoundRecord {
    fn new(record: &Record<'_>, whole: bool) -> FoundRecord {
        let offset = record.facts().offset;
        FoundRecord {
            entries: footer::entries_of(record).collect(),
            range: offset..offset + record.record_bytes(),
            whole,
        }
    }
}

impl Planner<'_> {
    fn sealed(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) -> Result<(), UnknownLoss> {
        self.head()?;
        let mut kept = Vec::new();
        let (disk, superblock, identity) = (self.disk, self.superblock, self.segment.identity);
        let mut read = |at: u64, buf: &mut [u8]| {
            disk.read_segment(identity.segment, superblock, at, buf).is_ok()
        };
        for record in entries.chunk_by(|a, b| a.record_sector == b.record_sector) {
            match check_record(&mut read, identity, record) {
                RecordState::Intact => kept.extend_from_slice(record),
                RecordState::Damaged => self.replace(record, &mut kept)?,
                RecordState::Different => {
                    let at = u64::from(record[0].record_sector) * ALIGN;
                    return Err(format!(
                        "record header and footer contradict each other offset={at}"
                    ));
                }
            }
        }
        let counted = self.facts(&kept);
        // After a failed write the footer has no entries of the lost records, but their facts.
        let expected = FooterFacts {
            min_sequence: facts.min_sequence.min(counted.min_sequence),
            max_sequence: facts.max_sequence.max(counted.max_sequence),
            data_end: facts.data_end.max(counted.data_end),
            ..counted
        };
        if *facts != expected || kept != entries {
            self.footer(&expected, &kept)?;
        }
        Ok(())
    }

    fn unsealed(&mut self, unreadable: &[u64]) -> Result<(), UnknownLoss> {
        let mut end = ALIGN;
        let mut doubt: Option<UnknownLoss> = None;
        let mut found_all: Vec<FoundRecord> = Vec::new();
        let (segment, disk, superblock) = (self.segment, self.disk, self.superblock);
        let scanned = segment.scan(disk, &mut |found| match found {
            ScanItem::Record { record, payload } => {
                let found = FoundRecord::new(&record, payload.is_ok());
                if found.range.start > end {
                    doubt.get_or_insert(format!(
                        "a record is missing and so is the footer offset={end}"
                    ));
                }
                end = found.range.end;
                found_all.push(found);
            }
            ScanItem::Unrecognized { offset, error }
                if is_damaged_header_of(disk, superblock, segment, offset, &error) =>
            {
                doubt.get_or_insert(format!("{error}, and the footer is damaged offset={offset}"));
            }
            ScanItem::Unrecognized { .. } => {}
        });
        scanned.map_err(|e| format!("{e:#}"))?;
        let former_end = self.mark_end.max(self.claimed_end()).unwrap_or(0);
        if former_end > end {
            doubt.get_or_insert(format!(
                "records are missing and so is the footer offset={end} end={former_end}"
            ));
        }
        let is_used = !segment.head_hides() || self.claimed_end().is_some();
        if is_used || !found_all.is_empty() {
            doubt = doubt.or(self.lost_block(unreadable, &found_all, former_end));
        }
        if found_all.is_empty() && doubt.is_none() {
            return Ok(());
        }
        if let Some(doubt) = doubt {
            return Err(doubt);
        }
        self.head()?;
        let mut kept = Vec::new();
        for found in found_all {
            if found.whole {
                kept.extend(found.entries);
            } else {
                self.replace(&found.entries, &mut kept)?;
            }
        }
        self.footer(&self.facts(&kept), &kept)
    }

    /// A segment that the next open scans. It forgets everything older if it cannot read a block;
    /// what a crash interrupted is not damage. It gets no footer, because that would say that all
    /// older segments are durable.
    fn uncovered(&mut self, unreadable: &[u64]) -> Result<(), UnknownLoss> {
        let mut found_all: Vec<FoundRecord> = Vec::new();
        let (mut end, mut is_missing) = (ALIGN, false);
        let (segment, disk, superblock) = (self.segment, self.disk, self.superblock);
        let scanned = segment.scan(disk, &mut |found| match found {
            ScanItem::Record { record, payload } => {
                let found = FoundRecord::new(&record, payload.is_ok());
                is_missing |= found.range.start > end;
                end = found.range.end;
                found_all.push(found);
            }
            ScanItem::Unrecognized { offset, error } => {
                is_missing |= is_damaged_header_of(disk, superblock, segment, offset, &error);
            }
        });
        scanned.map_err(|e| format!("{e:#}"))?;
        let footer_is_lost = unreadable.contains(&(superblock.segment_bytes - ALIGN));
        if footer_is_lost && (is_missing || found_all.is_empty()) {
            return Err("a record is missing, and the footer cannot be read".into());
        }
        if let Some(doubt) = self.lost_block(unreadable, &found_all, 0) {
            return Err(doubt);
        }
        if found_all.is_empty() {
            return Ok(());
        }
        self.head()?;
        for found in found_all.iter().filter(|f| unreadable.iter().any(|at| f.range.contains(at))) {
            self.replace(&found.entries, &mut Vec::new())?;
        }
        if footer_is_lost {
            self.rewrite.footer = Some(vec![0; ALIGN as usize]);
        }
        Ok(())
    }

    /// The doubt about a block that cannot be read and is in no record. `end` is the end of the
    /// last record, or 0 if unknown.
    fn lost_block(
        &self,
        unreadable: &[u64],
        found_all: &[FoundRecord],
        end: u64,
    ) -> Option<UnknownLoss> {
        // The first block and the last one are never of a record.
        let end = if end > 0 { end } else { self.superblock.segment_bytes - ALIGN };
        let in_record = |at: &u64| found_all.iter().any(|found| found.range.contains(at));
        let mut lost = unreadable.iter().filter(|at| (ALIGN..end).contains(at) && !in_record(at));
        lost.next().map(|at| format!("a block cannot be read, and there is no footer offset={at}"))
    }

    /// Rewrite a damaged head. A head of another incarnation hides the whole segment at open,
    /// unless the checkpoint has entries of it. Then the rewrite must not make hidden objects
    /// visible.
    fn head(&mut self) -> Result<(), UnknownLoss> {
        if self.segment.head_is_current() {
            return Ok(());
        }
        if self.segment.head_hides() && self.mark_end.is_none() {
            return Err("segment header is another incarnation's".into());
        }
        let (identity, order) = (self.segment.identity, self.segment.order);
        self.rewrite.head =
            Some(encode_head(identity, order, self.superblock.segment_bytes).to_vec());
        Ok(())
    }

    /// The end of the last record by a damaged footer of this incarnation.
    fn claimed_end(&self) -> Option<u64> {
        match &self.segment.footer {
            Footer::Broken { incarnation, data_end, .. } => {
                let plausible =
                    data_end.is_multiple_of(ALIGN) && *data_end < self.superblock.segment_bytes;
                (*incarnation == self.segment.identity.incarnation && plausible)
                    .then_some(*data_end)
            }
            _ => None,
        }
    }

    /// Replace a damaged record by tombstones: its own ones, or tombstones of its objects.
    fn replace(
        &mut self,
        entries: &[FooterEntry],
        kept: &mut Vec<FooterEntry>,
    ) -> Result<(), UnknownLoss> {
        let first = &entries[0];
        let from = u64::from(first.record_sector) * ALIGN;
        let range = from..from + u64::from(first.record_sectors) * ALIGN;
        let payloads = entries.iter().filter(|e| e.payload_sector > 0).map(|e| e.payload_sector);
        let header_sectors = payloads.min().unwrap_or(u32::MAX).min(first.record_sectors);
        let header_bytes = (u64::from(header_sectors) * ALIGN) as usize;
        let removals = first.kind == RecordKind::Tombstones as u8;
        if removals {
            self.rewrite.removals += entries.len() as u64;
        } else {
            self.rewrite.dropped.extend(entries.iter().map(|e| e.key));
        }
        // No older object exists before the first sequence, so no tombstone is needed.
        let Some(sequence) = first.sequence.checked_sub(u64::from(!removals)).filter(|s| *s > 0)
        else {
            self.rewrite.records.push((range, vec![0; header_bytes]));
            return Ok(());
        };
        let group = if removals { first.group } else { sequence };
        let facts = RecordFacts {
            identity: self.segment.identity,
            offset: from,
            kind: RecordKind::Tombstones,
            group_kind: GroupKind::Single,
            namespace: first.key.namespace(),
            generation: Generation(first.generation),
            sequence: Sequence(sequence),
            group: GroupId(group),
            base_group: GroupId(0),
            block_bytes: self.superblock.block_bytes,
            depth: first.depth,
            reinserted: false,
        };
        let gone: Vec<_> =
            entries.iter().map(|e| MemberSpec { key: e.key, length: 0, checksums: &[] }).collect();
        let header =
            record::encode(&facts, &gone).filter(|h| h.len() as u64 <= range.end - range.start);
        let mut header = header
            .ok_or_else(|| format!("no tombstones fit in place of a record offset={from}"))?;
        let written = Record::decode(&header).map_err(|e| e.to_string())?;
        kept.extend(footer::entries_of(&written));
        header.resize(header.len().max(header_bytes), 0);
        self.rewrite.records.push((range, header));
        Ok(())
    }

    fn facts(&self, entries: &[FooterEntry]) -> FooterFacts {
        let objects = entries.iter().filter(|e| e.kind == RecordKind::Data as u8);
        let end =
            |e: &FooterEntry| (u64::from(e.record_sector) + u64::from(e.record_sectors)) * ALIGN;
        FooterFacts {
            identity: self.segment.identity,
            order: self.segment.order,
            min_sequence: Sequence(objects.map(|e| e.sequence).min().unwrap_or(u64::MAX)),
            max_sequence: Sequence(entries.iter().map(|e| e.sequence).max().unwrap_or(0)),
            data_end: entries.iter().map(end).max().unwrap_or(ALIGN),
        }
    }

    fn footer(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) -> Result<(), UnknownLoss> {
        if facts.data_end + footer::footer_bytes(entries.len() as u64)
            > self.superblock.segment_bytes
        {
            return Err(format!("no room is left for a footer data_end={}", facts.data_end));
        }
        let bytes = footer::encode(facts, entries);
        // Never write a footer that the decoder refuses.
        let read = footer::decode(&bytes, self.segment.identity, self.superblock.segment_bytes);
        read.map_err(|e| e.to_string())?;
        self.rewrite.footer = Some(bytes);
        Ok(())
    }
}
