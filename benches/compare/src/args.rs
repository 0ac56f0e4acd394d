//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Compares Pagelith with similar stores and with fio
#[derive(Parser)]
pub(crate) struct Args {
    /// Command
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Measure, and print the table
    Run(RunArgs),
    /// Print the table of an earlier run
    Table {
        /// Results file of the run
        results: PathBuf,
    },
}

/// Arguments of a run.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Directory on the file system to measure; a directory inside is made and removed
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// File for the raw results, one JSON object per line
    #[arg(long)]
    pub(crate) results: PathBuf,
    /// Rounds of each side
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Object sizes in KiB
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,1024,4096")]
    pub(crate) kib: Vec<u32>,
    /// Total MiB of the objects of each size
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=2048))]
    pub(crate) mib: u32,
    /// Sides to measure, by prefix of their names [default: all]
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Objects per batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batch: u32,
    /// Batches in flight, for sides that support it
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) depth: u32,
    /// Threads for sides that read with blocking calls
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Seed of the contents and of the read order
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Python interpreter with NIXL, numpy and xxhash
    #[arg(long, default_value = "python3")]
    pub(crate) python: PathBuf,
}

impl RunArgs {
    /// Object sizes in bytes.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.kib.iter().map(|kib| *kib as usize * 1024)
    }

    /// Whether a side is to be measured.
    pub(crate) fn is_selected(&self, side: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|start| side.starts_with(start.as_str()))
    }
}
