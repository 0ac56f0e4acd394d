//! `pagelith verify --repair`: drops and reports damaged parts, and leaves a store that verifies
//! and opens.
//!
//! - Repair never makes invisible objects visible. If the lost content is unknown, it may have
//!   included removals. Then the objects that these may have hidden are dropped too; with
//!   `--repair=keep` they are kept, with a warning.
//! - Each step is durable before the next one that depends on it. After a crash the next run
//!   continues ([`in_place`] defines the order). An intact store is not written.

mod check_record;
#[cfg(test)]
#[allow(dead_code, reason = "other tests use other parts")]
#[path = "../../../tests/common/filled_store.rs"]
mod filled_store;
#[cfg(test)]
#[allow(dead_code, reason = "other tests use other parts")]
#[path = "../../../tests/common/fixture.rs"]
mod fixture;
mod in_place;
#[cfg(test)]
mod interrupted;
mod options;
mod rebuild;
mod report;
mod segment;
mod survey;
#[cfg(test)]
mod unreadable_blocks;

use std::path::PathBuf;

use anyhow::bail;

pub(super) use self::options::RepairArgs;
use self::options::RepairOptions;
use self::report::Report;
use super::metadata::StoreMetadata;
use super::report::{VerifyReport, in_use};
use crate::exit::RunStatus;
use crate::on_disk::files::Files;
use crate::on_disk::{LockMode, OnDisk, dir_order, files_of};
use crate::output::{log, out};

/// Maximum rounds of verify and repair. One suffices unless a repair reveals further damage.
const ROUNDS: u32 = 4;

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
        dir_order::require_only_store_files(&disk)?;
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
