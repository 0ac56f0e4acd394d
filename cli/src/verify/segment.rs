//! Verification of one segment: its head, its footer, and the header and payload of every record.
//!
//! Damage is *wrong* if the bytes were durable before: in a segment with an intact footer (which is
//! written after a sync of the records that it lists), and in one that the log has provably synced
//! later ([`Context::covered`]). In any other segment a flipped bit cannot be distinguished from a
//! write that a crash cut short, and the damage is a *torn tail*. Remains of older incarnations are
//! neither.

use std::collections::BTreeMap;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::scan::ScanItem;

use super::finding::{Finding, Severity};
use crate::on_disk::OnDisk;
use crate::on_disk::segment::{Footer, Head, Segment, is_damaged_header_of};

/// The context of a segment's verification.
pub(crate) struct Context<'a> {
    /// The store.
    pub(crate) disk: &'a OnDisk,
    /// Its geometry.
    pub(crate) superblock: &'a Superblock,
    /// Whether all records of the segment were durable before, even if it is not sealed.
    pub(crate) covered: bool,
}

/// Counts and findings of a segment.
#[derive(Debug, Default)]
pub(crate) struct SegmentReport {
    /// Intact records, and their objects and bytes.
    pub(crate) records: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Headers of older incarnations, and damaged headers that do not belong to the current one.
    pub(crate) stale: u64,
    pub(crate) findings: Vec<Finding>,
}

struct Verifier<'a> {
    context: &'a Context<'a>,
    segment: &'a Segment,
    file: String,
    report: SegmentReport,
    /// End of the last record with an intact header.
    end: u64,
    /// Damaged headers of this incarnation after `end`.
    broken: u64,
}

/// Verify a segment. An error if a file cannot be read.
pub(crate) fn verify(context: &Context<'_>, segment: &Segment) -> anyhow::Result<SegmentReport> {
    let (path, _) = context.disk.segment_location(segment.identity.segment, context.superblock);
    let file = path.display().to_string();
    let mut v = Verifier {
        context,
        segment,
        file,
        report: SegmentReport::default(),
        end: ALIGN,
        broken: 0,
    };
    match &segment.footer {
        Footer::Sealed { facts, entries } => v.sealed(facts, entries)?,
        _ => v.unsealed()?,
    }
    Ok(v.report)
}

impl Verifier<'_> {
    fn add_finding(
        &mut self,
        severity: Severity,
        cause: impl std::fmt::Display,
        offset: u64,
    ) -> &mut Finding {
        let finding = Finding::new(severity, cause, self.file.clone());
        let at = self.report.findings.len();
        self.report.findings.push(finding.at(offset).within(self.segment.identity.segment));
        &mut self.report.findings[at]
    }

    /// Severity of damage in a segment without an intact footer.
    fn unsealed_severity(&self) -> Severity {
        if self.context.covered { Severity::Wrong } else { Severity::TornTail }
    }

    fn head(&mut self, severity: Severity) {
        match &self.segment.head {
            Head::Current => {}
            Head::Older => {
                self.add_finding(severity, "segment header is not this incarnation's", 0);
            }
            Head::Broken(error) => {
                self.add_finding(severity, error, 0);
            }
        }
    }

    fn count(&mut self, record: &Record<'_>) {
        self.report.records += 1;
        if record.facts().kind == RecordKind::Data {
            self.report.objects += record.member_count() as u64;
        }
        self.report.bytes += record.record_bytes();
    }

    fn payload(
        &mut self,
        severity: Severity,
        record: &Record<'_>,
        member: usize,
        error: &FormatError,
    ) {
        let (facts, offset) = (record.facts(), record.facts().offset);
        let member = record.member(member);
        let finding = self.add_finding(severity, error, offset);
        let Some(member) = member else { return };
        finding.key = Some(member.key.to_string());
        if let FormatError::Payload { block } = error {
            finding.block_offset =
                Some(offset + member.payload_offset + block * u64::from(facts.block_bytes));
        }
    }

    fn sealed(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) -> anyhow::Result<()> {
        self.head(Severity::Wrong);
        self.footer_facts(facts, entries);
        let mut listed: BTreeMap<u64, Vec<FooterEntry>> = BTreeMap::new();
        for entry in entries {
            listed.entry(u64::from(entry.record_sector) * ALIGN).or_default().push(*entry);
        }
        self.segment.scan(self.context.disk, &mut |found| match found {
            ScanItem::Record { record, payload } => {
                self.sealed_record(&record, payload, &mut listed)
            }
            ScanItem::Unrecognized { offset, error } => match listed.remove(&offset) {
                Some(entries) => self.listed_damage(offset, &error, &entries),
                None => self.report.stale += 1,
            },
        })?;
        // Listed records whose headers the scan did not recognize.
        for (offset, entries) in listed {
            let error = self.error_at(offset)?;
            self.listed_damage(offset, &error, &entries);
        }
        Ok(())
    }

    fn sealed_record(
        &mut self,
        record: &Record<'_>,
        payload: Result<(), (usize, FormatError)>,
        listed: &mut BTreeMap<u64, Vec<FooterEntry>>,
    ) {
        let offset = record.facts().offset;
        let Some(entries) = listed.remove(&offset) else {
            // Recovery seals a segment with its intact records, so there may be torn records not in
            // the footer.
            match payload {
                Ok(()) => {
                    self.add_finding(Severity::Note, "record is not in the footer", offset);
                }
                Err(_) => self.report.stale += 1,
            }
            return;
        };
        if !footer::entries_of(record).eq(entries) {
            self.add_finding(
                Severity::Wrong,
                "record header and footer contradict each other",
                offset,
            );
        }
        match payload {
            Ok(()) => self.count(record),
            Err((member, error)) => self.payload(Severity::Wrong, record, member, &error),
        }
    }

    fn listed_damage(&mut self, offset: u64, error: &FormatError, entries: &[FooterEntry]) {
        let finding = self.add_finding(Severity::Wrong, error, offset);
        finding.key = entries.first().map(|e| e.key.to_string());
    }

    fn footer_facts(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) {
        let at = self.context.superblock.segment_bytes - footer::footer_bytes(entries.len() as u64);
        let end = entries
            .iter()
            .map(|e| (u64::from(e.record_sector) + u64::from(e.record_sectors)) * ALIGN)
            .max();
        // Without tombstones: the field bounds the objects that a tombstone in another segment may
        // hide.
        let objects = entries.iter().filter(|e| e.kind == RecordKind::Data as u8);
        let least = objects.map(|e| e.sequence).min().unwrap_or(u64::MAX);
        let most = entries.iter().map(|e| e.sequence).max().unwrap_or(0);
        // After a failed write the footer has no entries of the lost records, but their facts.
        let (end, max) = (end.unwrap_or(ALIGN), facts.max_sequence.0);
        let claims = [
            ("order", facts.order.0, self.segment.order.0, facts.order == self.segment.order),
            ("data_end", facts.data_end, end, facts.data_end >= end),
            ("min_sequence", facts.min_sequence.0, least, facts.min_sequence.0 <= least),
            ("max_sequence", max, most, max >= most),
        ];
        for (field, found, expected, is_right) in claims {
            if !is_right {
                let cause =
                    format!("footer is malformed field={field} found={found} expected={expected}");
                self.add_finding(Severity::Wrong, cause, at);
            }
        }
    }

    fn unsealed(&mut self) -> anyhow::Result<()> {
        let severity = self.unsealed_severity();
        let mut gaps = Vec::new();
        self.segment.scan(self.context.disk, &mut |found| match found {
            ScanItem::Record { record, payload } => {
                let offset = record.facts().offset;
                if offset > self.end && self.broken == 0 {
                    gaps.push(self.end);
                }
                (self.end, self.broken) = (offset + record.record_bytes(), 0);
                match payload {
                    Ok(()) => self.count(&record),
                    Err((member, error)) => self.payload(severity, &record, member, &error),
                }
            }
            ScanItem::Unrecognized { offset, error }
                if is_damaged_header_of(
                    self.context.disk,
                    self.context.superblock,
                    self.segment,
                    offset,
                    &error,
                ) =>
            {
                self.broken += 1;
                self.add_finding(severity, &error, offset);
            }
            ScanItem::Unrecognized { .. } => self.report.stale += 1,
        })?;
        for offset in gaps {
            let error = self.error_at(offset)?;
            self.add_finding(
                severity,
                format!("a record is missing before the next one: {error}"),
                offset,
            );
        }
        if self.end > ALIGN || self.broken > 0 {
            self.head(severity);
        }
        self.missing_footer(severity);
        Ok(())
    }

    /// Check the last blocks of a segment that is not sealed.
    fn missing_footer(&mut self, severity: Severity) {
        let records = self.report.records > 0;
        match &self.segment.footer {
            Footer::Broken { error, from, .. } if self.segment.has_damaged_footer() => {
                let (error, from) = (error.clone(), *from);
                self.add_finding(severity, error, from);
            }
            // An older footer may be overwritten by records of this incarnation. But a segment with
            // records is sealed before any later segment, or at the next open of the store.
            _ if records && self.context.covered => {
                let at = self.context.superblock.segment_bytes - ALIGN;
                self.add_finding(Severity::Wrong, "segment has records and no footer", at);
            }
            _ => {}
        }
    }

    /// The decoding error of the record at `offset`.
    fn error_at(&self, offset: u64) -> anyhow::Result<FormatError> {
        let id = self.segment.identity.segment;
        let mut block = vec![0; ALIGN as usize];
        self.context.disk.read_segment_blocks(id, self.context.superblock, offset, &mut block)?;
        let none = FormatError::Magic { structure: "record header" };
        Ok(Record::decode(&block).err().unwrap_or(none))
    }
}
