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
use super::mutants::{FirstFinding, Outcome};
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
    matrix(&mut out, &sums, &lanes);
    kernel(&mut out, &lanes);
    planted(&mut out, &mutants);
    pairs(&mut out, &sums);
    out += RACES;
    out += "\n## Lines of `engine` and `tiers` that the seeds execute\n\n";
    out += &format!("`sim/coverage.sh`: {}\n", coverage.trim());
    Ok(out)
}

const HEAD: &str = "# Faults, and how the store handled them

Written by `cargo run --release -p pagelith-sim -- report --out docs/faults.md` from the results kept in `sim/results`; a
test compares the two. A *lane* is a series of runs over the real kernel with one kind of fault. The lanes and the fault matrix
are those of the project's fault specification;
[sim/README.md](../sim/README.md) and [sim/kernel/README.md](../sim/kernel/README.md) describe how each fault is made.

*Injected* is how often a fault struck. *Detected* means that the operation failed, or that the store reported data that did
not verify. *Harmless* means that the fault changed nothing that a call requested. `injected = detected + harmless` because no
answer was wrong: every byte of every hit was compared. For silent faults the simulator splits the two: it matches each
report of the store with the oldest silent fault.
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
    *out += "| plan | commits | seeds | operations | reads compared | crashes | wrong | synced lost | lost | panics | hangs | \
             leaks | other | worst recovery | longest over a deadline |\n";
    *out += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    let mut all = RunTotals::default();
    for (plan, (s, commits, _)) in &plans {
        let commits: Vec<_> = commits.iter().copied().collect();
        let _ = writeln!(
            out,
            "| `{plan}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} ms | {} ms |",
            commits.join(" "),
            s.seeds,
            s.ops,
            s.reads_checked,
            s.crashes,
            s.wrong,
            s.synced_lost,
            s.lost,
            s.panics,
            s.hangs,
            s.leaks,
            s.other_findings,
            s.worst_recovery_us / 1000,
            s.longest_over_deadline_us / 1000
        );
        all.add(s);
    }
    let _ = writeln!(
        out,
        "\nTimes are simulated. Reboots after a close: {}; stores dropped: {}; segments reclaimed: {}; checkpoints: {}. Lying \
         devices made {} stores refuse to open, and undid {} removals or clears.",
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
        let _ = writeln!(
            out,
            "| {seeds_from}..{seeds_to}, `--ops {ops}{shape}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
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
            s.broken + s.left + s.circles + s.overdue,
            s.wrong,
            s.touched_late,
            s.held_late
        );
    }
    *out += PLANTS;
}

const LINKS: &str = "\n## Links\n
`pagelith-sim links --seeds A..B --ops N --jobs 2 --json`: stores and clients over simulated links. Each eighth of the seeds has
one arrangement (`--shape NAME` runs only one): clients attached to a store; the same with a store that has a peer itself; one
or two stores with the same two peers; clients on the store's host, with bytes passed by reference in both
directions; two or three stores that are each other's peers, with clients each; and the first three again with one-sided
transfers (RDMA), mixed with clients on a stream and on the store's host. Clients of a single store sometimes have
several batches in flight ([0013](decisions/0013-attached-clients.md)).

| column | meaning |
| --- | --- |
| late packets | packets that arrived for a finished operation |
| passed by reference | ranges passed by reference to memory (decisions 0011, 0013) |
| one-sided | ranges that a server wrote to, or read from, memory that its client registered |
| landed late | pieces of WRITEs that landed after their completion at the server, or after its flush or crash |
| taken down | queue pairs that clients took down because memory was exposed when the link ended, or did not come back |
| violations | one-sided transfers outside of registered or exposed memory, notices without a posted receive, calls that ended more than 400 ms after their deadlines, referenced ranges that changed or did not match the outcome, resources kept for clients that are gone, requests that peers forwarded, and (since the last row) cancelled operations without an outcome, or with one too many |
| written after the end | memory written after its operation had ended |
| owned after the end | memory still owned by a link when its operation had ended |

Hits and look-ups are compared with puts, removals and clears:

- A client's put without an outcome, or sent twice, may take effect until its links are gone.
- A put of a store with peers ends with its outcome. After a removal, of which the peers are notified, it does not come back to that
  store; a put of the key by another store, or another store's copy, may.
- Among stores that are each other's peers, none returns an object that one of them removed and any of them had put
  ([0015](decisions/0015-removals-among-peers.md)).
- A range passed by reference stays unchanged until it is released or withdrawn, and matches the checksums of its outcome. No
  resource is kept for it once its client is gone.
- A store does not forward a peer's request ([0014](decisions/0014-peers.md)).
- After a link handed memory back, no one-sided transfer touches it, whatever server, stream and queue pairs do.

Rows without a shape are of the arrangements of their time: the first of the first three, the others of the first five.

| seeds | packets | reordered | duplicated | late packets | dropped | flipped | links cut | stores killed | hits | passed by reference | one-sided | landed late | taken down | violations | wrong | written after the end | owned after the end |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

const RACES: &str = "
## Threads, memory and any input

The last runs, outside of `.ci/run`, of the checks in [sim/concurrency](../sim/concurrency/README.md) and
[fuzz](../fuzz/README.md). At 0714350, which introduced rings, sends, puts out of a client's memory and views:

| command | result |
| --- | --- |
| `sim/concurrency.sh loom` | 17 kernels, 170,599 orders: no finding |
| `sim/concurrency.sh shuttle` | 22 scenarios, 44,400 schedules: no finding |
| `cargo +nightly fuzz run server -- -max_total_time=300 -timeout=60` | 34,797 inputs under AddressSanitizer: no finding; one input was reported as too slow while the process was stopped from outside, and takes 0.03 s alone |
| `cargo +nightly fuzz run rings -- -max_total_time=300 -timeout=60` | 31,449 inputs: no finding |
| the same for `wire_decode` (120 s), `ops_model` (240 s), `store_open` (120 s), and 45 s each of `key_text`, `client_names`, `record_decode`, `segment_scan`, `footer_decode`, `manifest_decode`, `checkpoint_decode`, `config` and `trace` | 347,276, 69 and 255 inputs on a machine under full load; 2.08 million inputs of the others together: no finding |

| commit | command | result |
| --- | --- | --- |
| ac65ba4 | `fuzz/all.sh 20` | 15 targets under AddressSanitizer, 9.9 million inputs, `rings` and `server` with 23,582 and 9,363: no finding |
| 62ebf55 | `sim/sanitize.sh address io engine` | no finding |
| 9b26570 | `fuzz/all.sh 20` | 0.79 million inputs: no finding |
| c8007cae | the unit tests of io, transport, tiers and the engine under ThreadSanitizer | no finding |
| before c8007cae | `sim/sanitize.sh thread io engine` | one test that expects a signal ended differently. Eight reports about memory handed over under a mutex or `Once` of `std`, whose waiting half is not built with the sanitizer. The rest of the suite did not run |

At 62cdb4b and ca9b9b3, which prepare a run of puts before they copy it ([0006](decisions/0006-hashing-and-copying.md)): `fuzz/all.sh 20`, 15 targets under AddressSanitizer, 5.7 million inputs, `server`, `rings` and `ops_model` among them: no finding.
`pagelith-sim links --seeds 0..300 --ops 2000`: 2,943,685 packets, 441,291 reordered, 291,915 duplicated, 508,182 late; 173,997 hits compared, 0 wrong, 0 buffers touched late. `TEST_PAGELITH_CLIENT_KILLS=1000 cargo test --release -p pagelith-cli --test client_kills`: 1,000 clients killed over TCP and 1,000 over shared memory, 0 wrong bytes at the surviving clients, no resources left.

Not run: loom and shuttle at these two commits, and the whole table after the changes of [decision 0014](decisions/0014-peers.md).
";

const PLANTS: &str = "
Bugs of an end of these links, planted by `--plant NAME` in any build; `sim/tests/links.rs` detects each within 400 seeds:

| bug | what it does | detected as |
| --- | --- | --- |
| `StaleOutcome` | the outcome of a finished operation is taken for that of the newest request | a look-up that finds a removed object |
| `WriteAfterRetract` | retracted memory is still written | memory written and owned after the end |
| `EarlyPushCompletion` | a push is reported as complete before its memory was read | memory owned after the end |
| `Unverified` | checksums are recomputed from the bytes that arrived | bytes that no put wrote |
| `BackAtRetract` | RDMA: the client gives memory back when its operation is retracted | memory written after the end |
| `BackAtStreamEnd` | RDMA: the client gives memory back when the stream ends | memory written after the end |
| `BackAtServerFlush` | RDMA: the client gives memory back when the server has flushed its queue | memory written after the end |
| `NoticeBeforeData` | RDMA: the server posts a notice before the WRITEs that it is to follow | memory written after the end |
| `TooFewReceives` | RDMA: the client posts too few receives for the notices | a notice without a posted receive |
| `WrongRegionBase` | RDMA: the server adds the base of another region | a transfer outside of registered or exposed memory |
";

fn matrix(out: &mut String, sums: &RunTotals, lanes: &[Lane]) {
    *out += "\n## The matrix\n\n";
    *out += "| # | fault | where | runs | injected | detected | harmless | wrong | synced lost |\n";
    *out += "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    for row in ROWS {
        let mut has_results = false;
        for kind in row.kinds {
            let Some(f) = sums.faults.get(*kind) else { continue };
            has_results = true;
            let _ = writeln!(
                out,
                "| {} | {} | seeds: `{kind}` | {} | {} | {} | {} | {} | {} |",
                row.number,
                row.fault,
                sums.seeds,
                f.injected,
                f.detected,
                f.harmless,
                sums.wrong,
                sums.synced_lost
            );
        }
        for l in lanes.iter().filter(|l| l.row.split(", ").any(|r| r == row.number.to_string())) {
            has_results = true;
            let _ = writeln!(
                out,
                "| {} | {} | kernel: `{}` | {} | {} | {} | {} | {} | {} |",
                row.number,
                row.fault,
                l.lane,
                l.runs,
                l.injected,
                l.detected,
                l.harmless,
                l.wrong,
                l.synced_lost
            );
        }
        if !row.tests.is_empty() || !has_results {
            let where_ = if row.tests.is_empty() { "**nothing yet**" } else { row.tests };
            let _ = writeln!(out, "| {} | {} | {where_} | | | | | | |", row.number, row.fault);
        }
    }
    *out += "\nFor seeds, *wrong* and *synced lost* count all seeds together, because faults are mixed: no answer was wrong with any fault. \
             For the kernel's lanes, *synced lost* counts flushed objects that a device lost by lying or rotting; on devices that kept \
             acked data nothing was lost.\n";
}

fn kernel(out: &mut String, lanes: &[Lane]) {
    *out += "\n## Over the real kernel\n\n`sim/kernel` and `engine/tests/reopen_after_kill.rs` (`TEST_PAGELITH_KILLS=1000`).\n\n";
    *out += "| lane | row | runs | wrong | phantom | synced lost | removals undone | worst recovery | longest over a deadline |\n";
    *out += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
    for l in lanes {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} | {} ms | {} ms |",
            l.lane,
            l.row,
            l.runs,
            l.wrong,
            l.phantom,
            l.synced_lost,
            l.removals_undone,
            l.worst_recovery_ms,
            l.longest_over_deadline_ms
        );
    }
    *out += "\nTimes are from a busy machine. A removal is undone only if the device acked a write or sync and did not execute it.\n";
}

fn planted(out: &mut String, mutants: &[Outcome]) {
    *out += "\n## Planted bugs\n\nA planted bug (mutant) is a defect that is built in on purpose, to show that the checks detect it.\n\
             `sim/mutants.sh`: one build, one bug per process. `sim/mutants/src/lib.rs` describes those of the shipped code, the table\n\
             above those of simulated links.\n\n";
    *out += "| planted | caught | seconds | by | first observation |\n| --- | --- | ---: | --- | --- |\n";
    for m in mutants {
        let caught = serde_json::from_str::<FirstFinding>(&m.how);
        let how = caught.map_or_else(
            |_| m.how.clone(),
            |c| format!("{:?}, seed {}: {}", c.kind, c.seed, c.text),
        );
        let how: String = how.replace('|', "/").chars().take(120).collect();
        let caught = match (m.caught, m.mutant == "none") {
            (true, _) => "yes",
            (false, true) => "nothing to catch",
            (false, false) => "**no**",
        };
        let _ =
            writeln!(out, "| `{}` | {caught} | {:.1} | {} | {how} |", m.mutant, m.seconds, m.by);
    }
}

/// How often each fault struck during each operation.
fn pairs(out: &mut String, sums: &RunTotals) {
    let split = |name: &str| name.split_once(' ').map(|(f, v)| (f.to_owned(), v.to_owned()));
    let verbs: BTreeSet<String> = sums.operations.keys().cloned().collect();
    let faults: BTreeSet<String> = sums.faults.keys().cloned().collect();
    let counts: BTreeMap<(String, String), u64> =
        sums.fault_by_operation.iter().filter_map(|(name, n)| Some((split(name)?, *n))).collect();
    *out += "\n## Faults by operation\n\nHow often a fault struck during an operation; an empty cell is a pair that never occurred.\n\n";
    let _ =
        writeln!(out, "| operation | {} |", faults.iter().cloned().collect::<Vec<_>>().join(" | "));
    let _ = writeln!(out, "| --- |{}", " ---: |".repeat(faults.len()));
    for verb in verbs {
        let cell = |fault: &String| {
            counts.get(&(fault.clone(), verb.clone())).map_or_else(String::new, ToString::to_string)
        };
        let cells: Vec<_> = faults.iter().map(cell).collect();
        let _ = writeln!(out, "| {verb} | {} |", cells.join(" | "));
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
