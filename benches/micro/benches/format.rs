//! The cost of checksums and of record headers.
//!
//! `cargo bench -p pagelith-micro`. The limit of each group is first in it: a checksum cannot be
//! faster than a read of its input, and a header cannot be made or verified without its own
//! checksum.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::{
    Generation, GroupId, Incarnation, NamespaceId, PrefixHash, SegmentId, Sequence, StoreId,
};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::record::{self, GroupKind, MemberSpec, Record, RecordFacts, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_layouts::shard::Shard;
use xxhash_rust::xxh3::xxh3_128;

/// Larger than any cache.
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
        group.bench_with_input(
            BenchmarkId::new("xxhash-rust as built", bytes),
            &data,
            |b, data| {
                b.iter(|| xxh3_128(black_box(data)));
            },
        );
    }
    let data = vec![7u8; COLD_BYTES];
    group.throughput(Throughput::Bytes(COLD_BYTES as u64)).sample_size(10);
    let blocks = || black_box(&data).chunks(BLOCK_BYTES as usize);
    group.bench_function("limit: sum of words, out of memory", |b| {
        let sum =
            |block: &[u8]| block.as_chunks().0.iter().fold(0, |s, w| s ^ u64::from_le_bytes(*w));
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
        reinserted: false,
    };
    // A page's two objects of 64 KiB, and one of 4 MiB.
    for (shape, parts, blocks) in [("2 x 64 KiB", &["k", "v"][..], 2), ("1 x 4 MiB", &["kv"], 128)]
    {
        let sums = vec![[9u8; 16]; blocks];
        let length = u64::from(BLOCK_BYTES) * blocks as u64;
        let members: Vec<MemberSpec<'_>> = parts
            .iter()
            .map(|part| MemberSpec { key: key(part), length, checksums: &sums })
            .collect();
        let header = record::encode(&facts, &members).expect("a record");
        group.throughput(Throughput::Bytes(header.len() as u64));
        group.bench_with_input(
            BenchmarkId::new("limit: checksum of a header", shape),
            &header,
            |b, header| {
                b.iter(|| checksum(black_box(header)));
            },
        );
        group.bench_with_input(BenchmarkId::new("encode", shape), &members, |b, members| {
            b.iter(|| record::encode(black_box(&facts), members));
        });
        group.bench_with_input(BenchmarkId::new("decode", shape), &header, |b, header| {
            b.iter(|| Record::decode(black_box(header)).map(|r| r.record_bytes()));
        });
    }
    group.finish();
}

criterion_group!(benches, checksums, records);
criterion_main!(benches);
