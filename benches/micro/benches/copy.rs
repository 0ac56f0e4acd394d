//! The cost of a put's and a get's bytes in the caller's thread: copied into the arena with
//! checksums, and out of it with verification. All memory is too large for any cache, like a
//! store's.
//!
//! `cargo bench -p pagelith-micro --bench copy`. The limits are first in each group: memcpy, and
//! for a verified get a bare loop of copy and checksum.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith::io::hashed_copy::{CopyMode, SourcePiece, copy_blocks};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::{ids::PrefixHash, namespace::Namespace, shard::Shard};
use pagelith::{AlignedBuf, Config, GetSlice, MachineLimits, Options, PutSlice, Size, Store};
use pagelith_layouts::checksum::{BLOCK_BYTES, block_lengths};
use pagelith_tiers::dram::arena::{Arena, Extent};

/// Larger than any cache.
const COLD_BYTES: usize = 256 << 20;
const SIZES: [usize; 2] = [64 << 10, 1 << 20];
/// Objects of a batch.
const BATCH: usize = 32;

/// Touched memory of huge pages.
fn memory(bytes: usize) -> AlignedBuf {
    let mut memory = AlignedBuf::new(bytes).expect("memory");
    memory.fill(7);
    memory
}

/// Object numbers in an order that no prefetcher follows.
fn places(objects: usize) -> impl FnMut() -> usize {
    let mut at = 0;
    // Odd, so that it visits every place of a power of two.
    let stride = (objects / 2 + 5) | 1;
    move || {
        at = (at + stride) % objects;
        at
    }
}

fn put(c: &mut Criterion) {
    let mut group = c.benchmark_group("put");
    let from = memory(COLD_BYTES);
    for bytes in SIZES {
        let objects = COLD_BYTES / bytes;
        let mut to = memory(COLD_BYTES);
        let mut arena = Arena::new(COLD_BYTES as u64).expect("memory");
        let extents: Vec<Extent> =
            (0..objects).map(|_| arena.space.alloc(bytes as u64).expect("room")).collect();
        let fill = |at: usize, piece: usize| {
            let data = black_box(&from[at * bytes..(at + 1) * bytes]);
            let pieces: Vec<&[u8]> = data.chunks(piece).collect();
            // SAFETY: the extent is this benchmark's alone; there is one writer at a time.
            let mut writer = unsafe { arena.memory.writer(extents[at]) };
            writer.fill(&pieces, BLOCK_BYTES).expect("fits")
        };
        // Page faults happen before the measurement.
        (0..objects).for_each(|at| drop(fill(at, bytes)));
        group.throughput(Throughput::Bytes(bytes as u64));
        // Not in the closures: criterion calls those anew for each sample, which would restart at
        // cached memory.
        let mut next = places(objects);
        group.bench_function(BenchmarkId::new("limit: memcpy", bytes), |b| {
            b.iter(|| {
                let at = next() * bytes;
                to[at..at + bytes].copy_from_slice(black_box(&from[at..at + bytes]));
            });
        });
        group.bench_function(BenchmarkId::new("arena fill: copy and checksum", bytes), |b| {
            b.iter(|| fill(next(), bytes));
        });
        // As in a host layout that keeps each layer separately.
        group.bench_function(BenchmarkId::new("arena fill out of pieces of 1152", bytes), |b| {
            b.iter(|| fill(next(), 1152));
        });
    }
    group.finish();
}

/// A DRAM-only store filled with objects of one length.
fn filled(bytes: usize) -> (Store, Vec<ObjectKey>) {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(2 * COLD_BYTES as u64);
    let store = Store::open(
        config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("a config"),
    );
    let store = store.expect("a store");
    let namespace = Namespace { model: "micro".into(), ..Namespace::default() }.id();
    let mut keys = Vec::new();
    let data = vec![7u8; bytes];
    for number in 0..(COLD_BYTES / bytes) as u64 {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        let key =
            ObjectKey::new(namespace, PrefixHash(hash), Role::Target, "kv", "kv", Shard::Whole);
        keys.push(key.expect("a key"));
        let put = PutSlice { key: keys[keys.len() - 1], pieces: &[&data] };
        store.put_batch(&[put], Options::default())[0].clone().expect("stored");
    }
    (store, keys)
}

fn get(c: &mut Criterion) {
    let mut group = c.benchmark_group("get");
    group.sample_size(20);
    let from = memory(COLD_BYTES);
    for bytes in SIZES {
        let objects = COLD_BYTES / bytes;
        let mut to = memory(BATCH * bytes);
        group.throughput(Throughput::Bytes((BATCH * bytes) as u64));
        let mut next = places(objects);
        for (name, verify) in [("limit: memcpy", false), ("limit: copy and checksum", true)] {
            group.bench_function(BenchmarkId::new(name, bytes), |b| {
                b.iter(|| {
                    for value in to.chunks_mut(bytes) {
                        let object = black_box(&from[next() * bytes..][..bytes]);
                        if !verify {
                            value.copy_from_slice(object);
                            continue;
                        }
                        let blocks = block_lengths(0..bytes as u64, BLOCK_BYTES);
                        let seen = |sum| {
                            black_box(sum);
                        };
                        copy_blocks(
                            [value],
                            [SourcePiece::Private(object)],
                            blocks,
                            CopyMode::Cached,
                            seen,
                        );
                    }
                });
            });
        }
        let (store, keys) = filled(bytes);
        group.bench_function(BenchmarkId::new("store, every hit verified", bytes), |b| {
            b.iter(|| {
                let mut pieces: Vec<[&mut [u8]; 1]> =
                    to.chunks_mut(bytes).map(|value| [value]).collect();
                let get = |pieces| GetSlice { key: keys[next()], range: None, pieces };
                let mut gets: Vec<GetSlice<'_, '_>> =
                    pieces.iter_mut().map(|p| &mut p[..]).map(get).collect();
                let outcomes = store.get_batch(&mut gets, Options::default());
                assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(|o| o.is_hit())));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, put, get);
criterion_main!(benches);
