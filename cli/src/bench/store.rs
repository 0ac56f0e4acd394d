//! The store's side of a measurement.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, bail};
use pagelith::config::ValidConfig;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    AlignedBuf, Destination, Done, ErrorKind, Get, GetOutcome, Options, Put, PutGroup, Session, Source,
    Store, Ticket, Tier,
};

use super::objects::Objects;
use super::round::{Round, Timer};
use super::{BenchTier, Op, Shape};
use crate::content::Content;
use crate::rng::SplitMix64;

/// Longer than any of the store's own deadlines.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long to wait when the store is busy before asking again.
const BUSY_PAUSE: Duration = Duration::from_micros(200);
/// Keys of a set that random batches are drawn from for `exists`: making a key costs more than the question.
const EXISTS_BATCHES: usize = 256;

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
    keys: Vec<ObjectKey>,
}

impl Bench {
    /// Open the store and fill it as the measurement needs it.
    pub(super) fn open(shape: Shape, config: ValidConfig) -> anyhow::Result<Bench> {
        let mut bench = Bench::begin(shape, config.clone())?;
        crate::said::opened(bench.store.opened());
        let keys = (0..shape.objects).map(|i| bench.objects.key(i)).collect::<anyhow::Result<Vec<_>>>()?;
        if shape.op == Op::Put {
            // The first lap over fresh files allocates; what is measured is the log as it goes on for ever.
            bench.keys = keys;
            return Ok(bench);
        }
        if bench.store.exists_prefix(&keys, Options::default()) < keys.len() {
            bench.fill(&keys)?;
        }
        if shape.tier == BenchTier::Ssd {
            // What was written last is still in the write buffer.
            bench.close()?;
            bench = Bench::begin(shape, config)?;
        }
        let found = bench.store.exists_prefix(&keys, Options::default());
        if found < keys.len() {
            bail!("the store could not keep all that is to be read objects={} found={found}", keys.len());
        }
        bench.keys = keys;
        Ok(bench)
    }

    fn begin(shape: Shape, config: ValidConfig) -> anyhow::Result<Bench> {
        let store = Store::open(config).context("cannot open the store")?;
        let session = store.session().context("cannot begin a session")?;
        let mut buffers = Vec::new();
        let content = Content::new(shape.seed);
        let objects = Objects::new(shape.object_bytes, shape.seed);
        for i in 0..shape.batch * shape.in_flight {
            let mut buffer = AlignedBuf::new(shape.object_bytes).context("no memory for a batch")?;
            content.fill(&objects.key(i as u64)?, &mut buffer);
            buffers.push(buffer);
        }
        let (rng, next_new) = (SplitMix64::new(shape.seed), shape.objects);
        Ok(Bench { shape, session, store, objects, rng, next_new, buffers, keys: Vec::new() })
    }

    /// What moves the bytes.
    pub(super) fn io(&self) -> String {
        crate::said::io(self.store.opened())
    }

    pub(super) fn close(self) -> anyhow::Result<()> {
        drop(self.session);
        self.store.close().context("cannot close the store")?;
        Ok(())
    }

    /// One round.
    pub(super) fn round(&mut self) -> anyhow::Result<Round> {
        match self.shape.op {
            Op::Put => self.puts(),
            Op::Get => self.gets(),
            Op::Exists => self.exists(),
        }
    }

    fn fill(&mut self, keys: &[ObjectKey]) -> anyhow::Result<()> {
        for batch in keys.chunks(self.shape.batch) {
            self.put(batch)?;
        }
        self.store.flush(Options::default()).context("cannot flush")?;
        Ok(())
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
        let timer = Timer::start(self.shape.round);
        let mut objects = 0;
        while !timer.is_over() {
            let numbers = self.next_new..self.next_new + self.shape.batch as u64;
            self.next_new = numbers.end;
            let keys = numbers.map(|i| self.objects.key(i)).collect::<anyhow::Result<Vec<_>>>()?;
            self.put(&keys)?;
            objects += self.shape.batch as u64;
        }
        if self.shape.tier == BenchTier::Ssd {
            self.store.flush(Options::default()).context("cannot flush")?;
        }
        Ok(timer.stop(objects, objects * self.shape.object_bytes as u64))
    }

    fn gets(&mut self) -> anyhow::Result<Round> {
        let timer = Timer::start(self.shape.round);
        let mut objects = 0;
        let mut tickets = VecDeque::new();
        loop {
            while tickets.len() < self.shape.in_flight && !timer.is_over() {
                tickets.push_back(self.submit_get()?);
            }
            let Some(ticket) = tickets.pop_front() else { break };
            let Done::Get(done) = self.wait(ticket)? else { bail!("a get was answered with something else") };
            for done in done {
                match done.outcome.context("get failed")? {
                    GetOutcome::Hit { tier: Tier::Memory, .. } if self.shape.tier == BenchTier::Ssd => {
                        bail!("an object came from memory, so that this is no measurement of the SSD")
                    }
                    GetOutcome::Hit { .. } => objects += 1,
                    GetOutcome::Miss(cause) => bail!("an object that is to be read is a miss cause={cause}"),
                }
                self.buffers.extend(done.destination.into_buffer());
            }
        }
        Ok(timer.stop(objects, objects * self.shape.object_bytes as u64))
    }

    fn submit_get(&mut self) -> anyhow::Result<Ticket> {
        let mut gets = Vec::with_capacity(self.shape.batch);
        for _ in 0..self.shape.batch {
            let key = self.keys[self.rng.within(0, self.shape.objects - 1) as usize];
            let buffer = self.buffers.pop().context("more gets than buffers")?;
            gets.push(Get { key, range: None, destination: Destination::owned(buffer) });
        }
        Ok(self.session.submit_get(gets, Options::default()))
    }

    fn exists(&mut self) -> anyhow::Result<Round> {
        let mut batches = Vec::new();
        for _ in 0..EXISTS_BATCHES {
            let draw = |_| self.keys[self.rng.within(0, self.shape.objects - 1) as usize];
            batches.push((0..self.shape.batch).map(draw).collect::<Vec<ObjectKey>>());
        }
        let timer = Timer::start(self.shape.round);
        let mut asked = 0;
        for batch in batches.iter().cycle() {
            let found = self.store.exists_batch(batch, Options::default());
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
