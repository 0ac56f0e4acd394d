//! What was found damaged is not found again after a flush and a crash, and can be put again.

use std::time::Duration;

use super::face::Store;
use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::layouts::key::ObjectKey;
use pagelith::{Config, GetOutcome, Options, PutOutcome, PutSlice, ScrubOptions, Size};
use pagelith_sim::disk::FaultPlan;

use super::kit::*;
use super::world::World;

const LEN: usize = 100_000;

/// Eight pages in one segment, which is sealed by the close.
fn closed(world: &World, config: &Config) {
    let store = world.open(config);
    store_pages(&store, 0..8, LEN);
    store.close().expect("closed");
}

fn exists(store: &Store, keys: &[ObjectKey]) -> Vec<bool> {
    store.exists_batch(keys, Options::default())
}

/// A get finds that it is damaged.
#[track_caller]
fn find_damaged(store: &Store, n: u64) {
    let outcome = get_into(store, key(n), &mut vec![0; LEN]);
    assert!(matches!(outcome, Ok(GetOutcome::Miss(_))), "n={n} {outcome:?}");
    assert_eq!(exists(store, &[key(n)]), [false], "n={n}");
}

/// Nothing of these pages is found; they can be put again, and that lasts.
#[track_caller]
fn stay_gone(world: &World, store: Store, config: &Config, pages: &[u64]) -> Store {
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

fn others_are_here(store: &Store, but: &[u64]) {
    (0..8).filter(|n| !but.contains(n)).for_each(|n| {
        hit_page(store, n, LEN);
    });
}

pub fn damage_found_by_gets_stays_gone_after_a_flush_and_a_crash(world: &World) {
    if !world.tells_keys_apart() {
        return; // No checkpoint is taken there.
    }
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    world.flip(0, "segments", find(world, key(5)).record + 70);
    let store = world.open(&config);
    [3, 5].into_iter().for_each(|n| find_damaged(&store, n));
    flush(&store);
    let store = stay_gone(world, store, &config, &[3, 5]);
    others_are_here(&store, &[3, 5]);
}

/// Nothing of it is known to the log but the records themselves.
pub fn damage_in_the_open_segment_stays_gone_after_a_flush_and_a_crash(world: &World) {
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
    // What was put again meanwhile is a younger object.
    store_page(&store, 3, LEN);
    flush(&store);
    let store = world.crash(store, &config);
    hit_page(&store, 3, LEN);
    let store = stay_gone(world, store, &config, &[5]);
    others_are_here(&store, &[]);
}

pub fn damage_of_a_group_keeps_all_of_it_gone_after_a_flush_and_a_crash(world: &World) {
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
        assert!(!is_here(&store, page[4].0, &page[4].1));
        flush(&store);
        let store = world.crash(store, &config);
        assert_eq!(exists(&store, &keys), [false; 6], "at_header={at_header}");
        for n in [0, 2] {
            group(n, 6).iter().for_each(|(key, bytes)| assert!(is_here(&store, *key, bytes)));
        }
        assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
        store.close().expect("closed");
    }
}

/// A base that was damaged and is put again has what was attached to it, as before the crash.
pub fn damage_of_a_base_costs_nothing_that_is_attached_to_it(world: &World) {
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
    assert!(!is_here(&store, base[1].0, &base[1].1) && !is_here(&store, state.0, &state.1));
    flush(&store);
    assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
    assert!(is_here(&store, state.0, &state.1));
    flush(&store);
    let store = world.crash(store, &config);
    base.iter().chain([&state]).for_each(|(key, bytes)| assert!(is_here(&store, *key, bytes), "key={key}"));
}

pub fn damage_that_quarantines_a_segment_stays_gone_after_a_flush_and_a_crash(world: &World) {
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

/// A record without a header: nobody can say whose it was.
pub fn damage_found_by_a_scrub_stays_gone_after_a_flush_and_a_crash(world: &World) {
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

pub fn damage_found_by_reading_ahead_stays_gone_after_a_flush_and_a_crash(world: &World) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    store.prefetch(&[key(3)], Options::default());
    until(world, "what is read ahead is found damaged", || store.stats().damaged == 1);
    flush(&store);
    stay_gone(world, store, &config, &[3]);
}

/// A page that reclaim would move, since it is pinned.
pub fn damage_found_by_reclaim_stays_gone_after_a_flush_and_a_crash(world: &World) {
    if !world.tells_keys_apart() {
        return;
    }
    let mut config = world.cold_config();
    // So many segments that an emptied one is not used again at once.
    config.ssd.bytes = Size::mib(32);
    // A scrub would find it before.
    config.ssd.scrub_bytes_per_s = Size::ZERO;
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    let pin = store.pin(&[key(3)]);
    let found = (1000..1400).find(|n| {
        store_page(&store, *n, LEN);
        // Little is left to be written when it is found.
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

/// A checkpoint has copied most of the index when a segment is found bad of which it has objects: those
/// that the walk over the index has not come to by then must not be left in it.
pub fn segment_quarantined_while_a_checkpoint_is_taken_stays_gone_after_a_flush_and_a_crash(world: &World) {
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
        // A segment that is full brings the checkpoint.
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

pub fn damage_costs_one_checkpoint_a_flush_and_none_without_it(world: &World) {
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

/// The objects of a flush are durable, whatever becomes of a checkpoint; the next flush takes another.
pub fn damage_whose_checkpoint_cannot_be_written_is_left_to_the_next_flush(world: &World) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let config = world.config();
    closed(world, &config);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    let store = world.open(&config);
    // The segment that is kept ready is, so that what is written next is the checkpoint.
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

/// Nothing is written then, and gets go on.
pub fn damage_found_while_the_tier_is_read_only_is_remembered_until_it_is_on(world: &World) {
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
