//! `report`: writes `docs/faults.md` from the results stored in `sim/results`, so that it can be
//! reproduced and compared with them.

#![expect(clippy::disallowed_methods, reason = "reads results and writes a document")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;

use super::links::StoredRun;
use super::matrix::ROWS;
use super::mutants::Outcome;
use super::seeds::Block;
use crate::explore::RunTotals;

#[derive(Args)]
pub struct ReportArgs {
    /// Directory of the results: `seeds.jsonl`, `links.jsonl`, `lanes.jsonl`, `mutants.jsonl`,
    /// `coverage.txt`.
    #[arg(long, default_value = "sim/results")]
    results: PathBuf,
    /// Output file; without it the report is printed.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The results of a lane over the real kernel.
#[derive(Deserialize)]
struct Lane {
    lane: String,
    runs: u64,
    injected: u64,
    detected: u64,
    harmless: u64,
    wrong: u64,
    phantom: u64,
    synced_lost: u64,
    removals_undone: u64,
    worst_recovery_ms: u64,
    longest_over_deadline_ms: u64,
}

fn lines<T: for<'a> Deserialize<'a>>(file: &Path) -> Result<Vec<T>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| format!("{}:{}: {e}", file.display(), i + 1))
    };
    text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()).map(parse).collect()
}

/// Renders the results of a directory as a document.
pub fn render(results: &Path) -> Result<String, String> {
    let blocks: Vec<Block> = lines(&results.join("seeds.jsonl"))?;
    let lanes: Vec<Lane> = lines(&results.join("lanes.jsonl"))?;
    let mutants: Vec<Outcome> = lines(&results.join("mutants.jsonl"))?;
    let coverage = std::fs::read_to_string(results.join("coverage.txt"));
    let coverage = coverage.map_err(|e| format!("coverage.txt: {e}"))?;
    let mut out = String::from(HEAD);
    let sums = seeds(&mut out, &blocks);
    links(&mut out, &lines(&results.join("links.jsonl"))?);
    matrix(&mut out, &sums);
    kernel(&mut out, &lanes);
    planted(&mut out, &mutants);
    pairs(&mut out, &sums);
    out += RACES;
    out += "\n## Lines of `engine` and `tiers` that the seeds execute\n\n";
    out += &format!("`sim/coverage.sh`: {}\n", coverage.trim());
    Ok(out)
}

const HEAD: &str = "# Faults, and how the store handled them

Rendered by `cargo run --release -p pagelith-sim -- report --out docs/faults.md` from `sim/results`,
which has each run; a test compares the two. [sim/README.md](../sim/README.md) and
[sim/kernel/README.md](../sim/kernel/README.md) describe how each fault is made.

A fault that was injected is *detected* if the operation failed, or the store reported data that did
not verify. Otherwise it was harmless: it changed nothing that a call requested. (For silent faults
the simulator matches each report of the store with the oldest one.) A *finding* is a wrong answer,
lost data without a fault that explains it, a panic, a hang or a leak. Every byte of every hit was
compared, and no answer was wrong.
";

/// The seeds that were run, by plan; returns the sums of all.
fn seeds(out: &mut String, blocks: &[Block]) -> RunTotals {
    type OfPlan<'a> = (RunTotals, BTreeSet<&'a str>, BTreeSet<(u64, u64)>);
    let mut plans: BTreeMap<&str, OfPlan<'_>> = BTreeMap::new();
    for block in blocks {
        let (sums, commits, ranges) = plans.entry(&block.plan).or_default();
        if ranges.insert((block.from, block.to)) {
            sums.add(&block.sums);
            commits.insert(&block.commit);
        }
    }
    *out += "\n## Seeds\n\n";
    let mut all = RunTotals::default();
    for (plan, (s, commits, _)) in &plans {
        let commits: Vec<_> = commits.iter().copied().collect();
        let losses = s.synced_lost + s.lost;
        let findings = s.wrong + losses + s.panics + s.hangs + s.leaks + s.other_findings;
        let _ = writeln!(
            out,
            "- `pagelith-sim run --seeds A..B {plan} --done FILE` ({}): {} seeds, {} operations, {} \
             reads\n  compared, {} crashes, {findings} findings; slowest recovery {} ms, longest \
             over a deadline {} ms.",
            commits.join(" "),
            s.seeds,
            s.ops,
            s.reads_checked,
            s.crashes,
            s.worst_recovery_us / 1000,
            s.longest_over_deadline_us / 1000
        );
        all.add(s);
    }
    let _ = writeln!(
        out,
        "\nTimes are simulated. Reboots after a close: {}; stores dropped: {}; segments \
         reclaimed:\n{}; checkpoints: {}. Lying devices made {} stores refuse to open, and undid \
         {}\nremovals or clears.",
        all.clean_reboots,
        all.abandons,
        all.reclaimed,
        all.checkpoints,
        all.refused_opens,
        all.returned
    );
    all
}

/// The sums of the runs over simulated links, by arrangement.
fn links(out: &mut String, done: &[StoredRun]) {
    *out += LINKS;
    let mut shapes: BTreeMap<String, Vec<&StoredRun>> = BTreeMap::new();
    for run in done {
        let shape =
            run.shape.as_ref().map_or_else(String::new, |shape| format!(" --shape {shape}"));
        shapes.entry(format!("--ops {}{shape}", run.ops)).or_default().push(run);
    }
    for (shape, runs) in shapes {
        let sum = |of: &dyn Fn(&StoredRun) -> u64| runs.iter().map(|run| of(run)).sum::<u64>();
        let findings = sum(&|r| {
            let (s, memory) = (&r.sums, r.sums.touched_late + r.sums.held_late);
            s.broken + s.left + s.circles + s.overdue + s.wrong + memory
        });
        let _ = writeln!(
            out,
            "`{shape}` | {} | {} | {} | {} | {} | {findings}",
            sum(&|r| r.seeds_to - r.seeds_from),
            sum(&|r| r.sums.packets),
            sum(&|r| r.sums.cuts),
            sum(&|r| r.sums.kills),
            sum(&|r| r.sums.hits),
        );
    }
    let all = |of: &dyn Fn(&StoredRun) -> u64| done.iter().map(of).sum::<u64>();
    let _ = writeln!(
        out,
        "\nOf the packets {} were reordered, {} duplicated, {} dropped and {} flipped, and {} \
         arrived for a\nfinished operation. {} ranges were passed by reference, {} one-sided (a \
         server wrote to, or read from,\nmemory that its client registered); {} pieces of WRITEs \
         landed after their completion at the server, or\nafter its flush or crash; clients took \
         {} queue pairs down.",
        all(&|r| r.sums.reordered),
        all(&|r| r.sums.duplicated),
        all(&|r| r.sums.dropped),
        all(&|r| r.sums.flipped),
        all(&|r| r.sums.late),
        all(&|r| r.sums.shown),
        all(&|r| r.sums.fabric.placed + r.sums.fabric.fetched),
        all(&|r| r.sums.fabric.landed_late),
        all(&|r| r.sums.fabric.forced),
    );
}

const LINKS: &str = "\n## Links\n
`pagelith-sim links --seeds A..B ARRANGEMENT --jobs 2 --json`: stores and clients over simulated
links, an eighth of the seeds for each arrangement ([sim/README.md](../sim/README.md)), or only that
of `--shape NAME`. Findings are wrong hits; memory written, or owned by a link, after its operation
had ended; one-sided transfers outside of registered or exposed memory; notices without a posted
receive; calls that ended more than 400 ms after their deadlines; referenced ranges that changed or
did not match the outcome; resources kept for clients that are gone; requests that peers forwarded;
and, with `--shape Rdma`, cancelled operations without exactly one outcome.

arrangement | seeds | packets | links cut | stores killed | hits | findings
---|---:|---:|---:|---:|---:|---:
";

const RACES: &str = "
## Threads, memory and any input

[sim/results/threads.md](../sim/results/threads.md) has the runs of loom, shuttle, sanitizers and
fuzz targets outside of `.ci/run`, without a finding.
";

/// One line for each fault: the seeds' sums and the tests.
fn matrix(out: &mut String, sums: &RunTotals) {
    *out += "\n## The matrix\n\n";
    let _ = writeln!(out, "Counts are of all {} seeds together.\n", sums.seeds);
    *out += "row | fault | injected, detected | other tests\n---:|---|---|---\n";
    for row in ROWS {
        let kinds: Vec<_> = row.kinds.iter().filter_map(|kind| sums.faults.get(*kind)).collect();
        let cell = if kinds.is_empty() {
            String::new()
        } else {
            let injected: u64 = kinds.iter().map(|f| f.injected).sum();
            let detected: u64 = kinds.iter().map(|f| f.detected).sum();
            format!(" {injected}, {detected}")
        };
        // An empty last cell needs its bar.
        let end = if row.tests.is_empty() { " |" } else { "" };
        let _ = writeln!(out, "{} | {} |{cell} | {}{end}", row.number, row.fault, row.tests);
    }
}

/// Each lane over the real kernel.
fn kernel(out: &mut String, lanes: &[Lane]) {
    let wrong: u64 = lanes.iter().map(|l| l.wrong + l.phantom).sum();
    let undone: u64 = lanes.iter().map(|l| l.removals_undone).sum();
    let late = lanes.iter().map(|l| l.longest_over_deadline_ms).max().unwrap_or(0);
    let runs: u64 = lanes.iter().map(|l| l.runs).sum();
    let recovery = lanes.iter().map(|l| l.worst_recovery_ms).max().unwrap_or(0);
    *out += "\n## Over the real kernel\n\n";
    let _ = writeln!(
        out,
        "`sim/kernel`, and for the lanes `kill-` `engine/tests/reopen_after_kill.rs` with\n\
         `TEST_PAGELITH_KILLS=1000`. Wrong or phantom answers in {runs} runs: {wrong}. *Lost* counts \
         flushed\nobjects that a device lost by lying, rotting or failing reads; devices that kept \
         acknowledged data\nlost none. Removals undone: {undone}, each by a device that \
         acknowledged a write or sync and did not\nexecute it. On a busy machine the slowest \
         recovery took {recovery} ms, and the longest time over a\ndeadline was {late} ms.\n"
    );
    let mut each = Vec::new();
    for l in lanes {
        // What was neither detected nor harmless would be a wrong answer.
        debug_assert_eq!(l.injected, l.detected + l.harmless, "{}", l.lane);
        let lost = Some(l.synced_lost).filter(|lost| *lost > 0);
        let lost = lost.map_or_else(String::new, |lost| format!(", {lost} lost"));
        each.push(format!("`{}` {}, {}{lost}", l.lane, l.injected, l.detected));
    }
    let _ = writeln!(out, "Injected and detected in each lane: {}.", each.join("; "));
}

/// Each planted bug, by the checker that caught it.
fn planted(out: &mut String, mutants: &[Outcome]) {
    *out += "\n## Planted bugs\n\n\
             A planted bug (mutant) is built in on purpose, to show that a check detects it. \
             `sim/mutants.sh`\nruns one bug in a process. `sim/mutants/src/lib.rs` describes those \
             of the shipped code,\n`sim/src/link/planted_bug.rs` those of simulated links.\n\n";
    let mut by: BTreeMap<&str, u32> = BTreeMap::new();
    let bugs = || mutants.iter().filter(|m| m.mutant != "none");
    for m in bugs().filter(|m| m.caught) {
        *by.entry(m.by.as_str()).or_default() += 1;
    }
    let missed: Vec<_> = bugs().filter(|m| !m.caught).map(|m| format!("`{}`", m.mutant)).collect();
    let by: Vec<_> = by.iter().map(|(checker, count)| format!("{count} by {checker}")).collect();
    let _ = writeln!(out, "Of {} planted bugs were caught:\n{}.", bugs().count(), by.join(", "));
    if !missed.is_empty() {
        let _ = writeln!(out, "**Not caught: {}.**", missed.join(", "));
    }
    let slowest = bugs().map(|m| m.seconds).fold(0.0, f64::max);
    let _ = writeln!(out, "The slowest was caught after {slowest:.0} s.");
    for m in mutants.iter().filter(|m| m.mutant == "none") {
        let _ = writeln!(out, "Without a planted bug: {} ({:.1} s).", m.how, m.seconds);
    }
}

/// How many operations each fault struck.
fn pairs(out: &mut String, sums: &RunTotals) {
    let mut struck: BTreeMap<&str, Vec<(u64, &str)>> = BTreeMap::new();
    for (pair, count) in &sums.fault_by_operation {
        if let Some((fault, operation)) = pair.split_once(' ') {
            struck.entry(fault).or_default().push((*count, operation));
        }
    }
    let operations = sums.operations.len();
    let (all, some): (Vec<_>, Vec<_>) = struck.iter().partition(|(_, of)| of.len() == operations);
    let rarest = all.iter().filter_map(|(fault, of)| of.iter().min().map(|of| (of, **fault))).min();
    let _ = writeln!(
        out,
        "\n## Faults by operation\n\nThe seeds have {operations} kinds of operations. {} kinds of \
         faults struck all of them.",
        all.len()
    );
    if let Some(((count, operation), fault)) = rarest {
        let _ = writeln!(out, "The rarest pair is {fault} in {operation}, {count} times.");
    }
    for (fault, of) in some {
        let of: Vec<_> = of.iter().map(|(count, on)| format!("{on} ({count})")).collect();
        let _ = writeln!(out, "{fault} struck {} only.", of.join(", "));
    }
}

pub fn report(args: &ReportArgs) -> ExitCode {
    let written = render(&args.results).and_then(|text| match &args.out {
        Some(file) => std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display())),
        None => {
            print!("{text}");
            Ok(())
        }
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_matches_stored_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let document = std::fs::read_to_string(root.join("../docs/faults.md")).expect("the report");
        assert!(
            document == render(&root.join("results")).expect("results"),
            "docs/faults.md is stale: run pagelith-sim report --out docs/faults.md"
        );
    }
}
