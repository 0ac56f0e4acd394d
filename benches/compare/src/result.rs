//! The raw results: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::args::RunArgs;
use crate::peer::{Round, SideProperties};

/// A line of the results.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first line.
    Header(Header),
    /// A side that could not run.
    Skipped {
        /// The object size.
        object_bytes: usize,
        /// The side.
        side: String,
        /// The reason.
        why: String,
    },
    /// A round of a side.
    Round {
        /// The object size.
        object_bytes: usize,
        /// From 0. Rounds with the same number are compared with each other.
        round: u32,
        /// The side.
        side: String,
        /// How it works.
        manner: SideProperties,
        /// Its results.
        #[serde(flatten)]
        of: Round,
    },
}

/// The parameters and the machine of a run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    /// The parameters, as flags.
    pub(crate) flags: String,
    /// Its CPU.
    pub(crate) cpu: String,
    /// Number of CPUs.
    pub(crate) cpus: usize,
    /// Its kernel.
    pub(crate) kernel: String,
}

impl Header {
    /// The header of a run with these arguments. Paths are left out.
    pub(crate) fn of_this_run(args: &RunArgs) -> Header {
        let kib: Vec<String> = args.kib.iter().map(u32::to_string).collect();
        let flags = format!(
            "--rounds {} --kib {} --mib {} --batch {} --depth {} --threads {} --seed {}",
            args.rounds,
            kib.join(","),
            args.mib,
            args.batch,
            args.depth,
            args.threads,
            args.seed
        );
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        // Drop the local part after the version.
        let kernel = kernel.split('-').next().unwrap_or_default().trim().to_owned();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        Header { flags, cpu: model.unwrap_or("unknown").to_owned(), cpus, kernel }
    }
}
