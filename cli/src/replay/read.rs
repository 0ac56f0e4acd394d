//! The second step of a request: reading the usable prefix, and checking every byte.

use std::ops::Range;

use anyhow::Context;
use pagelith::layouts::ids::PrefixHash;
use pagelith::{Destination, ErrorKind, Get, GetOutcome, MissCause, Options, Tier};

use super::lookup::PrefixLookup;
use super::pages::PageGroup;
use super::request::{RequestRunner, RequestState, depth_of};
use super::target::OpenTarget;

/// Miss cause of a page that was read: a trailing object that the prefix needs was a miss.
const TRAILING: &str = "trailing";

/// An outcome for each object of a unit; `None` if the store was busy for one of them.
type Outcomes = Option<Vec<GetOutcome>>;

impl RequestRunner<'_> {
    /// Read the usable prefix: the base group of every page, then the trailing objects of the last
    /// pages. Sets `state.hits` to the number of complete pages.
    pub(super) fn read_prefix(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        found: &PrefixLookup,
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<()> {
        for first in (0..found.usable).step_by(self.batch_pages()) {
            let last = found.usable.min(first + self.batch_pages());
            if !self.read_pages(target, hashes, first..last, options, state)? {
                // Pages after a missing one are useless to a model.
                break;
            }
        }
        if self.pages().has_trailing() {
            let stop = found.stop_within(state.hits);
            self.read_trailing(target, hashes, stop, options, state)?;
        }
        Ok(())
    }

    /// Read and check the base groups of a run of pages. False if one was a miss.
    fn read_pages(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        run: Range<usize>,
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<bool> {
        let units: Vec<PageGroup<'_>> = run
            .clone()
            .zip(&hashes[run.clone()])
            .map(|(page, hash)| self.pages().unit(page, *hash))
            .collect();
        for (page, outcome) in run.clone().zip(self.read_units(target, &units, options)?) {
            // A damaged or late member affects only itself. An absent member together with a hit is
            // a partly visible group.
            let absent = |o: &GetOutcome| *o == GetOutcome::Miss(MissCause::Absent);
            self.tally.partial_groups +=
                u64::from(outcome.iter().any(GetOutcome::is_hit) && outcome.iter().any(absent));
            let cause = cause_of(&outcome);
            if cause.is_none() && page == state.hits {
                state.hits += 1;
                state.from[page] = farthest_tier(&outcome, Tier::Memory);
            }
            state.causes[page] = cause;
        }
        Ok(state.hits == run.end)
    }

    /// Read the trailing objects of a prefix of `stop` pages, and end the prefix hit there. If one
    /// is a miss, the whole hit is useless.
    fn read_trailing(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        stop: usize,
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<()> {
        let units: Vec<PageGroup<'_>> = self.pages().trailing_units(&hashes[..stop]).collect();
        let outcomes = self.read_units(target, &units, options)?;
        let whole = outcomes.iter().all(|outcome| cause_of(outcome).is_none());
        for (unit, outcome) in units.iter().zip(&outcomes) {
            state.from[unit.page] = farthest_tier(outcome, state.from[unit.page]);
        }
        let kept = if whole { stop } else { 0 };
        self.tally.stops.dropped += u64::from(!whole);
        // Pages that were read after the stop count as misses.
        for cause in &mut state.causes[kept..state.hits] {
            cause.get_or_insert_with(|| TRAILING.to_owned());
        }
        state.hits = kept;
        Ok(())
    }

    /// Read these units, repeatedly until each has its outcomes.
    fn read_units(
        &mut self,
        target: &mut OpenTarget,
        units: &[PageGroup<'_>],
        options: Options,
    ) -> anyhow::Result<Vec<Vec<GetOutcome>>> {
        let mut outcomes: Vec<Outcomes> = vec![None; units.len()];
        let mut wanted: Vec<usize> = (0..units.len()).collect();
        let mut busy_since = None;
        while !wanted.is_empty() {
            let before = wanted.len();
            let asked: Vec<PageGroup<'_>> = wanted.iter().map(|i| units[*i]).collect();
            for (i, outcome) in wanted.iter().zip(self.get(target, &asked, options)?) {
                outcomes[*i] = outcome;
            }
            wanted.retain(|i| outcomes[*i].is_none());
            self.wait_if_busy(wanted.len(), before, &mut busy_since)?;
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// One get call for these units; checks the content of hits.
    fn get(
        &mut self,
        target: &mut OpenTarget,
        units: &[PageGroup<'_>],
        options: Options,
    ) -> anyhow::Result<Vec<Outcomes>> {
        let mut gets = Vec::with_capacity(units.iter().map(|unit| unit.objects.len()).sum());
        for (object, key) in units.iter().flat_map(|unit| unit.objects.iter().zip(unit.keys())) {
            let destination = Destination::owned(self.buffers.take(object.bytes)?);
            gets.push(Get { key, range: None, destination });
        }
        let options = options.depth(depth_of(units.first().map(|unit| unit.page)));
        let (done, took) = self.meter.call(|| target.get(gets, options));
        self.tally.get_time += took;
        self.tally.get_batches.add(took);
        let mut done = done?.into_iter();
        let mut outcomes = Vec::with_capacity(units.len());
        for unit in units {
            let mut outcome = Vec::with_capacity(unit.objects.len());
            for ((object, key), done) in unit.objects.iter().zip(unit.keys()).zip(done.by_ref()) {
                let instead = GetOutcome::Miss(MissCause::Unreadable);
                match self.or_if_unreachable(target, done.outcome, instead) {
                    Ok(o @ GetOutcome::Hit { bytes, .. }) => {
                        outcome.push(o);
                        self.tally.got(object.pool, bytes);
                        for piece in done.destination.pieces() {
                            self.tally.wrong_bytes += self.plan.content.wrong_bytes(&key, piece);
                        }
                    }
                    Ok(o @ GetOutcome::Miss(_)) => {
                        outcome.push(o);
                        self.tally.pools[object.pool].misses += 1;
                    }
                    Err(error) if error.kind == ErrorKind::Busy => {}
                    Err(error) => return Err(error).context("get failed"),
                }
                self.buffers.put_back(done.destination.into_buffer());
            }
            outcomes.push((outcome.len() == unit.objects.len()).then_some(outcome));
        }
        Ok(outcomes)
    }
}

/// The miss cause of a unit, if it was a miss.
fn cause_of(outcomes: &[GetOutcome]) -> Option<String> {
    outcomes.iter().find_map(|outcome| match outcome {
        GetOutcome::Miss(cause) => Some(cause.to_string()),
        GetOutcome::Hit { .. } => None,
    })
}

/// The farthest tier of any hit, at least `known`.
fn farthest_tier(outcomes: &[GetOutcome], known: Tier) -> Tier {
    let distance =
        |tier: &Tier| [Tier::Memory, Tier::Ssd, Tier::Remote].iter().position(|t| t == tier);
    let tier = |outcome: &GetOutcome| match outcome {
        GetOutcome::Hit { tier, .. } => Some(*tier),
        GetOutcome::Miss(_) => None,
    };
    outcomes.iter().filter_map(tier).chain([known]).max_by_key(distance).unwrap_or(known)
}
