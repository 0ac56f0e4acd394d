//! `pagelith doctor`: checks this machine for a store, with a remedy for each missing part. Opens no
//! store; the files that it makes have no name or are removed at once.

mod check;
mod dirs;
mod rdma;
mod system;

use std::path::PathBuf;

use clap::Args;

use self::check::State;
use crate::exit::RunStatus;
use crate::output::out;

/// Check this machine for a store, and print a remedy for each missing part.
///
/// Each check is `ok`, a `note` (a store runs, with less), or a `problem`. Exit status: 0 without a
/// problem, 1 with one.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Directory for a store, to be checked too; repeat for each further one
    #[arg(long = "dir", value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print a JSON list of checks
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<RunStatus> {
    let mut checks = system::checks();
    checks.extend(dirs::checks(&args.dirs));
    checks.extend(rdma::checks());
    if args.json {
        out!("{}", serde_json::to_string_pretty(&checks)?)?;
    } else {
        out!("{}", check::text(&checks))?;
    }
    let has_problems = checks.iter().any(|check| check.state == State::Problem);
    Ok(if has_problems { RunStatus::Problems } else { RunStatus::Clean })
}
