//! The third step of a request: putting the missing pages.

use std::ops::Range;

use anyhow::{Context, bail};
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pagelith::{CompletedPut, ErrorKind, Options, Put, PutGroup, PutOutcome, Source};

use super::pages::{Object, PageGroup};
use super::request::{RequestRunner, RequestState, depth_of};
use super::target::OpenTarget;

/// A unit to put, and its index in the list of outcomes.
struct PendingPut<'a> {
    at: usize,
    unit: PageGroup<'a>,
    group: PutGroup,
}

impl RequestRunner<'_> {
    /// Put the pages after the prefix hit.
    pub(super) fn write_rest(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<()> {
        if self.pages().is_hybrid() && matches!(target, OpenTarget::Embedded { .. }) {
            return self.write_pool_by_pool(target, hashes, options, state);
        }
        for first in (state.hits..hashes.len()).step_by(self.batch_pages()) {
            let last = hashes.len().min(first + self.batch_pages());
            self.write_pages(target, hashes, first..last, options, state)?;
        }
        // An attached store takes no groups in several calls, so trailing objects follow their
        // pages.
        let attached: Vec<PageGroup<'_>> =
            self.pages().trailing_units(&hashes[state.hits..]).collect();
        for batch in attached.chunks(self.batch_pages()) {
            self.put_attached(target, batch, options)?;
        }
        Ok(())
    }

    /// Put a run of pages with one call.
    fn write_pages(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        run: Range<usize>,
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<()> {
        let units: Vec<PageGroup<'_>> = run
            .clone()
            .zip(&hashes[run])
            .map(|(page, hash)| self.pages().unit(page, *hash))
            .collect();
        let outcomes = self.put_units(target, &units, None, options)?;
        for (unit, outcome) in units.iter().zip(outcomes) {
            self.count_outcome(state.causes[unit.page].as_deref(), outcome);
        }
        Ok(())
    }

    /// Put the trailing objects of these pages, each unit attached to the base group of its page.
    pub(super) fn put_attached(
        &mut self,
        target: &mut OpenTarget,
        units: &[PageGroup<'_>],
        options: Options,
    ) -> anyhow::Result<()> {
        let base = self.pages().base().first();
        for outcome in self.put_units(target, units, base, options)? {
            let groups = &mut self.tally.groups;
            match outcome {
                PutOutcome::Stored => groups.attached += 1,
                PutOutcome::Waiting => groups.attached_waiting += 1,
                PutOutcome::AlreadyPresent => groups.already_present += 1,
                _ => groups.refused += 1,
            }
        }
        Ok(())
    }

    /// Put units, each as a group or attached to an object of its page, repeatedly until each has
    /// its outcome.
    fn put_units(
        &mut self,
        target: &mut OpenTarget,
        units: &[PageGroup<'_>],
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
            wanted.push(PendingPut { at, unit: *unit, group });
        }
        let mut busy_since = None;
        while !wanted.is_empty() {
            let before = wanted.len();
            wanted = self.put(target, wanted, options, &mut outcomes)?;
            self.wait_if_busy(wanted.len(), before, &mut busy_since)?;
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// One put call; returns the units that were refused as busy.
    fn put<'u>(
        &mut self,
        target: &mut OpenTarget,
        wanted: Vec<PendingPut<'u>>,
        options: Options,
        outcomes: &mut [Option<PutOutcome>],
    ) -> anyhow::Result<Vec<PendingPut<'u>>> {
        let options = options.depth(depth_of(wanted.first().map(|w| w.unit.page)));
        let mut units = Vec::with_capacity(wanted.len());
        let mut groups = Vec::with_capacity(wanted.len());
        for PendingPut { at, unit, group } in wanted {
            units.push((at, unit, group.base));
            groups.push(group);
        }
        let (done, took) = self.meter.call(|| target.put(groups, options));
        self.tally.put_time += took;
        let mut done = done?.into_iter();
        let mut busy = Vec::new();
        for (at, unit, base) in units {
            let done: Vec<CompletedPut> = done.by_ref().take(unit.objects.len()).collect();
            let outcome = self.outcome_of(&unit, &done).transpose();
            match self.or_if_unreachable(target, outcome, Some(PutOutcome::Refused)) {
                Ok(Some(outcome)) => outcomes[at] = Some(outcome),
                Ok(None) => bail!("a put has no outcome page={}", unit.page),
                Err(error) if error.kind == ErrorKind::Busy => {
                    busy.push(PendingPut { at, unit, group: retry_group(&unit, base, done) });
                    continue;
                }
                Err(error) => return Err(error).context("put failed"),
            }
            done.into_iter().for_each(|done| self.buffers.put_back(done.source.into_buffer()));
        }
        Ok(busy)
    }

    /// The outcome of a unit from those of its objects: `Stored` if any was. Counts the accepted
    /// objects.
    fn outcome_of(
        &mut self,
        unit: &PageGroup<'_>,
        done: &[CompletedPut],
    ) -> Option<pagelith::Result<PutOutcome>> {
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

    /// Count a page that was no prefix hit, by the outcome of its put.
    pub(super) fn count_outcome(&mut self, cause: Option<&str>, outcome: PutOutcome) {
        let groups = &mut self.tally.groups;
        let default_cause = match outcome {
            PutOutcome::Stored => {
                groups.committed += 1;
                "absent"
            }
            PutOutcome::Waiting => "absent",
            PutOutcome::AlreadyPresent => {
                groups.already_present += 1;
                // Present, but after a missing page.
                "stranded"
            }
            _ => {
                groups.refused += 1;
                "absent"
            }
        };
        self.tally.miss(cause.unwrap_or(default_cause));
    }
}

/// The group for another try, in the returned buffers.
fn retry_group(unit: &PageGroup<'_>, base: Option<ObjectKey>, done: Vec<CompletedPut>) -> PutGroup {
    let objects = unit.keys().zip(done).map(|(key, done)| Put { key, source: done.source });
    PutGroup { objects: objects.collect(), base }
}
