//! Objects found damaged are not found again after a flush and a crash, and can be put again.

use std::time::Duration;

use super::harness::Store;
use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::layouts::key::ObjectKey;
use pagelith::{Config, GetOutcome, Options, PutOutcome, PutSlice, ScrubOptions, Size};
use pagelith_sim::disk::FaultPlan;

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 100_000;

/// Eight pages in one segment, which the close seals.
fn closed(world: &TestEnv, config: &Config) {
    let store = world.open(config);
    store_pages(&store, 0..8, LEN);
    store.close().expect("closed");
}

fn exists(store: &Store, keys: &[ObjectKey]) -> Vec<bool> {
    store.exists_batch(keys, Options::default())
}

/// A get finds the damage.
#[track_caller]
fn find_damaged(store: &Store, n: u64) {
    let outcome = get_into(store, key(n), &mut vec![0; LEN]);
    assert!(matches!(outcome, Ok(GetOutcome::Miss(_))), "n={n} {outcome:?}");
    assert_eq!(exists(store, &[key(n)]), [false], "n={n}");
}

/// None of these pages is found; they can be put again, and stay.
#[track_caller]
fn stay_gone(world: &TestEnv, store: Store, config: &Config, pages: &[u64]) -> Store {
    let store = world.crash(store, config);
    let keys: Vec<_> = pages.iter().map(|n| key(*n)).collect();
    assert_eq!(exists(&store, &keys), vec![false; keys.len()]);
    pages.iter().for_each(|n| store_page(&store, *n, LEN));
    flush(&store);
    let store = world.crash(store, config);
    pages.iter().for_each(|n| {
        hit_page(&store, *n, LEN);
    });
    store
}

fn others_are_present(store: &Store, but: &[u64]) {
    (0..8).filter(|n| !but.contains(n)).for_each(|n| {
        hit_page(store, n, LEN);
    });
}

pub fn damage_found_by_gets_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Constant fingerprints take no checkpoints.
    }
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    world.flip(0, "segments", find(world, key(5)).record + 70);
    let store = world.open(&config);
    [3, 5].into_iter().for_each(|n| find_damaged(&store, n));
    flush(&store);
    let store = stay_gone(world, store, &config, &[3, 5]);
    others_are_present(&store, &[3, 5]);
}

/// Without a footer, only the record headers describe the segment.
pub fn damage_in_the_open_segment_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.cold_config();
    let store = world.open(&config);
    store_pages(&store, 0..8, LEN);
    flush(&store);
    for n in [3, 5] {
        world.flip(0, "segments", find(world, key(n)).payload + 40_000);
        find_damaged(&store, n);
    }
    // A put in between is a younger object.
    store_page(&store, 3, LEN);
    flush(&store);
    let store = world.crash(store, &config);
    hit_page(&store, 3, LEN);
    let store = stay_gone(world, store, &config, &[5]);
    others_are_present(&store, &[]);
}

pub fn damaged_group_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    let store = world.open(&config);
    for n in 0..3 {
        assert_eq!(put_group(&store, &group(n, 6)), Ok(PutOutcome::Stored));
    }
    store.close().expect("closed");
    let page = group(1, 6);
    let keys: Vec<ObjectKey> = page.iter().map(|(key, _)| *key).collect();
    for at_header in [false, true] {
        let at = find(world, page[4].0);
        world.flip(0, "segments", if at_header { at.record + 70 } else { at.payload + 10 });
        let store = world.open(&config);
        assert!(!is_present(&store, page[4].0, &page[4].1));
        flush(&store);
        let store = world.crash(store, &config);
        assert_eq!(exists(&store, &keys), [false; 6], "at_header={at_header}");
        for n in [0, 2] {
            group(n, 6).iter().for_each(|(key, bytes)| assert!(is_present(&store, *key, bytes)));
        }
        assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
        store.close().expect("closed");
    }
}

/// A damaged base that is put again has the objects that were attached to it, as before the crash.
pub fn damaged_base_that_is_put_again_keeps_its_attached_objects(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    let store = world.open(&config);
    let (base, state) = (group(1, 2), (key_in(namespace("m"), 1, "temporal"), bytes(77, 60_000)));
    assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
    let attached: &[PutSlice<'_>] = &[PutSlice { key: state.0, pieces: &[&state.1] }];
    let stored = store.put_attached(&[(base[0].0, attached)], Options::default());
    assert_eq!(stored, [Ok(PutOutcome::Stored)]);
    store.close().expect("closed");
    world.flip(0, "segments", find(world, base[1].0).payload + 10);
    let store = world.open(&config);
    assert!(!is_present(&store, base[1].0, &base[1].1) && !is_present(&store, state.0, &state.1));
    flush(&store);
    assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
    assert!(is_present(&store, state.0, &state.1));
    flush(&store);
    let store = world.crash(store, &config);
    base.iter()
        .chain([&state])
        .for_each(|(key, bytes)| assert!(is_present(&store, *key, bytes), "key={key}"));
}

pub fn quarantined_segment_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let mut config = world.config();
    config.ssd.quarantine_after = 1;
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    find_damaged(&store, 3);
    let pages: Vec<u64> = (0..8).collect();
    assert_eq!(exists(&store, &pages.iter().map(|n| key(*n)).collect::<Vec<_>>()), [false; 8]);
    flush(&store);
    stay_gone(world, store, &config, &pages);
}

/// A record without a readable header does not name its keys.
pub fn damage_found_by_scrub_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    world.flip(0, "segments", find(world, key(5)).record + 70);
    let store = world.open(&config);
    assert_eq!(store.scrub(ScrubOptions::default()).expect("scrubbed").damaged, 2);
    flush(&store);
    stay_gone(world, store, &config, &[3, 5]);
}

pub fn damage_found_by_prefetch_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    store.prefetch(&[key(3)], Options::default());
    until(world, "the prefetch finds the damage", || store.stats().damaged == 1);
    flush(&store);
    stay_gone(world, store, &config, &[3]);
}

/// A page that reclaim would move, since it is pinned.
pub fn damage_found_by_reclaim_stays_gone_after_flush_and_crash(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let mut config = world.cold_config();
    // Enough segments that an emptied one is not reused at once.
    config.ssd.bytes = Size::mib(32);
    // A scrub would find the damage earlier.
    config.ssd.scrub_bytes_per_s = Size::ZERO;
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    let pin = store.pin(&[key(3)]);
    let found = (1000..1400).find(|n| {
        store_page(&store, *n, LEN);
        // Few bytes remain to be written when the damage is found.
        if n % 5 == 0 {
            flush(&store);
        }
        store.stats().damaged > 0
    });
    assert!(found.is_some(), "its segment was never emptied");
    assert_eq!(exists(&store, &[key(3)]), [false]);
    flush(&store);
    drop(pin);
    stay_gone(world, store, &config, &[3]);
}

/// A checkpoint has copied most of the index when a segment with objects in it is quarantined: the
/// checkpoint must not contain those that its walk has not reached.
pub fn segment_quarantined_during_a_checkpoint_stays_gone_after_flush_and_crash(world: &TestEnv) {
    let Some(_) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let (mut joined, mut anew) = (0, 0);
    for steps in 0..60 {
        let world = world.fresh(1);
        let sim = world.sim().expect("simulated as the other");
        let mut config = world.cold_config();
        (config.ssd.quarantine_after, config.ssd.checkpoint_segments) = (1, 1);
        config.ssd.scrub_bytes_per_s = Size::ZERO;
        closed(&world, &config);
        world.flip(0, "segments", find(&world, key(3)).payload + 40_000);
        let store = world.open(&config);
        // A full segment triggers the checkpoint.
        store_pages(&store, 1000..1012, LEN);
        while store.stats().segments_sealed == 0 {
            sim.runtime.run_for(Duration::from_micros(1));
        }
        // A get takes few steps of the flusher.
        sim.disk.set_latency(Duration::from_micros(1));
        sim.runtime.run_for(Duration::from_micros(steps));
        find_damaged(&store, 3);
        flush(&store);
        match store.stats().checkpoints {
            1 => joined += 1,
            _ => anew += 1,
        }
        let store = world.crash(store, &config);
        let keys: Vec<ObjectKey> = (0..8).map(key).collect();
        assert_eq!(exists(&store, &keys), [false; 8], "steps={steps}");
    }
    assert!(joined > 0 && anew > 0, "joined={joined} anew={anew}");
}

pub fn flush_takes_a_checkpoint_only_after_damage(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    closed(world, &config);
    for n in [2, 3, 5] {
        world.flip(0, "segments", find(world, key(n)).payload + 40_000);
    }
    let store = world.open(&config);
    flush(&store);
    assert_eq!(store.stats().checkpoints, 0);
    [3, 5].into_iter().for_each(|n| find_damaged(&store, n));
    flush(&store);
    flush(&store);
    assert_eq!(store.stats().checkpoints, 1);
    find_damaged(&store, 2);
    flush(&store);
    assert_eq!(store.stats().checkpoints, 2);
}

/// The objects of a flush are durable, whether or not its checkpoint succeeds; the next flush takes
/// another.
pub fn failed_checkpoint_of_damage_is_retried_by_the_next_flush(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    // The spare segment is ready, so the next write is the checkpoint.
    flush(&store);
    sim.runtime.run_for(Duration::from_secs(1));
    find_damaged(&store, 3);
    sim.disk.inject(FaultPlan::Fail { op: FaultOp::Write, nth: 1, kind: FaultKind::Device });
    flush(&store);
    assert_eq!((store.stats().checkpoints, store.stats().checkpoint_failures), (0, 1));
    flush(&store);
    assert_eq!((store.stats().checkpoints, store.stats().checkpoint_failures), (1, 1));
    stay_gone(world, store, &config, &[3]);
}

/// The tier then writes nothing, and gets continue.
pub fn damage_found_while_read_only_is_kept_until_the_tier_is_on(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    store_page(&store, 9, LEN);
    sim.disk.inject(FaultPlan::Fail { op: FaultOp::Sync, nth: 1, kind: FaultKind::Device });
    assert!(store.flush(Options::default()).is_err());
    assert_eq!(store.stats().ssd_state, "read-only");
    find_damaged(&store, 3);
    assert!(store.flush(Options::default()).is_err(), "nothing can be durable");
    sim.runtime.run_for(Duration::from_secs(120));
    assert_eq!(store.stats().ssd_state, "on");
    flush(&store);
    stay_gone(world, store, &config, &[3]);
}
