//! `pagelith verify`: reads everything a store has and says what is wrong, where and why. Uses `layouts`
//! alone and writes nothing, so it works on a store that no engine would open.

mod checkpoint;
pub(crate) mod finding;
mod segment;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::CheckpointFacts;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_layouts::manifest::{BlockDamage, Manifest};
use serde::Serialize;

use self::finding::{Finding, Severity};
use crate::exit::Verdict;
use crate::on_disk::segment::{Footer, Segment};
use crate::on_disk::{OnDisk, shown};

/// Read a whole store and name everything that is wrong with it.
///
/// Exit status: 0 if nothing is wrong, 1 if something is, 2 if there is no store to verify (or it is in use,
/// or of a newer format). A write that a crash cut short before any flush covered it is reported as a torn
/// tail and is not wrong; neither are remains of a segment's earlier use.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Directories of the store, in the order of its configuration
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What was read and what is the matter. The order of the fields is the order of the JSON keys.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    store: String,
    segments: u32,
    segments_sealed: u32,
    records: u64,
    objects: u64,
    bytes: u64,
    stale_records: u64,
    torn_tails: u64,
    wrong: u64,
    findings: Vec<Finding>,
}

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<Verdict> {
    let disk = OnDisk::open(&args.dirs, true)?;
    if let Some(path) = &disk.locked {
        let owner = disk.owner().map(|o| format!(" owner={o:?}")).unwrap_or_default();
        bail!(
            "the store is in use, and what is being written would look damaged file={}{owner}",
            path.display()
        );
    }
    let mut outcome = Outcome::default();
    match disk.manifest() {
        Ok((manifest, damage)) => {
            if manifest.superblock().dir_count != disk.dir_count() {
                let (has, given) = (manifest.superblock().dir_count, disk.dir_count());
                bail!("the store has another number of directories has={has} given={given}");
            }
            outcome.store = manifest.store().to_string();
            outcome.findings = manifest_findings(&disk, &damage);
            outcome.everything(&disk, &manifest)?;
        }
        Err(damage) => {
            newer_format(&disk, &damage)?;
            outcome.findings = manifest_findings(&disk, &damage);
            let cause = "no copy of the manifest can be used, so nothing else can be read";
            outcome.findings.push(Finding::new(Severity::Wrong, cause, shown(&args.dirs)));
        }
    }
    outcome.sum_up();
    if args.json {
        println!("{}", serde_json::to_string(&outcome)?);
    } else {
        print!("{}", outcome.text(&args.dirs));
    }
    Ok(if outcome.wrong == 0 { Verdict::Fine } else { Verdict::Wrong })
}

/// A newer format is nothing that this build can judge.
pub(crate) fn newer_format(disk: &OnDisk, damage: &[BlockDamage]) -> anyhow::Result<()> {
    for d in damage {
        if let FormatError::Version { .. } = d.error {
            bail!("{} file={}", d.error, disk.manifest_path(d.copy).display());
        }
    }
    Ok(())
}

/// What is the matter with the manifest's blocks.
pub(crate) fn manifest_findings(disk: &OnDisk, damage: &[BlockDamage]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for d in damage {
        // A copy that is missing is named once, with the files' lengths.
        if disk.copies[d.copy].is_none() {
            continue;
        }
        let severity = match &d.error {
            // The two copies are written one after the other, and a crash may come between.
            FormatError::Field { field: "sequence", .. } => Severity::Note,
            _ => Severity::Wrong,
        };
        let file = disk.manifest_path(d.copy).display().to_string();
        let cause = format!("{} copy={} block={}", d.error, d.copy, d.index);
        findings.push(Finding::new(severity, cause, file).at(u64::from(d.index) * ALIGN));
    }
    findings
}

impl Outcome {
    fn everything(&mut self, disk: &OnDisk, manifest: &Manifest) -> anyhow::Result<()> {
        let superblock = manifest.superblock();
        for (path, expected, found) in disk.lengths(superblock) {
            let cause = match found {
                Some(found) if found == expected => continue,
                Some(found) => {
                    format!("file has another length expected_bytes={expected} found_bytes={found}")
                }
                None => format!("file is missing expected_bytes={expected}"),
            };
            self.findings.push(Finding::new(Severity::Wrong, cause, path.display().to_string()));
        }
        let (newest, findings) = checkpoint::verify(disk, manifest.store())?;
        self.findings.extend(findings);
        self.all_segments(disk, manifest, newest)
    }

    fn all_segments(
        &mut self,
        disk: &OnDisk,
        manifest: &Manifest,
        checkpoint: Option<CheckpointFacts>,
    ) -> anyhow::Result<()> {
        let superblock = manifest.superblock();
        self.segments = superblock.segment_count;
        let mut segments = Vec::new();
        for id in (0..superblock.segment_count).map(SegmentId) {
            match Segment::load(disk, manifest, id) {
                Ok(segment) => segments.extend(segment),
                Err(error) => self.unreadable(disk, manifest, id, &error),
            }
        }
        let sealed = |s: &&Segment| matches!(s.footer, Footer::Sealed { .. });
        let newest_sealed = segments.iter().filter(sealed).map(|s| s.order).max().unwrap_or_default();
        let replay_from = checkpoint.map_or(SegmentOrder(0), |c| c.replay_from);
        self.segments_sealed = segments.iter().filter(sealed).count() as u32;
        for segment in &segments {
            // A segment is sealed after a sync of all that was written before, and a checkpoint replays from
            // the oldest segment that was not sealed yet.
            let covered = segment.order < newest_sealed || segment.order < replay_from;
            let context = segment::Context { disk, superblock, covered };
            match segment::verify(&context, segment) {
                Ok(verdict) => self.add(verdict),
                Err(error) => self.unreadable(disk, manifest, segment.identity.segment, &error),
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, disk: &OnDisk, manifest: &Manifest, id: SegmentId, error: &anyhow::Error) {
        let (path, _) = disk.segment_place(id, manifest.superblock());
        let finding = Finding::new(Severity::Wrong, format!("{error:#}"), path.display().to_string());
        self.findings.push(finding.within(id));
    }

    fn add(&mut self, verdict: segment::Verdict) {
        self.records += verdict.records;
        self.objects += verdict.objects;
        self.bytes += verdict.bytes;
        self.stale_records += verdict.stale;
        self.findings.extend(verdict.findings);
    }

    fn sum_up(&mut self) {
        let count = |severity| self.findings.iter().filter(|f| f.severity == severity).count() as u64;
        (self.wrong, self.torn_tails) = (count(Severity::Wrong), count(Severity::TornTail));
    }

    fn text(&self, dirs: &[PathBuf]) -> String {
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
            shown(dirs)
        );
        out
    }
}
