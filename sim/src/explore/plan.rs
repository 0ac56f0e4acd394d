//! The plan of a run, which its seed decides.

use super::faults::{FaultChoice, FaultMix};
use super::ops::{OpKind, PlannedOp, WEIGHTS};
use super::setup::Setup;
use crate::entropy::SplitMix64;

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct ExplorePlan {
    /// The seed.
    pub seed: u64,
    /// The store's setup.
    pub setup: Setup,
    /// The faults.
    pub faults: FaultMix,
    /// The operations, each with its index in the whole plan.
    pub ops: Vec<(usize, PlannedOp)>,
}

impl ExplorePlan {
    /// The plan of a seed.
    pub fn of_seed(seed: u64, ops: usize, faults: FaultChoice, constant: bool) -> ExplorePlan {
        let mut rng = SplitMix64::new(seed);
        let mut rng = SplitMix64::new(rng.next_u64() ^ 0x5eed);
        let faults = FaultMix::draw(&mut rng, faults);
        let setup = Setup::draw(&mut rng, constant);
        let total: u32 = WEIGHTS.iter().map(|(_, w)| w).sum();
        let ops = (0..ops).map(|at| {
            let mut left = rng.below(u64::from(total)) as u32;
            let heavier = |(_, w): &&(OpKind, u32)| {
                let is_chosen = left < *w;
                left = left.saturating_sub(*w);
                is_chosen
            };
            let verb = WEIGHTS.iter().find(heavier).map_or(OpKind::Get, |(verb, _)| *verb);
            (at, PlannedOp { verb, r: rng.next_u64() })
        });
        let ops = ops.collect();
        ExplorePlan { seed, setup, faults, ops }
    }

    /// The plan with only the operations for which `keep` of their index holds.
    pub fn keeping(&self, keep: impl Fn(usize) -> bool) -> ExplorePlan {
        let ops = self.ops.iter().copied().filter(|(at, _)| keep(*at)).collect();
        ExplorePlan { ops, ..self.clone() }
    }
}
