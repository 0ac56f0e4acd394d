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
    row: String,
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

Rendered by `cargo run --release -p pagelith-sim -- report --out docs/faults.md` from `sim/results`;
a test compares the two. [sim/README.md](../sim/README.md) and
[sim/kernel/README.md](../sim/kernel/README.md) describe how each fault is made.

| term | meaning |
| --- | --- |
| injected | how often the fault struck |
| detected | the operation failed, or the store reported data that did not verify |
| harmless | the fault changed nothing that a call requested |
| finding | a wrong answer, lost data without a fault that explains it, a panic, a hang, a leak |
| lane | a series of runs over the real kernel with one kind of fault |

Every byte of every hit was compared. No answer was wrong, so `injected = detected + harmless`. For
silent faults the simulator splits the two: it matches each report of the store with the oldest
silent fault.
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
    *out +=
        "\n## Seeds\n\n`pagelith-sim run --seeds A..B PLAN --done FILE`; ranges are resumable.\n\n";
    *out += "| plan | commits | seeds | operations | reads compared | crashes | findings | \
             slowest recovery | longest over a deadline |\n";
    *out += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    let mut all = RunTotals::default();
    for (plan, (s, commits, _)) in &plans {
        let commits: Vec<_> = commits.iter().copied().collect();
        let losses = s.synced_lost + s.lost;
        let findings = s.wrong + losses + s.panics + s.hangs + s.leaks + s.other_findings;
        let _ = writeln!(
            out,
            "| `{plan}` | {} | {} | {} | {} | {} | {findings} | {} ms | {} ms |",
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

/// The runs over simulated links and their results.
fn links(out: &mut String, done: &[StoredRun]) {
    *out += LINKS;
    for StoredRun { seeds_from, seeds_to, ops, shape, sums: s } in done {
        let shape = shape.as_ref().map_or_else(String::new, |shape| format!(" --shape {shape}"));
        let memory = s.touched_late + s.held_late;
        let _ = writeln!(
            out,
            "| {seeds_from}..{seeds_to}, `--ops {ops}{shape}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            s.packets,
            s.reordered,
            s.duplicated,
            s.late,
            s.dropped,
            s.flipped,
            s.cuts,
            s.kills,
            s.hits,
            s.shown,
            s.fabric.placed + s.fabric.fetched,
            s.fabric.landed_late,
            s.fabric.forced,
            s.broken + s.left + s.circles + s.overdue + s.wrong + memory
        );
    }
}

const LINKS: &str = "\n## Links\n
`pagelith-sim links --seeds A..B --ops N --jobs 2 --json`: stores and clients over simulated links,
an eighth of the seeds for each arrangement ([sim/README.md](../sim/README.md)), or only that of
`--shape NAME`.

| column | meaning |
| --- | --- |
| late | packets that arrived for a finished operation |
| referenced | ranges passed by reference to memory |
| one-sided | ranges that a server wrote to, or read from, memory that its client registered |
| landed late | pieces of WRITEs that landed after their completion at the server, or after its flush or crash |
| taken down | queue pairs that clients took down because memory was exposed when the link ended, or did not come back |
| findings | wrong hits; memory written, or owned by a link, after its operation had ended; one-sided transfers outside of registered or exposed memory; notices without a posted receive; calls that ended more than 400 ms after their deadlines; referenced ranges that changed or did not match the outcome; resources kept for clients that are gone; requests that peers forwarded; and, in the last row, cancelled operations without exactly one outcome |

| seeds | packets | reordered | duplicated | late | dropped | flipped | links cut | stores killed | hits | referenced | one-sided | landed late | taken down | findings |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

const RACES: &str = "
## Threads, memory and any input

Runs outside of `.ci/run` of the checks in [sim/concurrency](../sim/concurrency/README.md) and
[fuzz](../fuzz/README.md). Fuzz targets run under AddressSanitizer.

| commit | command | no finding in |
| --- | --- | --- |
| 0714350 | `sim/concurrency.sh loom` | 17 kernels, 170,599 orders |
| 0714350 | `sim/concurrency.sh shuttle` | 22 scenarios, 44,400 schedules |
| 0714350 | `cargo +nightly fuzz run TARGET -- -max_total_time=300 -timeout=60`, `server` and `rings` | 34,797 and 31,449 inputs |
| 0714350 | the same for 45 to 240 s, 12 other targets | 2.4 million inputs |
| ac65ba4 | `fuzz/all.sh 20` | 15 targets, 9.9 million inputs |
| 62cdb4b, ca9b9b3 | `fuzz/all.sh 20` | 15 targets, 5.7 million inputs |
| 62cdb4b, ca9b9b3 | `pagelith-sim links --seeds 0..300 --ops 2000` | 2,943,685 packets, 173,997 hits compared |
| 62cdb4b, ca9b9b3 | `TEST_PAGELITH_CLIENT_KILLS=1000 cargo test --release -p pagelith-cli --test client_kills` | 1,000 clients killed over TCP and 1,000 over shared memory |
| 62ebf55 | `sim/sanitize.sh address io engine` | the suite |
| c8007cae | ThreadSanitizer, the unit tests of io, transport, tiers and the engine | the tests |

Before c8007cae, `sim/sanitize.sh thread io engine` made eight reports about memory handed over
under a mutex or `Once` of `std`, whose waiting half is not built with the sanitizer. One test that
expects a signal ended differently, and the rest did not run. loom and shuttle have not run at
62cdb4b and ca9b9b3, nor the whole table since [decision 0014](decisions/0014-peers.md) changed.
";

/// One line for each fault: the seeds' sums and the tests.
fn matrix(out: &mut String, sums: &RunTotals) {
    *out += "\n## The matrix\n\n";
    let _ = writeln!(
        out,
        "Counts are of all {} seeds together. The lanes over the real kernel follow below.\n",
        sums.seeds
    );
    *out += "| # | fault | injected | detected | harmless | other tests |\n";
    *out += "| ---: | --- | ---: | ---: | ---: | --- |\n";
    for row in ROWS {
        let kinds: Vec<_> = row.kinds.iter().filter_map(|kind| sums.faults.get(*kind)).collect();
        let cells = if kinds.is_empty() {
            "| | |".to_owned()
        } else {
            format!(
                "{} | {} | {} |",
                kinds.iter().map(|f| f.injected).sum::<u64>(),
                kinds.iter().map(|f| f.detected).sum::<u64>(),
                kinds.iter().map(|f| f.harmless).sum::<u64>()
            )
        };
        let _ = writeln!(out, "| {} | {} | {cells} {} |", row.number, row.fault, row.tests);
    }
}

/// Each lane over the real kernel.
fn kernel(out: &mut String, lanes: &[Lane]) {
    let wrong: u64 = lanes.iter().map(|l| l.wrong + l.phantom).sum();
    *out += "\n## Over the real kernel\n\n";
    let _ = writeln!(
        out,
        "`sim/kernel`, and for the lanes `kill-` `engine/tests/reopen_after_kill.rs` with\n\
         `TEST_PAGELITH_KILLS=1000`. Wrong or phantom answers in all lanes: {wrong}. *Lost* counts \
         flushed\nobjects that a device lost by lying, rotting or failing reads; devices that kept \
         acknowledged data\nlost none. A removal is undone only if the device acknowledged a write \
         or sync and did not execute\nit. Times in ms are from a busy machine: the slowest recovery, \
         and the longest time over a deadline.\n"
    );
    *out += "| lane | row | runs | injected | detected | harmless | lost | removals undone | recovery | over deadline |\n";
    *out += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    for l in lanes {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            l.lane,
            l.row,
            l.runs,
            l.injected,
            l.detected,
            l.harmless,
            l.synced_lost,
            l.removals_undone,
            l.worst_recovery_ms,
            l.longest_over_deadline_ms
        );
    }
}

/// Each planted bug, by the checker that caught it.
fn planted(out: &mut String, mutants: &[Outcome]) {
    *out += "\n## Planted bugs\n\n\
             A planted bug (mutant) is built in on purpose, to show that a check detects it. \
             `sim/mutants.sh`\nruns one bug in a process. `sim/mutants/src/lib.rs` describes those \
             of the shipped code,\n`sim/src/link/planted_bug.rs` those of simulated links.\n\n\
             | caught by | planted bugs, with the seconds until each was caught |\n| --- | --- |\n";
    let mut by: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for m in mutants.iter().filter(|m| m.mutant != "none") {
        let checker = if m.caught { m.by.as_str() } else { "**nothing**" };
        by.entry(checker).or_default().push(format!("`{}` {:.1}", m.mutant, m.seconds));
    }
    for (checker, bugs) in by {
        let _ = writeln!(out, "| {checker} | {} |", bugs.join(", "));
    }
    for m in mutants.iter().filter(|m| m.mutant == "none") {
        let _ = writeln!(out, "\nWithout a planted bug: {} ({:.1} s).", m.how, m.seconds);
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
    let _ = writeln!(
        out,
        "\n## Faults by operation\n\nThe seeds have {operations} kinds of operations.\n\n\
         | fault | kinds of operations that it struck | rarest |\n| --- | ---: | --- |"
    );
    for (fault, of) in &struck {
        if let Some((count, operation)) = of.iter().min() {
            let _ = writeln!(out, "| {fault} | {} | {operation}, {count} |", of.len());
        }
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
