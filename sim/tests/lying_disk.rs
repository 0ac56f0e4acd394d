//! Each sync that crash safety depends on is ignored in turn: the disk acknowledges it and makes
//! nothing durable. The checker must detect each, else its results for the honest disk prove
//! nothing.

mod support;

use pagelith_sim::disk::CrashMode;
use support::check::{CRASHES, Recorded, record};
use support::plan::Step::*;
use support::plan::{Plan, Shape, Step};

/// More random crashes, since a missing sync may leave a narrow gap.
fn crashes() -> Vec<(CrashMode, u64)> {
    CRASHES.into_iter().chain((4..17).map(|seed| (CrashMode::Random, seed))).collect()
}

fn plan(name: &'static str, shape: Shape, steps: &[Step]) -> Plan {
    Plan { name, shape, steps: steps.to_vec(), after: Vec::new() }
}

/// The findings on a disk that ignores these syncs, at most a few.
fn findings_with(plan: &Plan, lie: impl Fn(&str, u64) -> bool + Send + 'static) -> Vec<String> {
    record(plan, Some(Box::new(lie))).findings(&crashes(), false, 3)
}

/// The honest disk has no findings with the same crashes.
fn honest(plan: &Plan) -> Recorded {
    let recorded = record(plan, None);
    let found = recorded.findings(&crashes(), false, 1);
    assert!(found.is_empty(), "{}", found.join("\n"));
    recorded
}

/// The numbers (from 1) of a file's syncs whose next change to the file satisfies `next`.
fn syncs_before(recorded: &Recorded, file: &str, next: impl Fn(&str) -> bool) -> Vec<u64> {
    let own = format!("file={file} ");
    let changed =
        |l: &&String| l.contains(&own) && [" write ", " sync "].iter().any(|k| l.contains(k));
    let changes: Vec<&String> = recorded.log.iter().filter(changed).collect();
    let syncs = changes.iter().enumerate().filter(|(_, c)| c.contains(" sync "));
    let followed =
        syncs.enumerate().filter(|(_, (i, _))| changes.get(i + 1).is_some_and(|c| next(c)));
    followed.map(|(n, _)| n as u64 + 1).collect()
}

#[test]
fn missing_sync_before_footer_is_detected() {
    let plan = plan("fill", Shape::ROOMY, &[Fill(10, 9), Idle(5000)]);
    let footer = |change: &str| {
        let number = |field: &str| {
            let rest = &change[change.find(field).expect("a field") + field.len()..];
            rest.split(' ').next().expect("a number").parse::<u64>().expect("a number")
        };
        (number("offset=") + number("len=")).is_multiple_of(1 << 20)
    };
    let before = syncs_before(&honest(&plan), "sim0/segments", footer);
    assert!(!before.is_empty(), "no segment was sealed");
    for n in before {
        let found = findings_with(&plan, move |file, at| file == "sim0/segments" && at == n);
        assert!(
            found.iter().any(|f| f.contains("not intact") || f.contains("cannot be got")),
            "{found:?}"
        );
    }
}

#[test]
fn missing_manifest_syncs_are_detected() {
    let plan = plan("wrap", Shape::TIGHT, &[Group(0), Flush, Pin(0), Fill(10, 20), Flush]);
    honest(&plan);
    let found = findings_with(&plan, |file, at| file.contains("manifest") && at > 1);
    assert!(
        found.iter().any(|f| f.contains("wrong answer") && f.contains("got=None")),
        "{found:?}"
    );
}

#[test]
fn missing_sync_between_manifest_copies_is_detected() {
    let plan = plan("copies", Shape::ROOMY, &[Group(0), Flush, Fill(10, 12), Flush]);
    honest(&plan);
    let found = findings_with(&plan, |file, at| file.contains("manifest.0") && at > 1);
    // Both copies of a block are old or damaged at once.
    let lost = |f: &String| {
        f.contains("open failed") || (f.contains("wrong answer") && f.contains("got=None"))
    };
    assert!(found.iter().any(lost), "{found:?}");
}

#[test]
fn missing_sync_of_moved_records_is_detected() {
    let plan = plan("move", Shape::TIGHT, &[Group(0), Flush, Pin(0), Fill(10, 40), Idle(5000)]);
    let syncs =
        honest(&plan).log.iter().filter(|l| l.contains(" sync file=sim0/segments ")).count() as u64;
    // The crash loses the moved copy, and keeps the manifest that gives the old copy's segment a
    // new incarnation. Which of the two is synced first decides whether a crash that loses all
    // unsynced data does that.
    let lost = |n: u64| {
        let lie = move |file: &str, at: u64| file == "sim0/segments" && at == n;
        let found = record(&plan, Some(Box::new(lie))).findings(&crashes(), false, 1);
        found.iter().any(|f| f.contains("wrong answer") && f.contains("pinned: true"))
    };
    // The first is the flush's own.
    assert!((2..=syncs).any(lost), "syncs={syncs}");
}

#[test]
fn missing_sync_before_checkpoint_head_is_detected() {
    let shape = Shape { checkpoint: 1, ..Shape::ROOMY };
    let plan = plan(
        "checkpoint",
        shape,
        &[Group(0), Flush, Fill(10, 8), Idle(5000), Fill(30, 8), Idle(5000)],
    );
    let head = |change: &str| change.contains(" write ") && change.contains("offset=0 len=4096");
    let recorded = honest(&plan);
    for file in ["sim0/checkpoint.0", "sim0/checkpoint.1"] {
        let before = syncs_before(&recorded, file, head);
        assert!(!before.is_empty(), "no checkpoint was written file={file}");
        for n in before {
            let found = findings_with(&plan, move |name, at| name == file && at == n);
            assert!(found.iter().any(|f| f.contains("not whole")), "file={file} n={n} {found:?}");
        }
    }
}

#[test]
fn missing_sync_of_tombstone_is_detected() {
    let plan = plan("remove", Shape::ROOMY, &[Group(0), Flush, Remove(0), Idle(1000)]);
    honest(&plan);
    let found = findings_with(&plan, |file, at| file == "sim0/segments" && at == 2);
    assert!(
        found.iter().any(|f| f.contains("wrong answer") && f.contains("got=Some(Put(1))")),
        "{found:?}"
    );
}

#[test]
fn missing_sync_of_generation_is_detected() {
    let plan = plan("clear", Shape::ROOMY, &[Group(0), Flush, Clear(0), Idle(1000)]);
    honest(&plan);
    let written = record(&plan, None)
        .log
        .iter()
        .filter(|l| l.contains(" sync file=sim0/manifest.0 "))
        .count();
    let found =
        findings_with(&plan, move |file, at| file.contains("manifest") && at == written as u64);
    assert!(
        found.iter().any(|f| f.contains("wrong answer") && f.contains("got=Some(Put(1))")),
        "{found:?}"
    );
}

#[test]
fn missing_sync_of_flush_is_detected() {
    let plan = plan("flush", Shape::ROOMY, &[Group(0), Flush, Idle(1000)]);
    honest(&plan);
    let found = findings_with(&plan, |file, _| file == "sim0/segments");
    assert!(
        found.iter().any(|f| f.contains("wrong answer") && f.contains("got=None")),
        "{found:?}"
    );
}
