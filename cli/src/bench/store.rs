//! The measurement of the store.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use pagelith::config::ValidConfig;
use pagelith::io::threads::thread_start_fault;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    AlignedBuf, CompletedBatch, CompletedGet, Destination, Get, GetOutcome, GetSlice, Options,
    Registration, Session, Store, Ticket, Tier,
};

use super::limit::EXISTS_BATCHES;
use super::objects::Objects;
use super::put::{PacedWriter, WAIT_MAX, put};
use super::round::{Round, Timer};
use super::shape::{BenchOp, BenchShape, BenchTier};
use crate::content::Content;
use crate::rng::SplitMix64;

/// An open, filled store, and the state of the measurement.
pub(super) struct Bench {
    shape: BenchShape,
    session: Session,
    store: Store,
    objects: Objects,
    rng: SplitMix64,
    next_new: u64,
    /// Source buffers of puts, and destinations of gets.
    buffers: Vec<AlignedBuf>,
    /// The registration of `buffers`.
    registration: Option<Registration>,
    /// Gets in flight with their start times, oldest first.
    tickets: VecDeque<(Ticket, Instant)>,
}

/// The state of the measurement while the store is closed.
pub(super) struct PausedBench {
    rng: SplitMix64,
    next_new: u64,
    buffers: Vec<AlignedBuf>,
}

impl Bench {
    /// Open the store, and fill it for the measurement.
    pub(super) fn open(shape: BenchShape, config: ValidConfig) -> anyhow::Result<Bench> {
        let mut bench = Bench::begin(shape, config.clone())?;
        crate::open_report::log_opened(bench.store.opened());
        // Also before puts: the first pass through the log allocates files and memory, and the
        // measurement is about the steady state.
        if bench.found() < shape.objects {
            bench.fill()?;
        }
        if matches!(shape.op, BenchOp::Put | BenchOp::Open | BenchOp::OpenClean) {
            return Ok(bench);
        }
        if shape.tier == BenchTier::Ssd {
            // The newest objects are still in the write buffer.
            let paused = bench.pause()?;
            bench = Bench::resume(shape, config, paused)?;
        }
        let found = bench.found();
        if found < shape.objects {
            bail!(
                "the store did not keep all objects to read, lower --data objects={} found={found}",
                shape.objects
            );
        }
        Ok(bench)
    }

    /// Number of leading objects that are present.
    fn found(&self) -> u64 {
        let keys: Vec<ObjectKey> = (0..self.shape.objects).map(|i| self.objects.key(i)).collect();
        self.store.exists_prefix(&keys, Options::default()) as u64
    }

    fn begin(shape: BenchShape, config: ValidConfig) -> anyhow::Result<Bench> {
        let content = Content::new(shape.seed);
        let objects = Objects::new(shape.object_bytes, shape.seed)?;
        // For the gets in flight and a batch of puts, like an application's pool of host memory.
        let mut buffers = shape
            .memory
            .buffers(shape.batch * (shape.depth + 1), shape.object_bytes)
            .context("no memory for a batch")?;
        for (buffer, i) in buffers.iter_mut().zip(0..) {
            content.fill(&objects.key(i), buffer);
        }
        Bench::resume(
            shape,
            config,
            PausedBench { rng: SplitMix64::new(shape.seed), next_new: shape.objects, buffers },
        )
    }

    /// Open the store and continue.
    pub(super) fn resume(
        shape: BenchShape,
        config: ValidConfig,
        paused: PausedBench,
    ) -> anyhow::Result<Bench> {
        let PausedBench { rng, next_new, buffers } = paused;
        let store = Store::open(config).context("cannot open the store")?;
        let session = store.session().context("cannot begin a session")?;
        let objects = Objects::new(shape.object_bytes, shape.seed)?;
        let registration = shape.memory.registered(&buffers);
        let registration =
            registration.map(|(base, len)| store.register_memory(base, len)).transpose()?;
        let tickets = VecDeque::new();
        Ok(Bench { shape, session, store, objects, rng, next_new, buffers, registration, tickets })
    }

    /// The I/O backend.
    pub(super) fn io(&self) -> String {
        crate::open_report::io_backend(self.store.opened())
    }

    /// Close the store; returns the state with which to continue.
    pub(super) fn pause(self) -> anyhow::Result<PausedBench> {
        let Bench { session, store, rng, next_new, buffers, registration, .. } = self;
        drop((session, registration));
        store.close().context("cannot close the store")?;
        Ok(PausedBench { rng, next_new, buffers })
    }

    /// Put at least `objects` new objects, and make them durable.
    pub(super) fn put_more(&mut self, objects: u64) -> anyhow::Result<()> {
        let until = self.next_new + objects;
        while self.next_new < until {
            self.put_batch()?;
        }
        self.flush()
    }

    /// Leave the store as after a crash.
    pub(super) fn abandon(self) {
        drop(self.session);
        self.store.abandon();
    }

    /// One round.
    pub(super) fn round(&mut self) -> anyhow::Result<Round> {
        match self.shape.op {
            BenchOp::Put => self.put_round(),
            BenchOp::Get => self.get_round(),
            BenchOp::Mixed => self.mixed_round(),
            BenchOp::Exists => self.exists_round(),
            BenchOp::Open | BenchOp::OpenClean => bail!("open rounds need a closed store"),
        }
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        self.next_new = 0;
        self.put_more(self.shape.objects)
    }

    /// Put a batch of new objects.
    fn put_batch(&mut self) -> anyhow::Result<()> {
        let numbers = self.next_new..self.next_new + self.shape.batch as u64;
        self.next_new = numbers.end;
        put(&mut self.session, &self.objects, numbers, &mut self.buffers)
    }

    /// Put new objects; with an SSD tier until all are durable.
    fn put_round(&mut self) -> anyhow::Result<Round> {
        let mut timer = Timer::start(self.shape.round);
        let mut objects = 0;
        while !timer.is_over() {
            let begun = Instant::now();
            self.put_batch()?;
            timer.record(begun);
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

    /// Get every object once, so that the store has cached the headers as in a running system.
    fn get_all(&mut self) -> anyhow::Result<()> {
        let Bench { shape, store, objects, buffers, .. } = self;
        let all: Vec<u64> = (0..shape.objects).collect();
        for numbers in all.chunks(shape.batch) {
            let mut pieces: Vec<[&mut [u8]; 1]> =
                buffers.iter_mut().take(shape.batch).map(|buffer| [&mut buffer[..]]).collect();
            let mut gets = Vec::with_capacity(shape.batch);
            for (number, pieces) in numbers.iter().zip(&mut pieces) {
                gets.push(GetSlice { key: objects.key(*number), range: None, pieces });
            }
            for outcome in store.get_batch(&mut gets, Options::default()) {
                check(shape.tier, outcome)?;
            }
        }
        Ok(())
    }

    fn get_round(&mut self) -> anyhow::Result<Round> {
        if self.store.opened().memory.headers > 0 && !self.shape.just_opened {
            self.get_all()?;
        }
        if self.shape.depth == 1 {
            return self.sequential_get_round();
        }
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

    /// One batch after the other, with the blocking call.
    fn sequential_get_round(&mut self) -> anyhow::Result<Round> {
        let mut timer = Timer::start(self.shape.round);
        let mut objects = 0;
        while !timer.is_over() {
            let begun = Instant::now();
            self.get_one_batch(0..self.shape.objects)?;
            timer.record(begun);
            objects += self.shape.batch as u64;
        }
        Ok(timer.stop(objects, objects * self.shape.object_bytes as u64))
    }

    fn get_one_batch(&mut self, among: Range<u64>) -> anyhow::Result<()> {
        let Bench { shape, store, objects, rng, buffers, .. } = self;
        let mut pieces: Vec<[&mut [u8]; 1]> =
            buffers.iter_mut().take(shape.batch).map(|buffer| [&mut buffer[..]]).collect();
        let mut gets = Vec::with_capacity(shape.batch);
        for pieces in &mut pieces {
            let key = objects.key(rng.within(among.start, among.end.max(1) - 1));
            gets.push(GetSlice { key, range: None, pieces });
        }
        for outcome in store.get_batch(&mut gets, Options::default()) {
            check(shape.tier, outcome)?;
        }
        Ok(())
    }

    /// The range of objects to read, as distances before `next_new`, farthest first: neither just
    /// put nor about to be evicted.
    fn readable_range(&self) -> anyhow::Result<(u64, u64)> {
        let quarter = self.shape.objects / 4;
        // Objects in the write buffer would be read from memory.
        let buffered = match self.shape.tier {
            BenchTier::Dram => 0,
            BenchTier::Ssd => self.store.opened().memory.arena / self.shape.object_bytes as u64,
        };
        let young = quarter.max(buffered + self.shape.batch as u64);
        if young >= 3 * quarter {
            bail!(
                "--data is too small relative to the write buffer, raise it --data={}",
                self.shape.objects * self.shape.object_bytes as u64
            );
        }
        Ok((3 * quarter, young))
    }

    /// A batch of puts for each completed batch of gets.
    fn mixed_round(&mut self) -> anyhow::Result<Round> {
        if let Some(rate) = self.shape.write_rate {
            return self.round_with_writer(rate);
        }
        let mut timer = Timer::start(self.shape.round);
        let (old, young) = self.readable_range()?;
        let mut objects = 0;
        loop {
            while self.tickets.len() < self.shape.depth && !timer.is_over() {
                self.submit_get(self.next_new - old..self.next_new - young)?;
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

    /// Batches of gets, one after the other, while a thread puts `rate` bytes per second. The round
    /// counts only the gets.
    fn round_with_writer(&mut self, rate: u64) -> anyhow::Result<Round> {
        let (old, young) = self.readable_range()?;
        let next = AtomicU64::new(self.next_new);
        let over = AtomicBool::new(false);
        let mut writer = PacedWriter {
            session: self.store.session().context("cannot begin a session")?,
            objects: self.objects,
            buffers: self.buffers.split_off(self.buffers.len() - self.shape.batch),
            batch: self.shape.batch as u64,
            rate: rate / self.shape.object_bytes as u64,
        };
        let first = self.next_new;
        let read = std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().spawn_scoped(scope, || writer.run(&next, &over));
            let thread = thread.map_err(|error| thread_start_fault("writer", &error))?;
            let mut timer = Timer::start(self.shape.round);
            let mut objects = 0;
            let mut reads = || {
                while !timer.is_over() {
                    let newest = next.load(Ordering::Acquire);
                    let begun = Instant::now();
                    self.get_one_batch(newest - old..newest - young)?;
                    timer.record(begun);
                    objects += self.shape.batch as u64;
                }
                anyhow::Ok(())
            };
            let outcome = reads();
            over.store(true, Ordering::Release);
            let written = thread.join().map_err(|_| anyhow!("the writer panicked"))?;
            outcome.and(written)?;
            let written = (next.load(Ordering::Acquire) - first) * self.shape.object_bytes as u64;
            let round = timer.stop(objects, objects * self.shape.object_bytes as u64);
            anyhow::Ok(Round { written, ..round })
        });
        self.next_new = next.load(Ordering::Acquire);
        self.buffers.append(&mut writer.buffers);
        read
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

    /// Wait for the first batch of gets that completes; returns its number of objects.
    fn take_gets(&mut self, timer: &mut Timer) -> anyhow::Result<u64> {
        let Some((ticket, done)) = self.session.wait_any(WAIT_MAX) else {
            bail!("no result waited_s={}", WAIT_MAX.as_secs())
        };
        let at = self
            .tickets
            .iter()
            .position(|(t, _)| *t == ticket)
            .context("an unknown batch completed")?;
        let begun = self.tickets.remove(at).map(|(_, begun)| begun);
        begun.into_iter().for_each(|begun| timer.record(begun));
        self.take(done)
    }

    fn take(&mut self, done: CompletedBatch) -> anyhow::Result<u64> {
        let CompletedBatch::Get(done) = done else { bail!("a get returned another result") };
        let objects = done.len() as u64;
        for CompletedGet { outcome, destination, .. } in done {
            check(self.shape.tier, outcome)?;
            self.buffers.extend(destination.into_buffer());
        }
        Ok(objects)
    }

    fn exists_round(&mut self) -> anyhow::Result<Round> {
        let mut batches = Vec::new();
        for _ in 0..EXISTS_BATCHES {
            let draw = |_| self.objects.key(self.rng.within(0, self.shape.objects - 1));
            batches.push((0..self.shape.batch).map(draw).collect::<Vec<ObjectKey>>());
        }
        let mut timer = Timer::start(self.shape.round);
        let mut probed = 0;
        for batch in batches.iter().cycle() {
            let begun = Instant::now();
            let found = self.store.exists_batch(batch, Options::default());
            timer.record(begun);
            if !found.iter().all(|found| *found) {
                bail!("an object that was put is missing");
            }
            probed += batch.len() as u64;
            if timer.is_over() {
                break;
            }
        }
        Ok(timer.stop(probed, 0))
    }
}

/// Check that a get was a hit in the measured tier.
fn check(tier: BenchTier, outcome: pagelith::Result<GetOutcome>) -> anyhow::Result<()> {
    match outcome.context("get failed")? {
        GetOutcome::Hit { tier: Tier::Memory, .. } if tier == BenchTier::Ssd => {
            bail!("an object was read from memory, so the SSD was not measured")
        }
        GetOutcome::Hit { .. } => Ok(()),
        GetOutcome::Miss(cause) => bail!("a get was a miss cause={cause}"),
    }
}
