//! The third step of a request whose pages have several pools: they are put one after the other, in
//! the order of a hybrid controller. Trailing objects come first and wait for their pages. Then
//! follow, batch by batch, the other pools and then the anchor pool, and the group of each page is
//! committed.

use std::ops::Range;

use anyhow::{Context, bail};
use pagelith::layouts::align::align_up;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    AlignedBuf, CompletedBatch, Error, ErrorKind, Group, Options, PutOutcome, PutSlice, Session,
    Store,
};

use super::pages::{Object, PageGroup};
use super::plan::Target;
use super::request::{BUSY_PAUSE, RequestRunner, RequestState, depth_of};
use super::target::{OpenTarget, wait};

/// Divisor of the arena for the objects of a batch that are not visible yet. The store permits half
/// of the arena, and objects that wait for their base must leave room for that base.
const WAITING_SHARE: u64 = 4;

/// The open base group of a page.
struct OpenGroup<'a> {
    unit: PageGroup<'a>,
    group: Group,
}

/// The content of an object, ready to put.
struct Filled {
    key: ObjectKey,
    object: Object,
    buffer: AlignedBuf,
}

impl RequestRunner<'_> {
    /// Put the pages after the prefix hit, pool by pool.
    pub(super) fn write_pool_by_pool(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        options: Options,
        state: &mut RequestState,
    ) -> anyhow::Result<()> {
        if state.hits == hashes.len() {
            return Ok(());
        }
        let arena = match &self.plan.target {
            Target::Embedded(config) => config.arena_bytes(),
            Target::Attached(..) => 0,
        };
        let waiting_max = arena / WAITING_SHARE;
        let page: u64 =
            self.pages().base().iter().map(|object| align_up(object.bytes as u64)).sum();
        let batch = self.batch_pages().min(usize::try_from(waiting_max / page).unwrap_or(1)).max(1);
        let mut attached: Vec<PageGroup<'_>> = self.pages().trailing_units(hashes).collect();
        for first in (state.hits..hashes.len()).step_by(batch) {
            let last = hashes.len().min(first + batch);
            let (now, later): (Vec<_>, Vec<_>) =
                attached.into_iter().partition(|unit| unit.page < last);
            attached = later;
            let mut room = waiting_max;
            let (before, after): (Vec<_>, Vec<_>) = now.into_iter().partition(|unit| {
                let left = room.checked_sub(unit.bytes() as u64);
                room = left.unwrap_or(room);
                left.is_some()
            });
            self.put_attached(target, &before, options)?;
            self.write_groups(target, hashes, first..last, options, state)?;
            // Objects without room to wait are put after their bases.
            self.put_attached(target, &after, options)?;
        }
        Ok(())
    }

    /// Put the base groups of a run of pages: the other pools, then the anchor pool, then commit.
    fn write_groups(
        &mut self,
        target: &mut OpenTarget,
        hashes: &[PrefixHash],
        run: Range<usize>,
        options: Options,
        state: &RequestState,
    ) -> anyhow::Result<()> {
        let OpenTarget::Embedded { session, store } = target else {
            bail!("an attached store takes no groups in several calls")
        };
        let anchor = self.pages().base().first().map(|object| object.pool);
        let mut open: Vec<OpenGroup<'_>> = Vec::with_capacity(run.len());
        for (page, hash) in run.clone().zip(&hashes[run]) {
            let unit = self.pages().unit(page, *hash);
            let group = self.begin_group(store, unit, options)?;
            self.put_missing(&group, |object| Some(object.pool) != anchor)?;
            open.push(group);
        }
        for page in &open {
            self.put_missing(page, |object| Some(object.pool) == anchor)?;
        }
        // The last page first, so that the heads of chains are younger in the log than later pages.
        for page in open.iter().rev() {
            if self.crash_now && page.unit.page + 1 == hashes.len() {
                // The simulated crash comes before this commit.
                self.count_outcome(state.causes[page.unit.page].as_deref(), PutOutcome::Waiting);
                continue;
            }
            let outcome = self.commit(session, page, options)?;
            self.count_outcome(state.causes[page.unit.page].as_deref(), outcome);
        }
        Ok(())
    }

    fn begin_group<'a>(
        &mut self,
        store: &Store,
        unit: PageGroup<'a>,
        options: Options,
    ) -> anyhow::Result<OpenGroup<'a>> {
        let required: Vec<ObjectKey> = unit.keys().collect();
        let options = options.depth(depth_of(Some(unit.page)));
        let mut busy_since = None;
        loop {
            let (group, took) = self.meter.call(|| store.begin_group(&required, options));
            self.tally.put_time += took;
            match group {
                Ok(group) => return Ok(OpenGroup { unit, group }),
                Err(error) if error.kind == ErrorKind::Busy => {
                    self.wait_if_busy(1, 1, &mut busy_since)?
                }
                Err(error) => return Err(error).context("begin_group failed"),
            }
        }
    }

    /// Put the missing objects of a group for which `chosen` returns true, with one call.
    fn put_missing(
        &mut self,
        page: &OpenGroup<'_>,
        chosen: impl Fn(&Object) -> bool,
    ) -> anyhow::Result<()> {
        let (missing, took) = self.meter.call(|| page.group.missing());
        self.tally.put_time += took;
        let mut wanted: Vec<Filled> = Vec::with_capacity(missing.len());
        for (object, key) in page.unit.objects.iter().zip(page.unit.keys()) {
            if chosen(object) && missing.contains(&key) {
                let mut buffer = self.buffers.take(object.bytes)?;
                self.plan.content.fill(&key, &mut buffer);
                wanted.push(Filled { key, object: *object, buffer });
            }
        }
        let mut busy_since = None;
        while !wanted.is_empty() {
            let before = wanted.len();
            let mut busy = Vec::new();
            for (filled, outcome) in self.put_in(&page.group, wanted) {
                let Object { pool, bytes, .. } = filled.object;
                match outcome {
                    Ok(PutOutcome::Waiting) => self.tally.put(pool, bytes as u64),
                    // Another client has put the object.
                    Ok(_) => {}
                    Err(error) if error.kind == ErrorKind::Busy => {
                        busy.push(filled);
                        continue;
                    }
                    // The group's deadline has passed: the commit reports that.
                    Err(error) if error.kind == ErrorKind::Unavailable => {}
                    Err(error) => return Err(error).context("put of a group's object failed"),
                }
                self.buffers.put_back(Some(filled.buffer));
            }
            wanted = busy;
            self.wait_if_busy(wanted.len(), before, &mut busy_since)?;
        }
        Ok(())
    }

    /// One put call; returns each object with its outcome.
    fn put_in(
        &mut self,
        group: &Group,
        wanted: Vec<Filled>,
    ) -> Vec<(Filled, Result<PutOutcome, Error>)> {
        let pieces: Vec<[&[u8]; 1]> = wanted.iter().map(|filled| [&filled.buffer[..]]).collect();
        let mut objects = Vec::with_capacity(wanted.len());
        for (filled, pieces) in wanted.iter().zip(&pieces) {
            objects.push(PutSlice { key: filled.key, pieces });
        }
        let options = Options::default().timeout(BUSY_PAUSE);
        let (outcomes, took) = self.meter.call(|| group.put(&objects, options));
        self.tally.put_time += took;
        wanted.into_iter().zip(outcomes).collect()
    }

    /// Make a group visible. Members that were evicted meanwhile are put again.
    fn commit(
        &mut self,
        session: &mut Session,
        page: &OpenGroup<'_>,
        options: Options,
    ) -> anyhow::Result<PutOutcome> {
        let options = options.depth(depth_of(Some(page.unit.page)));
        let mut busy_since = None;
        loop {
            let (done, took) = self.meter.call(|| {
                let ticket = session.submit_commit(page.group.id(), options);
                wait(session, ticket)
            });
            self.tally.put_time += took;
            let CompletedBatch::Put(done) = done? else {
                bail!("a commit returned another result")
            };
            let mut outcomes = done.into_iter().map(|done| done.outcome);
            let stored = Ok(PutOutcome::Stored);
            match outcomes.by_ref().reduce(|one, other| if one == stored { one } else { other }) {
                // The group is no longer open: its deadline has passed.
                None => return Ok(PutOutcome::Waiting),
                Some(Ok(PutOutcome::Waiting)) => {
                    self.put_missing(page, |_| true)?;
                    self.wait_if_busy(1, 1, &mut busy_since)?;
                }
                Some(Ok(outcome)) => return Ok(outcome),
                Some(Err(error)) if error.kind == ErrorKind::Busy => {
                    self.wait_if_busy(1, 1, &mut busy_since)?
                }
                Some(Err(error)) => return Err(error).context("commit failed"),
            }
        }
    }
}
