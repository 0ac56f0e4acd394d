//! One cell: a trace, policies, and capacities.

use std::sync::Arc;

use anyhow::Context;
use pagelith_tiers::policy::admission::{Admission, AdmissionRule, AdmissionSettings};
use pagelith_tiers::policy::frame_policy;
use serde::Serialize;

use super::blocks::Objects;
use super::clairvoyant;
use super::counts::Counts;
use super::log::BLOCK_BYTES;
use super::policy::PolicyChoice;
use super::requests::Requests;
use super::two_tiers::{Rules, TwoTiers};

/// Pages in the history of admission for each block of the SSD. The store has it for each object of
/// its index.
const HISTORY_PAGES: u64 = 2;
/// Requests between two reports of progress.
const PROGRESS_REQUESTS: usize = 1024;

/// Changes of the defaults of admission.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct AdmissionFlags {
    pub(super) min_reuse: Option<f64>,
    pub(super) thrift: Option<f64>,
    /// Share of the blocks that are put, which may be written.
    pub(super) write_budget: Option<f64>,
}

impl AdmissionFlags {
    fn apply(&self, settings: AdmissionSettings) -> AdmissionSettings {
        AdmissionSettings {
            min_reuse: self.min_reuse.unwrap_or(settings.min_reuse),
            thrift: self.thrift.unwrap_or(settings.thrift),
            budget: self.write_budget.is_some(),
            ..settings
        }
    }
}

/// A cell.
#[derive(Clone)]
pub(super) struct Cell {
    pub(super) requests: Arc<Requests>,
    pub(super) policy: PolicyChoice,
    pub(super) dram: usize,
    pub(super) ssd: usize,
    pub(super) flags: AdmissionFlags,
    /// Requests between two restarts of the store.
    pub(super) reopen_every: Option<usize>,
    /// Blocks of a recurrent state; 0 if there are none.
    pub(super) state_blocks: usize,
    pub(super) rules: Rules,
}

/// The result of a cell, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CellReport {
    pub(super) trace: String,
    pub(super) policy: String,
    pub(super) dram_blocks: usize,
    pub(super) ssd_blocks: usize,
    /// Share of the requested blocks in the leading resident run of their request.
    pub(super) hit_ratio: f64,
    pub(super) hit_ratio_dram: f64,
    pub(super) hit_ratio_ssd: f64,
    pub(super) blocks_requested: u64,
    /// Blocks written to SSD, those that reclaim reinserted included.
    pub(super) blocks_written: u64,
    pub(super) blocks_moved: u64,
    /// Share of the requested blocks that were resident after an absent block of their prefix.
    pub(super) orphan_ratio: f64,
    /// Share of the blocks offered to SSD that admission refused.
    pub(super) refused_ratio: f64,
    /// Prefill work without the cache divided by that with it.
    pub(super) speedup: f64,
}

impl Cell {
    /// Simulate it; `progress` is called with numbers of references done.
    pub(super) fn run(&self, progress: &dyn Fn(u64)) -> anyhow::Result<CellReport> {
        let counts = match self.policy {
            PolicyChoice::Clairvoyant => {
                let counts = clairvoyant::simulate(&self.requests, self.dram, self.ssd);
                progress(self.requests.references() as u64);
                counts
            }
            PolicyChoice::Store { dram, .. } => self.run_policies(dram, progress)?,
        };
        Ok(self.report(&counts))
    }

    fn run_policies(&self, dram: &str, progress: &dyn Fn(u64)) -> anyhow::Result<Counts> {
        let capacity = self.ssd as u64;
        let reclaim = self.policy.reclaim().context("the SSD policy is unknown")?;
        let settings = self.policy.admission().map(|settings| self.flags.apply(settings));
        // As in the store: without a DRAM tier everything is written.
        let refuses = |settings: &AdmissionSettings| {
            self.dram > 0 && (settings.rule != AdmissionRule::Through || settings.budget)
        };
        let settings = settings.filter(refuses);
        let new_admission =
            |settings| Admission::new(settings, capacity * BLOCK_BYTES, capacity * HISTORY_PAGES);
        let admission = settings.map(new_admission);
        let objects = Objects { pages: self.requests.unique(), state_blocks: self.state_blocks };
        let mut tiers =
            TwoTiers::new(objects, (self.dram, self.ssd), self.rules, |last_requests| {
                frame_policy(dram, last_requests)
            })
            .with_context(|| format!("no memory for the simulation --dram={}", self.dram))?;
        if self.ssd > 0 {
            tiers.add_ssd(self.ssd, reclaim, admission, self.flags.write_budget);
        }
        let mut done = 0;
        let restart = |before: &Admission| {
            let mut after = new_admission(before.settings());
            before.learned().iter().for_each(|learned| after.restore(learned));
            after
        };
        for (number, request) in self.requests.all().enumerate() {
            if number > 0 && self.reopen_every.is_some_and(|every| number % every == 0) {
                tiers.reopen(|last_requests| frame_policy(dram, last_requests), restart)?;
            }
            tiers.request(&request);
            done += request.blocks.len() as u64;
            if number % PROGRESS_REQUESTS == 0 {
                progress(std::mem::take(&mut done));
            }
        }
        progress(done);
        Ok(tiers.counts())
    }

    fn report(&self, counts: &Counts) -> CellReport {
        let of_requested = |blocks: u64| ratio(blocks, counts.requested);
        let hit_ratio = of_requested(counts.hits_dram + counts.hits_ssd);
        CellReport {
            trace: self.requests.name.clone(),
            policy: self.policy.to_string(),
            dram_blocks: self.dram,
            ssd_blocks: self.ssd,
            hit_ratio,
            hit_ratio_dram: of_requested(counts.hits_dram),
            hit_ratio_ssd: of_requested(counts.hits_ssd),
            blocks_requested: counts.requested,
            blocks_written: counts.written,
            blocks_moved: counts.moved,
            orphan_ratio: of_requested(counts.orphans),
            refused_ratio: ratio(counts.refused, counts.offered),
            speedup: rounded(1.0 / (1.0 - hit_ratio).max(1e-6)),
        }
    }
}

fn ratio(part: u64, of: u64) -> f64 {
    if of > 0 { rounded(part as f64 / of as f64) } else { 0.0 }
}

/// Rounded to six decimals.
fn rounded(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

impl CellReport {
    /// Blocks written for each requested block.
    pub(super) fn writes_per_block(&self) -> f64 {
        ratio(self.blocks_written, self.blocks_requested)
    }
}
