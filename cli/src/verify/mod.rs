//! `pagelith verify`: reads everything a store has and says what is wrong, where and why. Uses `layouts`
//! alone and writes nothing unless it is asked to repair, so it works on a store that no engine would open.

mod checkpoint;
pub(crate) mod finding;
mod look;
mod repair;
mod segment;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::manifest::{BlockDamage, Manifest};
use serde::Serialize;

use self::finding::{Finding, Severity};
use self::look::Look;
use crate::exit::Verdict;
use crate::on_disk::{Hold, OnDisk, shown};
use crate::output::out;

/// Read a whole store and name everything that is wrong with it; with --repair, take it out.
///
/// Exit status: 0 if nothing is wrong (or nothing is any more), 1 if something is, 2 if there is no store to verify (or
/// it is in use, or of a newer format). A write that a crash cut short before any flush covered it is reported as a
/// torn tail and is not wrong; neither are remains of a segment's earlier use.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// Directories of the store, in the order of its configuration
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repair: repair::RepairArgs,
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
    if let Some(how) = args.repair.how() {
        return repair::run(&args.dirs, how, args.json);
    }
    let disk = OnDisk::open(&args.dirs, Hold::Shared)?;
    if let Some(path) = &disk.locked {
        return Err(in_use(&disk, path));
    }
    disk.require_all_dirs()?;
    let (outcome, _) = Outcome::of(&disk)?;
    if args.json {
        out!("{}", serde_json::to_string(&outcome)?)?;
    } else {
        out!("{}", outcome.text(&args.dirs).trim_end())?;
    }
    Ok(if outcome.wrong == 0 { Verdict::Fine } else { Verdict::Wrong })
}

/// Why a store that somebody else has open is left alone.
fn in_use(disk: &OnDisk, path: &std::path::Path) -> anyhow::Error {
    let owner = disk.owner().map(|o| format!(" owner={o:?}")).unwrap_or_default();
    anyhow::anyhow!(
        "the store is in use, and what is being written would look damaged file={}{owner}",
        path.display()
    )
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
    /// Read the whole store. With it comes what repair starts from, unless no copy of the manifest can be used.
    fn of(disk: &OnDisk) -> anyhow::Result<(Outcome, Option<Look>)> {
        let mut outcome = Outcome::default();
        let look = match disk.manifest() {
            Ok((manifest, damage)) => {
                if manifest.superblock().dir_count != disk.dir_count() {
                    let (has, given) = (manifest.superblock().dir_count, disk.dir_count());
                    bail!("the store has another number of directories has={has} given={given}");
                }
                outcome.store = manifest.store().to_string();
                outcome.findings = manifest_findings(disk, &damage);
                let look = Look::at(disk, manifest)?;
                outcome.everything(disk, &look);
                Some(look)
            }
            Err(damage) => {
                newer_format(disk, &damage)?;
                outcome.findings = manifest_findings(disk, &damage);
                let cause = "no copy of the manifest can be used, so nothing else can be read";
                outcome.findings.push(Finding::new(Severity::Wrong, cause, shown(disk.dirs())));
                None
            }
        };
        outcome.sum_up();
        Ok((outcome, look))
    }

    fn everything(&mut self, disk: &OnDisk, look: &Look) {
        let manifest = &look.manifest;
        self.findings.extend(look.findings());
        self.segments = manifest.superblock().segment_count;
        for (id, error) in &look.unreadable {
            self.unreadable(disk, manifest, *id, error);
        }
        self.segments_sealed = look.segments.iter().filter(|s| s.is_sealed()).count() as u32;
        for segment in &look.segments {
            let covered = look.covered(segment);
            let context = segment::Context { disk, superblock: manifest.superblock(), covered };
            match segment::verify(&context, segment) {
                Ok(verdict) => self.add(verdict),
                Err(error) => self.unreadable(disk, manifest, segment.identity.segment, &error),
            }
        }
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
