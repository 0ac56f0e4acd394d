//! Verifying one segment: its head, its footer, and every record's header and payload.
//!
//! Damage is *wrong* where the bytes were durable once: in a segment whose footer is whole (it is written
//! after a sync of what it lists), and in one that the log has provably synced since ([`Context::covered`]).
//! Elsewhere nothing tells a flipped bit from a write that a crash cut short, and it is a *torn tail*. What
//! is left of older incarnations is neither.

use std::collections::BTreeMap;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::scan::Found;

use super::finding::{Finding, Severity};
use crate::on_disk::OnDisk;
use crate::on_disk::segment::{Footer, Head, Segment, is_ruin_of};

/// What verification of a segment needs to know beside the segment.
pub(crate) struct Context<'a> {
    /// The store.
    pub(crate) disk: &'a OnDisk,
    /// Its geometry.
    pub(crate) superblock: &'a Superblock,
    /// Whether everything in the segment was durable once, sealed or not.
    pub(crate) covered: bool,
}

/// What was found in a segment.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// Whole records, and their objects and bytes.
    pub(crate) records: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Headers of older incarnations, and other ruins that are none of this one's.
    pub(crate) stale: u64,
    /// What is the matter.
    pub(crate) findings: Vec<Finding>,
}

struct Verifier<'a> {
    context: &'a Context<'a>,
    segment: &'a Segment,
    file: String,
    verdict: Verdict,
    /// Where the last whole header's record ends.
    end: u64,
    /// Headers of this incarnation that are broken, since then.
    broken: u64,
}

/// Verify a segment. An error is a file that cannot be read.
pub(crate) fn verify(context: &Context<'_>, segment: &Segment) -> anyhow::Result<Verdict> {
    let (path, _) = context.disk.segment_place(segment.identity.segment, context.superblock);
    let file = path.display().to_string();
    let mut v = Verifier { context, segment, file, verdict: Verdict::default(), end: ALIGN, broken: 0 };
    match &segment.footer {
        Footer::Sealed { facts, entries } => v.sealed(facts, entries)?,
        _ => v.unsealed()?,
    }
    Ok(v.verdict)
}

impl Verifier<'_> {
    fn find(&mut self, severity: Severity, cause: impl std::fmt::Display, offset: u64) -> &mut Finding {
        let finding = Finding::new(severity, cause, self.file.clone());
        let at = self.verdict.findings.len();
        self.verdict.findings.push(finding.at(offset).within(self.segment.identity.segment));
        &mut self.verdict.findings[at]
    }

    /// How bad damage is outside of what a whole footer vouches for.
    fn uncovered(&self) -> Severity {
        if self.context.covered { Severity::Wrong } else { Severity::TornTail }
    }

    fn head(&mut self, severity: Severity) {
        match &self.segment.head {
            Head::Current => {}
            Head::Older => {
                self.find(severity, "segment header is not this incarnation's", 0);
            }
            Head::Broken(error) => {
                self.find(severity, error, 0);
            }
        }
    }

    fn count(&mut self, record: &Record<'_>) {
        self.verdict.records += 1;
        self.verdict.objects += record.member_count() as u64;
        self.verdict.bytes += record.record_bytes();
    }

    fn payload(&mut self, severity: Severity, record: &Record<'_>, member: usize, error: &FormatError) {
        let (facts, offset) = (record.facts(), record.facts().offset);
        let member = record.member(member);
        let finding = self.find(severity, error, offset);
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
            listed.entry(u64::from(entry.record_block) * ALIGN).or_default().push(*entry);
        }
        self.segment.scan(self.context.disk, &mut |found| match found {
            Found::Record { record, payload } => self.sealed_record(&record, payload, &mut listed),
            Found::Junk { offset, error } => match listed.remove(&offset) {
                Some(entries) => self.listed_ruin(offset, &error, &entries),
                None => self.verdict.stale += 1,
            },
        })?;
        // What a scan does not even take for a header.
        for (offset, entries) in listed {
            let error = self.error_at(offset)?;
            self.listed_ruin(offset, &error, &entries);
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
            // Recovery seals a segment with what was whole, so a torn record may lie beside the listed ones.
            match payload {
                Ok(()) => {
                    self.find(Severity::Note, "record is not in the footer", offset);
                }
                Err(_) => self.verdict.stale += 1,
            }
            return;
        };
        if !footer::entries_of(record).eq(entries) {
            self.find(Severity::Wrong, "record header and footer contradict each other", offset);
        }
        match payload {
            Ok(()) => self.count(record),
            Err((member, error)) => self.payload(Severity::Wrong, record, member, &error),
        }
    }

    fn listed_ruin(&mut self, offset: u64, error: &FormatError, entries: &[FooterEntry]) {
        let finding = self.find(Severity::Wrong, error, offset);
        finding.key = entries.first().map(|e| e.key.to_string());
    }

    fn footer_facts(&mut self, facts: &FooterFacts, entries: &[FooterEntry]) {
        let at = self.context.superblock.segment_bytes - footer::footer_bytes(entries.len() as u64);
        let end =
            entries.iter().map(|e| (u64::from(e.record_block) + u64::from(e.record_blocks)) * ALIGN).max();
        // Tombstones do not count: it says what a tombstone elsewhere may still hide here.
        let objects = entries.iter().filter(|e| e.kind == RecordKind::Data as u8);
        let least = objects.map(|e| e.sequence).min().unwrap_or(u64::MAX);
        let most = entries.iter().map(|e| e.sequence).max().unwrap_or(0);
        let claims = [
            ("order", facts.order.0, self.segment.order.0),
            ("data_end", facts.data_end, end.unwrap_or(ALIGN)),
            ("min_sequence", facts.min_sequence.0, least),
            ("max_sequence", facts.max_sequence.0, most),
        ];
        for (field, found, expected) in claims {
            if found != expected {
                let cause = format!("footer is malformed field={field} found={found} expected={expected}");
                self.find(Severity::Wrong, cause, at);
            }
        }
    }

    fn unsealed(&mut self) -> anyhow::Result<()> {
        let severity = self.uncovered();
        let mut gaps = Vec::new();
        self.segment.scan(self.context.disk, &mut |found| match found {
            Found::Record { record, payload } => {
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
            Found::Junk { offset, error }
                if is_ruin_of(self.context.disk, self.context.superblock, self.segment, offset, &error) =>
            {
                self.broken += 1;
                self.find(severity, &error, offset);
            }
            Found::Junk { .. } => self.verdict.stale += 1,
        })?;
        for offset in gaps {
            let error = self.error_at(offset)?;
            self.find(severity, format!("a record is missing before the next one: {error}"), offset);
        }
        if self.end > ALIGN || self.broken > 0 {
            self.head(severity);
        }
        self.missing_footer(severity);
        Ok(())
    }

    /// What is at the place of the footer that this incarnation does not have.
    fn missing_footer(&mut self, severity: Severity) {
        let records = self.verdict.records > 0;
        let older = |incarnation| incarnation < self.segment.identity.incarnation;
        match &self.segment.footer {
            Footer::Broken { error, from, incarnation, .. } if !older(*incarnation) => {
                let (error, from) = (error.clone(), *from);
                self.find(severity, error, from);
            }
            // An older footer may lie under records of this incarnation. But every segment with records in it
            // is sealed before a later one is, or when the store is next opened.
            _ if records && self.context.covered => {
                let at = self.context.superblock.segment_bytes - ALIGN;
                self.find(Severity::Wrong, "segment has records and no footer", at);
            }
            _ => {}
        }
    }

    /// Why there is no record at `offset`.
    fn error_at(&self, offset: u64) -> anyhow::Result<FormatError> {
        let id = self.segment.identity.segment;
        let mut block = vec![0; ALIGN as usize];
        self.context.disk.read_segment(id, self.context.superblock, offset, &mut block)?;
        let none = FormatError::Magic { structure: "record header" };
        Ok(Record::decode(&block).err().unwrap_or(none))
    }
}
