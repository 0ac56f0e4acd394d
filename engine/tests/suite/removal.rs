//! Remove and clear: effective at once, and durably.

use super::harness::Store;
use pagelith::{GetOutcome, Options, PutOutcome};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 9000;

fn remove(store: &Store, n: u64) {
    assert_eq!(store.remove(&[key(n)], Options::default()), Ok(1), "n={n}");
}

pub fn removed_object_is_absent_at_once(world: &TestEnv) {
    for flushed in [false, true] {
        let world = world.fresh(1);
        let store = world.open(&world.config());
        store_pages(&store, 0..4, LEN);
        if flushed {
            flush(&store);
        }
        remove(&store, 2);
        assert_absent(&world, &store, key(2), LEN);
        assert_eq!(store.remove(&[key(2), key(77)], Options::default()), Ok(0), "no longer here");
        for n in [0, 1, 3] {
            hit_page(&store, n, LEN);
        }
        assert_eq!(store.remove(&[key(0), key(1)], Options::default()), Ok(2));
        assert_eq!(store.remove(&[], Options::default()), Ok(0));
    }
    let store = world.open(&world.cold_config());
    store_pages(&store, 0..2, LEN);
    flush(&store);
    remove(&store, 1);
    assert_absent(world, &store, key(1), LEN);
    hit_page(&store, 0, LEN);
}

pub fn removed_object_stays_absent_after_a_crash(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..4, LEN);
    flush(&store);
    remove(&store, 2);
    let store = world.crash(store, &config);
    assert_absent(world, &store, key(2), LEN);
    for n in [0, 1, 3] {
        hit_page(&store, n, LEN);
    }
    remove(&store, 3);
    let store = world.crash(store, &config);
    assert_absent(world, &store, key(2), LEN);
    assert_absent(world, &store, key(3), LEN);
    hit_page(&store, 0, LEN);
}

pub fn removed_object_stays_absent_after_close(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..4, LEN);
    remove(&store, 2);
    let store = world.reopen(store, &config);
    assert_absent(world, &store, key(2), LEN);
    hit_page(&store, 1, LEN);
    remove(&store, 1);
    let store = world.reopen(world.reopen(store, &config), &config);
    assert_absent(world, &store, key(1), LEN);
    assert_absent(world, &store, key(2), LEN);
    hit_page(&store, 0, LEN);
}

pub fn object_put_again_after_remove_survives(world: &TestEnv) {
    let config = world.config();
    let mut store = world.open(&config);
    store_pages(&store, 0..2, LEN);
    flush(&store);
    for round in 1..4 {
        remove(&store, 1);
        // Another length and other bytes: the old object does not interfere.
        let again = bytes(100 + round, LEN + round as usize);
        assert_eq!(put(&store, key(1), &again), Ok(PutOutcome::Stored));
        hit(&store, key(1), &again);
        flush(&store);
        store = if round == 2 { world.reopen(store, &config) } else { world.crash(store, &config) };
        hit(&store, key(1), &again);
        store = world.reopen(store, &config);
        hit(&store, key(1), &again);
        hit_page(&store, 0, LEN);
    }
}

pub fn removal_of_a_member_removes_its_group(world: &TestEnv) {
    let config = world.config();
    for stage in ["in memory", "on ssd", "after reopen"] {
        let world = world.fresh(1);
        let mut config = config.clone();
        config.ssd.dirs = world.paths();
        let mut store = world.open(&config);
        let (page, other, third) = (group(1, 5), group(2, 5), group(3, 5));
        for objects in [&page, &other, &third] {
            assert_eq!(put_group(&store, objects), Ok(PutOutcome::Stored));
        }
        if stage != "in memory" {
            flush(&store);
        }
        if stage == "after reopen" {
            store = world.reopen(store, &config);
        }
        assert_eq!(store.remove(&[page[3].0], Options::default()), Ok(1), "{stage}");
        let members: Vec<_> = third.iter().map(|(key, _)| *key).collect();
        assert_eq!(store.remove(&members, Options::default()), Ok(5), "{stage}");
        for (key, bytes) in &page {
            assert_absent(&world, &store, *key, bytes.len());
        }
        let store = world.crash(store, &config);
        for (key, bytes) in &page {
            assert_absent(&world, &store, *key, bytes.len());
        }
        if stage != "in memory" {
            other
                .iter()
                .for_each(|(key, bytes)| assert!(is_present(&store, *key, bytes), "{stage}"));
        }
    }
}

fn fill_two_namespaces(store: &Store) {
    for n in 0..5 {
        for name in ["a", "b"] {
            let key = key_in(namespace(name), n, "k");
            assert_eq!(put(store, key, &bytes(n, LEN)), Ok(PutOutcome::Stored));
        }
    }
}

#[track_caller]
fn only_b_is_present(world: &TestEnv, store: &Store) {
    for n in 0..5 {
        assert_absent(world, store, key_in(namespace("a"), n, "k"), LEN);
        hit(store, key_in(namespace("b"), n, "k"), &bytes(n, LEN));
    }
}

fn clear(store: &Store) {
    store.clear(namespace("a"), Options::default()).expect("cleared");
}

pub fn clear_affects_one_namespace(world: &TestEnv) {
    let store = world.open(&world.config());
    fill_two_namespaces(&store);
    clear(&store);
    only_b_is_present(world, &store);
    flush(&store);
    only_b_is_present(world, &store);
    let cold = world.fresh(1);
    let store = cold.open(&cold.cold_config());
    fill_two_namespaces(&store);
    flush(&store);
    clear(&store);
    only_b_is_present(&cold, &store);
}

pub fn cleared_object_stays_absent_after_a_crash(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    fill_two_namespaces(&store);
    flush(&store);
    clear(&store);
    let store = world.crash(store, &config);
    only_b_is_present(world, &store);
}

pub fn cleared_object_stays_absent_after_close(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    fill_two_namespaces(&store);
    let store = world.reopen(store, &config);
    clear(&store);
    let store = world.reopen(store, &config);
    only_b_is_present(world, &store);
    let store = world.reopen(store, &config);
    only_b_is_present(world, &store);
}

/// Both copies of the manifest lose a clear. The next one, on a healthy drive, must not make the
/// objects visible that were put between the two.
pub fn clear_holds_after_an_undone_one(world: &TestEnv) {
    const MANIFESTS: [&str; 2] = ["manifest.0", "manifest.1"];
    // Superblock, and the incarnations of fewer than 126 segments.
    const CLEARS_AT: usize = 2 * 4096;
    let config = world.config();
    let store = world.open(&config);
    fill_two_namespaces(&store);
    clear(&store);
    store.close().expect("closed");
    let before = MANIFESTS.map(|name| world.read(0, name).split_off(CLEARS_AT));
    let store = world.open(&config);
    clear(&store);
    let key = key_in(namespace("a"), 7, "k");
    assert_eq!(put(&store, key, &bytes(7, LEN)), Ok(PutOutcome::Stored));
    store.close().expect("closed");
    for (name, clears) in MANIFESTS.iter().zip(before) {
        world.write(0, name, CLEARS_AT as u64, &clears);
    }
    let store = world.open(&config);
    clear(&store);
    assert_absent(world, &store, key, LEN);
    let store = world.reopen(store, &config);
    assert_absent(world, &store, key, LEN);
    only_b_is_present(world, &store);
}

pub fn object_put_again_after_clear_survives(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    fill_two_namespaces(&store);
    clear(&store);
    clear(&store);
    let key = key_in(namespace("a"), 1, "k");
    let again = bytes(50, LEN + 1);
    assert_eq!(put(&store, key, &again), Ok(PutOutcome::Stored));
    flush(&store);
    let store = world.crash(store, &config);
    hit(&store, key, &again);
    let store = world.reopen(store, &config);
    hit(&store, key, &again);
    let outcome = get_into(&store, key_in(namespace("a"), 2, "k"), &mut [0; LEN]);
    assert_eq!(outcome.as_ref().map(GetOutcome::is_hit), Ok(false), "{outcome:?}");
}
