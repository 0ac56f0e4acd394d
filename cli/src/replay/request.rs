//! One request of a replay, as by a cache controller: look up, read, check, put.
//!
//! A controller of one pool looks up the longest prefix and puts whole pages. A controller of
//! several pools looks up by their hit policies, puts the pools one after the other with the anchor
//! pool last, and commits.

use std::time::{Duration, Instant};

use anyhow::bail;
use pagelith::layouts::ids::PrefixHash;
use pagelith::{Options, Tier};

use super::buffers::Buffers;
use super::counters::{PrefixHits, ReplayCounters};
use super::pages::Pages;
use super::plan::ReplayPlan;
use super::target::{OpenTarget, STALL_MAX};
use crate::meter::Meter;

/// Pages of a batch: the number that SGLang's HiCache requests from its storage at a time.
const BATCH_PAGES: usize = 128;
/// Maximum bytes of a batch, so that the harness does not need more memory for large objects than
/// the store.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// Pause before another try if the store is busy.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// State of the pages of a request. The pages before the first miss are the prefix hit.
pub(super) struct RequestState {
    /// For each page: the known cause why it is no prefix hit.
    pub(super) causes: Vec<Option<String>>,
    /// Length of the prefix hit.
    pub(super) hits: usize,
    /// For each page: the farthest tier of its hits.
    pub(super) from: Vec<Tier>,
}

/// Executes and counts requests.
pub(crate) struct RequestRunner<'a> {
    pub(super) plan: &'a ReplayPlan,
    pub(crate) tally: ReplayCounters,
    pub(crate) meter: Meter,
    pub(super) buffers: Buffers,
    /// Simulate a crash in this request: the group of the last page is begun and not committed.
    pub(super) crash_now: bool,
    /// Calls that failed because the store process was unreachable.
    pub(super) unreachable: u64,
}

impl<'a> RequestRunner<'a> {
    pub(crate) fn new(plan: &'a ReplayPlan) -> RequestRunner<'a> {
        let tally = ReplayCounters::new(plan.pages.pools().len());
        RequestRunner {
            plan,
            tally,
            meter: Meter::start(),
            buffers: Buffers::default(),
            crash_now: false,
            unreachable: 0,
        }
    }

    pub(super) fn pages(&self) -> &'a Pages {
        &self.plan.pages
    }

    /// Pages of a batch of base groups.
    pub(super) fn batch_pages(&self) -> usize {
        let page: usize = self.pages().base().iter().map(|object| object.bytes).sum();
        (BATCH_BYTES_MAX / page.max(1)).clamp(1, BATCH_PAGES)
    }

    /// Execute the request for these blocks.
    pub(crate) fn request(&mut self, target: &mut OpenTarget, ids: &[u64]) -> anyhow::Result<()> {
        let hashes: Vec<PrefixHash> = ids.iter().map(|id| Pages::hash(*id)).collect();
        let request = target.pages().begin_request();
        let options = Options::default().request(request);
        let mut state = RequestState {
            causes: vec![None; ids.len()],
            hits: 0,
            from: vec![Tier::Memory; ids.len()],
        };
        let found = self.look_up(target, &hashes, options, &mut state)?;
        self.read_prefix(target, &hashes, &found, options, &mut state)?;
        self.write_rest(target, &hashes, options, &mut state)?;
        let from = |tier| state.from.iter().take(state.hits).filter(|t| **t == tier).count() as u64;
        let hits = PrefixHits {
            dram: from(Tier::Memory),
            ssd: from(Tier::Ssd),
            remote: from(Tier::Remote),
        };
        self.tally.request(ids.len() as u64, hits);
        Ok(())
    }

    /// The result of a call, or `instead` if the store process is unreachable.
    pub(super) fn or_if_unreachable<T>(
        &mut self,
        target: &OpenTarget,
        result: pagelith::Result<T>,
        instead: T,
    ) -> pagelith::Result<T> {
        match result {
            Err(error) if target.is_unreachable(&error) => {
                self.unreachable += 1;
                Ok(instead)
            }
            result => result,
        }
    }

    /// Pause if anything was refused as busy. An error after [`STALL_MAX`] without any progress.
    pub(super) fn wait_if_busy(
        &mut self,
        busy: usize,
        before: usize,
        since: &mut Option<Instant>,
    ) -> anyhow::Result<()> {
        if busy == 0 {
            return Ok(());
        }
        if busy < before {
            *since = None;
        }
        let start = *since.get_or_insert_with(Instant::now);
        if start.elapsed() > STALL_MAX {
            bail!("the store stays busy pages={busy} waited_s={}", STALL_MAX.as_secs());
        }
        self.tally.busy_waits += 1;
        std::thread::sleep(BUSY_PAUSE);
        Ok(())
    }
}

/// Chain depth of a page.
pub(super) fn depth_of(page: Option<usize>) -> u32 {
    page.map_or(0, |page| u32::try_from(page).unwrap_or(u32::MAX))
}
