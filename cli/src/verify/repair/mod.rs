//! `pagelith verify --repair`: drops what is damaged, says what, and leaves a store that verifies and opens.
//!
//! - It never makes visible what was not. Where it cannot know what was lost, it may have been removals, and what they
//!   hid is dropped as well; with `--repair=keep` it stays, and that is said loudly.
//! - Each step is durable before one that relies on it, and a crash in between leaves a store that the next run goes
//!   on with ([`mend`] has the order). On a store that is whole nothing is written.

#[cfg(test)]
mod interrupted;
mod judge;
mod lost;
mod mend;
mod places;
mod segment;
mod survey;

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, ValueEnum};
use pagelith_layouts::ids::SegmentId;
use serde::Serialize;

use super::finding::Finding;
use super::look::Look;
use super::{Outcome, in_use};
use crate::exit::Verdict;
use crate::on_disk::files::Files;
use crate::on_disk::{Hold, OnDisk, files_of};
use crate::output::{log, out};

/// Rounds of looking and mending. One is enough unless mending shows what damage had hidden.
const ROUNDS: u32 = 4;

/// Said where `--repair=keep` cannot keep promise 3.
const MAY_RETURN: &str = "objects that were removed or cleared may return";

/// What to do about damage.
#[derive(Args, Clone, Debug)]
pub(super) struct RepairArgs {
    /// Drop what is damaged, say what, and leave a store that verifies and opens; the store must be closed. Where
    /// removals may be lost with what is damaged, all that is older is dropped too; without a valid manifest the
    /// store is made empty. =keep keeps it instead: objects that were removed or cleared may then return
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "drop")]
    repair: Option<How>,
    /// Repair also where a directory holds no file of the store because its drive is lost for good. Without it repair refuses
    /// and says what it would drop: the drive may only not be mounted
    #[arg(long, requires = "repair")]
    drop_missing_dirs: bool,
    /// With --repair=keep, if both superblocks are lost: `ssd.bytes` of the store in bytes
    #[arg(long, value_name = "BYTES", requires = "repair")]
    capacity_bytes: Option<u64>,
    /// With --repair=keep, if both superblocks are lost: `namespaces_max` of the store
    #[arg(long, value_name = "N", requires = "repair")]
    namespaces_max: Option<u32>,
}

/// How far repair goes to keep things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// What is in doubt is dropped.
    Drop,
    /// What is in doubt is kept.
    Keep,
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    keep: bool,
    drop_missing_dirs: bool,
    capacity_bytes: Option<u64>,
    namespaces_max: Option<u32>,
}

impl RepairArgs {
    /// What was asked for, if repair was.
    pub(super) fn how(&self) -> Option<Wish> {
        let keep = self.repair? == How::Keep;
        Some(Wish {
            keep,
            drop_missing_dirs: self.drop_missing_dirs,
            capacity_bytes: self.capacity_bytes,
            namespaces_max: self.namespaces_max,
        })
    }
}

/// One thing that was done.
#[derive(Clone, Debug, Serialize)]
struct Repair {
    /// What, lower-case.
    action: &'static str,
    /// Why.
    #[serde(skip_serializing_if = "String::is_empty")]
    cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<u32>,
    /// Objects that were dropped by it, as far as they could be counted.
    objects: u64,
    /// Their keys, where they are known.
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

/// What repair found, did and left. The order of the fields is the order of the JSON keys.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// What was wrong before.
    damage: Vec<Finding>,
    repairs: Vec<Repair>,
    /// Objects dropped, as far as they could be counted.
    dropped_objects: u64,
    /// What a reader must know.
    warnings: Vec<String>,
    /// The store as it is now.
    #[serde(flatten)]
    after: Outcome,
}

impl Report {
    fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}

/// Repair the store in these directories, and say what was done.
pub(super) fn run(dirs: &[PathBuf], wish: Wish, json: bool) -> anyhow::Result<Verdict> {
    let report = repair(dirs, wish)?;
    tell(&report, dirs, json)?;
    Ok(if report.after.wrong == 0 { Verdict::Fine } else { Verdict::Wrong })
}

fn repair(dirs: &[PathBuf], wish: Wish) -> anyhow::Result<Report> {
    let before = OnDisk::open(dirs, Hold::Mine)?;
    let paths = files_of(dirs)?;
    let mut files = Files::lock(&paths, before.owner().as_deref()).map_err(|path| in_use(&before, &path))?;
    files.check_all(&paths)?;
    let mut report = Report::default();
    let mut round = 0;
    loop {
        let disk = OnDisk::open(dirs, Hold::Mine)?;
        places::check(&disk)?;
        let (outcome, look) = Outcome::of(&disk)?;
        if round == 0 {
            allow_missing(&disk, look.as_ref(), wish)?;
            report.damage.clone_from(&outcome.findings);
        }
        (round, report.after) = (round + 1, outcome);
        if report.after.wrong == 0 || round > ROUNDS {
            break;
        }
        let done = report.repairs.len();
        match look {
            Some(look) => mend::mend(&disk, &mut files, look, wish, &mut report)?,
            None => lost::rebuild(&disk, &mut files, wish, &mut report)?,
        }
        if report.repairs.len() == done || files_of(dirs).is_err() {
            break;
        }
    }
    if files_of(dirs).is_err() {
        report.after = Outcome::default();
    }
    report.dropped_objects = report.repairs.iter().map(|r| r.objects).sum();
    Ok(report)
}

/// An error, which says what would be dropped, if segments are missing and the operator did not say that they are lost.
fn allow_missing(disk: &OnDisk, look: Option<&Look>, wish: Wish) -> anyhow::Result<()> {
    disk.require_plain_segments()?;
    let missing = disk.missing()?;
    let first = missing.first().map(|first| disk.is_missing(*first)).or_else(|| disk.lacks_segments());
    let Some(first) = first.filter(|_| !wish.drop_missing_dirs) else {
        return match missing.iter().find(|(_, dir)| !dir.exists()) {
            Some((_, dir)) => bail!("the directory is to be made first dir={}", dir.display()),
            None => Ok(()),
        };
    };
    let loss = match look {
        Some(look) => {
            let (segments, used, objects) = mend::loss(disk, look, wish);
            format!("segments={segments} of used={used}, in them objects={objects} that can still be read")
        }
        None => "everything: there is no manifest in the other directories".to_owned(),
    };
    bail!("{first}; repair would drop {loss}; if the drive is lost for good, say so with --drop-missing-dirs")
}

fn tell(report: &Report, dirs: &[PathBuf], json: bool) -> anyhow::Result<()> {
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
