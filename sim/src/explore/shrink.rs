//! The fewest operations of a plan that still show its violation (delta debugging: Zeller and
//! Hildebrandt, "Simplifying and isolating failure-inducing input", 2002), within a bounded number
//! of runs.

use super::explore;
use super::plan::ExplorePlan;
use super::report::Finding;

/// A failing plan, reduced.
#[derive(Debug)]
pub struct Shrunk {
    /// The plan.
    pub plan: ExplorePlan,
    /// Its violation.
    pub finding: Finding,
    /// Number of runs used.
    pub runs: usize,
}

/// Removes operations from `plan`, which has shown `finding`, with at most `runs_max` runs. A
/// violation of the same promise counts as the same.
pub fn shrink(plan: &ExplorePlan, finding: &Finding, runs_max: usize) -> Shrunk {
    let mut best =
        Shrunk { plan: plan.keeping(|at| at <= finding.at), finding: finding.clone(), runs: 0 };
    let mut parts = 2;
    while best.runs < runs_max {
        let ops = best.plan.ops.len();
        let size = ops.div_ceil(parts).max(1);
        let mut smaller = None;
        for from in (0..ops).step_by(size) {
            if best.runs >= runs_max {
                break;
            }
            best.runs += 1;
            let left_out: Vec<usize> =
                best.plan.ops[from..(from + size).min(ops)].iter().map(|o| o.0).collect();
            let plan = best.plan.keeping(|at| left_out.binary_search(&at).is_err());
            let (_, findings) = explore(&plan);
            if let Some(found) = findings.into_iter().find(|f| f.kind == finding.kind) {
                smaller = Some((plan, found));
                break;
            }
        }
        match smaller {
            Some((plan, found)) => {
                best.plan = plan.keeping(|at| at <= found.at);
                best.finding = found;
                parts = (parts - 1).max(2);
            }
            None if size == 1 => break,
            None => parts = (parts * 2).min(ops),
        }
    }
    best
}
