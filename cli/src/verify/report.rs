//! The verification of a whole store, and its report.

use std::path::PathBuf;

use anyhow::bail;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::manifest::{BlockDamage, Manifest};
use serde::Serialize;

use super::finding::{Finding, Severity};
use super::metadata::StoreMetadata;
use super::segment;
use crate::on_disk::{OnDisk, display_dirs};

/// Counts and findings of a verification. The order of the fields is the order of the JSON keys.
#[derive(Debug, Default, Serialize)]
pub(super) struct VerifyReport {
    store: String,
    segments: u32,
    segments_sealed: u32,
    records: u64,
    objects: u64,
    bytes: u64,
    stale_records: u64,
    torn_tails: u64,
    pub(super) wrong: u64,
    pub(super) findings: Vec<Finding>,
}

/// The error for a store that another process has open.
pub(super) fn in_use(disk: &OnDisk, path: &std::path::Path) -> anyhow::Error {
    let owner = disk.owner().map(|o| format!(" owner={o:?}")).unwrap_or_default();
    anyhow::anyhow!(
        "the store is in use, and writes in flight would look like damage; close it first file={}{owner}",
        path.display()
    )
}

/// An error if the store has a newer format, which this build cannot verify.
pub(crate) fn newer_format(disk: &OnDisk, damage: &[BlockDamage]) -> anyhow::Result<()> {
    for d in damage {
        if let FormatError::Version { .. } = d.error {
            bail!("{} file={}", d.error, disk.manifest_path(d.copy).display());
        }
    }
    Ok(())
}

/// The findings about the blocks of the manifest.
pub(crate) fn manifest_findings(disk: &OnDisk, damage: &[BlockDamage]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for d in damage {
        // A missing copy is reported once, with the lengths of the files.
        if disk.copies[d.copy].is_none() {
            continue;
        }
        let severity = match &d.error {
            // The two copies are written one after the other, and a crash may happen in between.
            FormatError::Field { field: "sequence", .. } => Severity::Note,
            _ => Severity::Wrong,
        };
        let file = disk.manifest_path(d.copy).display().to_string();
        let cause = format!("{} copy={} block={}", d.error, d.copy, d.index);
        findings.push(Finding::new(severity, cause, file).at(u64::from(d.index) * ALIGN));
    }
    findings
}

/// The blocks that the device cannot read. What they damage is reported by itself. But if a segment
/// has no footer, they may have had any record, and an open forgets all older objects.
fn unreadable_blocks(
    disk: &OnDisk,
    metadata: Option<&StoreMetadata>,
) -> impl Iterator<Item = Finding> {
    let needed: Vec<_> = metadata
        .into_iter()
        .flat_map(|m| m.segments.iter().map(|s| (m.manifest.superblock(), s)))
        .filter(|(_, segment)| !segment.is_sealed() && !segment.head_hides())
        .map(|(superblock, segment)| {
            let (path, start) = disk.segment_location(segment.identity.segment, superblock);
            (path, start..start + superblock.segment_bytes)
        })
        .collect();
    disk.unreadable().into_iter().map(move |((path, at), error)| {
        let is_needed = needed.iter().any(|(p, range)| *p == path && range.contains(&at));
        let severity = if is_needed { Severity::Wrong } else { Severity::Note };
        let cause = format!("block cannot be read: {error}");
        Finding::new(severity, cause, path.display().to_string()).at(at)
    })
}

impl VerifyReport {
    /// Read the whole store. Also returns its metadata, from which repair starts, unless no copy of
    /// the manifest is usable.
    pub(super) fn of(disk: &OnDisk) -> anyhow::Result<(VerifyReport, Option<StoreMetadata>)> {
        let mut report = VerifyReport::default();
        let metadata = match disk.manifest() {
            Ok((manifest, damage)) => {
                report.store = manifest.store().to_string();
                report.findings = manifest_findings(disk, &damage);
                let metadata = StoreMetadata::read(disk, manifest)?;
                report.add_store(disk, &metadata);
                Some(metadata)
            }
            Err(damage) => {
                newer_format(disk, &damage)?;
                report.findings = manifest_findings(disk, &damage);
                let cause = "no copy of the manifest can be used, so nothing else can be read";
                report.findings.push(Finding::new(
                    Severity::Wrong,
                    cause,
                    display_dirs(disk.dirs()),
                ));
                None
            }
        };
        report.findings.extend(unreadable_blocks(disk, metadata.as_ref()));
        report.count_severities();
        Ok((report, metadata))
    }

    fn add_store(&mut self, disk: &OnDisk, metadata: &StoreMetadata) {
        let manifest = &metadata.manifest;
        self.findings.extend(metadata.findings());
        self.segments = manifest.superblock().segment_count;
        for (id, error) in &metadata.unreadable {
            self.unreadable(disk, manifest, *id, error);
        }
        self.segments_sealed = metadata.segments.iter().filter(|s| s.is_sealed()).count() as u32;
        for segment in &metadata.segments {
            let covered = metadata.covered(segment);
            let context = segment::Context { disk, superblock: manifest.superblock(), covered };
            match segment::verify(&context, segment) {
                Ok(report) => self.add_segment(report),
                Err(error) => self.unreadable(disk, manifest, segment.identity.segment, &error),
            }
        }
    }

    fn unreadable(
        &mut self,
        disk: &OnDisk,
        manifest: &Manifest,
        id: SegmentId,
        error: &anyhow::Error,
    ) {
        let (path, _) = disk.segment_location(id, manifest.superblock());
        let finding =
            Finding::new(Severity::Wrong, format!("{error:#}"), path.display().to_string());
        self.findings.push(finding.within(id));
    }

    fn add_segment(&mut self, report: segment::SegmentReport) {
        self.records += report.records;
        self.objects += report.objects;
        self.bytes += report.bytes;
        self.stale_records += report.stale;
        self.findings.extend(report.findings);
    }

    fn count_severities(&mut self) {
        let count =
            |severity| self.findings.iter().filter(|f| f.severity == severity).count() as u64;
        (self.wrong, self.torn_tails) = (count(Severity::Wrong), count(Severity::TornTail));
    }

    pub(super) fn text(&self, dirs: &[PathBuf]) -> String {
        let mut out: String = self.findings.iter().map(|f| format!("{f}\n")).collect();
        out += &format!(
            "{} segments={} sealed={} records={} objects={} bytes={} stale={} torn_tails={} wrong={} dir={}\n",
            if self.wrong == 0 { "nothing is wrong" } else { "something is wrong" },
            self.segments,
            self.segments_sealed,
            self.records,
            self.objects,
            self.bytes,
            self.stale_records,
            self.torn_tails,
            self.wrong,
            display_dirs(dirs)
        );
        out
    }
}
