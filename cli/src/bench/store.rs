//! The store's side of a measurement.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use pagelith::config::ValidConfig;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    AlignedBuf, Destination, Done, ErrorKind, Get, GetDone, GetOutcome, Options, Put, PutGroup, Session,
    Source, Store, Ticket, Tier,
};

use super::limit::EXISTS_BATCHES;
use super::objects::Objects;
use super::round::{Round, Timer};
use super::{BenchTier, Op, Shape};
use crate::content::Content;
use crate::rng::SplitMix64;

/// Longer than any of the store's own deadlines.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long to wait when the store is busy before asking again.
const BUSY_PAUSE: Duration = Duration::from_micros(200);

/// An open store, filled, and what is needed to go on.
pub(super) struct Bench {
    shape: Shape,
    session: Session,
    store: Store,
    objects: Objects,
    rng: SplitMix64,
    next_new: u64,
    /// Objects' bytes on their way in, or room for those on their way out.
    buffers: Vec<AlignedBuf>,
    /// Gets in flight, the oldest first, and when each was begun.
    tickets: VecDeque<(Ticket, Instant)>,
}

/// What is kept while the store is closed.
pub(super) struct Paused {
    rng: SplitMix64,
    next_new: u64,
    buffers: Vec<AlignedBuf>,
}

impl Bench {
    /// Open the store and fill it as the measurement needs it.
    pub(super) fn open(shape: Shape, config: ValidConfig) -> anyhow::Result<Bench> {
        let mut bench = Bench::begin(shape, config.clone())?;
        crate::said::opened(bench.store.opened());
        // Also before puts: the first lap allocates, files and memory; what is measured goes on for ever.
        if bench.found() < shape.objects {
            bench.fill()?;
        }
        if shape.op == Op::Put {
            return Ok(bench);
        }
        if shape.tier == BenchTier::Ssd {
            // What was written last is still in the write buffer.
            let paused = bench.pause()?;
            bench = Bench::resume(shape, config, paused)?;
        }
        let found = bench.found();
        if found < shape.objects {
            bail!("the store could not keep all that is to be read objects={} found={found}", shape.objects);
        }
        Ok(bench)
    }

    /// How many of the objects are here, from the first on.
    fn found(&self) -> u64 {
        let keys: Vec<ObjectKey> = (0..self.shape.objects).map(|i| self.objects.key(i)).collect();
        self.store.exists_prefix(&keys, Options::default()) as u64
    }

    fn begin(shape: Shape, config: ValidConfig) -> anyhow::Result<Bench> {
        let mut buffers = Vec::new();
        let content = Content::new(shape.seed);
        let objects = Objects::new(shape.object_bytes, shape.seed)?;
        // For the gets in flight, and a batch of puts beside them.
        for i in 0..shape.batch * (shape.depth + 1) {
            let mut buffer = AlignedBuf::new(shape.object_bytes).context("no memory for a batch")?;
            content.fill(&objects.key(i as u64), &mut buffer);
            buffers.push(buffer);
        }
        Bench::resume(
            shape,
            config,
            Paused { rng: SplitMix64::new(shape.seed), next_new: shape.objects, buffers },
        )
    }

    /// Open the store and go on.
    pub(super) fn resume(shape: Shape, config: ValidConfig, paused: Paused) -> anyhow::Result<Bench> {
        let Paused { rng, next_new, buffers } = paused;
        let store = Store::open(config).context("cannot open the store")?;
        let session = store.session().context("cannot begin a session")?;
        let objects = Objects::new(shape.object_bytes, shape.seed)?;
        Ok(Bench { shape, session, store, objects, rng, next_new, buffers, tickets: VecDeque::new() })
    }

    /// What moves the bytes.
    pub(super) fn io(&self) -> String {
        crate::said::io(self.store.opened())
    }

    /// Close the store; what it takes to go on.
    pub(super) fn pause(self) -> anyhow::Result<Paused> {
        let Bench { session, store, rng, next_new, buffers, .. } = self;
        drop(session);
        store.close().context("cannot close the store")?;
        Ok(Paused { rng, next_new, buffers })
    }

    /// One round.
    pub(super) fn round(&mut self) -> anyhow::Result<Round> {
        match self.shape.op {
            Op::Put => self.puts(),
            Op::Get => self.gets(),
            Op::Mixed => self.mixed(),
            Op::Exists => self.exists(),
        }
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        self.next_new = 0;
        while self.next_new < self.shape.objects {
            self.put_batch()?;
        }
        self.store.flush(Options::default()).context("cannot flush")?;
        Ok(())
    }

    /// Put a batch of objects that were never put.
    fn put_batch(&mut self) -> anyhow::Result<()> {
        let numbers = self.next_new..self.next_new + self.shape.batch as u64;
        self.next_new = numbers.end;
        let keys: Vec<ObjectKey> = numbers.map(|i| self.objects.key(i)).collect();
        self.put(&keys)
    }

    /// Put a batch, waiting where the store is busy.
    fn put(&mut self, keys: &[ObjectKey]) -> anyhow::Result<()> {
        let mut wanted: Vec<Put> = Vec::with_capacity(keys.len());
        for key in keys {
            let buffer = self.buffers.pop().context("more puts than buffers")?;
            wanted.push(Put { key: *key, source: Source::owned(buffer) });
        }
        while !wanted.is_empty() {
            let keys: Vec<ObjectKey> = wanted.iter().map(|put| put.key).collect();
            let groups = wanted.drain(..).map(|put| PutGroup::new(vec![put])).collect();
            let ticket = self.session.submit_put(groups, Options::default());
            let Done::Put(done) = self.wait(ticket)? else { bail!("a put was answered with something else") };
            for (key, done) in keys.into_iter().zip(done) {
                match done.outcome {
                    Ok(_) => self.buffers.extend(done.source.into_buffer()),
                    Err(error) if error.kind == ErrorKind::Busy => {
                        wanted.push(Put { key, source: done.source })
                    }
                    Err(error) => return Err(error).context("put failed"),
                }
            }
            if !wanted.is_empty() {
                std::thread::sleep(BUSY_PAUSE);
            }
        }
        Ok(())
    }

    fn wait(&mut self, ticket: Ticket) -> anyhow::Result<Done> {
        self.session.wait(ticket, PATIENCE).context("no answer")
    }

    /// New objects, until all of them are durable where there is an SSD tier.
    fn puts(&mut self) -> anyhow::Result<Round> {
        let mut timer = Timer::start(self.shape.round);
        let mut objects = 0;
        while !timer.is_over() {
            let begun = Instant::now();
            self.put_batch()?;
            timer.ended(begun);
            objects += self.shape.batch as u64;
        }
        self.flush()?;
        Ok(timer.stop(objects, objects * self.shape.object_bytes as u64))
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        if self.shape.tier == BenchTier::Ssd {
            self.store.flush(Options::default()).context("cannot flush")?;
        }
        Ok(())
    }

    fn gets(&mut self) -> anyhow::Result<Round> {
        let mut timer = Timer::start(self.shape.round);
        let mut objects = 0;
        loop {
            while self.tickets.len() < self.shape.depth && !timer.is_over() {
                self.submit_get(0..self.shape.objects)?;
            }
            if self.tickets.is_empty() {
                break;
            }
            objects += self.take_gets(&mut timer)?;
        }
        Ok(timer.stop(objects, objects * self.shape.object_bytes as u64))
    }

    /// A batch of puts for each batch of gets that ends. What is read was neither put a moment ago nor is it about to be
    /// evicted.
    fn mixed(&mut self) -> anyhow::Result<Round> {
        let mut timer = Timer::start(self.shape.round);
        let quarter = self.shape.objects / 4;
        // What is in the write buffer still would come from memory.
        let buffered = match self.shape.tier {
            BenchTier::Dram => 0,
            BenchTier::Ssd => self.store.opened().memory.arena / self.shape.object_bytes as u64,
        };
        let young = quarter.max(buffered + self.shape.batch as u64);
        if young >= 3 * quarter {
            bail!(
                "--data is too little beside the write buffer --data={}",
                self.shape.objects * self.shape.object_bytes as u64
            );
        }
        let mut objects = 0;
        loop {
            while self.tickets.len() < self.shape.depth && !timer.is_over() {
                self.submit_get(self.next_new - 3 * quarter..self.next_new - young)?;
            }
            if self.tickets.is_empty() {
                break;
            }
            self.put_batch()?;
            objects += self.shape.batch as u64 + self.take_gets(&mut timer)?;
        }
        self.flush()?;
        Ok(timer.stop(objects, objects * self.shape.object_bytes as u64))
    }

    fn submit_get(&mut self, among: Range<u64>) -> anyhow::Result<()> {
        let mut gets = Vec::with_capacity(self.shape.batch);
        for _ in 0..self.shape.batch {
            let key = self.objects.key(self.rng.within(among.start, among.end.max(1) - 1));
            let buffer = self.buffers.pop().context("more gets than buffers")?;
            gets.push(Get { key, range: None, destination: Destination::owned(buffer) });
        }
        let begun = Instant::now();
        self.tickets.push_back((self.session.submit_get(gets, Options::default()), begun));
        Ok(())
    }

    /// Wait for the oldest batch of gets, and take what else has ended by then: objects that came.
    fn take_gets(&mut self, timer: &mut Timer) -> anyhow::Result<u64> {
        let Some((ticket, begun)) = self.tickets.pop_front() else { return Ok(0) };
        let done = self.wait(ticket)?;
        timer.ended(begun);
        let mut objects = self.take(done)?;
        while let Some((ticket, done)) = self.session.poll() {
            let at = self.tickets.iter().position(|(t, _)| *t == ticket).context("nobody's batch ended")?;
            let begun = self.tickets.remove(at).map(|(_, begun)| begun);
            begun.into_iter().for_each(|begun| timer.ended(begun));
            objects += self.take(done)?;
        }
        Ok(objects)
    }

    fn take(&mut self, done: Done) -> anyhow::Result<u64> {
        let Done::Get(done) = done else { bail!("a get was answered with something else") };
        let objects = done.len() as u64;
        for GetDone { outcome, destination, .. } in done {
            match outcome.context("get failed")? {
                GetOutcome::Hit { tier: Tier::Memory, .. } if self.shape.tier == BenchTier::Ssd => {
                    bail!("an object came from memory, so that this is no measurement of the SSD")
                }
                GetOutcome::Hit { .. } => {}
                GetOutcome::Miss(cause) => bail!("an object that is to be read is a miss cause={cause}"),
            }
            self.buffers.extend(destination.into_buffer());
        }
        Ok(objects)
    }

    fn exists(&mut self) -> anyhow::Result<Round> {
        let mut batches = Vec::new();
        for _ in 0..EXISTS_BATCHES {
            let draw = |_| self.objects.key(self.rng.within(0, self.shape.objects - 1));
            batches.push((0..self.shape.batch).map(draw).collect::<Vec<ObjectKey>>());
        }
        let mut timer = Timer::start(self.shape.round);
        let mut asked = 0;
        for batch in batches.iter().cycle() {
            let begun = Instant::now();
            let found = self.store.exists_batch(batch, Options::default());
            timer.ended(begun);
            if !found.iter().all(|found| *found) {
                bail!("an object that was put is not there");
            }
            asked += batch.len() as u64;
            if timer.is_over() {
                break;
            }
        }
        Ok(timer.stop(asked, 0))
    }
}
