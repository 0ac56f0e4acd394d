//! What a put costs in the caller's thread, and what a flush costs a record.
//!
//! `cargo bench -p pagelith-micro`. The limit of each group stands first in it: a checksum cannot be faster
//! than reading, a fill not faster than a copy.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum};
use pagelith_layouts::ids::{
    Generation, GroupId, Incarnation, NamespaceId, PrefixHash, SegmentId, Sequence, StoreId,
};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::record::{self, GroupKind, MemberSpec, Record, RecordFacts, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_layouts::shard::Shard;
use pagelith_tiers::dram::arena::Arena;
use xxhash_rust::xxh3::xxh3_128;

/// More than any cache holds.
const COLD_BYTES: usize = 256 << 20;

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for bytes in [4096usize, BLOCK_BYTES as usize, 1 << 20] {
        let data = vec![7u8; bytes];
        let mut copy = vec![0u8; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::new("limit: memcpy", bytes), &data, |b, data| {
            b.iter(|| copy.copy_from_slice(black_box(data)));
        });
        group.bench_with_input(BenchmarkId::new("xxh3-128", bytes), &data, |b, data| {
            b.iter(|| checksum(black_box(data)));
        });
        group.bench_with_input(BenchmarkId::new("xxhash-rust as built", bytes), &data, |b, data| {
            b.iter(|| xxh3_128(black_box(data)));
        });
    }
    let data = vec![7u8; COLD_BYTES];
    group.throughput(Throughput::Bytes(COLD_BYTES as u64)).sample_size(10);
    let blocks = || black_box(&data).chunks(BLOCK_BYTES as usize);
    group.bench_function("limit: sum of words, out of memory", |b| {
        let sum = |block: &[u8]| block.as_chunks().0.iter().fold(0, |s, w| s ^ u64::from_le_bytes(*w));
        b.iter(|| blocks().fold(0, |all, block| all ^ sum(block)));
    });
    group.bench_function("xxh3-128, out of memory", |b| {
        b.iter(|| blocks().fold(0, |all, block| all ^ checksum(block)[0]));
    });
    group.bench_function("xxhash-rust as built, out of memory", |b| {
        b.iter(|| blocks().fold(0, |all, block| all ^ xxh3_128(block)));
    });
    group.finish();
}

fn fill(c: &mut Criterion) {
    let mut group = c.benchmark_group("fill");
    for bytes in [64usize << 10, 1 << 20] {
        let data = vec![7u8; bytes];
        let mut copy = vec![0u8; bytes];
        let mut arena = Arena::new(8 << 20).expect("memory");
        let extent = arena.space.alloc(bytes as u64).expect("room");
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_with_input(BenchmarkId::new("limit: memcpy", bytes), &data, |b, data| {
            b.iter(|| copy.copy_from_slice(black_box(data)));
        });
        group.bench_with_input(BenchmarkId::new("copy and checksum", bytes), &data, |b, data| {
            // SAFETY: the extent is this benchmark's alone; there is one writer at a time.
            let mut writer = unsafe { arena.memory.writer(extent) };
            b.iter(|| {
                let mut sums: Vec<Checksum> = Vec::with_capacity(bytes / BLOCK_BYTES as usize);
                writer
                    .fill(&[black_box(data)], BLOCK_BYTES, |_, block| sums.push(checksum(block)))
                    .expect("fits");
                sums
            });
        });
    }
    group.finish();
}

fn records(c: &mut Criterion) {
    let mut group = c.benchmark_group("record");
    let namespace = NamespaceId([1; 16]);
    let key = |part| {
        ObjectKey::new(namespace, PrefixHash([2; 32]), Role::Target, "kv", part, Shard::Whole)
            .expect("a name")
    };
    let facts = RecordFacts {
        identity: SegmentIdentity {
            store: StoreId([3; 16]),
            segment: SegmentId(4),
            incarnation: Incarnation(5),
        },
        offset: 4096,
        kind: RecordKind::Data,
        group_kind: GroupKind::Base,
        namespace,
        generation: Generation::FIRST,
        sequence: Sequence(6),
        group: GroupId(6),
        base_group: GroupId(0),
        block_bytes: BLOCK_BYTES,
        depth: 0,
        moved: false,
    };
    let sums = [[9u8; 16]; 2];
    let members = ["k", "v"].map(|part| MemberSpec { key: key(part), length: 65536, checksums: &sums });
    let header = record::encode(&facts, &members).expect("a record");
    group.bench_function("limit: checksum of a header", |b| b.iter(|| checksum(black_box(&header))));
    group.bench_function("encode", |b| b.iter(|| record::encode(black_box(&facts), &members)));
    group.bench_function("decode", |b| {
        b.iter(|| Record::decode(black_box(&header)).map(|r| r.record_bytes()))
    });
    group.finish();
}

criterion_group!(benches, checksums, fill, records);
criterion_main!(benches);
