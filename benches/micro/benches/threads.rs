//! Scaling with threads: the same calls from one, two, four and so on threads at once, up to the
//! number of cores, on a DRAM-only store, whose lock they share.
//!
//! `cargo bench -p pagelith-micro --bench threads`. Gets and puts are compared with the limit of
//! the memory: as many threads that copy and hash, or copy. Throughput is that of all threads
//! together.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::disallowed_methods, reason = "measures threads by the real clock")]

mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use pagelith::io::hashed_copy::{CopyMode, SourcePiece, copy_blocks};
use pagelith::layouts::checksum::{BLOCK_BYTES, block_lengths};
use pagelith::layouts::key::ObjectKey;
use pagelith::{AlignedBuf, Config, GetSlice, MachineLimits, Options, PutSlice, Size, Store};

use common::{keys, mix};

const OBJECT_BYTES: usize = 64 << 10;
const SMALL_BYTES: usize = 4 << 10;
const OBJECTS: u64 = 4096;
/// Objects per get or put.
const BATCH: usize = 32;
/// Keys per exists call.
const KEYS: usize = 1024;

fn filled(object_bytes: usize) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(2 * OBJECTS * object_bytes as u64);
    config.dram.prefault = true;
    config.index.max_objects = Some(4 * OBJECTS);
    let config = config
        .validate(&MachineLimits::of_this_machine().expect("facts"))
        .expect("room for half a GiB");
    let store = Store::open(config).expect("a store");
    let buffers = AlignedBuf::many(BATCH, object_bytes).expect("memory");
    for batch in keys(0..OBJECTS).chunks(BATCH) {
        put(&store, batch, &buffers);
    }
    store
}

fn put(store: &Store, keys: &[ObjectKey], buffers: &[AlignedBuf]) {
    let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [&buffer[..]]).collect();
    put_pieces(store, keys, &pieces);
}

fn put_pieces(store: &Store, keys: &[ObjectKey], pieces: &[[&[u8]; 1]]) {
    let puts: Vec<PutSlice<'_>> =
        keys.iter().zip(pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
    assert!(store.put_batch(&puts, Options::default()).iter().all(Result::is_ok));
}

/// Runs `work(turn, buffers)` on 1, 2, 4, ... threads at once, each with its share of the turns.
fn measure(
    group: &mut BenchmarkGroup<'_, criterion::measurement::WallTime>,
    name: &str,
    work: impl Fn(u64, &mut [AlignedBuf]) + Sync,
) {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    for threads in (0..).map(|doubled| 1 << doubled).take_while(|threads| *threads <= cores) {
        group.bench_function(BenchmarkId::new(name, threads), |b| {
            b.iter_custom(|turns| at_once(threads, turns, &work));
        });
    }
}

fn at_once(threads: u64, turns: u64, work: &(impl Fn(u64, &mut [AlignedBuf]) + Sync)) -> Duration {
    let times = std::thread::scope(|scope| {
        let each = |thread: u64| {
            let mut buffers = AlignedBuf::many(BATCH, OBJECT_BYTES).expect("memory");
            buffers.iter_mut().for_each(|buffer| buffer.fill(1));
            let begun = Instant::now();
            for turn in (thread..turns).step_by(threads as usize) {
                work(turn, &mut buffers);
            }
            begun.elapsed()
        };
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || each(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    times.into_iter().max().unwrap_or_default()
}

fn threads(c: &mut Criterion) {
    let store = filled(OBJECT_BYTES);
    let requested = keys((0..64 * KEYS as u64).map(|i| mix(i) % OBJECTS));
    let mut group = c.benchmark_group(format!("exists_batch of {KEYS}"));
    group.throughput(Throughput::Elements(KEYS as u64));
    measure(&mut group, "threads", |turn, _| {
        let at = (mix(turn) % 63) as usize * KEYS;
        black_box(store.exists_batch(&requested[at..at + KEYS], Options::default()));
    });
    group.finish();

    let mut group = c.benchmark_group(format!("{BATCH} objects of 64 KiB"));
    group.throughput(Throughput::Bytes((BATCH * OBJECT_BYTES) as u64));
    let mut far = AlignedBuf::many(OBJECTS as usize, OBJECT_BYTES).expect("memory");
    // Untouched memory would be one page of zeros.
    far.iter_mut().for_each(|object| object.fill(1));
    measure(&mut group, "limit: copy and checksum", |turn, buffers| {
        for (i, to) in buffers.iter_mut().enumerate() {
            let from = &far[(mix(turn * BATCH as u64 + i as u64) % OBJECTS) as usize];
            let blocks = block_lengths(0..OBJECT_BYTES as u64, BLOCK_BYTES);
            let seen = |sum| {
                black_box(sum);
            };
            copy_blocks(
                [&mut to[..]],
                [SourcePiece::Private(from)],
                blocks,
                CopyMode::Cached,
                seen,
            );
        }
    });
    measure(&mut group, "get", |turn, buffers| {
        let at = (mix(turn) as usize % (requested.len() / BATCH)) * BATCH;
        let mut pieces: Vec<[&mut [u8]; 1]> = buffers.iter_mut().map(|b| [&mut b[..]]).collect();
        let mut gets: Vec<_> = requested[at..at + BATCH]
            .iter()
            .zip(&mut pieces)
            .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
            .collect();
        let outcomes = store.get_batch(&mut gets, Options::default());
        assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(pagelith::GetOutcome::is_hit)));
    });
    let next = AtomicU64::new(1 << 40);
    measure(&mut group, "put", |_, buffers| {
        let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
        put(&store, &keys(first..first + BATCH as u64), buffers);
    });
    group.finish();

    // The copy of such objects takes no longer than their admission, so threads contend for the
    // lock.
    let small = filled(SMALL_BYTES);
    let mut group = c.benchmark_group(format!("{BATCH} objects of 4 KiB"));
    group.throughput(Throughput::Elements(BATCH as u64));
    measure(&mut group, "put", |_, buffers| {
        let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
        let pieces: Vec<[&[u8]; 1]> =
            buffers.iter().map(|buffer| [&buffer[..SMALL_BYTES]]).collect();
        put_pieces(&small, &keys(first..first + BATCH as u64), &pieces);
    });
    group.finish();
}

criterion_group!(benches, threads);
criterion_main!(benches);
