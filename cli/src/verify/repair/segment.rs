//! What to do about one segment.
//!
//! A record that is damaged gives way to tombstones of its members, one sequence before it: what it held is gone, and
//! older bytes of the same keys, which it had replaced, stay invisible. That takes its keys, which a whole footer or
//! header knows. Where nobody knows what is lost, it may have been removals, and everything older is in doubt.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{Generation, GroupId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{self, GroupKind, MemberSpec, Record, RecordFacts, RecordKind};
use pagelith_layouts::scan::Found;
use pagelith_layouts::segment::encode_head;

use super::judge::{Judged, judge};
use crate::on_disk::OnDisk;
use crate::on_disk::segment::{Footer, Segment, is_ruin_of};

/// What to do about a segment.
pub(super) enum Plan {
    /// Nothing: the next open does what there is to do.
    Leave,
    /// Rewrite parts of it.
    Mend(Mend),
    /// Nobody can say what is lost with it.
    Drop(String),
}

/// Parts of a segment to be rewritten.
#[derive(Default)]
pub(super) struct Mend {
    /// Its head.
    pub(super) head: Option<Vec<u8>>,
    /// Damaged records, each a byte range of the segment and the header that takes its place (empty: none).
    pub(super) records: Vec<(std::ops::Range<u64>, Vec<u8>)>,
    /// Its footer.
    pub(super) footer: Option<Vec<u8>>,
    /// Objects that are dropped.
    pub(super) dropped: Vec<ObjectKey>,
    /// Removals whose record was damaged, and that are written again.
    pub(super) removals: u64,
}

/// Decide about a segment; `covered` as of `Look::covered`, `mark_end` where its last record ends if the newest
/// checkpoint speaks for it.
pub(super) fn plan(
    disk: &OnDisk,
    superblock: &Superblock,
    segment: &Segment,
    covered: bool,
    mark_end: Option<u64>,
) -> Plan {
    let mut planner = Planner { disk, superblock, segment, mark_end, mend: Mend::default() };
    let decided = match &segment.footer {
        Footer::Sealed { facts, entries } => planner.sealed(facts, entries),
        // A write that no sync covered is the next open's business.
        _ if !covered => return Plan::Leave,
        _ => planner.unsealed(),
    };
    match decided {
        Ok(()) if planner.mend.is_nothing() => Plan::Leave,
        Ok(()) => Plan::Mend(planner.mend),
        Err(reason) => Plan::Drop(reason),
    }
}

impl Mend {
    fn is_nothing(&self) -> bool {
        self.head.is_none() && self.records.is_empty() && self.footer.is_none()
    }
}

struct Planner<'a> {
    disk: &'a OnDisk,
    superblock: &'a Superblock,
    segment: &'a Segment,
    mark_end: Option<u64>,
    mend: Mend,
}

/// Why nobody can say what is lost.
type Doubt = String;

impl Planner<'_> {
    fn sealed(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) -> Result<(), Doubt> {
        self.head()?;
        let mut kept = Vec::new();
        for record in entries.chunk_by(|a, b| a.record_block == b.record_block) {
            let judged = judge(self.disk, self.superblock, self.segment, record);
            match judged.map_err(|e| format!("{e:#}"))? {
                Judged::Whole => kept.extend_from_slice(record),
                Judged::Damaged => self.replace(record, &mut kept)?,
                Judged::Another => {
                    let at = u64::from(record[0].record_block) * ALIGN;
                    return Err(format!("record header and footer contradict each other offset={at}"));
                }
            }
        }
        let right = self.facts(&kept);
        if *facts != right || kept != entries {
            self.footer(&right, &kept)?;
        }
        Ok(())
    }

    fn unsealed(&mut self) -> Result<(), Doubt> {
        let mut end = ALIGN;
        let mut doubt: Option<Doubt> = None;
        let mut found_all: Vec<(Vec<FooterEntry>, bool)> = Vec::new();
        let (segment, disk, superblock) = (self.segment, self.disk, self.superblock);
        let scanned = segment.scan(disk, &mut |found| match found {
            Found::Record { record, payload } => {
                let offset = record.facts().offset;
                if offset > end {
                    doubt.get_or_insert(format!("a record is missing and so is the footer offset={end}"));
                }
                end = offset + record.record_bytes();
                found_all.push((footer::entries_of(&record).collect(), payload.is_ok()));
            }
            Found::Junk { offset, error } if is_ruin_of(disk, superblock, segment, offset, &error) => {
                doubt.get_or_insert(format!("{error}, and the footer is damaged offset={offset}"));
            }
            Found::Junk { .. } => {}
        });
        scanned.map_err(|e| format!("{e:#}"))?;
        let once = self.mark_end.max(self.claimed_end()).unwrap_or(0);
        if once > end {
            doubt.get_or_insert(format!("records are missing and so is the footer offset={end} end={once}"));
        }
        if found_all.is_empty() && doubt.is_none() {
            return Ok(());
        }
        if let Some(doubt) = doubt {
            return Err(doubt);
        }
        self.head()?;
        let mut kept = Vec::new();
        for (entries, whole) in found_all {
            if whole {
                kept.extend(entries);
            } else {
                self.replace(&entries, &mut kept)?;
            }
        }
        self.footer(&self.facts(&kept), &kept)
    }

    /// A ruined head is written again. One of another life hides the whole segment when the store is opened, unless
    /// the checkpoint speaks for it: then nothing may come back that was hidden.
    fn head(&mut self) -> Result<(), Doubt> {
        if self.segment.head_is_current() {
            return Ok(());
        }
        if self.segment.head_hides() && self.mark_end.is_none() {
            return Err("segment header is another incarnation's".into());
        }
        let (identity, order) = (self.segment.identity, self.segment.order);
        self.mend.head = Some(encode_head(identity, order, self.superblock.segment_bytes).to_vec());
        Ok(())
    }

    /// Where a damaged footer of this incarnation says that the last record ends.
    fn claimed_end(&self) -> Option<u64> {
        match &self.segment.footer {
            Footer::Broken { incarnation, data_end, .. } => {
                let plausible = data_end.is_multiple_of(ALIGN) && *data_end < self.superblock.segment_bytes;
                (*incarnation == self.segment.identity.incarnation && plausible).then_some(*data_end)
            }
            _ => None,
        }
    }

    /// Put tombstones where a damaged record is: those it held, or of what it held.
    fn replace(&mut self, entries: &[FooterEntry], kept: &mut Vec<FooterEntry>) -> Result<(), Doubt> {
        let first = &entries[0];
        let from = u64::from(first.record_block) * ALIGN;
        let range = from..from + u64::from(first.record_blocks) * ALIGN;
        let removals = first.kind == RecordKind::Tombstones as u8;
        if removals {
            self.mend.removals += entries.len() as u64;
        } else {
            self.mend.dropped.extend(entries.iter().map(|e| e.key));
        }
        // Before the first sequence nothing was put that could come back.
        let Some(sequence) = first.sequence.checked_sub(u64::from(!removals)).filter(|s| *s > 0) else {
            self.mend.records.push((range, Vec::new()));
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
            moved: false,
        };
        let gone: Vec<_> =
            entries.iter().map(|e| MemberSpec { key: e.key, length: 0, checksums: &[] }).collect();
        let header = record::encode(&facts, &gone).filter(|h| h.len() as u64 <= range.end - range.start);
        let header = header.ok_or_else(|| format!("no tombstones fit in place of a record offset={from}"))?;
        let written = Record::decode(&header).map_err(|e| e.to_string())?;
        kept.extend(footer::entries_of(&written));
        self.mend.records.push((range, header));
        Ok(())
    }

    fn facts(&self, entries: &[FooterEntry]) -> FooterFacts {
        let objects = entries.iter().filter(|e| e.kind == RecordKind::Data as u8);
        let end = |e: &FooterEntry| (u64::from(e.record_block) + u64::from(e.record_blocks)) * ALIGN;
        FooterFacts {
            identity: self.segment.identity,
            order: self.segment.order,
            min_sequence: Sequence(objects.map(|e| e.sequence).min().unwrap_or(u64::MAX)),
            max_sequence: Sequence(entries.iter().map(|e| e.sequence).max().unwrap_or(0)),
            data_end: entries.iter().map(end).max().unwrap_or(ALIGN),
        }
    }

    fn footer(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) -> Result<(), Doubt> {
        if facts.data_end + footer::footer_bytes(entries.len() as u64) > self.superblock.segment_bytes {
            return Err(format!("no room is left for a footer data_end={}", facts.data_end));
        }
        let bytes = footer::encode(facts, entries);
        // A footer that its own reader refuses must never reach a disk.
        let read = footer::decode(&bytes, self.segment.identity, self.superblock.segment_bytes);
        read.map_err(|e| e.to_string())?;
        self.mend.footer = Some(bytes);
        Ok(())
    }
}
