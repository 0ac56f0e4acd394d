//! The cost of a decision of admission, which a write-through store does not make:
//! `Admission::touch` for pages in random order, whose history is larger than a cache.
//!
//! `cargo bench -p pagelith-micro --bench admission`. The limit is first: one random memory line
//! per page, in a table as large as the history.
#![allow(missing_docs, reason = "criterion's macros")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith::AlignedBuf;
use pagelith_tiers::policy::admission::{
    Admission, AdmissionRule, AdmissionSettings, BatchKind, PolicyKey, TouchedPage,
};

const OBJECTS: u64 = 1 << 20;
const PAGE_BYTES: u64 = 68 << 10;
const BATCHES: [usize; 2] = [1, 32];
const LINE: usize = 64;

/// A hash that scatters (SplitMix64).
fn mix(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Batches of pages: three of four are for pages that are known.
fn pages(batch: usize) -> impl Iterator<Item = Vec<TouchedPage>> {
    (0_u64..).map(move |number| {
        let first = if number % 4 == 0 { OBJECTS + number } else { mix(number) % OBJECTS };
        let page = |n| PolicyKey(mix(mix(first) ^ n));
        let of = |n| TouchedPage {
            page: page(n),
            bytes: PAGE_BYTES,
            depth: n as u32,
            on_ssd: false,
            required: false,
            attached: false,
        };
        (0..batch as u64).map(of).collect()
    })
}

fn touch(c: &mut Criterion) {
    for batch in BATCHES {
        let mut group = c.benchmark_group(format!("touch of {batch}"));
        group.throughput(Throughput::Elements(batch as u64));
        let bytes = Admission::memory_bytes(2 * OBJECTS) as usize;
        let mut table = AlignedBuf::new(bytes).expect("memory");
        table.fill(1);
        let mut turn = 0_u64;
        group.bench_function(BenchmarkId::new("limit: a line of memory each", OBJECTS), |b| {
            b.iter(|| {
                turn += 1;
                let line = |n: usize| mix(turn ^ (n as u64) << 40) as usize % (bytes / LINE);
                (0..batch).fold(0, |all, n| all ^ black_box(&table)[line(n) * LINE])
            });
        });
        let settings = AdmissionSettings::of_rule(AdmissionRule::Worth);
        let mut admission = Admission::new(settings, OBJECTS * PAGE_BYTES, 2 * OBJECTS);
        let mut write = Vec::new();
        // Fills the history, and learns.
        let batches: Vec<Vec<TouchedPage>> = pages(batch).take((1 << 22) / batch).collect();
        let mut request = 0;
        let mut next = |admission: &mut Admission| {
            let pages = &batches[request as usize % batches.len()];
            request += 1;
            write.clear();
            admission.touch(request, BatchKind::Put, pages, 0, &mut write);
            let written = write.iter().filter(|write| **write).count() as u64;
            admission.appended(written * PAGE_BYTES);
        };
        (0..batches.len()).for_each(|_| next(&mut admission));
        group.bench_function(BenchmarkId::new("worth", OBJECTS), |b| {
            b.iter(|| next(&mut admission));
        });
        group.finish();
    }
}

criterion_group!(benches, touch);
criterion_main!(benches);
