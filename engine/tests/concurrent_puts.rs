//! Several threads put the same pages at once, in batches that meet each other anywhere: what one
//! of them made visible while another copied is stored once. (Every order of a few steps:
//! `sim/concurrency`.)
#![allow(clippy::disallowed_methods, reason = "the test needs real threads")]

use std::sync::Barrier;

use pagelith::layouts::{
    ids::NamespaceId, ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace,
    shard::Shard,
};
use pagelith::{Config, MachineLimits, Options, PutOutcome, PutSlice, Size, Store};

const THREADS: usize = 4;
const ROUNDS: u32 = 40;
/// More than a run has, so that a batch is admitted in several.
const PAGES: u32 = 48;
const LEN: usize = 4096;

fn page(round: u32, n: u32) -> [ObjectKey; 2] {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&round.to_le_bytes());
    hash[4..8].copy_from_slice(&n.to_le_bytes());
    let namespace: NamespaceId = Namespace::default().id();
    let key = |component| {
        ObjectKey::new(namespace, PrefixHash(hash), Role::Target, "kv", component, Shard::Whole)
    };
    ["k", "v"].map(|component| key(component).expect("a key"))
}

fn open(pages: u64) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(pages * 2 * LEN as u64);
    config.index.max_objects = Some(1 << 16);
    Store::open(config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("room"))
        .expect("a store")
}

/// Put the pages of a round as groups (of two, or of one each); how many objects were stored, and
/// how many were there.
fn put(store: &Store, round: u32, from: u32, whole: bool) -> [u64; 2] {
    let bytes = vec![round.to_le_bytes()[0]; LEN];
    let pieces: [&[u8]; 1] = [&bytes];
    let keys: Vec<_> = (0..PAGES).map(|n| page(round, (n + from) % PAGES)).collect();
    let objects: Vec<PutSlice<'_>> =
        keys.iter().flatten().map(|key| PutSlice { key: *key, pieces: &pieces }).collect();
    let each = if whole { 2 } else { 1 };
    let groups: Vec<&[PutSlice<'_>]> = objects.chunks(each).collect();
    let outcomes = store.put_groups(&groups, Options::default());
    outcomes.into_iter().fold([0, 0], |[stored, present], outcome| match outcome.expect("put") {
        PutOutcome::Stored => [stored + each as u64, present],
        PutOutcome::AlreadyPresent => [stored, present + each as u64],
        other => panic!("{other:?}"),
    })
}

fn put_by_all(pages: u64, whole: bool) -> Store {
    let (store, together) = (open(pages), Barrier::new(THREADS));
    let sums = std::thread::scope(|scope| {
        let each = |thread: usize| {
            let (store, together) = (&store, &together);
            move || {
                let each = |round| {
                    together.wait();
                    // Half of them in another order.
                    put(store, round, (thread as u32 / 2) * PAGES / 3, whole)
                };
                (0..ROUNDS).map(each).fold([0, 0], |a: [u64; 2], b| [a[0] + b[0], a[1] + b[1]])
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(each(thread))).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("no panic"))
            .fold([0, 0], |a, b| [a[0] + b[0], a[1] + b[1]])
    });
    let put = u64::from(ROUNDS * PAGES * 2);
    assert_eq!(sums[0] + sums[1], THREADS as u64 * put);
    let stats = store.stats();
    assert_eq!((stats.puts_stored, stats.puts_present), (sums[0], sums[1]));
    store
}

#[test]
fn concurrent_puts_store_each_page_once() {
    for whole in [true, false] {
        let pages = u64::from(ROUNDS * PAGES);
        // Room for puts in flight in addition to the stored pages.
        let store = put_by_all(2 * pages, whole);
        let stats = store.stats();
        assert_eq!(
            (stats.puts_stored, stats.objects),
            (2 * pages, 2 * pages),
            "a page was stored twice"
        );
        assert_eq!(stats.dram_bytes, 2 * pages * LEN as u64);
        let keys: Vec<_> =
            (0..ROUNDS).flat_map(|round| (0..PAGES).flat_map(move |n| page(round, n))).collect();
        assert_eq!(store.remove(&keys, Options::default()).expect("removed"), keys.len());
        assert!(
            store.exists_batch(&keys, Options::default()).iter().all(|here| !here),
            "removed once, there twice"
        );
        assert_eq!(store.stats().dram_bytes, 0, "memory of a page that lost is not free again");
    }
}

#[test]
fn concurrent_puts_with_eviction_leak_no_memory() {
    for whole in [true, false] {
        // Four rounds of pages: puts evict earlier pages while other threads put them.
        let store = put_by_all(4 * u64::from(PAGES), whole);
        let keys: Vec<_> =
            (0..ROUNDS).flat_map(|round| (0..PAGES).flat_map(move |n| page(round, n))).collect();
        let here =
            store.exists_batch(&keys, Options::default()).iter().filter(|here| **here).count();
        assert!(here > 0);
        assert_eq!(store.remove(&keys, Options::default()).expect("removed"), here);
        let stats = store.stats();
        assert_eq!((stats.objects, stats.dram_bytes), (0, 0), "frames or extents leaked");
    }
}
