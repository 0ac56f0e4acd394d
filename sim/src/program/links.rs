//! `links`: a range of seeds over simulated links.

#![expect(
    clippy::disallowed_methods,
    reason = "a program's threads and clock; the stores under test have none"
)]

use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::seeds::parse_range;
use crate::link::PlantedBug;
use crate::links::{LinksPlan, Tally, Topology, run};

#[derive(Args)]
pub struct LinksArgs {
    /// The seeds, as in 0..100.
    #[arg(long, value_parser = parse_range)]
    seeds: Range<u64>,
    /// Operations per seed.
    #[arg(long, default_value_t = 1000)]
    ops: u32,
    /// Number of threads; each runs one seed at a time.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// No faults.
    #[arg(long)]
    calm: bool,
    /// Only one arrangement of stores and clients: `Attached`, `Behind`, `Fronts`, `Shown`,
    /// `Mutual`, `Rdma`, `RdmaBehind`, `RdmaFronts`.
    #[arg(long)]
    shape: Option<Topology>,
    /// Start no further seed after the first with a finding.
    #[arg(long)]
    hunt: bool,
    /// The bug to plant in the ends of links, a variant of `link::PlantedBug`: `StaleOutcome`,
    /// `WriteAfterRetract`, `EarlyPushCompletion` or `Unverified`, or, over RDMA,
    /// `BackAtRetract`, `BackAtStreamEnd`, `BackAtServerFlush`, `NoticeBeforeData`,
    /// `TooFewReceives` or `WrongRegionBase`.
    #[arg(long, default_value = "None")]
    plant: PlantedBug,
    /// Print the sums as a JSON object instead of a line.
    #[arg(long)]
    json: bool,
}

/// A stored report.
#[derive(Deserialize)]
pub struct StoredRun {
    /// The first seed.
    pub seeds_from: u64,
    /// The seed after the last.
    pub seeds_to: u64,
    /// Operations per seed.
    pub ops: u32,
    /// The arrangement, if only one was run.
    #[serde(default)]
    pub shape: Option<String>,
    /// The results.
    #[serde(flatten)]
    pub sums: Tally,
}

#[derive(Serialize)]
struct Report<'a> {
    seeds_from: u64,
    seeds_to: u64,
    ops: u32,
    shape: Option<String>,
    seconds: f64,
    failed_seeds: &'a [u64],
    #[serde(flatten)]
    sums: &'a Tally,
}

/// Runs the seeds and prints the results; fails if there is a finding.
pub fn links(args: &LinksArgs) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let (next, sums) =
        (AtomicU64::new(args.seeds.start), Mutex::new((Tally::default(), Vec::new())));
    let lock = || sums.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= args.seeds.end || (args.hunt && !lock().1.is_empty()) {
                        return;
                    }
                    let tally = run(&LinksPlan {
                        seed,
                        ops: args.ops,
                        calm: args.calm,
                        shape: args.shape,
                        plant: args.plant,
                    });
                    let mut sums = lock();
                    sums.0.add(&tally);
                    if !tally.is_clean() {
                        sums.1.push(seed);
                        for what in &tally.findings {
                            println!("seed {seed}: {what}");
                        }
                        println!(
                            "replay: pagelith-sim links --seeds {seed}..{} --ops {}{}{}",
                            seed + 1,
                            args.ops,
                            args.shape
                                .map_or_else(String::new, |shape| format!(" --shape {shape:?}")),
                            match args.plant {
                                PlantedBug::None => String::new(),
                                plant => format!(" --plant {}", plant.name()),
                            }
                        );
                    }
                }
            });
        }
    });
    let (tally, mut failed) = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_unstable();
    let seconds = began.elapsed().as_secs_f64();
    if args.json {
        let report = Report {
            seeds_from: args.seeds.start,
            seeds_to: args.seeds.end,
            ops: args.ops,
            shape: args.shape.map(|shape| format!("{shape:?}")),
            seconds,
            failed_seeds: &failed,
            sums: &tally,
        };
        println!("{}", serde_json::to_string(&report).expect("plain data"));
    } else {
        let Tally {
            seeds, packets, reordered, duplicated, late, hits, wrong, touched_late, ..
        } = tally;
        println!(
            "links: {seeds} seeds, {packets} packets, {reordered} reordered, {duplicated} duplicated, {late} late; {hits} hits \
             compared, {wrong} wrong, {touched_late} touched late, {} held late, {} overdue, {} panics; {} shown, {} viewed, {} placed, {} \
             broken, {} left; {seconds:.1} s",
            tally.held_late,
            tally.overdue,
            tally.panics,
            tally.shown,
            tally.viewed,
            tally.fabric.placed,
            tally.broken,
            tally.left
        );
    }
    if tally.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
