//! `pagelith doctor`: checks this machine for a store, with a remedy for each missing part. Opens no
//! store; the files that it makes have no name or are removed at once.

mod check;
mod devices;
mod dirs;
mod rdma;
mod rdma_probe;
mod system;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use self::check::{Check, State};
use crate::exit::RunStatus;
use crate::output::{columns, out};

/// Check this machine for a store, and print a remedy for each missing part.
///
/// Each check is `ok`, a `note` (a store runs, with less), or a `problem`. Exit status: 0 without a
/// problem, 1 with one.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: pagelith doctor --dir /mnt/nvme/kv",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct DoctorArgs {
    #[command(subcommand)]
    part: Option<Part>,
    /// Directory for a store, to be checked too; repeat for each further one
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print a JSON list of checks
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand, Debug)]
enum Part {
    Rdma(RdmaArgs),
}

/// Transfer bytes over each active RDMA port, and check when the device gives memory back.
///
/// Each port is connected with itself, for about ten seconds. Bytes of WRITEs and READs are
/// compared and their rate is printed. Then transfers are ended in each way that a link uses, and
/// no byte may arrive afterwards. Exit status: 0 without a problem, 1 with one or without a usable
/// port.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith doctor rdma")]
struct RdmaArgs {
    /// Print a JSON list of checks
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<RunStatus> {
    if let Some(Part::Rdma(args)) = &args.part {
        return print(&rdma_probe::checks(), args.json);
    }
    let mut checks = system::checks();
    checks.extend(dirs::checks(&args.dirs));
    checks.extend(rdma::checks());
    checks.extend(devices::checks());
    print(&checks, args.json)
}

/// Print the checks; their status is that of the worst.
fn print(checks: &[Check], json: bool) -> anyhow::Result<RunStatus> {
    if json {
        out!("{}", serde_json::to_string_pretty(checks)?)?;
    } else {
        out!("{}", check::text(checks, columns()))?;
    }
    let has_problems = checks.iter().any(|check| check.state == State::Problem);
    Ok(if has_problems { RunStatus::Problems } else { RunStatus::Clean })
}
