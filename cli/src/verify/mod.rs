//! `pagelith verify`: reads a whole store and reports all damage with its location and cause. Uses
//! `layouts` only, and writes nothing except with `--repair`. So it works on stores that no engine
//! opens.

mod checkpoint;
pub(crate) mod finding;
mod metadata;
mod repair;
pub(crate) mod report;
mod segment;

use std::path::PathBuf;

use clap::Args;

use self::report::{VerifyReport, in_use};
use crate::exit::RunStatus;
use crate::on_disk::{LockMode, OnDisk, dir_order};
use crate::output::out;

/// Read a whole store and report all damage; with --repair, drop what is damaged.
///
/// Exit status: 0 if nothing is wrong (or nothing is any more), 1 if something is, 2 if there is no
/// store to verify (or it is in use, of a newer format, or its directories are in another order). A
/// write that a crash cut short before a flush covered it is reported as a torn tail and is not
/// wrong; neither are remains of a segment's earlier incarnations.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith verify /mnt/nvme/kv")]
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

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<RunStatus> {
    if let Some(options) = args.repair.options() {
        return repair::run(&args.dirs, options, args.json);
    }
    let disk = OnDisk::open(&args.dirs, LockMode::Shared)?;
    if let Some(path) = &disk.locked {
        return Err(in_use(&disk, path));
    }
    disk.require_all_dirs()?;
    dir_order::check(&disk)?;
    let (report, _) = VerifyReport::of(&disk)?;
    if args.json {
        out!("{}", serde_json::to_string(&report)?)?;
    } else {
        out!("{}", report.text(&args.dirs).trim_end())?;
    }
    Ok(if report.wrong == 0 { RunStatus::Clean } else { RunStatus::Problems })
}
