//! One request of a replay, as a cache controller makes it: look up, read, check, put.
//!
//! A controller of one pool asks for the longest prefix and puts whole pages. One of several pools asks by their
//! hit rules, puts the pools one after the other, the one that the others go with last, and commits.

use std::time::{Duration, Instant};

use anyhow::bail;
use pagelith::layouts::ids::PrefixHash;
use pagelith::{Options, Tier};

use super::buffers::Buffers;
use super::live::{Live, PATIENCE};
use super::pages::Pages;
use super::run::Plan;
use super::tally::{PrefixHits, Tally};
use crate::meter::Meter;

/// Pages of a batch: what SGLang's HiCache asks its storage for at a time.
const BATCH_PAGES: usize = 128;
/// Most bytes of a batch, so that large objects do not cost the harness more memory than the store.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// How long to wait when the store is busy before asking again.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// What became of the pages of a request: those before the first that is not a hit are the prefix hit.
pub(super) struct Course {
    /// One a page: the cause if it is known why it is no prefix hit.
    pub(super) causes: Vec<Option<String>>,
    /// Length of the prefix hit.
    pub(super) hits: usize,
    /// One a page: the farthest tier that something of it came from.
    pub(super) from: Vec<Tier>,
}

/// Makes requests, and counts.
pub(crate) struct Harness<'a> {
    pub(super) plan: &'a Plan,
    pub(crate) tally: Tally,
    pub(crate) meter: Meter,
    pub(super) buffers: Buffers,
    /// The process is to die in this request, with the last page's group begun and not committed.
    pub(super) dies: bool,
    /// Calls that did not reach another process's store, or were not answered.
    pub(super) out_of_reach: u64,
}

impl<'a> Harness<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Harness<'a> {
        let tally = Tally::new(plan.pages.pools().len());
        Harness {
            plan,
            tally,
            meter: Meter::start(),
            buffers: Buffers::default(),
            dies: false,
            out_of_reach: 0,
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

    /// Make the request for these blocks.
    pub(crate) fn request(&mut self, live: &mut Live, ids: &[u64]) -> anyhow::Result<()> {
        let hashes: Vec<PrefixHash> = ids.iter().map(|id| Pages::hash(*id)).collect();
        let request = live.begin_request();
        let options = Options { request: Some(request), ..Options::default() };
        let mut course =
            Course { causes: vec![None; ids.len()], hits: 0, from: vec![Tier::Memory; ids.len()] };
        let found = self.look_up(live, &hashes, options, &mut course)?;
        self.read_prefix(live, &hashes, &found, options, &mut course)?;
        self.write_rest(live, &hashes, options, &mut course)?;
        let from = |tier| course.from.iter().take(course.hits).filter(|t| **t == tier).count() as u64;
        let hits = PrefixHits { dram: from(Tier::Memory), ssd: from(Tier::Ssd), remote: from(Tier::Remote) };
        self.tally.request(ids.len() as u64, hits);
        Ok(())
    }

    /// What a call brought, or `instead` of it where the store is another process's and out of reach.
    pub(super) fn unless_out_of_reach<T>(
        &mut self,
        live: &Live,
        brought: pagelith::Result<T>,
        instead: T,
    ) -> pagelith::Result<T> {
        match brought {
            Err(error) if live.is_out_of_reach(&error) => {
                self.out_of_reach += 1;
                Ok(instead)
            }
            brought => brought,
        }
    }

    /// Wait a little if anything was refused as busy, and not for ever if nothing at all gets through.
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
        if start.elapsed() > PATIENCE {
            bail!("the store stays busy pages={busy} waited_s={}", PATIENCE.as_secs());
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
