//! `pagelith verify --repair`: drops and reports damaged parts, and leaves a store that verifies
//! and opens.
//!
//! - Repair never makes invisible objects visible. If the lost content is unknown, it may have
//!   included removals. Then the objects that these may have hidden are dropped too; with
//!   `--repair=keep` they are kept, with a warning.
//! - Each step is durable before the next one that depends on it. After a crash the next run
//!   continues ([`in_place`] defines the order). An intact store is not written.

mod check_record;
mod dir_order;
mod in_place;
#[cfg(test)]
mod interrupted;
mod rebuild;
mod segment;
mod survey;

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};
use pagelith_layouts::ids::SegmentId;
use serde::Serialize;

use super::finding::Finding;
use super::metadata::StoreMetadata;
use super::{VerifyReport, in_use};
use crate::exit::RunStatus;
use crate::on_disk::files::Files;
use crate::on_disk::{LockMode, OnDisk, files_of};
use crate::output::{log, out};

/// Maximum rounds of verify and repair. One suffices unless a repair reveals further damage.
const ROUNDS: u32 = 4;

/// Warning if `--repair=keep` cannot keep promise 3.
const MAY_RETURN: &str = "objects that were removed or cleared may return";

/// The flags of repair.
#[derive(Args, Clone, Debug)]
pub(super) struct RepairArgs {
    /// Drop and report what is damaged, and leave a store that verifies and opens; the store must
    /// be closed. If removals may be lost with the damage, all older objects are dropped too;
    /// without a valid manifest the store becomes empty. =keep keeps these instead: objects that
    /// were removed or cleared may then return
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "drop")]
    repair: Option<DoubtPolicy>,
    /// Repair even if a directory holds no file of the store, because its drive is lost for good.
    /// Without this flag repair refuses and reports what it would drop, since the drive may just
    /// not be mounted
    #[arg(long, requires = "repair")]
    drop_missing_dirs: bool,
    /// With --repair=keep, if both superblocks are lost: `ssd.bytes` of the store in bytes
    #[arg(long, value_name = "BYTES", requires = "repair")]
    capacity_bytes: Option<u64>,
    /// With --repair=keep, if both superblocks are lost: `namespaces_max` of the store
    #[arg(long, value_name = "N", requires = "repair")]
    namespaces_max: Option<u32>,
}

/// Handling of objects that a lost removal may have hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DoubtPolicy {
    /// Doubtful objects are dropped.
    Drop,
    /// Doubtful objects are kept.
    Keep,
}

/// The options of a repair.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepairOptions {
    keep: bool,
    drop_missing_dirs: bool,
    capacity_bytes: Option<u64>,
    namespaces_max: Option<u32>,
}

impl RepairArgs {
    /// The options, if repair was requested.
    pub(super) fn options(&self) -> Option<RepairOptions> {
        let keep = self.repair? == DoubtPolicy::Keep;
        Some(RepairOptions {
            keep,
            drop_missing_dirs: self.drop_missing_dirs,
            capacity_bytes: self.capacity_bytes,
            namespaces_max: self.namespaces_max,
        })
    }
}

/// One repair action.
#[derive(Clone, Debug, Serialize)]
struct Repair {
    /// The action, in lower case.
    action: &'static str,
    /// The reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<u32>,
    /// Dropped objects, as far as they could be counted.
    objects: u64,
    /// Their keys, as far as they are known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    keys: Vec<String>,
    file: String,
}

impl Repair {
    fn new(action: &'static str, cause: impl std::fmt::Display, file: &Path) -> Repair {
        let (cause, file) = (cause.to_string(), file.display().to_string());
        Repair { action, cause, segment: None, objects: 0, keys: Vec::new(), file }
    }

    fn of(mut self, segment: SegmentId) -> Repair {
        self.segment = Some(segment.0);
        self
    }
}

impl std::fmt::Display for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "repaired: {}", self.action)?;
        if !self.cause.is_empty() {
            write!(f, " ({})", self.cause)?;
        }
        if let Some(segment) = self.segment {
            write!(f, " segment={segment}")?;
        }
        write!(f, " objects={} file={}", self.objects, self.file)?;
        self.keys.iter().try_for_each(|key| write!(f, "\n  dropped key={key}"))
    }
}

/// Findings, actions and result of a repair. The order of the fields is the order of the JSON keys.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Findings before the repair.
    damage: Vec<Finding>,
    repairs: Vec<Repair>,
    /// Objects dropped, as far as they could be counted.
    dropped_objects: u64,
    warnings: Vec<String>,
    /// The store after the repair.
    #[serde(flatten)]
    after: VerifyReport,
}

impl Report {
    fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Repair the store in these directories, and print a report.
pub(super) fn run(
    dirs: &[PathBuf],
    options: RepairOptions,
    json: bool,
) -> anyhow::Result<RunStatus> {
    let report = repair(dirs, options)?;
    print_report(&report, dirs, json)?;
    Ok(if report.after.wrong == 0 { RunStatus::Clean } else { RunStatus::Problems })
}

fn repair(dirs: &[PathBuf], options: RepairOptions) -> anyhow::Result<Report> {
    let before = OnDisk::open(dirs, LockMode::Held)?;
    let paths = files_of(dirs)?;
    let mut files =
        Files::lock(&paths, before.owner().as_deref()).map_err(|path| in_use(&before, &path))?;
    files.require_all_locked(&paths)?;
    let mut report = Report::default();
    let mut round = 0;
    loop {
        let disk = OnDisk::open(dirs, LockMode::Held)?;
        dir_order::check(&disk)?;
        let (verified, metadata) = VerifyReport::of(&disk)?;
        if round == 0 {
            check_missing(&disk, metadata.as_ref(), options)?;
            report.damage.clone_from(&verified.findings);
        }
        (round, report.after) = (round + 1, verified);
        if report.after.wrong == 0 || round > ROUNDS {
            break;
        }
        let done = report.repairs.len();
        match metadata {
            Some(metadata) => in_place::repair(&disk, &mut files, metadata, options, &mut report)?,
            None => rebuild::rebuild(&disk, &mut files, options, &mut report)?,
        }
        if report.repairs.len() == done || files_of(dirs).is_err() {
            break;
        }
    }
    if files_of(dirs).is_err() {
        report.after = VerifyReport::default();
    }
    report.dropped_objects = report.repairs.iter().map(|r| r.objects).sum();
    Ok(report)
}

/// An error if segments are missing without `--drop-missing-dirs`. It tells what a repair would
/// drop.
fn check_missing(
    disk: &OnDisk,
    metadata: Option<&StoreMetadata>,
    options: RepairOptions,
) -> anyhow::Result<()> {
    disk.require_plain_segments()?;
    let missing = disk.missing()?;
    let first = missing
        .first()
        .map(|first| disk.missing_message(*first))
        .or_else(|| disk.missing_segments_message());
    let Some(first) = first.filter(|_| !options.drop_missing_dirs) else {
        return match missing.iter().find(|(_, dir)| !dir.exists()) {
            Some((_, dir)) => {
                bail!("the directory does not exist, create it first dir={}", dir.display())
            }
            None => Ok(()),
        };
    };
    let loss = match metadata {
        Some(metadata) => {
            let (segments, used, objects) = in_place::loss(disk, metadata, options);
            format!(
                "segments={segments} of used={used}, with objects={objects} that are still readable"
            )
        }
        None => "everything: the other directories have no manifest".to_owned(),
    };
    bail!(
        "{first}; repair would drop {loss}; if the drive is lost for good, add --drop-missing-dirs"
    )
}

fn print_report(report: &Report, dirs: &[PathBuf], json: bool) -> anyhow::Result<()> {
    for warning in &report.warnings {
        log!("warning: {warning}");
    }
    if json {
        return out!("{}", serde_json::to_string(report)?);
    }
    for finding in &report.damage {
        out!("{finding}")?;
    }
    for repair in &report.repairs {
        out!("{repair}")?;
    }
    out!("repairs={} dropped_objects={}", report.repairs.len(), report.dropped_objects)?;
    out!("{}", report.after.text(dirs).trim_end())
}
