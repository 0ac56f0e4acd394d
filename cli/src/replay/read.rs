//! The second step of a request: read the usable prefix, and check every byte.

use std::ops::Range;

use anyhow::Context;
use pagelith::layouts::ids::PrefixHash;
use pagelith::{Destination, ErrorKind, Get, GetOutcome, MissCause, Options, Tier};

use super::live::Live;
use super::lookup::Found;
use super::pages::Unit;
use super::request::{Course, Harness, depth_of};

/// Why a page is no prefix hit though it was read: what the last pages must have was not got.
const TRAILING: &str = "trailing";

/// One outcome an object of a unit, or none if the store was too busy for one of them.
type Outcomes = Option<Vec<GetOutcome>>;

impl Harness<'_> {
    /// Read what is usable of the prefix: of every page its base group, then what the trailing pools have of the
    /// last ones. `course.hits` is how many pages of it were all there.
    pub(super) fn read_prefix(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        found: &Found,
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<()> {
        for first in (0..found.usable).step_by(self.batch_pages()) {
            let last = found.usable.min(first + self.batch_pages());
            if !self.read_pages(live, hashes, first..last, options, course)? {
                // What lies behind a hole is of no use to a model.
                break;
            }
        }
        if self.pages().has_trailing() {
            let stop = found.stop_within(course.hits);
            self.read_trailing(live, hashes, stop, options, course)?;
        }
        Ok(())
    }

    /// Read the base groups of a run of pages and check them. False if one was a miss.
    fn read_pages(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        run: Range<usize>,
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<bool> {
        let units: Vec<Unit<'_>> = run
            .clone()
            .zip(&hashes[run.clone()])
            .map(|(page, hash)| self.pages().unit(page, *hash))
            .collect();
        for (page, outcome) in run.clone().zip(self.read_units(live, &units, options)?) {
            // A member that was found damaged, or late, is that member's; one that is not there beside one that is
            // would be a page half visible.
            let absent = |o: &GetOutcome| *o == GetOutcome::Miss(MissCause::Absent);
            self.tally.partial_groups +=
                u64::from(outcome.iter().any(GetOutcome::is_hit) && outcome.iter().any(absent));
            let cause = cause_of(&outcome);
            if cause.is_none() && page == course.hits {
                course.hits += 1;
                course.from[page] = farthest(&outcome, Tier::Memory);
            }
            course.causes[page] = cause;
        }
        Ok(course.hits == run.end)
    }

    /// Read what the trailing pools have of a prefix of `stop` pages, and end the prefix hit there. Without it the
    /// whole hit is worth nothing.
    fn read_trailing(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        stop: usize,
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<()> {
        let units: Vec<Unit<'_>> = self.pages().trailing_units(&hashes[..stop]).collect();
        let outcomes = self.read_units(live, &units, options)?;
        let whole = outcomes.iter().all(|outcome| cause_of(outcome).is_none());
        for (unit, outcome) in units.iter().zip(&outcomes) {
            course.from[unit.page] = farthest(outcome, course.from[unit.page]);
        }
        let kept = if whole { stop } else { 0 };
        self.tally.stops.dropped += u64::from(!whole);
        // What was read behind the stop is as useless as what was not.
        for cause in &mut course.causes[kept..course.hits] {
            cause.get_or_insert_with(|| TRAILING.to_owned());
        }
        course.hits = kept;
        Ok(())
    }

    /// Read these units; as often as it takes for each to have its outcomes.
    fn read_units(
        &mut self,
        live: &mut Live,
        units: &[Unit<'_>],
        options: Options,
    ) -> anyhow::Result<Vec<Vec<GetOutcome>>> {
        let mut outcomes: Vec<Outcomes> = vec![None; units.len()];
        let mut wanted: Vec<usize> = (0..units.len()).collect();
        let mut busy_since = None;
        while !wanted.is_empty() {
            let before = wanted.len();
            let asked: Vec<Unit<'_>> = wanted.iter().map(|i| units[*i]).collect();
            for (i, outcome) in wanted.iter().zip(self.get(live, &asked, options)?) {
                outcomes[*i] = outcome;
            }
            wanted.retain(|i| outcomes[*i].is_none());
            self.wait_if_busy(wanted.len(), before, &mut busy_since)?;
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// One get call for these units; contents of hits are checked.
    fn get(
        &mut self,
        live: &mut Live,
        units: &[Unit<'_>],
        options: Options,
    ) -> anyhow::Result<Vec<Outcomes>> {
        let mut gets = Vec::with_capacity(units.iter().map(|unit| unit.objects.len()).sum());
        for (object, key) in units.iter().flat_map(|unit| unit.objects.iter().zip(unit.keys())) {
            let destination = Destination::owned(self.buffers.take(object.bytes)?);
            gets.push(Get { key, range: None, destination });
        }
        let options = Options { depth: depth_of(units.first().map(|unit| unit.page)), ..options };
        let (done, took) = self.meter.call(|| live.get(gets, options));
        self.tally.get_time += took;
        self.tally.get_batches.add(took);
        let mut done = done?.into_iter();
        let mut outcomes = Vec::with_capacity(units.len());
        for unit in units {
            let mut outcome = Vec::with_capacity(unit.objects.len());
            for ((object, key), done) in unit.objects.iter().zip(unit.keys()).zip(done.by_ref()) {
                let instead = GetOutcome::Miss(MissCause::Unreadable);
                match self.unless_out_of_reach(live, done.outcome, instead) {
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
                self.buffers.give(done.destination.into_buffer());
            }
            outcomes.push((outcome.len() == unit.objects.len()).then_some(outcome));
        }
        Ok(outcomes)
    }
}

/// Why a unit was not got, if it was not.
fn cause_of(outcomes: &[GetOutcome]) -> Option<String> {
    outcomes.iter().find_map(|outcome| match outcome {
        GetOutcome::Miss(cause) => Some(cause.to_string()),
        GetOutcome::Hit { .. } => None,
    })
}

/// The farthest tier that anything came from, at least `known`.
fn farthest(outcomes: &[GetOutcome], known: Tier) -> Tier {
    let place = |tier: &Tier| [Tier::Memory, Tier::Ssd, Tier::Remote].iter().position(|t| t == tier);
    let tier = |outcome: &GetOutcome| match outcome {
        GetOutcome::Hit { tier, .. } => Some(*tier),
        GetOutcome::Miss(_) => None,
    };
    outcomes.iter().filter_map(tier).chain([known]).max_by_key(place).unwrap_or(known)
}
