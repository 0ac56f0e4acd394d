//! The cost of an existence check, with one key at a time and in batches: `Store::exists_batch`
//! hashes the keys, takes the lock, finds them in the index and records the request.
//!
//! `cargo bench -p pagelith-micro --bench index`. The limit is first in each group: one random
//! memory line per key, in a table as large as the index.
#![allow(missing_docs, reason = "criterion's macros")]

mod common;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith::{AlignedBuf, Config, MachineLimits, Options, PutSlice, Size, Store};

use common::{keys, mix};

/// A million objects of one byte take 4 GiB: a page each.
const OBJECTS: [u64; 2] = [64 << 10, 1 << 20];
const BATCHES: [usize; 2] = [1, 1024];
/// Keys that are looked up in turn: more than a cache holds.
const LOOKUPS: u64 = 256 << 10;
/// First number of objects that were never put.
const ABSENT: u64 = 1 << 40;
const PAGE: u64 = 4096;
const LINE: usize = 64;
/// Bytes of the index per object.
const INDEX_BYTES: u64 = 40;

/// Numbers below `objects` in random order, some repeatedly.
fn sampled(objects: u64) -> impl Iterator<Item = u64> {
    (0..LOOKUPS).map(move |i| mix(i ^ 0xa5a5) % objects)
}

/// A DRAM-only store with this many objects; `None` on a machine that is too small.
fn filled(objects: u64) -> Option<Store> {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(objects * PAGE);
    config.index.max_objects = Some(objects);
    let config = config.validate(&MachineLimits::of_this_machine().expect("facts"));
    let config = config.inspect_err(|why| eprintln!("skipped: objects={objects}: {why}")).ok()?;
    let store = Store::open(config).expect("a store");
    for batch in keys(0..objects).chunks(1024) {
        let puts: Vec<PutSlice<'_>> =
            batch.iter().map(|key| PutSlice { key: *key, pieces: &[b"x"] }).collect();
        assert!(store.put_batch(&puts, Options::default()).iter().all(Result::is_ok));
    }
    Some(store)
}

fn exists(c: &mut Criterion) {
    for objects in OBJECTS {
        let Some(store) = filled(objects) else { continue };
        let present = keys(sampled(objects));
        let absent = keys(sampled(objects).map(|number| ABSENT + number));
        let lines = (objects * INDEX_BYTES) as usize / LINE;
        let mut table = AlignedBuf::new(lines * LINE).expect("memory");
        table.fill(1);
        let places: Vec<usize> = sampled(lines as u64).map(|line| line as usize * LINE).collect();
        for batch in BATCHES {
            let mut group = c.benchmark_group(format!("exists_batch of {batch}"));
            group.throughput(Throughput::Elements(batch as u64));
            let mut turn = places.chunks(batch).cycle();
            group.bench_function(BenchmarkId::new("limit: a line of memory each", objects), |b| {
                b.iter(|| {
                    let some = turn.next().expect("cycles");
                    some.iter().fold(0, |all, place| all ^ black_box(&table)[*place])
                });
            });
            for (name, keys) in [("present", &present), ("absent", &absent)] {
                let mut turn = keys.chunks(batch).cycle();
                group.bench_function(BenchmarkId::new(name, objects), |b| {
                    b.iter(|| store.exists_batch(turn.next().expect("cycles"), Options::default()));
                });
            }
            group.finish();
        }
        let found =
            store.exists_batch(&present, Options::default()).iter().filter(|found| **found).count();
        let strange =
            store.exists_batch(&absent, Options::default()).iter().filter(|found| **found).count();
        assert_eq!((found, strange), (present.len(), 0), "wrong number of keys found");
    }
}

criterion_group!(benches, exists);
criterion_main!(benches);
