//! One request of a replay: look up, read, check, put.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    AlignedBuf, Destination, Done, ErrorKind, Get, GetOutcome, MissCause, Options, Put, PutGroup, PutOutcome,
    Session, Source, Store, Ticket, Tier,
};

use super::pages::MEMBERS;
use super::run::Plan;
use super::tally::Tally;
use crate::meter::Meter;

/// Pages of a batch: what SGLang's HiCache asks its storage for at a time.
const BATCH_PAGES: usize = 128;
/// Most bytes of a batch, so that large objects do not cost the harness more memory than the store.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// How long to wait when the store is busy before asking again.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// How long the store may do nothing at all, busy or silent, before the replay gives up. Twice the longest
/// default deadline of the store, so that the store's own error comes first.
const PATIENCE: Duration = Duration::from_secs(60);

/// An open store and this thread's way into it.
pub(crate) struct Live {
    pub(crate) session: Session,
    pub(crate) store: Store,
}

/// What became of the pages of a request: those before the first that is not a hit are the prefix hit.
struct Pages {
    /// One a page: the cause if it was asked for and missed.
    causes: Vec<Option<String>>,
    /// Length of the prefix hit.
    hits: usize,
    /// Those of them whose every object came from memory.
    from_memory: u64,
}

/// Makes requests, and counts.
pub(crate) struct Harness<'a> {
    plan: &'a Plan,
    pub(crate) tally: Tally,
    pub(crate) meter: Meter,
    buffers: Vec<AlignedBuf>,
}

impl<'a> Harness<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Harness<'a> {
        Harness { plan, tally: Tally::new(), meter: Meter::start(), buffers: Vec::new() }
    }

    fn batch_pages(&self) -> usize {
        (BATCH_BYTES_MAX / (MEMBERS * self.plan.object_bytes)).clamp(1, BATCH_PAGES)
    }

    fn buffer(&mut self) -> anyhow::Result<AlignedBuf> {
        match self.buffers.pop() {
            Some(buffer) => Ok(buffer),
            None => AlignedBuf::new(self.plan.object_bytes).context("no memory for a page"),
        }
    }

    /// Make the request for these blocks.
    pub(crate) fn request(&mut self, live: &mut Live, ids: &[u64]) -> anyhow::Result<()> {
        let keys = self.plan.pages.keys(ids)?;
        let request = live.store.begin_request();
        let options = Options { request: Some(request), ..Options::default() };
        let store = &live.store;
        let (present, _) = self.meter.call(|| store.exists_prefix(&keys, options));
        self.tally.partial_groups += u64::from(present % MEMBERS != 0);
        let mut pages = Pages { causes: vec![None; ids.len()], hits: 0, from_memory: 0 };
        let found = present / MEMBERS;
        for first in (0..found).step_by(self.batch_pages()) {
            let last = found.min(first + self.batch_pages());
            let whole = self.read(live, &keys, first..last, options, &mut pages)?;
            if !whole {
                // What lies behind a hole is of no use to a model.
                break;
            }
        }
        for first in (pages.hits..ids.len()).step_by(self.batch_pages()) {
            let last = ids.len().min(first + self.batch_pages());
            self.write(live, &keys, first..last, options, &mut pages)?;
        }
        let hits = pages.hits as u64;
        self.tally.request(ids.len() as u64, pages.from_memory, hits - pages.from_memory);
        Ok(())
    }

    /// Read a run of pages and check them. False if one was a miss.
    fn read(
        &mut self,
        live: &mut Live,
        keys: &[ObjectKey],
        run: std::ops::Range<usize>,
        options: Options,
        pages: &mut Pages,
    ) -> anyhow::Result<bool> {
        let mut outcomes: Vec<Option<[GetOutcome; MEMBERS]>> = vec![None; run.len()];
        let mut wanted: Vec<usize> = run.clone().collect();
        let mut busy_since = None;
        while !wanted.is_empty() {
            let got = self.get(live, keys, &wanted, options)?;
            let before = wanted.len();
            wanted = got.busy;
            for (page, outcome) in got.pages {
                outcomes[page - run.start] = Some(outcome);
            }
            self.wait_if_busy(&wanted, before, &mut busy_since)?;
        }
        for (page, outcome) in run.clone().zip(outcomes) {
            let Some(outcome) = outcome else { continue };
            // A member that was found damaged, or late, is that member's; one that is not there beside one that is
            // would be a page half visible.
            let absent = |o: &GetOutcome| *o == GetOutcome::Miss(MissCause::Absent);
            self.tally.partial_groups +=
                u64::from(outcome.iter().any(GetOutcome::is_hit) && outcome.iter().any(absent));
            let cause = outcome.iter().find_map(|o| match o {
                GetOutcome::Miss(cause) => Some(cause.to_string()),
                GetOutcome::Hit { .. } => None,
            });
            if cause.is_none() && page == pages.hits {
                pages.hits += 1;
                let memory = |o: &GetOutcome| match o {
                    GetOutcome::Hit { tier, .. } => *tier == Tier::Memory,
                    GetOutcome::Miss(_) => false,
                };
                pages.from_memory += u64::from(outcome.iter().all(memory));
            }
            pages.causes[page] = cause;
        }
        Ok(pages.hits == run.end)
    }

    /// One get call for these pages; contents of hits are checked.
    fn get(
        &mut self,
        live: &mut Live,
        keys: &[ObjectKey],
        wanted: &[usize],
        options: Options,
    ) -> anyhow::Result<Got> {
        let mut gets = Vec::with_capacity(wanted.len() * MEMBERS);
        for page in wanted {
            for key in &keys[page * MEMBERS..][..MEMBERS] {
                gets.push(Get { key: *key, range: None, destination: Destination::owned(self.buffer()?) });
            }
        }
        let options = Options { depth: depth_of(wanted), ..options };
        let session = &mut live.session;
        let (done, took) = self.meter.call(|| {
            let ticket = session.submit_get(gets, options);
            wait(session, ticket)
        });
        self.tally.get_time += took;
        self.tally.get_batches.add(took);
        let Done::Get(done) = done? else { bail!("a get was answered with something else") };
        let mut got = Got { pages: Vec::new(), busy: Vec::new() };
        let mut done = done.into_iter();
        for page in wanted {
            let mut outcome = [None; MEMBERS];
            let mut busy = false;
            for (member, done) in done.by_ref().take(MEMBERS).enumerate() {
                match done.outcome {
                    Ok(o) => outcome[member] = Some(o),
                    Err(error) if error.kind == ErrorKind::Busy => busy = true,
                    Err(error) => return Err(error).context("get failed"),
                }
                let key = &keys[page * MEMBERS + member];
                if let Some(GetOutcome::Hit { bytes, .. }) = outcome[member] {
                    self.tally.bytes_got += bytes;
                    for piece in done.destination.pieces() {
                        self.tally.wrong_bytes += self.plan.content.wrong_bytes(key, piece);
                    }
                }
                self.buffers.extend(done.destination.into_buffer());
            }
            match outcome {
                [Some(k), Some(v)] if !busy => got.pages.push((*page, [k, v])),
                _ => got.busy.push(*page),
            }
        }
        Ok(got)
    }

    /// Put a run of pages that were missing.
    fn write(
        &mut self,
        live: &mut Live,
        keys: &[ObjectKey],
        run: std::ops::Range<usize>,
        options: Options,
        pages: &mut Pages,
    ) -> anyhow::Result<()> {
        let mut wanted: Vec<(usize, PutGroup)> = Vec::with_capacity(run.len());
        for page in run {
            let mut objects = Vec::with_capacity(MEMBERS);
            for key in &keys[page * MEMBERS..][..MEMBERS] {
                let mut buffer = self.buffer()?;
                self.plan.content.fill(key, &mut buffer);
                objects.push(Put { key: *key, source: Source::owned(buffer) });
            }
            wanted.push((page, PutGroup { objects }));
        }
        let mut busy_since = None;
        while !wanted.is_empty() {
            let before = wanted.len();
            wanted = self.put(live, wanted, options, pages)?;
            self.wait_if_busy(&wanted, before, &mut busy_since)?;
        }
        Ok(())
    }

    /// One put call; returns the pages that the store was too busy for.
    fn put(
        &mut self,
        live: &mut Live,
        wanted: Vec<(usize, PutGroup)>,
        options: Options,
        pages: &mut Pages,
    ) -> anyhow::Result<Vec<(usize, PutGroup)>> {
        let (numbers, groups): (Vec<usize>, Vec<PutGroup>) = wanted.into_iter().unzip();
        let keys: Vec<ObjectKey> = groups.iter().flat_map(|g| g.objects.iter().map(|o| o.key)).collect();
        let options = Options { depth: depth_of(&numbers), ..options };
        let session = &mut live.session;
        let (done, took) = self.meter.call(|| {
            let ticket = session.submit_put(groups, options);
            wait(session, ticket)
        });
        self.tally.put_time += took;
        let Done::Put(done) = done? else { bail!("a put was answered with something else") };
        let mut busy = Vec::new();
        let mut done = done.into_iter().zip(keys);
        for page in numbers {
            let mut objects = Vec::with_capacity(MEMBERS);
            let mut outcome = None;
            for (done, key) in done.by_ref().take(MEMBERS) {
                objects.push(Put { key, source: done.source });
                outcome = Some(done.outcome);
            }
            match outcome {
                Some(Err(error)) if error.kind == ErrorKind::Busy => {
                    busy.push((page, PutGroup { objects }));
                    continue;
                }
                Some(Err(error)) => return Err(error).context("put failed"),
                Some(Ok(outcome)) => self.settled(pages.causes[page].as_deref(), outcome),
                None => bail!("a put was not answered page={page}"),
            }
            self.buffers.extend(objects.into_iter().filter_map(|o| o.source.into_buffer()));
        }
        Ok(busy)
    }

    /// Count a page that was no prefix hit, now that the store has said whether it had it.
    fn settled(&mut self, cause: Option<&str>, outcome: PutOutcome) {
        let unasked = match outcome {
            PutOutcome::Stored => {
                self.tally.bytes_put += (MEMBERS * self.plan.object_bytes) as u64;
                "absent"
            }
            PutOutcome::Refused => "absent",
            // It lay behind a hole.
            PutOutcome::AlreadyPresent => "stranded",
        };
        self.tally.miss(cause.unwrap_or(unasked));
    }

    /// Wait a little if anything was refused as busy, and not for ever if nothing at all gets through.
    fn wait_if_busy<T>(
        &mut self,
        busy: &[T],
        before: usize,
        since: &mut Option<Instant>,
    ) -> anyhow::Result<()> {
        if busy.is_empty() {
            return Ok(());
        }
        if busy.len() < before {
            *since = None;
        }
        let start = *since.get_or_insert_with(Instant::now);
        if start.elapsed() > PATIENCE {
            bail!("the store stays busy pages={} waited_s={}", busy.len(), PATIENCE.as_secs());
        }
        self.tally.busy_waits += 1;
        std::thread::sleep(BUSY_PAUSE);
        Ok(())
    }
}

struct Got {
    pages: Vec<(usize, [GetOutcome; MEMBERS])>,
    busy: Vec<usize>,
}

/// Chain depth of a batch's first page.
fn depth_of(pages: &[usize]) -> u32 {
    pages.first().map_or(0, |page| u32::try_from(*page).unwrap_or(u32::MAX))
}

fn wait(session: &mut Session, ticket: Ticket) -> anyhow::Result<Done> {
    session.wait(ticket, PATIENCE).with_context(|| format!("no answer waited_s={}", PATIENCE.as_secs()))
}
