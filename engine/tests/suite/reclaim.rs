//! The log wraps repeatedly: which records are overwritten, which are kept, and the size limit.

use std::collections::BTreeSet;
use std::time::Duration;

use pagelith::config::SsdPolicy;
use pagelith::io::fault::FaultOp;
use pagelith::{Options, PutOutcome, PutSlice};
use pagelith_sim::env::SimWorld;

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 50_000;
const LAP: usize = 14 << 20;
/// Segment size of [`TestEnv::config`].
const SEGMENT: u64 = 1 << 20;

pub fn log_laps_keep_the_youngest_pages(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let config = world.config();
    let store = world.open(&config);
    let laps = if world.constant { 1 } else { 4 };
    let end = put_until(&store, 0, LEN, laps * LAP + LAP / 2);
    let here = |store: &super::harness::Store| -> Vec<bool> {
        (0..end).map(|n| is_page_present(store, n, LEN)).collect()
    };
    let store = world.crash(store, &config);
    let seen = here(&store);
    let kept = seen.iter().filter(|h| **h).count();
    // Fifteen segments of twenty such objects at most, of which one or two are free.
    assert!((220..=300).contains(&kept), "kept={kept}");
    let first = seen.iter().position(|h| *h).expect("some");
    assert!(seen[first + 20..].iter().all(|h| *h), "the youngest are here first={first} {seen:?}");
    // Open makes room for new records: one segment may be reclaimed, the oldest.
    let store = world.reopen(store, &config);
    let again = here(&store);
    let lost: Vec<usize> = (0..seen.len()).filter(|i| seen[*i] != again[*i]).collect();
    assert!(
        lost.len() <= 40 && lost.iter().all(|i| *i < first + 60),
        "first={first} lost={lost:?}"
    );
}

pub fn recency_policy_keeps_used_pages_within_its_budget(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A use of one object would be a use of any.
    }
    let mut config = world.cold_config();
    config.ssd.policy = SsdPolicy::Recency;
    let store = world.open(&config);
    // Four are used repeatedly: as many as a quarter of a segment holds.
    let hot: Vec<_> = (0..100).step_by(25).map(key).collect();
    store_pages(&store, 0..100, LEN);
    let mut next = 1000;
    while next < 1000 + (4 * LAP / LEN) as u64 {
        next = put_until(&store, next, LEN, LAP / 10);
        store.exists_batch(&hot, Options::default());
    }
    for n in (0..100).step_by(25) {
        assert!(is_page_present(&store, n, LEN), "requested in every round n={n}");
    }
    assert!(!is_page_present(&store, 5, LEN), "never requested");
    let stats = store.stats();
    assert!(stats.bytes_reinserted > 0, "{stats:?}");
    let budget = 0.25 * (stats.segments_reclaimed << 20) as f64;
    assert!(stats.bytes_reinserted as f64 <= budget, "{stats:?}");
    // A clean close records recency, so the next open evicts other objects.
    let store = world.reopen(store, &config);
    for n in (0..100).step_by(25) {
        hit_page(&store, n, LEN);
    }
    // A crash does not: open makes room, and a segment reclaimed for that takes its objects along.
    put_until(&store, next, LEN, LAP / 2);
    let here = |store: &Store, i: usize| is_page_present(store, 25 * i as u64, LEN);
    // Evicted objects need not have a record any more.
    let before = (0..4).filter(|i| here(&store, *i));
    let places: Vec<_> = before.map(|i| (i, find(world, hot[i]).record / SEGMENT)).collect();
    let store = world.crash(store, &config);
    let lost: BTreeSet<u64> =
        places.iter().filter(|(i, _)| !here(&store, *i)).map(|(_, place)| *place).collect();
    assert!(lost.len() <= 2, "{lost:?} of {places:?}");
}

pub fn reclaim_keeps_the_heads_of_a_request(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A use of one object would be a use of any.
    }
    let mut config = world.cold_config();
    config.ssd.policy = SsdPolicy::Recency;
    let store = world.open(&config);
    // One request of eight pages in one segment, of which reclaim may keep four.
    let keys: Vec<_> = (0..8).map(key).collect();
    let pages: Vec<_> = (0..8).map(|n| bytes(n, LEN)).collect();
    let pieces: Vec<[&[u8]; 1]> = pages.iter().map(|page| [&page[..]]).collect();
    let puts = keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces });
    let stored = store.put_batch(&puts.collect::<Vec<_>>(), Options::default());
    assert!(stored.iter().all(|outcome| *outcome == Ok(PutOutcome::Stored)), "{stored:?}");
    flush(&store);
    let mut next = 1000;
    // Their requests delay the first reclaim of the segment; three laps more bring the second.
    for laps in [3, 6] {
        for _ in 0..30 {
            next = put_until(&store, next, LEN, LAP / 10);
            store.exists_batch(&keys, Options::default());
        }
        let kept: Vec<u64> = (0..8).filter(|n| is_page_present(&store, *n, LEN)).collect();
        assert_eq!(kept, [0, 1, 2, 3], "laps={laps}");
        let reinserted = store.stats().bytes_reinserted;
        assert!(reinserted >= laps / 3 * (4 * LEN) as u64, "laps={laps} reinserted={reinserted}");
    }
}

pub fn survivors_are_appended_the_most_recent_last(world: &TestEnv) {
    // Elsewhere a write may begin a new segment between two survivors.
    if world.sim().is_none() || !world.tells_keys_apart() {
        return;
    }
    let mut config = world.cold_config();
    config.ssd.policy = SsdPolicy::Recency;
    let store = world.open(&config);
    store_pages(&store, 0..20, LEN);
    flush(&store);
    // Some of one segment, in the order of their requests.
    const HOT: [u64; 4] = [8, 2, 11, 5];
    let before = HOT.map(|n| find(world, key(n)).record);
    let copies = || -> Vec<u64> {
        let copy = |(n, before): (u64, u64)| {
            let mut all = find_all(world, key(n)).into_iter().map(|(_, found)| found.record);
            all.rfind(|record| *record != before)
        };
        HOT.into_iter().zip(before).filter_map(copy).collect()
    };
    let (mut next, mut moved, mut after) = (1000, 0, Vec::new());
    while after.len() < HOT.len() {
        for n in HOT {
            store.exists_batch(&[key(n)], Options::default());
            store_page(&store, next, LEN);
            // Written, so that the next request is at a later tick.
            flush(&store);
            next += 1;
        }
        assert!(next < 4000, "they were not moved");
        if std::mem::replace(&mut moved, store.stats().bytes_reinserted) != moved {
            after = copies();
        }
    }
    assert!(after.iter().all(|at| at / SEGMENT == after[0] / SEGMENT), "{after:?}");
    // Any of them may be the first, because reclaim may begin between two requests.
    let falls = (0..HOT.len()).filter(|n| after[*n] > after[(n + 1) % HOT.len()]).count();
    assert_eq!(falls, 1, "{after:?}");
}

/// A segment is quarantined while a copy of one of its records is written: the members that DRAM
/// has are written again, since a flush has reported them as durable.
pub fn group_moved_out_of_a_quarantined_segment_is_written_again(world: &TestEnv) {
    // A client's put takes many steps of the store, and the test needs to see each.
    if world.sim().is_none() || !world.is_embedded() || !world.tells_keys_apart() {
        return;
    }
    let sim = world.sim().expect("a simulated world");
    let mut config = world.config();
    config.ssd.quarantine_after = 1;
    config.ssd.scrub_bytes_per_s = pagelith::Size::ZERO;
    // The purge of so large an index takes many steps.
    config.index.max_objects = Some(1_000_000);
    let store = world.open(&config);
    let group = group(5000, 2);
    put_group(&store, &group).expect("put");
    store_pages(&store, 0..5, LEN);
    flush(&store);
    // Reclaim must move pinned records.
    let pin = store.pin(&group.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    put_until_moved(sim, &store);
    sim.disk.hold(FaultOp::Write, Some("segments"));
    until(world, "the copy is being written", || sim.disk.held() > 0);
    assert!(!is_page_present(&store, 3, LEN));
    assert_eq!(store.stats().segments_quarantined, 1);
    sim.disk.release();
    flush(&store);
    drop(pin);
    let store = world.reopen(store, &config);
    for (key, bytes) in &group {
        assert!(is_present(&store, *key, bytes));
    }
}

/// A segment is quarantined while the copy of a record is being written to it: the record stays
/// where it was.
pub fn group_moved_into_a_quarantined_segment_stays_where_it_was(world: &TestEnv) {
    if world.sim().is_none() || !world.is_embedded() || !world.tells_keys_apart() {
        return;
    }
    let sim = world.sim().expect("a simulated world");
    let mut config = world.cold_config();
    config.ssd.quarantine_after = 1;
    config.ssd.scrub_bytes_per_s = pagelith::Size::ZERO;
    let store = world.open(&config);
    let group = group(5000, 2);
    put_group(&store, &group).expect("put");
    // Reclaim must move pinned records.
    let pin = store.pin(&group.iter().map(|(key, _)| *key).collect::<Vec<_>>());
    flush(&store);
    let first = find(world, group[0].0).record;
    let next = put_until_moved(sim, &store);
    // Held writes are on the disk, and the store does not know.
    sim.disk.hold(FaultOp::Write, Some("segments"));
    let copy = || find_all(world, group[0].0).into_iter().find(|(_, at)| at.record != first);
    until(world, "the copy is being written", || copy().is_some());
    let segment = copy().expect("a copy").1.record / SEGMENT;
    let shares_segment = |n: &u64| find(world, key(*n)).record / SEGMENT == segment;
    let damaged =
        (1000..next - 1).rev().find(shares_segment).expect("a page in the segment of the copy");
    world.flip(0, "segments", find(world, key(damaged)).payload + 40_000);
    assert!(!is_page_present(&store, damaged, LEN));
    assert_eq!(store.stats().segments_quarantined, 1);
    // The index is purged.
    sim.runtime.run_for(Duration::from_millis(5));
    sim.disk.release();
    flush(&store);
    drop(pin);
    let store = world.reopen(store, &config);
    for (key, bytes) in &group {
        assert!(is_present(&store, *key, bytes));
    }
}

/// Put pages from page 1000 on until reclaim has appended a record again; returns the next page.
fn put_until_moved(sim: &SimWorld, store: &Store) -> u64 {
    let mut next = 1000;
    while store.stats().bytes_reinserted == 0 {
        assert!(next < 2000, "nothing was moved: {:?}", store.stats());
        store_page(store, next, LEN);
        next += 1;
        while store.stats().bytes_reinserted == 0 && store.stats().unflushed_bytes > 0 {
            sim.runtime.run_for(Duration::from_micros(1));
        }
    }
    next
}

pub fn fifo_policy_rewrites_nothing(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let store = world.open(&world.cold_config());
    store_pages(&store, 0..10, LEN);
    let mut next = 1000;
    while next < 1000 + (LAP * 3 / 2 / LEN) as u64 {
        next = put_until(&store, next, LEN, LAP / 10);
        store.exists_batch(&(0..10).map(key).collect::<Vec<_>>(), Options::default());
    }
    assert_eq!(store.stats().bytes_reinserted, 0);
    assert!(!is_page_present(&store, 0, LEN));
}

pub fn files_never_exceed_the_cap(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    for mib in [6u64, 9, 16] {
        let world = world.fresh(1);
        let mut config = world.config();
        config.ssd.bytes = pagelith::Size::from_bytes(mib << 20);
        let cap = mib << 20;
        let mut store = world.open(&config);
        assert!(world.total_bytes() <= cap, "made mib={mib} total={}", world.total_bytes());
        assert!(world.total_bytes() > cap - (3 << 20), "the room is used mib={mib}");
        let mut next = 0;
        for round in 0..4 {
            next = put_until(&store, next, LEN, mib as usize * (200 << 10));
            assert!(world.total_bytes() <= cap, "round={round} total={}", world.total_bytes());
            store = if round % 2 == 0 {
                world.crash(store, &config)
            } else {
                world.reopen(store, &config)
            };
            assert!(
                world.total_bytes() <= cap,
                "reopened round={round} total={}",
                world.total_bytes()
            );
        }
    }
}
