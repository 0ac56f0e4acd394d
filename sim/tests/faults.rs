//! A device that fails reads, writes and syncs: every operation of short plans in turn, once or
//! several times in a row. Calls may fail and objects may be lost. No get returns wrong bytes,
//! removed objects or part of a group, in the process that met the fault or after a crash. The
//! store reopens once the faults end.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use pagelith_io::fault::{FaultKind, FaultOp};
use pagelith_sim::disk::{CrashMode, FaultPlan};
use pagelith_sim::env::SimWorld;
use support::plan::Step::*;
use support::plan::{Plan, Shape, Step};
use support::run::Run;

/// The number of attempts of an operation, and one more.
const IN_A_ROW: [u64; 2] = [1, 4];
/// Most operations of a kind in a plan.
const OPERATIONS_MAX: u64 = 400;

const GROUPS: [Step; 14] = [
    Base(0, 3),
    Attach(0, 0),
    Single(1),
    Flush,
    Get(0),
    Begin(2, 2),
    Members(2, 2),
    Commit(2, 2),
    Attach(2, 0),
    Base(1, 3),
    Flush,
    Get(2),
    Get(1),
    Remove(0),
];

const ROUND: [Step; 9] =
    [Group(0), Flush, Fill(10, 9), Remove(0), Flush, Warm(12, 6), Fill(30, 9), Flush, Get(0)];

/// Runs the plan with the `nth` operation of a kind failing, `row` times; returns the errors, and
/// whether it failed.
fn with_fault(plan: &Plan, op: FaultOp, nth: u64, row: u64) -> (Vec<String>, bool) {
    let world = SimWorld::with_dirs(3, plan.shape.dirs);
    for n in nth..nth + row {
        world.disk.inject(FaultPlan::Fail { op, nth: n, kind: FaultKind::Device });
    }
    let mut run = Run::new(&world, plan.shape);
    run.faulty = true;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run.run(plan);
        run.check_all_keys();
        run.step(Abandon);
        run.check_all_keys();
        run.step(Close);
    }));
    if outcome.is_err() {
        run.wrong.push("panicked".to_string());
    }
    let failed = world.disk.log().iter().any(|op| op.fault.is_some());
    world.crash(CrashMode::KeepAll);
    let place = |wrong: String| format!("plan={} op={op} nth={nth} row={row}: {wrong}", plan.name);
    (std::mem::take(&mut run.wrong).into_iter().map(place).collect(), failed)
}

fn check_plan(name: &'static str, shape: Shape, steps: &[Step]) {
    // An object on a failing device may be missing, as if evicted.
    let plan = Plan {
        name,
        shape: Shape { evicts: true, ..shape },
        steps: steps.to_vec(),
        after: Vec::new(),
    };
    for op in [FaultOp::Read, FaultOp::Write, FaultOp::Sync] {
        for row in IN_A_ROW {
            let mut failed = 0;
            for nth in 1..OPERATIONS_MAX {
                let (wrong, met) = with_fault(&plan, op, nth, row);
                assert!(wrong.is_empty(), "{}", wrong.join("\n"));
                failed = nth;
                if !met {
                    break;
                }
            }
            eprintln!("plan={name} op={op} row={row} operations={}", failed - 1);
            assert!(
                (2..OPERATIONS_MAX - 1).contains(&failed),
                "plan={name} op={op} operations={failed}"
            );
        }
    }
}

#[test]
fn groups_survive_every_device_failure() {
    check_plan(
        "groups_survive_every_device_failure",
        Shape { cold: true, checkpoint: 1, ..Shape::ROOMY },
        &GROUPS,
    );
}

#[test]
fn wrapping_log_survives_every_device_failure() {
    check_plan(
        "wrapping_log_survives_every_device_failure",
        Shape { cold: true, ..Shape::TIGHT },
        &ROUND,
    );
}

#[test]
fn groups_in_dram_survive_every_device_failure() {
    check_plan(
        "groups_in_dram_survive_every_device_failure",
        Shape { checkpoint: 1, ..Shape::ROOMY },
        &GROUPS,
    );
}
