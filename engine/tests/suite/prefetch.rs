//! Prefetched objects are in DRAM when a get needs them, and prefetch has no other effect.

use super::harness::Store;
use pagelith::layouts::key::ObjectKey;
use pagelith::{GetOutcome, GetSlice, MissCause, Options, PutOutcome, Tier};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 61_000;

/// Pages of several lengths, multiples of a block or not, each on SSD only.
fn cold(world: &TestEnv, pages: u64) -> Store {
    let config = world.config();
    let store = world.open(&config);
    (0..pages).for_each(|n| store_page(&store, n, LEN));
    world.reopen(store, &config)
}

fn keys(pages: std::ops::Range<u64>) -> Vec<ObjectKey> {
    pages.map(key).collect()
}

/// Wait until no prefetch is pending.
fn settled(world: &TestEnv, store: &Store) {
    until(world, "hints are followed", || store.stats().prefetch_waiting == 0);
}

pub fn prefetched_pages_are_got_from_memory(world: &TestEnv) {
    let store = cold(world, 20);
    assert_eq!(store.prefetch(&keys(0..10), Options::default()), 10);
    settled(world, &store);
    let stats = store.stats();
    assert_eq!((stats.prefetched, stats.promoted, stats.dram_objects), (10, 10, 10), "{stats:?}");
    // No get has used it yet.
    assert_eq!((stats.hits_ssd, stats.hits_memory, stats.misses.len()), (0, 0, 0), "{stats:?}");
    for n in 0..20 {
        let tier = if n < 10 { Tier::Memory } else { Tier::Ssd };
        assert_eq!(hit_page(&store, n, LEN), tier, "n={n}");
    }
    // Objects in DRAM, and unknown ones, are not read.
    assert_eq!(store.prefetch(&keys(0..10), Options::default()), 0);
    assert_eq!(
        store.prefetch(&keys(100..110), Options::default()),
        usize::from(world.constant) * 10
    );
    assert_eq!(store.prefetch(&[], Options::default()), 0);
    settled(world, &store);
    assert_eq!(store.stats().prefetched, 10);
    // Without a DRAM tier nothing is read.
    let world = world.fresh(1);
    let store = world.open(&world.cold_config());
    store_page(&store, 1, LEN);
    store.flush(Options::default()).expect("flushed");
    assert_eq!(store.prefetch(&keys(1..2), Options::default()), 0);
}

pub fn group_is_prefetched_whole_or_not_at_all(world: &TestEnv) {
    if world.constant {
        return; // Objects of several lengths could be distinguished only by reading each.
    }
    let config = world.config();
    let store = world.open(&config);
    let page = group(1, 4);
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
    let store = world.reopen(store, &config);
    let named: Vec<ObjectKey> = page.iter().map(|(key, _)| *key).collect();
    assert_eq!(store.prefetch(&named[..3], Options::default()), 3);
    settled(world, &store);
    assert_eq!((store.stats().prefetched, store.stats().dram_bytes), (0, 0));
    assert_eq!(store.prefetch(&named, Options::default()), 4);
    settled(world, &store);
    assert_eq!((store.stats().prefetched, store.stats().promoted), (4, 1));
    page.iter()
        .for_each(|(key, bytes)| assert_eq!(hit(&store, *key, bytes), Tier::Memory, "key={key}"));
}

pub fn prefetch_is_bounded_and_evicts_nothing_in_use(world: &TestEnv) {
    let pages = world.many(60) as u64;
    let store = cold(world, pages);
    let quarter = (1 << 20) / 61_440;
    assert_eq!(store.prefetch(&keys(0..pages), Options::default()), quarter.min(pages as usize));
    settled(world, &store);
    // Everything that fits is pinned; there is no room for the rest.
    let fill = 100..200;
    let fits = |n: &u64| put_with(&store, key(*n), &bytes(*n, LEN), NOW) == Ok(PutOutcome::Stored);
    let mut pins = Vec::new();
    let mut held = Vec::new();
    for n in fill.take(if world.constant { 0 } else { 100 }).take_while(fits) {
        pins.push(store.pin(&[key(n)]));
        held.push(n);
    }
    store.prefetch(&keys(0..pages), Options::default());
    settled(world, &store);
    held.iter().for_each(|n| assert_eq!(hit_page(&store, *n, LEN), Tier::Memory, "n={n}"));
    (0..pages).for_each(|n| _ = hit_page(&store, n, LEN));
}

pub fn removal_during_prefetch_stays_effective(world: &TestEnv) {
    let store = cold(world, 12);
    assert_eq!(store.prefetch(&keys(0..12), Options::default()), 12);
    assert_eq!(store.remove(&keys(0..6), Options::default()), Ok(6));
    settled(world, &store);
    (0..6).for_each(|n| assert_absent(world, &store, key(n), LEN));
    (6..12).for_each(|n| _ = hit_page(&store, n, LEN));
    // An object removed before its read completed is not kept, and leaves nothing.
    assert_eq!(store.stats().dram_bytes, store.stats().dram_objects * 61_440);
    let store = world.reopen(store, &world.config());
    assert_eq!(store.prefetch(&keys(6..12), Options::default()), 6);
    store.clear(namespace("m"), Options::default()).expect("cleared");
    settled(world, &store);
    (0..12).for_each(|n| assert!(!is_present(&store, key(n), &bytes(n, LEN)), "n={n}"));
}

pub fn prefetch_of_a_damaged_page_keeps_nothing(world: &TestEnv) {
    let config = world.config();
    drop(cold(world, 4).close());
    world.flip(0, "segments", find(world, key(2)).payload + 40_000);
    let store = world.open(&config);
    assert_eq!(store.prefetch(&keys(0..4), Options::default()), 4);
    settled(world, &store);
    let stats = store.stats();
    assert_eq!((stats.prefetched, stats.damaged, stats.misses.len()), (3, 1, 0), "{stats:?}");
    let mut to = vec![0; LEN];
    let get = GetSlice { key: key(2), range: None, pieces: &mut [&mut to] };
    let outcome = store.get_batch(&mut [get], Options::default()).remove(0);
    assert_eq!(outcome, Ok(GetOutcome::Miss(MissCause::Absent)));
    for n in [0, 1, 3] {
        assert_eq!(hit_page(&store, n, LEN), Tier::Memory, "n={n}");
    }
}

pub fn closed_store_stops_prefetching(world: &TestEnv) {
    let mut store = cold(world, 16);
    for round in 0..6 {
        assert_eq!(store.prefetch(&keys(0..16), Options::default()), 16, "round={round}");
        store = match round % 2 {
            0 => world.crash(store, &world.config()),
            _ => world.reopen(store, &world.config()),
        };
        assert_eq!((store.stats().dram_objects, store.stats().prefetch_waiting), (0, 0));
    }
    (0..16).for_each(|n| assert_eq!(hit_page(&store, n, LEN), Tier::Ssd));
}
