//! What policies cost a store: the same gets and queries of objects in DRAM, and the same puts,
//! with each of them, by CPU time of the calling thread, in turns, as ratios to the first. Nothing
//! is evicted.
//!
//! `cargo bench -p pagelith-micro --bench policies`. Other work of the machine changes all of them
//! alike: each round runs all, and a ratio is the median over rounds.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "prints its table")]

mod common;

use std::hint::black_box;

use pagelith::config::{DramPolicy, SsdAdmissionRule, SsdPolicy};
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    AlignedBuf, Config, GetOutcome, GetSlice, MachineLimits, Options, PutSlice, Size, Store, Tier,
};
use rustix::time::{ClockId, clock_gettime};

use common::{keys, mix};

const OBJECT_BYTES: usize = 64 << 10;
const OBJECTS: u64 = 4096;
const SSD_BYTES: u64 = 4 << 30;
/// Objects per get or put.
const BATCH: usize = 32;
/// Keys per query.
const KEYS: usize = 1024;
const ROUNDS: usize = 41;
/// Calls in a turn.
const CALLS: u64 = 5;

/// Objects put, at most.
const PUTS_MAX: u64 = OBJECTS + ROUNDS as u64 * CALLS * BATCH as u64;

type Policies = (&'static str, DramPolicy, SsdPolicy, SsdAdmissionRule);
const POLICIES: [Policies; 3] = [
    ("lru+fifo+through", DramPolicy::Lru, SsdPolicy::Fifo, SsdAdmissionRule::Through),
    ("s3fifo+recency+through", DramPolicy::S3Fifo, SsdPolicy::Recency, SsdAdmissionRule::Through),
    ("s3fifo+recency+worth", DramPolicy::S3Fifo, SsdPolicy::Recency, SsdAdmissionRule::Worth),
];

struct Subject {
    store: Store,
    /// The number of the next object that is put.
    next: u64,
    turn: u64,
    /// Nanoseconds of each round, by kind of call.
    rounds: [Vec<f64>; 3],
}

impl Subject {
    fn open(dir: std::path::PathBuf, (_, dram, ssd, admission): Policies) -> Subject {
        let mut config = Config::default();
        config.dram.bytes = Size::from_bytes(PUTS_MAX * (68 << 10));
        config.dram.prefault = true;
        config.dram.policy = dram;
        config.ssd.bytes = Size::from_bytes(SSD_BYTES);
        config.ssd.dirs = vec![dir];
        config.ssd.policy = ssd;
        config.ssd.admission = admission;
        config.index.max_objects = Some(1 << 20);
        let limits = MachineLimits::of_this_machine().expect("facts");
        let store = Store::open(config.validate(&limits).expect("room")).expect("a store");
        Subject { store, next: 0, turn: 0, rounds: Default::default() }
    }

    fn put(&mut self, buffers: &[AlignedBuf]) {
        let keys = keys(self.next..self.next + BATCH as u64);
        self.next += BATCH as u64;
        let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [&buffer[..]]).collect();
        let puts: Vec<PutSlice<'_>> =
            keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
        assert!(self.store.put_batch(&puts, Options::default()).iter().all(Result::is_ok));
    }

    /// Keys of consecutive objects that are in DRAM and on SSD.
    fn settled(&mut self, count: usize) -> Vec<ObjectKey> {
        self.turn += 1;
        let first = mix(self.turn) % (OBJECTS - count as u64);
        keys(first..first + count as u64)
    }

    fn get(&mut self, buffers: &mut [AlignedBuf]) {
        let keys = self.settled(BATCH);
        let mut pieces: Vec<[&mut [u8]; 1]> = buffers.iter_mut().map(|b| [&mut b[..]]).collect();
        let mut gets: Vec<_> = keys
            .iter()
            .zip(&mut pieces)
            .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
            .collect();
        let outcomes = self.store.get_batch(&mut gets, Options::default());
        let hit = GetOutcome::Hit { tier: Tier::Memory, bytes: OBJECT_BYTES as u64 };
        assert!(outcomes.iter().all(|outcome| *outcome == Ok(hit)));
    }

    fn exists(&mut self) {
        let keys = self.settled(KEYS);
        let found = black_box(self.store.exists_batch(&keys, Options::default()));
        assert!(found.iter().all(|found| *found));
    }

    /// CPU time of some calls.
    fn time(&mut self, kind: usize, buffers: &mut [AlignedBuf]) {
        let begun = clock_gettime(ClockId::ThreadCPUTime);
        for _ in 0..CALLS {
            match kind {
                0 => self.get(buffers),
                1 => self.put(buffers),
                _ => self.exists(),
            }
        }
        let ended = clock_gettime(ClockId::ThreadCPUTime);
        let ns =
            (ended.tv_sec - begun.tv_sec) as f64 * 1e9 + (ended.tv_nsec - begun.tv_nsec) as f64;
        self.rounds[kind].push(ns / CALLS as f64);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let home = tempfile::tempdir().expect("a directory");
    let mut buffers = AlignedBuf::many(BATCH, OBJECT_BYTES).expect("memory");
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    // With an argument, only policies whose name contains it: for a profile.
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let policies: Vec<Policies> = (POLICIES.into_iter())
        .filter(|policies| wanted.as_ref().is_none_or(|wanted| policies.0.contains(wanted)))
        .collect();
    let mut subjects: Vec<Subject> = (policies.iter())
        .map(|policies| Subject::open(home.path().join(policies.0), *policies))
        .collect();
    for subject in &mut subjects {
        (0..OBJECTS / BATCH as u64).for_each(|_| subject.put(&buffers));
        subject.store.flush(Options::default()).expect("flushed");
        // As many bytes as admission keeps samples of: 4 times the SSD.
        let batches = 4 * SSD_BYTES / (BATCH * OBJECT_BYTES) as u64;
        (0..batches).for_each(|_| subject.get(&mut buffers));
    }
    for round in 0..ROUNDS {
        for kind in [0, 2, 0, 2, 1] {
            for at in 0..policies.len() {
                subjects[(at + round) % policies.len()].time(kind, &mut buffers);
            }
        }
        // The writes of one store must not take CPU time during calls of another.
        for subject in &subjects {
            subject.store.flush(Options::default()).expect("flushed");
        }
    }
    for (kind, name) in
        ["get of 32 x 64 KiB", "put of 32 x 64 KiB", "exists of 1024"].iter().enumerate()
    {
        for (at, (policies, ..)) in policies.iter().enumerate() {
            let rounds = &subjects[at].rounds[kind];
            let ratios =
                rounds.iter().zip(&subjects[0].rounds[kind]).map(|(own, first)| own / first);
            let (ns, ratio) = (median(rounds.clone()), median(ratios.collect()));
            println!("{name:20} {policies:24} {:9.1} us  {ratio:.3}", ns / 1e3);
        }
    }
}
