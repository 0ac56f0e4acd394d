//! The raw results: a JSON object a line.

use serde::{Deserialize, Serialize};

use crate::args::RunArgs;
use crate::peer::{Manner, Round};

/// A line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// The first.
    Header(Header),
    /// A side that could not take part.
    Skipped {
        /// At which size.
        object_bytes: usize,
        /// Who.
        side: String,
        /// Why.
        why: String,
    },
    /// A round of a side.
    Round {
        /// At which size.
        object_bytes: usize,
        /// From 0. Rounds of the same number are compared with each other.
        round: u32,
        /// Who.
        side: String,
        /// How it works.
        manner: Manner,
        /// What it did.
        #[serde(flatten)]
        of: Round,
    },
}

/// What was run, and on what.
#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    /// The shape of the run, as flags.
    pub(crate) flags: String,
    /// Its CPU.
    pub(crate) cpu: String,
    /// How many of them.
    pub(crate) cpus: usize,
    /// Its kernel.
    pub(crate) kernel: String,
}

impl Header {
    /// Of a run with these arguments. Paths stay out of it.
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
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        // Behind the version stands what the machine's owner wrote there.
        let kernel = kernel.split('-').next().unwrap_or_default().trim().to_owned();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        Header { flags, cpu: model.unwrap_or("unknown").to_owned(), cpus, kernel }
    }
}
