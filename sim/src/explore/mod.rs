//! Long runs, one per seed. The seed decides configuration, workload, faults, schedule and crash
//! points, and the production code runs unchanged over the simulated machine.
//! [`ExplorePlan::of_seed`] makes the plan of a seed, [`explore`] executes it, and [`shrink`]
//! reduces a failing plan to few operations.

mod batch;
mod batches;
mod event_mirror;
mod events;
pub mod faults;
mod maintenance;
pub(crate) mod memory;
pub mod objects;
pub mod ops;
pub mod oracle;
pub mod plan;
mod reads;
pub mod report;
mod restarts;
mod run;
pub mod setup;
mod shrink;
mod writes;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use faults::FaultChoice;
pub use plan::ExplorePlan;
pub use report::{Finding, FindingKind, RunTotals};
pub use run::Run;
pub use shrink::{Shrunk, shrink};

/// Executes a plan; returns its counts and at most a few findings.
pub fn explore(plan: &ExplorePlan) -> (RunTotals, Vec<Finding>) {
    explore_with_trace(plan, None)
}

/// Like [`explore`]; passes every step and answer to `trace_to`.
pub fn explore_with_trace(
    plan: &ExplorePlan,
    trace_to: Option<Box<dyn FnMut(String)>>,
) -> (RunTotals, Vec<Finding>) {
    let mut run = Run::new(plan);
    if let Some(trace_to) = trace_to {
        run.set_trace(trace_to);
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| run.execute_all()));
    if let Err(panic) = outcome {
        let text = format!("panicked: {}", message(&*panic));
        run.report(FindingKind::Panic, text);
    }
    // The rest of the run may panic again when it is dropped.
    let findings = run.findings.clone();
    catch_unwind(AssertUnwindSafe(|| run.finish())).unwrap_or_else(|_| {
        let mut sums = RunTotals { seeds: 1, ..RunTotals::default() };
        findings.iter().for_each(|f| sums.found(f.kind));
        (sums, findings)
    })
}

pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_string()
}
