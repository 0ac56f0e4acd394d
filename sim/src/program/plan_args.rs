//! The arguments that describe the plan of a run.

use clap::Args;

use crate::explore::{ExplorePlan, FaultChoice};

/// The parameters of a plan, apart from its seed.
#[derive(Args, Clone, Debug)]
pub(super) struct PlanArgs {
    /// Operations per seed.
    #[arg(long, default_value_t = 5000)]
    pub(super) ops: usize,
    /// Which faults strike: `mixed` (chosen by seed: all, a single one, or none), `none`, or one by
    /// name.
    #[arg(long, default_value_t = FaultChoice::Mixed)]
    pub(super) faults: FaultChoice,
    /// Give all keys one fingerprint.
    #[arg(long)]
    pub(super) constant_fingerprint: bool,
}

impl PlanArgs {
    pub(super) fn plan(&self, seed: u64) -> ExplorePlan {
        ExplorePlan::of_seed(seed, self.ops, self.faults, self.constant_fingerprint)
    }

    /// The arguments as text.
    pub(super) fn text(&self) -> String {
        let constant = if self.constant_fingerprint { " --constant-fingerprint" } else { "" };
        format!("--ops {} --faults {}{constant}", self.ops, self.faults)
    }
}
