//! The cost of planning the reads of a batch.
//!
//! `cargo bench -p pagelith-micro --bench planner`. The limit is first in each group: sorting as
//! many places, which is needed to merge neighbours.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith_layouts::ids::SegmentId;

// The engine's own file, because its planner is private.
#[path = "../../../engine/src/read/plan.rs"]
#[allow(dead_code, reason = "parts that are not measured")]
mod plan;

use plan::{ReadTarget, plan};

const OBJECT_BYTES: u64 = 64 << 10;
const HEADER_BYTES: u64 = 4096;
/// Records that fit into a segment of 64 MiB.
const RECORDS: u64 = (64 << 20) / (OBJECT_BYTES + HEADER_BYTES) - 1;
const SEGMENTS: u64 = 64;
/// Most scatter parts of one read: IOV_MAX of Linux.
const PARTS_MAX: usize = 1024;

/// SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The record at `place`, counted through all segments.
fn target(item: usize, place: u64) -> ReadTarget {
    ReadTarget {
        item,
        plan_number: 0,
        segment: SegmentId((place / RECORDS) as u32),
        record: HEADER_BYTES + place % RECORDS * (OBJECT_BYTES + HEADER_BYTES),
        payload_offset: HEADER_BYTES,
        chunks: plan::split_chunks(0..OBJECT_BYTES, OBJECT_BYTES),
        direct_parts: Some(1),
        unaligned_tail: false,
        sub_batch: 0,
        header_cached: false,
    }
}

fn plans(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for count in [32usize, 1024] {
        let apart: Vec<ReadTarget> =
            (0..count).map(|i| target(i, mix(i as u64) % (SEGMENTS * RECORDS))).collect();
        let run: Vec<ReadTarget> = (0..count).map(|i| target(i, i as u64)).collect();
        group.throughput(Throughput::Elements(count as u64));
        let places: Vec<(SegmentId, u64)> = apart.iter().map(|t| (t.segment, t.record)).collect();
        group.bench_function(BenchmarkId::new("limit: sort", count), |b| {
            b.iter_batched_ref(|| places.clone(), |places| places.sort(), BatchSize::SmallInput);
        });
        for (name, targets) in [("strangers", &apart), ("neighbours", &run)] {
            group.bench_function(BenchmarkId::new(name, count), |b| {
                b.iter(|| plan(black_box(targets), 0, PARTS_MAX));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, plans);
criterion_main!(benches);
