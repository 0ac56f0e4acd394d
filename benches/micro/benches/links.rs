//! The cost of a link: the same gets, puts and lookups embedded, through shared memory, over a
//! Unix socket without it, and over TCP, on a DRAM-only store. Client and server are two threads of
//! one process. Gets and puts also with four batches in flight from one thread, embedded and by
//! reference; a time is then that of one batch.
//!
//! `cargo bench -p pagelith-micro --bench links`. The limit of TCP is measured too: a thread that
//! sends as many bytes for each request byte, and one that receives them into the same buffers and
//! checksums them. Gets from SSD use a store in the system's directory for temporary files
//! (`TMPDIR`), embedded and through shared memory: staged by the server.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::disallowed_methods, reason = "measures threads by the real clock")]

mod common;
mod tcp_baseline;
mod transports;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith::transport::address::Address;
use pagelith::{AlignedBuf, Config, MachineLimits, Options, Size, Store};

use common::{keys, mix};
use tcp_baseline::TcpBaseline;
use transports::{
    BATCH, DATA, DEPTH, InFlightBatches, SharedMemoryUse, StoreUnderTest, attach, store,
};

fn links(c: &mut Criterion) {
    let dir = std::env::temp_dir().join(format!("pagelith-links-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    let unix = |name: &str| Address::Unix(dir.join(name));
    let tcp = || "tcp:127.0.0.1:0".parse().expect("an address");
    for object_bytes in [64 << 10, 1 << 20] {
        let (store, stop) = (store(), AtomicBool::new(false));
        let (mut buffers, memory) =
            AlignedBuf::shown((1 + DEPTH) * BATCH, object_bytes).expect("memory");
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let mut in_flight = buffers.split_off(BATCH);
        std::thread::scope(|scope| {
            let sides = [
                ("embedded", StoreUnderTest::Embedded(&store)),
                (
                    "shown",
                    StoreUnderTest::Attached(attach(
                        scope,
                        &store,
                        (unix("shown"), SharedMemoryUse::Arena),
                        &memory,
                        &stop,
                    )),
                ),
                (
                    "shared memory",
                    StoreUnderTest::Attached(attach(
                        scope,
                        &store,
                        (unix("shared"), SharedMemoryUse::Rings),
                        &memory,
                        &stop,
                    )),
                ),
                (
                    "unix socket",
                    StoreUnderTest::Attached(attach(
                        scope,
                        &store,
                        (unix("socket"), SharedMemoryUse::Nothing),
                        &memory,
                        &stop,
                    )),
                ),
                (
                    "tcp",
                    StoreUnderTest::Attached(attach(
                        scope,
                        &store,
                        (tcp(), SharedMemoryUse::Nothing),
                        &memory,
                        &stop,
                    )),
                ),
            ];
            let objects = (DATA / object_bytes) as u64;
            for batch in keys(0..objects).chunks(BATCH) {
                sides[0].1.put(batch, &buffers[..batch.len()]);
            }
            let requested = keys((0..objects * 4).map(|i| mix(i) % objects));
            let batch = |turn: u64| {
                &requested[(mix(turn) as usize % (requested.len() / BATCH)) * BATCH..][..BATCH]
            };

            let mut group = c.benchmark_group(format!("get {BATCH} of {} KiB", object_bytes >> 10));
            group.throughput(Throughput::Bytes((BATCH * object_bytes) as u64));
            for (name, side) in &sides {
                let mut turn = 0;
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        turn += 1;
                        side.get(batch(turn), &mut buffers);
                    });
                });
            }
            for (name, side) in &sides[..2] {
                let (mut turn, mut flights) = (0, InFlightBatches::new(side, &mut in_flight));
                group.bench_function(
                    BenchmarkId::from_parameter(format!("{name}, {DEPTH} in flight")),
                    |b| {
                        b.iter(|| {
                            turn += 1;
                            flights.get(batch(turn));
                        });
                    },
                );
                in_flight = flights.land();
            }
            let mut bare = TcpBaseline::new(scope, object_bytes);
            group.bench_function(
                BenchmarkId::from_parameter("limit: bare tcp and checksum"),
                |b| {
                    b.iter(|| bare.get(&mut buffers));
                },
            );
            drop(bare);
            group.finish();

            let mut group = c.benchmark_group(format!("put {BATCH} of {} KiB", object_bytes >> 10));
            group.throughput(Throughput::Bytes((BATCH * object_bytes) as u64));
            let next = AtomicU64::new(1 << 40);
            for (name, side) in &sides {
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                        side.put(&keys(first..first + BATCH as u64), &buffers);
                    });
                });
            }
            for (name, side) in &sides[..2] {
                let mut flights = InFlightBatches::new(side, &mut in_flight);
                group.bench_function(
                    BenchmarkId::from_parameter(format!("{name}, {DEPTH} in flight")),
                    |b| {
                        b.iter(|| {
                            let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                            flights.put(&keys(first..first + BATCH as u64));
                        });
                    },
                );
                in_flight = flights.land();
            }
            group.finish();

            for (what, key) in [
                ("exists of 1", requested[0]),
                ("exists of 1 that is not here", keys((1 << 60)..(1 << 60) + 1)[0]),
            ] {
                let mut group =
                    c.benchmark_group(format!("{what}, objects of {} KiB", object_bytes >> 10));
                for (name, side) in &sides {
                    group.bench_function(BenchmarkId::from_parameter(name), |b| {
                        b.iter(|| side.exists(&[key]))
                    });
                }
                group.finish();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// Gets of objects that are on SSD only: nothing is kept in DRAM.
fn from_ssd(c: &mut Criterion) {
    let dir = std::env::temp_dir().join(format!("pagelith-links-ssd-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    for object_bytes in [64 << 10, 1 << 20] {
        let mut config = Config::default();
        config.dram.bytes = Size::ZERO;
        config.dram.shared = true;
        config.dram.promote = pagelith::config::Promote::Never;
        config.ssd.bytes = Size::from_bytes(8 * DATA as u64);
        config.ssd.dirs = vec![dir.join(object_bytes.to_string())];
        let config =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("room");
        let (store, stop) = (Store::open(config).expect("a store"), AtomicBool::new(false));
        let (mut buffers, memory) = AlignedBuf::shown(BATCH, object_bytes).expect("memory");
        let mut huge = AlignedBuf::many(BATCH, object_bytes).expect("memory");
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let objects = (4 * DATA / object_bytes) as u64;
        for batch in keys(0..objects).chunks(BATCH) {
            StoreUnderTest::Embedded(&store).put(batch, &buffers[..batch.len()]);
        }
        store.flush(Options::default()).expect("flushed");
        std::thread::scope(|scope| {
            let side = |name, shares| {
                StoreUnderTest::Attached(attach(
                    scope,
                    &store,
                    (Address::Unix(dir.join(name)), shares),
                    &memory,
                    &stop,
                ))
            };
            let sides = [
                ("embedded", StoreUnderTest::Embedded(&store)),
                ("staged and shown", side("arena", SharedMemoryUse::Arena)),
            ];
            let mut group =
                c.benchmark_group(format!("get {BATCH} of {} KiB from ssd", object_bytes >> 10));
            group.throughput(Throughput::Bytes((BATCH * object_bytes) as u64));
            for (name, side) in &sides {
                let mut turn = 0;
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        turn += BATCH as u64;
                        side.get(
                            &keys((turn..turn + BATCH as u64).map(|i| mix(i) % objects)),
                            &mut huge,
                        );
                    });
                });
            }
            group.finish();
            stop.store(true, Ordering::Relaxed);
        });
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}

criterion_group!(benches, links, from_ssd);
criterion_main!(benches);
