//! An experimental index of runs compared with the store's index, for the query of schedulers: how
//! long is the present prefix? Both are given keys, which must be hashed, and neither records the
//! request.
//!
//! `cargo bench -p pagelith-micro --bench prefix`. In the index of runs, the pages that one put
//! brought in sequence are stored in adjacent slots, and only the first is found by its hash: the
//! others are compared one after the other.
#![allow(missing_docs, reason = "criterion's macros")]

mod common;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith::internals::{Entry, Index};
use pagelith::layouts::checksum::{FINGERPRINT_KEY_BYTES, fingerprint};
use pagelith::layouts::ids::Generation;
use pagelith::layouts::key::ObjectKey;

use common::{keys, mix};

const OBJECTS: [u64; 2] = [1 << 20, 10 << 20];
/// Pages of a prompt.
const PROMPT: usize = 1024;
/// Prompts that are looked up in turn: a quarter of a million pages.
const PROMPTS: usize = 256;
/// Pages of one put.
const RUN: usize = 32;
/// As many as the store's own lookup prefetches at once.
const GROUP: usize = 16;
const SECRET: [u8; FINGERPRINT_KEY_BYTES] = [7; FINGERPRINT_KEY_BYTES];

fn hashed(key: &ObjectKey) -> u128 {
    fingerprint(&SECRET, key, Generation::FIRST)
}

/// The upper half of a fingerprint, which is a hash already.
#[derive(Default)]
struct Half(u64);

impl Hasher for Half {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = (fingerprint >> 64) as u64;
    }
}

/// As many bytes as an entry of the index.
#[derive(Clone, Copy)]
struct Page {
    fingerprint: u128,
    _place: [u64; 2],
}

#[derive(Default)]
struct Runs {
    heads: HashMap<u128, (u32, u32), BuildHasherDefault<Half>>,
    pages: Vec<Page>,
}

impl Runs {
    fn insert(&mut self, run: &[u128]) {
        self.heads.insert(run[0], (self.pages.len() as u32, run.len() as u32));
        self.pages.extend(
            run.iter().map(|fingerprint| Page { fingerprint: *fingerprint, _place: [0; 2] }),
        );
    }

    fn prefix(&self, keys: &[ObjectKey]) -> usize {
        let mut here = 0;
        while let Some((first, length)) =
            keys.get(here).and_then(|key| self.heads.get(&hashed(key)))
        {
            let run = &self.pages[*first as usize..][..*length as usize];
            let same = |(page, key): &(&Page, &ObjectKey)| page.fingerprint == hashed(key);
            // The head was found by its fingerprint.
            let rest = run[1..].iter().zip(&keys[here + 1..]).take_while(same).count();
            here += 1 + rest;
            if 1 + rest < run.len() {
                break;
            }
        }
        here
    }
}

fn prefix(index: &Index, keys: &[ObjectKey]) -> usize {
    let reader = index.reader();
    let mut here = 0;
    let mut group = Vec::with_capacity(GROUP);
    for some in keys.chunks(GROUP) {
        group.clear();
        group.extend(some.iter().map(hashed));
        reader.prefetch(&group);
        let found = group.iter().take_while(|f| index.find(**f).next().is_some()).count();
        here += found;
        if found < group.len() {
            break;
        }
    }
    here
}

fn prefixes(c: &mut Criterion) {
    let prompts: Vec<Vec<ObjectKey>> =
        (0..PROMPTS as u64).map(|n| keys(n * PROMPT as u64..(n + 1) * PROMPT as u64)).collect();
    for objects in OBJECTS {
        let mut index = Index::new(objects).expect("memory");
        let mut runs = Runs::default();
        let mut put = |run: &[u128]| {
            for fingerprint in run {
                let entry = Entry {
                    fingerprint: *fingerprint,
                    length: 1,
                    ssd: None,
                    frame: None,
                    tick: 0,
                    attached: false,
                };
                index.insert(&entry).expect("room");
            }
            runs.insert(run);
        };
        // Runs of prompts, each after as many unused runs as the index has room for.
        let between = objects as usize / (PROMPTS * PROMPT) - 1;
        let mut strange = (0..).map(|n| u128::from(mix(!n)) << 64 | u128::from(mix(n)));
        for run in prompts.iter().flat_map(|prompt| prompt.chunks(RUN)) {
            for _ in 0..between {
                put(&strange.by_ref().take(RUN).collect::<Vec<_>>());
            }
            put(&run.iter().map(hashed).collect::<Vec<_>>());
        }
        assert!(prompts.iter().all(|prompt| runs.prefix(prompt) == PROMPT));
        assert!(prompts.iter().all(|prompt| prefix(&index, prompt) == PROMPT));

        let mut group = c.benchmark_group(format!("prefix of {PROMPT} pages"));
        group.throughput(Throughput::Elements(PROMPT as u64));
        let order: Vec<usize> = (0..4096).map(|i| (mix(i) % PROMPTS as u64) as usize).collect();
        let mut turn = order.iter().cycle();
        let mut next = || &prompts[*turn.next().expect("cycles")][..];
        group.bench_function(BenchmarkId::new("limit: hash each key", objects), |b| {
            b.iter(|| next().iter().fold(0, |all, key| all ^ hashed(black_box(key))));
        });
        group.bench_function(BenchmarkId::new("index", objects), |b| {
            b.iter(|| prefix(&index, next()))
        });
        group.bench_function(BenchmarkId::new("runs", objects), |b| b.iter(|| runs.prefix(next())));
        group.finish();
    }
}

criterion_group!(benches, prefixes);
criterion_main!(benches);
