//! The third step of a request: put what was missing.

use std::ops::Range;

use anyhow::{Context, bail};
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, Options, Put, PutDone, PutGroup, PutOutcome, Source};

use super::live::Live;
use super::pages::{Object, Unit};
use super::request::{Course, Harness, depth_of};

/// A unit on its way, and its place in the list of outcomes.
struct OnItsWay<'a> {
    at: usize,
    unit: Unit<'a>,
    group: PutGroup,
}

impl Harness<'_> {
    /// Put the pages behind the prefix hit.
    pub(super) fn write_rest(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<()> {
        if self.pages().is_hybrid() && matches!(live, Live::Own { .. }) {
            return self.write_pool_by_pool(live, hashes, options, course);
        }
        for first in (course.hits..hashes.len()).step_by(self.batch_pages()) {
            let last = hashes.len().min(first + self.batch_pages());
            self.write_pages(live, hashes, first..last, options, course)?;
        }
        // What goes with them follows, of a store that takes no groups in several calls.
        let attached: Vec<Unit<'_>> = self.pages().trailing_units(&hashes[course.hits..]).collect();
        for batch in attached.chunks(self.batch_pages()) {
            self.put_attached(live, batch, options)?;
        }
        Ok(())
    }

    /// Put a run of pages with one call.
    fn write_pages(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        run: Range<usize>,
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<()> {
        let units: Vec<Unit<'_>> =
            run.clone().zip(&hashes[run]).map(|(page, hash)| self.pages().unit(page, *hash)).collect();
        let outcomes = self.put_units(live, &units, None, options)?;
        for (unit, outcome) in units.iter().zip(outcomes) {
            self.settled(course.causes[unit.page].as_deref(), outcome);
        }
        Ok(())
    }

    /// Put what the trailing pools have of these pages, each attached to the base group of its page.
    pub(super) fn put_attached(
        &mut self,
        live: &mut Live,
        units: &[Unit<'_>],
        options: Options,
    ) -> anyhow::Result<()> {
        let base = self.pages().base().first();
        for outcome in self.put_units(live, units, base, options)? {
            let groups = &mut self.tally.groups;
            match outcome {
                PutOutcome::Stored => groups.attached += 1,
                PutOutcome::Waiting => groups.attached_waiting += 1,
                PutOutcome::AlreadyPresent => groups.already_present += 1,
                PutOutcome::Refused => groups.refused += 1,
            }
        }
        Ok(())
    }

    /// Put units, each as a group or attached to an object of its page; as often as it takes for each to have its
    /// outcome.
    fn put_units(
        &mut self,
        live: &mut Live,
        units: &[Unit<'_>],
        base: Option<&Object>,
        options: Options,
    ) -> anyhow::Result<Vec<PutOutcome>> {
        let mut outcomes: Vec<Option<PutOutcome>> = vec![None; units.len()];
        let mut wanted = Vec::with_capacity(units.len());
        for (at, unit) in units.iter().enumerate() {
            let mut objects = Vec::with_capacity(unit.objects.len());
            for (object, key) in unit.objects.iter().zip(unit.keys()) {
                let mut buffer = self.buffers.take(object.bytes)?;
                self.plan.content.fill(&key, &mut buffer);
                objects.push(Put { key, source: Source::owned(buffer) });
            }
            let group = PutGroup { objects, base: base.map(|object| object.key(unit.hash)) };
            wanted.push(OnItsWay { at, unit: *unit, group });
        }
        let mut busy_since = None;
        while !wanted.is_empty() {
            let before = wanted.len();
            wanted = self.put(live, wanted, options, &mut outcomes)?;
            self.wait_if_busy(wanted.len(), before, &mut busy_since)?;
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// One put call; returns the units that the store was too busy for.
    fn put<'u>(
        &mut self,
        live: &mut Live,
        wanted: Vec<OnItsWay<'u>>,
        options: Options,
        outcomes: &mut [Option<PutOutcome>],
    ) -> anyhow::Result<Vec<OnItsWay<'u>>> {
        let options = Options { depth: depth_of(wanted.first().map(|w| w.unit.page)), ..options };
        let mut units = Vec::with_capacity(wanted.len());
        let mut groups = Vec::with_capacity(wanted.len());
        for OnItsWay { at, unit, group } in wanted {
            units.push((at, unit, group.base));
            groups.push(group);
        }
        let (done, took) = self.meter.call(|| live.put(groups, options));
        self.tally.put_time += took;
        let mut done = done?.into_iter();
        let mut busy = Vec::new();
        for (at, unit, base) in units {
            let done: Vec<PutDone> = done.by_ref().take(unit.objects.len()).collect();
            let outcome = self.outcome_of(&unit, &done).transpose();
            match self.unless_out_of_reach(live, outcome, Some(PutOutcome::Refused)) {
                Ok(Some(outcome)) => outcomes[at] = Some(outcome),
                Ok(None) => bail!("a put was not answered page={}", unit.page),
                Err(error) if error.kind == ErrorKind::Busy => {
                    busy.push(OnItsWay { at, unit, group: again(&unit, base, done) });
                    continue;
                }
                Err(error) => return Err(error).context("put failed"),
            }
            done.into_iter().for_each(|done| self.buffers.give(done.source.into_buffer()));
        }
        Ok(busy)
    }

    /// One outcome for a unit, of those of its objects: `Stored` if any was. Counts what was taken.
    fn outcome_of(&mut self, unit: &Unit<'_>, done: &[PutDone]) -> Option<pagelith::Result<PutOutcome>> {
        let mut whole = None;
        for (object, done) in unit.objects.iter().zip(done) {
            if let Ok(PutOutcome::Stored | PutOutcome::Waiting) = done.outcome {
                self.tally.put(object.pool, object.bytes as u64);
            }
            if whole != Some(Ok(PutOutcome::Stored)) {
                whole = Some(done.outcome.clone());
            }
        }
        whole
    }

    /// Count a page that was no prefix hit, now that the store has said whether it had it.
    pub(super) fn settled(&mut self, cause: Option<&str>, outcome: PutOutcome) {
        let groups = &mut self.tally.groups;
        let unasked = match outcome {
            PutOutcome::Stored => {
                groups.committed += 1;
                "absent"
            }
            PutOutcome::Refused => {
                groups.refused += 1;
                "absent"
            }
            PutOutcome::Waiting => "absent",
            PutOutcome::AlreadyPresent => {
                groups.already_present += 1;
                // It lay behind a hole.
                "stranded"
            }
        };
        self.tally.miss(cause.unwrap_or(unasked));
    }
}

/// The group to be put once more, in the memory that came back.
fn again(unit: &Unit<'_>, base: Option<ObjectKey>, done: Vec<PutDone>) -> PutGroup {
    let objects = unit.keys().zip(done).map(|(key, done)| Put { key, source: done.source });
    PutGroup { objects: objects.collect(), base }
}
