//! The third step of a request where a page has several pools: they are put one after the other, in a hybrid
//! controller's order. What is attached to pages comes first and waits for them; then come, batch by batch, the
//! sidecars; then the pool that they go with, and each page's group is committed.

use std::ops::Range;

use anyhow::{Context, bail};
use pagelith::layouts::align::align_up;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::ObjectKey;
use pagelith::{AlignedBuf, Done, Error, ErrorKind, Group, Options, PutOutcome, PutSlice, Session, Store};

use super::live::{Live, wait};
use super::pages::{Object, Unit};
use super::request::{BUSY_PAUSE, Course, Harness, depth_of};
use super::run::On;

/// The part of the arena that a batch may fill with what is not visible yet: the store lets half of it wait, and
/// what waits for its base must leave room for that.
const WAITING_SHARE: u64 = 4;

/// The base group of a page, begun.
struct Begun<'a, 's> {
    unit: Unit<'a>,
    group: Group<'s>,
}

/// An object's bytes, ready to be put.
struct Filled {
    key: ObjectKey,
    object: Object,
    buffer: AlignedBuf,
}

impl Harness<'_> {
    /// Put the pages behind the prefix hit, pool by pool.
    pub(super) fn write_pool_by_pool(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        options: Options,
        course: &mut Course,
    ) -> anyhow::Result<()> {
        if course.hits == hashes.len() {
            return Ok(());
        }
        let arena = match &self.plan.on {
            On::Own(config) => config.arena_bytes(),
            On::Attached(..) => 0,
        };
        let waiting_max = arena / WAITING_SHARE;
        let page: u64 = self.pages().base().iter().map(|object| align_up(object.bytes as u64)).sum();
        let batch = self.batch_pages().min(usize::try_from(waiting_max / page).unwrap_or(1)).max(1);
        let mut attached: Vec<Unit<'_>> = self.pages().trailing_units(hashes).collect();
        for first in (course.hits..hashes.len()).step_by(batch) {
            let last = hashes.len().min(first + batch);
            let (now, later): (Vec<_>, Vec<_>) = attached.into_iter().partition(|unit| unit.page < last);
            attached = later;
            let mut room = waiting_max;
            let (before, after): (Vec<_>, Vec<_>) = now.into_iter().partition(|unit| {
                let left = room.checked_sub(unit.bytes() as u64);
                room = left.unwrap_or(room);
                left.is_some()
            });
            self.put_attached(live, &before, options)?;
            self.write_groups(live, hashes, first..last, options, course)?;
            // What is too large to wait is put when nothing has to wait any more.
            self.put_attached(live, &after, options)?;
        }
        Ok(())
    }

    /// Put the base groups of a run of pages: what goes with the first pool, then the first pool, then commit.
    fn write_groups(
        &mut self,
        live: &mut Live,
        hashes: &[PrefixHash],
        run: Range<usize>,
        options: Options,
        course: &Course,
    ) -> anyhow::Result<()> {
        let Live::Own { session, store } = live else { bail!("no groups in several calls there") };
        let first_pool = self.pages().base().first().map(|object| object.pool);
        let mut begun: Vec<Begun<'_, '_>> = Vec::with_capacity(run.len());
        for (page, hash) in run.clone().zip(&hashes[run]) {
            let unit = self.pages().unit(page, *hash);
            let begun_now = self.begin(store, unit, options)?;
            self.put_missing(&begun_now, |object| Some(object.pool) != first_pool)?;
            begun.push(begun_now);
        }
        for page in &begun {
            self.put_missing(page, |object| Some(object.pool) == first_pool)?;
        }
        // The last page first: heads of chains become younger in the log than what follows them.
        for page in begun.iter().rev() {
            if self.dies && page.unit.page + 1 == hashes.len() {
                // The process dies before it comes to this.
                self.settled(course.causes[page.unit.page].as_deref(), PutOutcome::Waiting);
                continue;
            }
            let outcome = self.commit(session, page, options)?;
            self.settled(course.causes[page.unit.page].as_deref(), outcome);
        }
        Ok(())
    }

    fn begin<'a, 's>(
        &mut self,
        store: &'s Store,
        unit: Unit<'a>,
        options: Options,
    ) -> anyhow::Result<Begun<'a, 's>> {
        let required: Vec<ObjectKey> = unit.keys().collect();
        let options = Options { depth: depth_of(Some(unit.page)), ..options };
        let mut busy_since = None;
        loop {
            let (group, took) = self.meter.call(|| store.begin_group(&required, options));
            self.tally.put_time += took;
            match group {
                Ok(group) => return Ok(Begun { unit, group }),
                Err(error) if error.kind == ErrorKind::Busy => self.wait_if_busy(1, 1, &mut busy_since)?,
                Err(error) => return Err(error).context("begin_group failed"),
            }
        }
    }

    /// Put, with one call, those of a group's objects that are `chosen` and that the store has not.
    fn put_missing(&mut self, page: &Begun<'_, '_>, chosen: impl Fn(&Object) -> bool) -> anyhow::Result<()> {
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
                    // Somebody else's bytes are there.
                    Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent | PutOutcome::Refused) => {}
                    Err(error) if error.kind == ErrorKind::Busy => {
                        busy.push(filled);
                        continue;
                    }
                    // Its time is over: the commit will say so.
                    Err(error) if error.kind == ErrorKind::Unavailable => {}
                    Err(error) => return Err(error).context("put of a group's object failed"),
                }
                self.buffers.give(Some(filled.buffer));
            }
            wanted = busy;
            self.wait_if_busy(wanted.len(), before, &mut busy_since)?;
        }
        Ok(())
    }

    /// One put call; each object with its outcome.
    fn put_in(&mut self, group: &Group<'_>, wanted: Vec<Filled>) -> Vec<(Filled, Result<PutOutcome, Error>)> {
        let pieces: Vec<[&[u8]; 1]> = wanted.iter().map(|filled| [&filled.buffer[..]]).collect();
        let mut objects = Vec::with_capacity(wanted.len());
        for (filled, pieces) in wanted.iter().zip(&pieces) {
            objects.push(PutSlice { key: filled.key, pieces });
        }
        let options = Options { timeout: Some(BUSY_PAUSE), ..Options::default() };
        let (outcomes, took) = self.meter.call(|| group.put(&objects, options));
        self.tally.put_time += took;
        wanted.into_iter().zip(outcomes).collect()
    }

    /// Make a group visible. What left the store since it was found there is put after all.
    fn commit(
        &mut self,
        session: &mut Session,
        page: &Begun<'_, '_>,
        options: Options,
    ) -> anyhow::Result<PutOutcome> {
        let options = Options { depth: depth_of(Some(page.unit.page)), ..options };
        let mut busy_since = None;
        loop {
            let (done, took) = self.meter.call(|| {
                let ticket = session.submit_commit(page.group.id(), options);
                wait(session, ticket)
            });
            self.tally.put_time += took;
            let Done::Put(done) = done? else { bail!("a commit was answered with something else") };
            let mut outcomes = done.into_iter().map(|done| done.outcome);
            let stored = Ok(PutOutcome::Stored);
            match outcomes.by_ref().reduce(|one, other| if one == stored { one } else { other }) {
                // Open no more: its deadline was over.
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
