//! Short plans, crashed in every way after every change that the disk executes. Each time the store
//! reopens and every object is read.

mod support;

use support::check::{CRASHES, record};
use support::plan::Step::*;
use support::plan::{Plan, Shape, Step};

fn check(name: &'static str, shape: Shape, steps: Vec<Step>) {
    let plan = Plan { name, shape, steps, after: Vec::new() };
    let recorded = record(&plan, None);
    assert!(
        recorded.points.len() > 20,
        "a plan that hardly writes points={}",
        recorded.points.len()
    );
    let found = recorded.findings(&CRASHES, true, 5);
    eprintln!("plan={} points={}", plan.name, recorded.points.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn puts_flushes_and_removes_survive_every_crash_point() {
    let steps = vec![
        Group(0),
        Single(0),
        Flush,
        Group(1),
        Group(2),
        Flush,
        Remove(1),
        Group(1),
        Flush,
        Get(0),
    ];
    check("puts_flushes_and_removes_survive_every_crash_point", Shape::ROOMY, steps);
}

#[test]
fn refilled_namespace_survives_every_crash_point() {
    let steps = vec![
        Group(0),
        Group(1),
        Flush,
        Clear(0),
        Group(0),
        Group(2),
        Flush,
        Clear(1),
        Clear(0),
        Group(1),
        Group(4),
        Flush,
        Abandon,
        Get(0),
    ];
    check(
        "refilled_namespace_survives_every_crash_point",
        Shape { checkpoint: 1, ..Shape::ROOMY },
        steps,
    );
}

#[test]
fn sealed_and_checkpointed_segments_survive_every_crash_point() {
    let steps = vec![
        Group(0),
        Flush,
        Fill(10, 12),
        Flush,
        Remove(12),
        Fill(30, 8),
        Group(12),
        Flush,
        Single(3),
    ];
    check(
        "sealed_and_checkpointed_segments_survive_every_crash_point",
        Shape { checkpoint: 1, ..Shape::ROOMY },
        steps,
    );
}

#[test]
fn abandoned_and_closed_stores_survive_every_crash_point() {
    let steps = vec![
        Group(0),
        Flush,
        Fill(10, 5),
        Abandon,
        Remove(10),
        Group(1),
        Close,
        Fill(20, 6),
        Group(10),
        Abandon,
        Clear(0),
        Close,
        Group(0),
        Flush,
        Abandon,
        Get(1),
    ];
    check(
        "abandoned_and_closed_stores_survive_every_crash_point",
        Shape { checkpoint: 2, ..Shape::ROOMY },
        steps,
    );
}

#[test]
fn pinned_objects_survive_reclaim_at_every_crash_point() {
    let steps = vec![
        Group(0),
        Single(1),
        Flush,
        Pin(0),
        Pin(1),
        Fill(10, 24),
        Flush,
        Remove(11),
        Fill(50, 8),
        Flush,
    ];
    check("pinned_objects_survive_reclaim_at_every_crash_point", Shape::TIGHT, steps);
}

#[test]
fn moved_objects_survive_crashes_during_checkpoints() {
    let steps = vec![
        Group(0),
        Group(1),
        Flush,
        Pin(0),
        Fill(10, 8),
        Warm(10, 3),
        Fill(20, 10),
        Warm(20, 4),
        Pin(21),
        Fill(30, 8),
        Flush,
        Fill(50, 10),
        Flush,
    ];
    let shape = Shape { recency: true, checkpoint: 1, ..Shape::TIGHT };
    check("moved_objects_survive_crashes_during_checkpoints", shape, steps);
}

#[test]
fn removed_objects_stay_absent_while_the_log_wraps() {
    let steps = vec![
        Group(0),
        Group(1),
        Single(2),
        Flush,
        Pin(0),
        Fill(10, 4),
        Remove(1),
        RemoveSingle(2),
        Fill(20, 12),
        Clear(1),
        Fill(40, 12),
        Single(2),
        Flush,
        Fill(60, 8),
        Flush,
    ];
    check("removed_objects_stay_absent_while_the_log_wraps", Shape::TIGHT, steps);
}

#[test]
fn two_directories_with_equal_fingerprints_survive_every_crash_point() {
    let steps = vec![
        Group(0),
        Group(1),
        Flush,
        Remove(0),
        Fill(10, 8),
        Flush,
        Group(0),
        Abandon,
        Clear(1),
        Flush,
        Get(0),
    ];
    check(
        "two_directories_with_equal_fingerprints_survive_every_crash_point",
        Shape { dirs: 2, constant: true, ..Shape::ROOMY },
        steps,
    );
}
