//! Namespaces of one store: their counts and limits.

use std::ops::Range;
use std::time::Duration;

use pagelith::config::{NamespaceLimits, SsdPolicy, WhenFull};
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    Config, ErrorKind, LimitStats, NamespaceStats, Options, PutOutcome, PutSlice, Size,
};

use super::attached::attach;
use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 30_000;
/// Bytes of the arena for one object.
const PADDED: u64 = 32 << 10;
/// Bytes of the log for one object: a header, and its bytes.
const RECORD: u64 = 4096 + PADDED;
/// Segment size of [`TestEnv::config`].
const SEGMENT: u64 = 1 << 20;

fn key_of(name: &str, n: u64) -> ObjectKey {
    key_in(namespace(name), n, "k")
}

fn store_of(store: &Store, name: &str, n: u64) {
    assert_eq!(put(store, key_of(name, n), &bytes(n, LEN)), Ok(PutOutcome::Stored), "n={n}");
}

fn stats_of(store: &Store, name: &str) -> NamespaceStats {
    let all = store.stats().namespaces;
    *all.get(&namespace(name).to_string()).unwrap_or_else(|| panic!("{name} is not in {all:?}"))
}

pub fn counts_of_each_namespace_add_up(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    let mut config = world.config();
    assert!(world.open(&config).stats().namespaces.is_empty(), "nothing is counted by default");
    let world = world.fresh(1);
    config.ssd.dirs = world.paths();
    config.namespaces.counted = 2;
    let store = world.open(&config);
    for (name, pages) in [("a", 4), ("b", 2), ("c", 3), ("d", 1)] {
        (0..pages).for_each(|n| store_of(&store, name, n));
    }
    flush(&store);
    (0..6).for_each(|n| _ = is_present(&store, key_of("a", n), &bytes(n, LEN)));
    hit(&store, key_of("c", 1), &bytes(1, LEN));
    let of = |pages: u64, hits: u64, misses: u64| {
        let mut stats = NamespaceStats::default();
        (stats.dram_objects, stats.dram_bytes) = (pages, pages * PADDED);
        (stats.hits, stats.misses, stats.bytes_got) = (hits, misses, hits * LEN as u64);
        (stats.puts_stored, stats.bytes_put) = (pages, pages * LEN as u64);
        stats.bytes_to_ssd = pages * LEN as u64;
        stats
    };
    let stats = store.stats();
    assert_eq!(stats.namespaces.len(), 3);
    assert_eq!(stats_of(&store, "a"), of(4, 4, 2));
    assert_eq!(stats_of(&store, "b"), of(2, 0, 0));
    assert_eq!(stats.namespaces["others"], of(4, 1, 0));
    store.clear(namespace("a"), Options::default()).expect("cleared");
    let mut cleared = of(4, 4, 2);
    (cleared.dram_objects, cleared.dram_bytes) = (0, 0);
    assert_eq!(stats_of(&store, "a"), cleared);
    // After a reopen a namespace is known once it is read.
    let store = world.reopen(store, &config);
    hit(&store, key_of("b", 1), &bytes(1, LEN));
    assert_eq!((stats_of(&store, "b").hits, stats_of(&store, "b").puts_stored), (1, 0));
}

/// Limit namespace `a` to so many objects in DRAM, and so many bytes of the log.
fn limit(config: &mut Config, dram_objects: Option<u64>, ssd: Option<u64>, when_full: WhenFull) {
    let mut limits = NamespaceLimits::of(namespace("a"));
    limits.dram_bytes = dram_objects.map(|objects| Size::from_bytes(objects * PADDED));
    limits.ssd_bytes = ssd.map(Size::from_bytes);
    limits.when_full = when_full;
    config.namespaces.limits = vec![limits];
}

fn limit_stats(store: &Store) -> LimitStats {
    store.stats().limits[&namespace("a").to_string()]
}

fn put_one(store: &Store, name: &str, n: u64) -> PutOutcome {
    put(store, key_of(name, n), &bytes(n, LEN)).unwrap_or_else(|error| panic!("{error}"))
}

/// Which pages of a namespace are present.
fn present(store: &Store, name: &str, pages: Range<u64>) -> Vec<u64> {
    pages.filter(|n| is_present(store, key_of(name, *n), &bytes(*n, LEN))).collect()
}

pub fn put_beyond_a_limit_of_memory_is_refused(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    let mut config = world.memory_config(Size::mib(4));
    limit(&mut config, Some(8), None, WhenFull::Refuse);
    let store = world.open(&config);
    (0..8).for_each(|n| store_of(&store, "a", n));
    assert_eq!(put_one(&store, "a", 8), PutOutcome::Refused);
    assert_eq!(put_one(&store, "a", 7), PutOutcome::AlreadyPresent);
    (0..60).for_each(|n| store_of(&store, "b", n));
    assert_eq!(present(&store, "a", 0..9), Vec::from_iter(0..8));
    let mut full = LimitStats::default();
    full.dram_bytes = 8 * PADDED;
    full.puts_refused = 1;
    assert_eq!(limit_stats(&store), full);
    assert_eq!(store.stats().puts_refused, 1);
    assert_eq!(store.remove(&[key_of("a", 3)], Options::default()), Ok(1));
    store_of(&store, "a", 8);
    store.clear(namespace("a"), Options::default()).expect("cleared");
    assert_eq!(limit_stats(&store).dram_bytes, 0);
    // A group that is larger than the limit never fits.
    let large = bytes(1, (9 * PADDED) as usize);
    assert_eq!(put(&store, key_of("a", 100), &large), Ok(PutOutcome::Refused));
}

pub fn namespace_that_evicts_its_own_displaces_no_other_from_memory(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    let mut config = world.memory_config(Size::mib(4));
    limit(&mut config, Some(16), None, WhenFull::EvictOwn);
    let store = world.open(&config);
    (0..100).for_each(|n| store_of(&store, "b", n));
    (0..200).for_each(|n| store_of(&store, "a", n));
    assert_eq!(present(&store, "a", 0..200), Vec::from_iter(184..200), "the oldest left");
    let stats = limit_stats(&store);
    assert_eq!((stats.dram_bytes, stats.evicted, stats.puts_refused), (16 * PADDED, 184, 0));
    // All were requested just now, in order. A page that is requested again stays longer.
    (200..208).for_each(|n| store_of(&store, "a", n));
    hit(&store, key_of("a", 192), &bytes(192, LEN));
    (208..216).for_each(|n| store_of(&store, "a", n));
    let here = present(&store, "a", 0..216);
    assert!(here.contains(&192) && here.len() == 16, "{here:?}");
    assert_eq!(present(&store, "b", 0..100).len(), 100);
    let large = bytes(1, (17 * PADDED) as usize);
    assert_eq!(put(&store, key_of("a", 900), &large), Ok(PutOutcome::Refused));
    assert_eq!(present(&store, "a", 0..216), here, "a refused put evicts nothing");
}

pub fn put_that_is_attached_or_invalid_evicts_no_base_of_its_own(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let mut config = world.memory_config(Size::mib(4));
    limit(&mut config, Some(4), None, WhenFull::EvictOwn);
    let store = world.open(&config);
    (0..4).for_each(|n| store_of(&store, "a", n));
    // Objects of two pages are no group.
    let data = bytes(9, LEN);
    let pieces = [&data[..]];
    let two = [10, 11].map(|n| PutSlice { key: key_of("a", n), pieces: &pieces });
    let outcome = store.put_groups(&[&two], Options::default()).remove(0);
    assert_eq!(outcome.expect_err("invalid").kind, ErrorKind::Invalid);
    assert_eq!(limit_stats(&store).dram_bytes, 4 * PADDED);
    let state = [(key_in(namespace("a"), 0, "state"), bytes(7, LEN))];
    assert_eq!(attach(&store, key_of("a", 0), &state), Ok(PutOutcome::Stored));
    assert!(is_present(&store, state[0].0, &state[0].1));
    assert_eq!(present(&store, "a", 0..4), [0, 2, 3], "the oldest but the base left");
}

pub fn one_put_passes_over_a_bounded_number_of_requested_pages(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Its members are looked up by fingerprint.
    }
    const PAGES: u64 = 1100;
    let mut config = world.memory_config(Size::mib(8));
    limit(&mut config, None, None, WhenFull::EvictOwn);
    config.namespaces.limits[0].dram_bytes = Some(Size::from_bytes(PAGES * 4096));
    let store = world.open(&config);
    let keys: Vec<_> = (0..=PAGES).map(|n| key_of("a", n)).collect();
    let here = || store.exists_batch(&keys, Options::default());
    let put_one = |n: usize| assert_eq!(put(&store, keys[n], b"page"), Ok(PutOutcome::Stored));
    (0..PAGES as usize).for_each(put_one);
    assert_eq!(here().iter().filter(|here| **here).count() as u64, PAGES);
    put_one(PAGES as usize);
    let left: Vec<_> =
        here().iter().enumerate().filter(|(_, here)| !**here).map(|(n, _)| n).collect();
    assert_eq!(left, [1024], "the first that was not passed over");
}

pub fn limit_of_memory_holds_for_promoted_pages(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    for when_full in [WhenFull::Refuse, WhenFull::EvictOwn] {
        let world = world.fresh(1);
        let mut config = world.config();
        config.dram.promote = pagelith::config::Promote::Always;
        let store = world.open(&config);
        (0..30).for_each(|n| store_of(&store, "a", n));
        limit(&mut config, Some(8), None, when_full);
        let store = world.reopen(store, &config);
        (0..30).for_each(|n| _ = hit(&store, key_of("a", n), &bytes(n, LEN)));
        until(&world, "pages are promoted", || limit_stats(&store).dram_bytes == 8 * PADDED);
        assert_eq!(present(&store, "a", 0..30).len(), 30);
        assert_eq!(limit_stats(&store).dram_bytes, 8 * PADDED, "{when_full:?}");
    }
}

pub fn put_beyond_a_limit_of_the_log_is_refused_also_after_a_reopen(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    const FIT: u64 = 2 * SEGMENT / RECORD;
    let mut config = world.config();
    limit(&mut config, None, Some(2 * SEGMENT), WhenFull::Refuse);
    let mut store = world.open(&config);
    for n in 0..FIT {
        store_of(&store, "a", n);
        flush(&store);
    }
    let refuses = |store: &Store| {
        assert_eq!(limit_stats(store).ssd_bytes, FIT * RECORD);
        assert_eq!(put_one(store, "a", 900), PutOutcome::Refused);
    };
    refuses(&store);
    (0..40).for_each(|n| store_of(&store, "b", n));
    store = world.crash(store, &config);
    refuses(&store);
    store = world.reopen(store, &config);
    refuses(&store);
    assert_eq!(present(&store, "a", 0..FIT).len() as u64, FIT);
    store.clear(namespace("a"), Options::default()).expect("cleared");
    assert_eq!(limit_stats(&store).ssd_bytes, 0);
    store_of(&store, "a", 900);
    flush(&store);
    store = world.reopen(store, &config);
    assert_eq!(limit_stats(&store).ssd_bytes, RECORD);
}

pub fn limit_of_the_log_counts_a_segment_whose_footer_is_damaged(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    let mut config = world.config();
    limit(&mut config, None, Some(4 * SEGMENT), WhenFull::Refuse);
    let store = world.open(&config);
    (0..40).for_each(|n| store_of(&store, "a", n));
    flush(&store);
    store.close().expect("closed");
    let segment = find(world, key_of("a", 0)).record / SEGMENT * SEGMENT;
    world.flip(0, "segments", segment + SEGMENT - 40);
    let store = world.open(&config);
    assert_eq!(limit_stats(&store).ssd_bytes, 40 * RECORD);
}

pub fn limit_of_the_log_is_exact_for_puts_without_flush(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    const PAGES: u64 = 100;
    let mut config = world.config();
    limit(&mut config, None, Some(2 * SEGMENT), WhenFull::Refuse);
    let store = world.open(&config);
    let outcomes: Vec<_> = (0..PAGES).map(|n| put_one(&store, "a", n)).collect();
    let refused = outcomes.iter().filter(|o| **o == PutOutcome::Refused).count() as u64;
    let report = store.flush(Options::default()).expect("flushed");
    let stats = limit_stats(&store);
    assert_eq!(stats.ssd_bytes, 2 * SEGMENT / RECORD * RECORD);
    assert_eq!(
        (stats.puts_refused, stats.puts_refused + stats.writes_refused),
        (refused, report.refused_objects,)
    );
    assert_eq!(report.durable_objects + report.refused_objects, PAGES, "{report:?}");
    // What was stored and not written is served from DRAM.
    let stored = (0..PAGES).filter(|n| outcomes[*n as usize] == PutOutcome::Stored);
    let stored: Vec<u64> = stored.collect();
    assert_eq!(present(&store, "a", 0..PAGES), stored);
    let store = world.crash(store, &config);
    assert_eq!(present(&store, "a", 0..PAGES).len() as u64, report.durable_objects);
}

pub fn namespace_that_evicts_its_own_displaces_no_other_from_the_log(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    let mut config = world.cold_config();
    limit(&mut config, None, Some(3 * SEGMENT), WhenFull::EvictOwn);
    let mut store = world.open(&config);
    (0..60).for_each(|n| store_of(&store, "b", n));
    store_of(&store, "a", 0);
    flush(&store);
    let pin = store.pin(&[key_of("a", 0)]);
    assert_eq!(pin.pinned(), 1);
    for n in 1..160 {
        store_of(&store, "a", n);
        if n % 20 == 0 {
            flush(&store);
            assert!(limit_stats(&store).ssd_bytes <= 4 * SEGMENT, "{:?}", limit_stats(&store));
        }
    }
    flush(&store);
    let is_within = |store: &Store| limit_stats(store).ssd_bytes <= 3 * SEGMENT;
    until(world, "the oldest are dropped", || is_within(&store));
    let stats = store.stats();
    assert_eq!(stats.segments_reclaimed, 0, "the log has room for all {stats:?}");
    let check = |store: &Store| {
        assert_eq!(present(store, "b", 0..60).len(), 60);
        let here = present(store, "a", 0..160);
        assert!((50..=90).contains(&here.len()), "{here:?}");
        assert!(here.ends_with(&Vec::from_iter(130..160)), "the youngest stay {here:?}");
        here
    };
    let here = check(&store);
    assert_eq!(here[0], 0, "it is pinned");
    assert_eq!(
        (limit_stats(&store).evicted, limit_stats(&store).writes_refused),
        (160 - here.len() as u64, 0)
    );
    drop(pin);
    // What was dropped does not count after a reopen: the next pages are written.
    store = world.reopen(store, &config);
    assert!(limit_stats(&store).ssd_bytes <= 4 * SEGMENT, "{:?}", limit_stats(&store));
    store_of(&store, "a", 160);
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.refused_objects, limit_stats(&store).writes_refused), (0, 0), "{report:?}");
    // A crash may bring dropped pages back; they are dropped again.
    store = world.crash(store, &config);
    until(world, "the oldest are dropped", || is_within(&store));
    check(&store);
    store = world.reopen(store, &config);
    until(world, "the oldest are dropped", || is_within(&store));
    let here = check(&store);
    // A page that was dropped can be put again, and removed for ever.
    assert!(!here.contains(&20), "{here:?}");
    store_of(&store, "a", 20);
    flush(&store);
    hit(&store, key_of("a", 20), &bytes(20, LEN));
    assert_eq!(store.remove(&[key_of("a", 20), key_of("a", 21)], Options::default()), Ok(1));
    store = world.crash(store, &config);
    assert_absent(world, &store, key_of("a", 20), LEN);
    assert_absent(world, &store, key_of("a", 21), LEN);
}

pub fn idle_pages_are_not_written_again_by_reclaim(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A use of one object would be a use of any.
    }
    let Some(sim) = world.sim() else {
        return; // Days pass in simulated time only.
    };
    for (idle_days, stays) in [(7, false), (30, true)] {
        let world = world.fresh(1);
        let sim = world.sim().unwrap_or(sim);
        let mut config = world.cold_config();
        config.ssd.policy = SsdPolicy::Recency;
        let mut limits = NamespaceLimits::of(namespace("a"));
        limits.idle_days = Some(idle_days);
        config.namespaces.limits = vec![limits];
        let store = world.open(&config);
        // One page of each namespace is requested after the others of its segment.
        store_of(&store, "a", 0);
        store_of(&store, "b", 0);
        (1..300).for_each(|n| store_of(&store, "b", n));
        flush(&store);
        store.exists_batch(&[key_of("a", 0), key_of("b", 0)], Options::default());
        store_of(&store, "b", 300);
        flush(&store);
        for _ in 0..10 {
            sim.clock.advance(Duration::from_secs(24 * 3600));
            sim.runtime.run_for(Duration::from_millis(10));
        }
        let reclaimed = store.stats().segments_reclaimed;
        let mut next = 1000;
        while store.stats().segments_reclaimed < reclaimed + 3 {
            store_of(&store, "b", next);
            flush(&store);
            next += 1;
        }
        assert_eq!(present(&store, "b", 0..1), [0], "idle_days={idle_days}");
        assert_eq!(present(&store, "a", 0..1).len() == 1, stays, "idle_days={idle_days}");
    }
}
