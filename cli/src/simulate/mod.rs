//! `pagelith simulate`: the store's own policies over traces, without bytes.
//!
//! The store's policies (`pagelith_tiers::policy`) decide which blocks stay in a tier and which are
//! written. DRAM, log and index are reduced to the location of each block.

mod blocks;
mod capacity;
mod cell;
mod clairvoyant;
mod counts;
mod dram;
mod log;
mod plot;
mod policy;
pub mod requests;
mod sessions;
mod table;
mod two_tiers;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use clap::Args;

use self::capacity::Capacity;
use self::cell::{AdmissionFlags, Cell, CellReport};
use self::log::SEGMENTS_MIN;
use self::policy::{PolicyChoice, StatesRule};
use self::requests::Requests;
use self::two_tiers::Rules;
use crate::exit::RunStatus;
use crate::output::out;
use crate::progress::progress_bar;

/// Most blocks of a state: far more than any model's.
const STATE_BLOCKS_MAX: usize = 1 << 16;

/// Simulate the tiers of the store with different policies and capacities over request traces.
///
/// A policy is DRAM+SSD+ADMISSION: which frame leaves DRAM (lru, fifo, s3fifo), which segment is
/// reclaimed (fifo, recency), and what is written (through, worth, second-touch). `default` has the
/// store's defaults, `clairvoyant` knows the future, and `all` stands for all of them.
#[derive(Args, Debug)]
#[command(
    after_help = "Example: pagelith simulate --trace conversation.jsonl --ssd 10%,25% --policy all"
)]
pub(crate) struct SimulateArgs {
    /// Traces of JSON lines with timestamp, input_length, output_length and hash_ids; may be
    /// gzipped
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Capacities of DRAM: blocks, or per cent of the different blocks of a trace; 0 for none
    #[arg(long, value_name = "BLOCKS|N%,...", value_delimiter = ',', default_value = "1%")]
    dram: Vec<Capacity>,
    /// Capacities of the SSD, the same
    #[arg(
        long,
        value_name = "BLOCKS|N%,...",
        value_delimiter = ',',
        default_value = "5%,10%,25%,50%"
    )]
    ssd: Vec<Capacity>,
    /// Policies
    #[arg(
        long,
        value_name = "NAME,...|all",
        value_delimiter = ',',
        default_value = "lru+fifo+through,default,clairvoyant"
    )]
    policy: Vec<String>,
    /// Least share of a class that is requested again, for `worth` [default: ssd.min_reuse]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    min_reuse: Option<f64>,
    /// Least worth, as a multiple of that of what reclaim gives up, for `worth` [default:
    /// ssd.thrift]
    #[arg(long, value_name = "FACTOR", value_parser = thrift)]
    thrift: Option<f64>,
    /// Blocks that may be written, as a share of those that are put
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    write_budget: Option<f64>,
    /// Kill the store and open it again each time after so many requests: what only DRAM has is
    /// lost
    #[arg(long, value_name = "REQUESTS", value_parser = requests_between)]
    reopen_every: Option<usize>,
    /// Simulate a model with recurrent layers: the last whole block of each request has a state of
    /// so many blocks, and a prefix is of use up to a block with a state
    #[arg(long, value_name = "BLOCKS", value_parser = state_blocks, default_value = "0")]
    state_blocks: usize,
    /// What happens to states that a longer prefix has superseded
    #[arg(long, value_enum, default_value_t)]
    states: StatesRule,
    /// Give the store the hint when a session ends, except for this share; the same share of the
    /// hints is wrong
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    session_ends: Option<f64>,
    /// Least share of right hints, so that they are followed [default: hints.trust]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    trust: Option<f64>,
    /// Write a plot of hits and writes over the capacity of the SSD to this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print one JSON list
    #[arg(long)]
    json: bool,
}

fn ratio(text: &str) -> Result<f64, String> {
    number_up_to(text, 1.0)
}

fn thrift(text: &str) -> Result<f64, String> {
    number_up_to(text, 2.0)
}

fn requests_between(text: &str) -> Result<usize, String> {
    let requests = text.parse().ok().filter(|requests| *requests > 0);
    requests.ok_or_else(|| "must be a number of requests above 0".to_owned())
}

fn state_blocks(text: &str) -> Result<usize, String> {
    let blocks = text.parse().ok().filter(|blocks| *blocks <= STATE_BLOCKS_MAX);
    blocks.ok_or_else(|| format!("must be a number of blocks from 0 to {STATE_BLOCKS_MAX}"))
}

fn number_up_to(text: &str, max: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=max).contains(number));
    number.ok_or_else(|| format!("must be a number from 0 to {max}"))
}

pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<RunStatus> {
    let policies = PolicyChoice::parse_list(&args.policy)?;
    let mut cells = Vec::new();
    for path in &args.trace {
        let requests = Requests::read(path)?;
        let requests = Arc::new(match args.session_ends {
            Some(wrong) => requests.with_session_ends(wrong),
            None => requests,
        });
        for policy in &policies {
            cells.extend(cells_of(args, &requests, policy)?);
        }
    }
    let reports = run_all(&cells)?;
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::plot(&reports))
            .with_context(|| format!("cannot write the plot file={}", path.display()))?;
    }
    if args.json {
        out!("{}", serde_json::to_string(&reports)?)?;
    } else {
        out!("{}", table::table(&reports))?;
    }
    Ok(RunStatus::Clean)
}

/// The cells of one trace and one policy.
fn cells_of(
    args: &SimulateArgs,
    requests: &Arc<Requests>,
    policy: &PolicyChoice,
) -> anyhow::Result<Vec<Cell>> {
    if *policy == PolicyChoice::Clairvoyant && args.state_blocks > 0 {
        bail!("clairvoyant does not simulate states: name other policies --policy=clairvoyant");
    }
    let unique = requests.unique() + args.state_blocks * requests.last_whole_blocks();
    let ssd_min = SEGMENTS_MIN * args.state_blocks.max(1);
    let mut cells = Vec::new();
    for (dram, ssd) in args.dram.iter().flat_map(|dram| args.ssd.iter().map(move |ssd| (dram, ssd)))
    {
        let (dram_blocks, ssd_blocks) = (dram.blocks(unique), ssd.blocks(unique));
        if dram_blocks == 0 && ssd_blocks == 0 {
            bail!(
                "no tier has room for a block --dram={dram} --ssd={ssd} trace={} blocks={unique}",
                requests.name
            );
        }
        if (1..ssd_min).contains(&ssd_blocks) {
            bail!(
                "an SSD tier has at least {ssd_min} blocks, {SEGMENTS_MIN} segments of an object --ssd={ssd} trace={} blocks={unique}",
                requests.name
            );
        }
        u32::try_from(dram_blocks.max(ssd_blocks))
            .ok()
            .with_context(|| format!("too many blocks --dram={dram} --ssd={ssd}"))?;
        let flags = AdmissionFlags {
            min_reuse: args.min_reuse,
            thrift: args.thrift,
            write_budget: args.write_budget,
        };
        let (requests, policy) = (requests.clone(), policy.clone());
        let reopen_every = args.reopen_every;
        let (dram, ssd, state_blocks) = (dram_blocks, ssd_blocks, args.state_blocks);
        let trust = args.trust.unwrap_or_else(|| pagelith::Config::default().hints.trust);
        let rules = Rules { states: args.states, trust };
        let cell = Cell { requests, policy, dram, ssd, flags, reopen_every, state_blocks, rules };
        cells.push(cell);
    }
    Ok(cells)
}

/// Run the cells on all CPUs; the reports are in their order.
fn run_all(cells: &[Cell]) -> anyhow::Result<Vec<CellReport>> {
    let references: u64 = cells.iter().map(|cell| cell.requests.references() as u64).sum();
    let bar = progress_bar(references);
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((at, cell)) = take(cells, &next) {
            let report = cell.run(&|done| bar.inc(done));
            reports.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, report));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(cells.len());
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| _ = scope.spawn(work));
    });
    bar.finish_and_clear();
    let mut reports = reports.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    reports.sort_by_key(|(at, _)| *at);
    reports.into_iter().map(|(_, report)| report).collect()
}

fn take<'a>(cells: &'a [Cell], next: &AtomicUsize) -> Option<(usize, &'a Cell)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    cells.get(at).map(|cell| (at, cell))
}
