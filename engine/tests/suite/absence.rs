//! Why objects are absent: each miss counts under one cause.

use std::collections::BTreeMap;

use pagelith::config::SsdAdmissionRule;
use pagelith::{Options, PutSlice, Size};

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 9000;

fn counts(expected: &[(&str, u64)]) -> BTreeMap<String, u64> {
    expected.iter().map(|(cause, n)| ((*cause).to_owned(), *n)).collect()
}

/// Get and look up page `n`, which must be absent, from this cause alone.
#[track_caller]
fn absent_because(world: &TestEnv, store: &Store, n: u64, cause: &str) {
    let before = store.stats();
    assert_absent(world, store, key(n), LEN);
    if !world.tells_keys_apart() {
        return; // Its fingerprint is that of every object.
    }
    let added = |before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>| {
        let added = now.iter().map(|(k, n)| (k.clone(), n - before.get(k).unwrap_or(&0)));
        added.filter(|(_, n)| *n > 0).collect::<BTreeMap<_, _>>()
    };
    let now = store.stats();
    assert_eq!(added(&before.absent, &now.absent), counts(&[(cause, 1)]), "n={n}");
    assert_eq!(added(&before.exists_absent, &now.exists_absent), counts(&[(cause, 1)]), "n={n}");
    assert_eq!(added(&before.misses, &now.misses), counts(&[("absent", 1)]), "n={n}");
}

pub fn object_never_stored_is_unknown_or_of_another_namespace(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    absent_because(world, &store, 1, "unknown");
    put_into_namespace(&store, "other");
    absent_because(world, &store, 1, "other_namespace");
    store_page(&store, 2, LEN);
    absent_because(world, &store, 1, "unknown");
    let store = world.reopen(store, &config);
    put_into_namespace(&store, "another");
    absent_because(world, &store, 1, "unknown");
}

pub fn removed_and_cleared_objects_are_known_as_removed(world: &TestEnv) {
    for flushed in [false, true] {
        let world = world.fresh(1);
        let store = world.open(&world.config());
        store_pages(&store, 0..4, LEN);
        if flushed {
            flush(&store);
        }
        store.remove(&[key(1)], Options::default()).expect("removed");
        absent_because(&world, &store, 1, "removed");
        store.clear(namespace("m"), Options::default()).expect("cleared");
        absent_because(&world, &store, 2, "removed");
        store_page(&store, 2, LEN);
        hit_page(&store, 2, LEN);
    }
    let store = world.open(&world.cold_config());
    store_page(&store, 1, LEN);
    flush(&store);
    store.clear(namespace("m"), Options::default()).expect("cleared");
    absent_because(world, &store, 1, "removed");
    absent_because(world, &store, 7, "unknown");
}

pub fn evicted_objects_are_known_by_their_last_tier(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::kib(512)));
    store_pages(&store, 0..100, LEN);
    absent_because(world, &store, 0, "evicted_memory");
    if world.constant {
        return; // Each put would read hundreds of records.
    }
    let world = world.fresh(1);
    let store = world.open(&world.cold_config());
    store_page(&store, 0, LEN);
    put_until(&store, 1, 50_000, 20 << 20);
    absent_because(&world, &store, 0, "evicted_ssd");
}

pub fn refused_object_that_left_memory_is_known_as_refused(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Each put seems to replace an object, and such a put is always written.
    }
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::SecondTouch;
    config.dram.bytes = Size::mib(1);
    let store = world.open(&config);
    store_pages(&store, 0..200, LEN);
    absent_because(world, &store, 0, "refused");
}

pub fn put_that_was_busy_is_known_as_not_taken(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::kib(64)));
    store_page(&store, 0, 50_000);
    let pin = store.pin(&[key(0)]);
    assert!(put_with(&store, key(1), &bytes(1, LEN * 2), NOW).is_err());
    absent_because(world, &store, 1, "not_taken");
    drop(pin);
    store_page(&store, 1, LEN);
    hit_page(&store, 1, LEN);
    store.remove(&[key(1)], Options::default()).expect("removed");
    absent_because(world, &store, 1, "removed");
}

pub fn pending_and_dropped_groups_are_known(world: &TestEnv) {
    let mut config = world.config();
    let store = world.open(&config);
    let begun = store.begin_group(&[key(1)], Options::default()).expect("begun");
    absent_because(world, &store, 1, "uncommitted");
    let data = bytes(1, LEN);
    let object = PutSlice { key: key(1), pieces: &[&data] };
    assert!(begun.put(&[object], Options::default())[0].is_ok());
    absent_because(world, &store, 1, "uncommitted");
    begun.commit(Options::default()).expect("committed");
    hit_page(&store, 1, LEN);
    if !world.tells_keys_apart() {
        return; // Any object is the base.
    }
    let slices = [PutSlice { key: key_in(namespace("m"), 9, "state"), pieces: &[&data] }];
    store.put_attached(&[(key(9), &slices)], Options::default()).remove(0).expect("waits");
    let state = slices[0].key;
    store.exists_batch(&[state], Options::default());
    assert_eq!(store.stats().exists_absent.get("uncommitted"), Some(&3));
    drop(begun);

    config.groups.deadline_ms = 1;
    let world = world.fresh(1);
    config.ssd.dirs = world.paths();
    let store = world.open(&config);
    store.put_attached(&[(key(9), &slices)], Options::default()).remove(0).expect("waits");
    while store.stats().groups_waiting > 0 {
        flush(&store);
    }
    store.exists_batch(&[state], Options::default());
    assert_eq!(store.stats().exists_absent, counts(&[("incomplete", 1)]));
}

pub fn objects_after_a_hole_and_without_a_base_are_stranded(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let store = world.open(&world.config());
    store_pages(&store, 0..3, LEN);
    store_pages(&store, 4..10, LEN);
    let chain: Vec<_> = (0..10).map(key).collect();
    assert_eq!(store.exists_prefix(&chain, Options::default()), 3);
    let stats = store.stats();
    assert_eq!(stats.exists_found, 3);
    assert_eq!(stats.exists_absent, counts(&[("stranded", 6), ("unknown", 1)]));
    let data = bytes(1, LEN);
    let state = key_in(namespace("m"), 4, "state");
    let slices = [PutSlice { key: state, pieces: &[&data] }];
    store.put_attached(&[(key(4), &slices)], Options::default()).remove(0).expect("attached");
    flush(&store);
    store.remove(&[key(4)], Options::default()).expect("removed");
    assert!(!is_present(&store, state, &data));
    assert_eq!(store.stats().absent.values().sum::<u64>(), 1);
}

pub fn damaged_object_is_known_as_damaged_at_the_next_miss(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..4, LEN);
    store.close().expect("closed");
    world.flip(0, "segments", find(world, key(2)).payload + 10);
    let store = world.open(&config);
    assert!(!is_page_present(&store, 2, LEN));
    let stats = store.stats();
    assert_eq!(stats.misses, counts(&[("damaged", 1)]));
    assert!(stats.absent.is_empty(), "{:?}", stats.absent);
    absent_because(world, &store, 2, "damaged");
}
