//! `pagelith replay`: drives a store with a prefix trace as a cache controller does. The store is
//! one of this process or, attached, that of a store process.
//!
//! For each request it looks up the longest stored prefix, reads its pages, checks every byte, and
//! puts the missing pages. Timestamps are ignored: requests follow each other as fast as the store
//! permits.

mod buffers;
mod counters;
mod groups;
mod lookup;
mod model;
mod pages;
mod plan;
#[cfg(test)]
mod planted;
mod read;
mod report;
mod request;
mod run;
mod series;
mod source;
mod target;
mod write;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use pagelith::config::{Config, Size};
use pagelith::key_file;
use pagelith::transport::peer_address::PeerAddress;

use self::model::ModelFlags;
use self::pages::Pages;
use self::plan::{ReplayPlan, Target};
use self::report::Report;
use self::source::RequestSource;
use crate::content::Content;
use crate::exit::RunStatus;
use crate::output::{log, out};
use crate::peers::PeerFlags;
use crate::settings::{StoreDefaults, StoreFlags};
use crate::temp_dir::TempDir;

/// Sizes with which the built-in workload uses both tiers and finishes in seconds.
pub(crate) const DEFAULTS: StoreDefaults =
    StoreDefaults { dram: Size::mib(128), ssd: Size::mib(512), shared: None };
const OBJECT_BYTES_DEFAULT: Size = Size::kib(32);

/// Replay a request trace through the store, and check every byte that it returns.
///
/// Without --trace, a built-in chat workload is generated from the seed. Exit status: 0; 1 if the
/// store returned a wrong byte or a part of a group; 2 if the replay could not be run.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith replay --dir /mnt/nvme/kv --ssd 4GiB --dram 1GiB")]
pub(crate) struct ReplayArgs {
    /// Trace of JSON lines with timestamp, input_length, output_length and hash_ids; may be gzipped
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    store: StoreFlags,
    /// Bytes of an object; a page has two objects, k and v
    #[arg(long, value_name = "SIZE", default_value_t = OBJECT_BYTES_DEFAULT)]
    object_bytes: Size,
    #[command(flatten)]
    model: ModelFlags,
    /// Stop after this many requests
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Seed of the built-in workload and of the objects' contents
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// After N requests, drop the process's state without closing the store, reopen it and continue
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    reopen_at: Option<u64>,
    #[command(flatten)]
    peers: PeerFlags,
    /// Replay on the store of a store process at this address, as `pagelith serve` printed it
    #[arg(
        long,
        value_name = "tcp:HOST:PORT|rdma:HOST:PORT|unix:PATH",
        conflicts_with_all = ["remote", "prefer", "reopen_at", "dirs", "dram", "ssd", "policy", "ssd_policy", "io", "staging", "config"]
    )]
    attach: Option<PeerAddress>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<RunStatus> {
    if args.object_bytes == Size::ZERO {
        bail!("an object must have at least one byte --object-bytes=0");
    }
    let source = match &args.trace {
        Some(path) => RequestSource::trace(path, args.requests)?,
        None => RequestSource::chat(args.seed, args.requests),
    };
    let pages = match args.model.pages(source.name(), args.seed)? {
        Some(pages) => pages,
        None => Pages::plain(source.name(), args.seed, args.object_bytes.bytes())?,
    };
    let mut temp_dir = TempDir::with_prefix("pagelith-replay");
    let target = match &args.attach {
        Some(address) => {
            let key = args.peers.key.as_deref().map(key_file::own).transpose()?;
            Target::Attached(address.clone(), key)
        }
        None => {
            let with_peers = |config: &mut Config| args.peers.apply(config);
            let config =
                args.store.resolve(DEFAULTS, Some(&temp_dir.path().join("store")), &with_peers)?;
            args.peers.check(&config)?;
            temp_dir.make_for(config.ssd_dirs())?;
            Target::Embedded(Box::new(config))
        }
    };
    let plan =
        ReplayPlan { target, pages, content: Content::new(args.seed), reopen_at: args.reopen_at };
    let (report, series) = run::replay(&plan, source)?;
    if args.json {
        out!("{}", serde_json::to_string(&report)?)?;
    } else {
        out!("{}\n{}", report.table(), report::plot(&series))?;
    }
    Ok(run_status(&report))
}

/// A problem if any byte was wrong or any group was partly visible.
fn run_status(report: &Report) -> RunStatus {
    if report.wrong_bytes > 0 {
        log!(
            "error: the store returned bytes that were not put wrong_bytes={}",
            report.wrong_bytes
        );
    }
    if report.partial_groups > 0 {
        log!(
            "error: the store returned a part of a group partial_groups={}",
            report.partial_groups
        );
    }
    if report.wrong_bytes + report.partial_groups > 0 {
        RunStatus::Problems
    } else {
        RunStatus::Clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_byte_or_partial_group_sets_the_exit_status() {
        let pages = Pages::plain("chat", 1, 4096).expect("pages");
        let of = |wrong_bytes, partial_groups| {
            let tally = counters::ReplayCounters {
                wrong_bytes,
                partial_groups,
                ..counters::ReplayCounters::new(1)
            };
            run_status(&Report::new(&tally, &pages, report::Costs::default()))
        };
        assert_eq!(
            (of(0, 0), of(1, 0), of(0, 1)),
            (RunStatus::Clean, RunStatus::Problems, RunStatus::Problems)
        );
    }
}
