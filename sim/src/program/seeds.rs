//! `run`: runs a range of seeds on several threads; can be resumed.

#![expect(
    clippy::disallowed_methods,
    reason = "a program's threads, clock and files; the store under test has none"
)]

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::plan_args::PlanArgs;
use super::replay::keep_of;
use crate::explore::{Finding, RunTotals, explore, shrink};

/// Seeds per stored block.
const BLOCK: u64 = 100;
/// Time limit of one seed: a seed that exceeds it loops without progress of simulated time.
const SEED_TIME: Duration = Duration::from_secs(120);
/// Interval of progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Args)]
pub struct RunArgs {
    /// The seeds, as `FROM..TO`; `TO` is excluded.
    #[arg(long, value_parser = parse_range)]
    seeds: Range<u64>,
    #[command(flatten)]
    plan: PlanArgs,
    /// Number of threads.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Number of failing seeds to print and shorten.
    #[arg(long = "tell", default_value_t = 3)]
    findings_max: usize,
    /// Most runs to shorten a failing plan.
    #[arg(long, default_value_t = 150)]
    shrink: usize,
    /// File for finished blocks of seeds, one line each; blocks already in it are not run again.
    #[arg(long)]
    done: Option<PathBuf>,
    /// The commit under test, for the report; by default the value of `TEST_PAGELITH_COMMIT`.
    #[arg(long)]
    commit: Option<String>,
}

impl RunArgs {
    fn commit(&self) -> String {
        let set = || std::env::var("TEST_PAGELITH_COMMIT").ok();
        self.commit.clone().or_else(set).unwrap_or_else(|| "unknown".to_owned())
    }
}

pub(super) fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let parts = text.split_once("..").ok_or("must be FROM..TO")?;
    let number = |s: &str| u64::from_str(s).map_err(|_| format!("not a number: {s:?}"));
    Ok(number(parts.0)?..number(parts.1)?)
}

/// A finished block, as it is stored.
#[derive(Serialize, Deserialize)]
pub struct Block {
    /// Its first seed.
    pub from: u64,
    /// The seed after its last.
    pub to: u64,
    /// The arguments apart from the seeds.
    pub plan: String,
    /// The commit under test.
    pub commit: String,
    /// The results of its seeds.
    pub sums: RunTotals,
}

/// The final report.
#[derive(Serialize)]
struct Report<'a> {
    version: &'a str,
    seeds_from: u64,
    seeds_to: u64,
    plan: String,
    seconds: f64,
    failed_seeds: Vec<u64>,
    #[serde(flatten)]
    sums: &'a RunTotals,
}

struct Shared<'a> {
    args: &'a RunArgs,
    blocks: Vec<Range<u64>>,
    next: AtomicUsize,
    seeds_done: AtomicU64,
    sums: Mutex<RunTotals>,
    failed: Mutex<Vec<(u64, Finding)>>,
    /// The seed that each thread runs, and its start.
    busy: Vec<Mutex<Option<(u64, Instant)>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The blocks of a file; adjacent blocks of one plan and commit are joined.
fn done_before(file: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    joined(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn joined(mut blocks: Vec<Block>) -> Vec<Block> {
    blocks.sort_by(|a, b| {
        (&a.plan, &a.commit, a.from, a.to).cmp(&(&b.plan, &b.commit, b.from, b.to))
    });
    let mut joined: Vec<Block> = Vec::new();
    for block in blocks {
        match joined.last_mut() {
            Some(last)
                if (&last.plan, &last.commit, last.to)
                    == (&block.plan, &block.commit, block.from) =>
            {
                last.to = block.to;
                last.sums.add(&block.sums);
            }
            // A second run of the same seeds.
            Some(last)
                if (&last.plan, &last.commit) == (&block.plan, &block.commit)
                    && block.to <= last.to => {}
            _ => joined.push(block),
        }
    }
    joined
}

/// Rewrites a file of blocks with adjacent blocks joined.
fn compact(file: &Path) -> std::io::Result<()> {
    let lines: String = done_before(file)
        .iter()
        .map(|block| serde_json::to_string(block).expect("sums are plain data") + "\n")
        .collect();
    let new = file.with_extension("new");
    std::fs::write(&new, lines)?;
    std::fs::rename(new, file)
}

pub fn run(args: &RunArgs) -> ExitCode {
    // A panic is a finding; its message is in the report.
    std::panic::set_hook(Box::new(|_| {}));
    let began = Instant::now();
    let plan = args.plan.text();
    let mut before = args.done.as_deref().map(done_before).unwrap_or_default();
    before.retain(|b| b.plan == plan);
    let mut sums = RunTotals::default();
    // A block that exceeds the requested range is done, but cannot be split.
    let inside = |b: &&Block| b.from >= args.seeds.start && b.to <= args.seeds.end;
    before.iter().filter(inside).for_each(|block| sums.add(&block.sums));
    let is_done =
        |b: &Range<u64>| before.iter().any(|done| done.from <= b.start && b.end <= done.to);
    let all = args
        .seeds
        .clone()
        .step_by(BLOCK as usize)
        .map(|from| from..(from + BLOCK).min(args.seeds.end));
    let blocks: Vec<_> = all.filter(|b| !is_done(b)).collect();
    let shared = Shared {
        args,
        blocks,
        next: AtomicUsize::new(0),
        seeds_done: AtomicU64::new(sums.seeds),
        sums: Mutex::new(sums),
        failed: Mutex::default(),
        busy: (0..args.jobs.max(1)).map(|_| Mutex::new(None)).collect(),
    };
    std::thread::scope(|scope| {
        let shared = &shared;
        let workers: Vec<_> =
            (0..shared.busy.len()).map(|at| scope.spawn(move || work(shared, at))).collect();
        watch(shared, began, || workers.iter().all(|w| w.is_finished()));
    });
    if let Some(Err(error)) = args.done.as_deref().map(compact) {
        eprintln!("cannot rewrite the file of blocks error={error}");
    }
    end(&shared, &plan, began)
}

fn work(shared: &Shared<'_>, me: usize) {
    while let Some(block) = shared.blocks.get(shared.next.fetch_add(1, Ordering::SeqCst)) {
        let mut sums = RunTotals::default();
        for seed in block.clone() {
            *lock(&shared.busy[me]) = Some((seed, Instant::now()));
            let (own, findings) = explore(&shared.args.plan.plan(seed));
            sums.add(&own);
            shared.seeds_done.fetch_add(1, Ordering::SeqCst);
            if let Some(finding) = findings.into_iter().next() {
                lock(&shared.failed).push((seed, finding));
            }
        }
        *lock(&shared.busy[me]) = None;
        if let Some(file) = &shared.args.done {
            note(file, shared.args, block, &sums);
        }
        lock(&shared.sums).add(&sums);
    }
}

fn note(file: &Path, args: &RunArgs, block: &Range<u64>, sums: &RunTotals) {
    let block = Block {
        from: block.start,
        to: block.end,
        plan: args.plan.text(),
        commit: args.commit(),
        sums: sums.clone(),
    };
    let line = serde_json::to_string(&block).expect("sums are plain data") + "\n";
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .and_then(|mut f| f.write_all(line.as_bytes()));
    if let Err(error) = appended {
        eprintln!("cannot store a block file={} error={error}", file.display());
    }
}

/// Prints progress, and ends the program if a seed hangs.
fn watch(shared: &Shared<'_>, began: Instant, finished: impl Fn() -> bool) {
    let mut last_progress = Instant::now();
    while !finished() {
        std::thread::sleep(Duration::from_millis(50));
        for busy in &shared.busy {
            let Some((seed, since)) = *lock(busy) else { continue };
            if since.elapsed() > SEED_TIME {
                println!("HANG seed={seed} running for {:?}", since.elapsed());
                println!("replay: pagelith-sim replay --seed {seed} {}", shared.args.plan.text());
                std::process::exit(1);
            }
        }
        if last_progress.elapsed() > PROGRESS_INTERVAL {
            last_progress = Instant::now();
            let done = shared.seeds_done.load(Ordering::SeqCst);
            let all = shared.args.seeds.end - shared.args.seeds.start;
            let failed = lock(&shared.failed).len();
            eprintln!(
                "{done} of {all} seeds, {failed} failed, {:.0} s",
                began.elapsed().as_secs_f64()
            );
        }
    }
}

fn end(shared: &Shared<'_>, plan: &str, began: Instant) -> ExitCode {
    let args = shared.args;
    let version = args.commit();
    let mut failed = std::mem::take(&mut *lock(&shared.failed));
    failed.sort_by_key(|(seed, _)| *seed);
    for (seed, finding) in failed.iter().take(args.findings_max) {
        println!("seed {seed}, commit {version}: {:?}: {}", finding.kind, finding.text);
        println!("replay: pagelith-sim replay --seed {seed} {plan}");
        if args.shrink == 0 {
            continue;
        }
        let shrunk = shrink(&args.plan.plan(*seed), finding, args.shrink);
        println!(
            "shrunk to {} operations in {} runs: {}",
            shrunk.plan.ops.len(),
            shrunk.runs,
            shrunk.finding.text
        );
        println!(
            "replay: pagelith-sim replay --seed {seed} {plan} --keep {}",
            keep_of(&shrunk.plan)
        );
    }
    let sums = lock(&shared.sums);
    let report = Report {
        version: &version,
        seeds_from: args.seeds.start,
        seeds_to: args.seeds.end,
        plan: plan.to_owned(),
        seconds: began.elapsed().as_secs_f64(),
        failed_seeds: failed.iter().map(|(seed, _)| *seed).collect(),
        sums: &sums,
    };
    println!("{}", serde_json::to_string(&report).expect("sums are plain data"));
    if sums.findings() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_blocks_of_commit_join_without_double_counting() {
        let block = |from: u64, to: u64, commit: &str| Block {
            from,
            to,
            plan: "p".to_owned(),
            commit: commit.to_owned(),
            sums: RunTotals { seeds: to - from, ..RunTotals::default() },
        };
        let done = joined(vec![
            block(200, 300, "a"),
            block(0, 100, "a"),
            block(100, 200, "a"),
            block(100, 200, "a"),
            block(300, 400, "b"),
            block(500, 600, "b"),
        ]);
        let found: Vec<_> =
            done.iter().map(|b| (b.from, b.to, b.commit.as_str(), b.sums.seeds)).collect();
        assert_eq!(found, [(0, 300, "a", 300), (300, 400, "b", 100), (500, 600, "b", 100)]);
    }
}
