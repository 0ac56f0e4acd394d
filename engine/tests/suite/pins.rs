//! Pins, leases and views: objects that eviction and reclaim must keep for now.

use std::time::Duration;

use pagelith::{ErrorKind, Options, PutOutcome, Size, Tier};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;
const LAP: usize = 14 << 20;

fn keys(pages: std::ops::Range<u64>) -> Vec<pagelith::layouts::key::ObjectKey> {
    pages.map(key).collect()
}

pub fn pin_holds_while_its_segment_is_reclaimed(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A pin would hold every object.
    }
    let config = world.cold_config();
    let store = world.open(&config);
    store_pages(&store, 0..30, LEN);
    flush(&store);
    let pin = store.pin(&keys(10..15));
    assert_eq!(pin.pinned(), 5);
    assert_eq!(store.pin(&keys(500..510)).pinned(), 0);
    let mut next = 1000;
    for _ in 0..3 {
        next = put_until(&store, next, LEN, LAP);
        for n in 10..15 {
            assert_eq!(hit_page(&store, n, LEN), Tier::Ssd);
        }
    }
    assert!(store.stats().segments_reclaimed > 30, "{:?}", store.stats());
    assert!(
        !is_page_present(&store, 9, LEN) && !is_page_present(&store, 15, LEN),
        "only pinned pages"
    );
    drop(pin);
    let store = world.crash(store, &config);
    for n in 10..15 {
        hit_page(&store, n, LEN);
    }
}

pub fn unpinned_object_can_be_evicted(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A pin would hold every object.
    }
    let store = world.open(&world.cold_config());
    store_pages(&store, 0..5, LEN);
    flush(&store);
    let (first, second) = (store.pin(&keys(0..5)), store.pin(&keys(2..5)));
    drop(first);
    let next = put_until(&store, 1000, LEN, 2 * LAP);
    let here: Vec<bool> = (0..5).map(|n| is_page_present(&store, n, LEN)).collect();
    assert_eq!(here, [false, false, true, true, true]);
    drop(second);
    put_until(&store, next, LEN, 2 * LAP);
    assert!((0..5).all(|n| !is_page_present(&store, n, LEN)));
}

pub fn pin_holds_in_memory(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A pin would hold every object.
    }
    let store = world.open(&world.memory_config(Size::mib(1)));
    store_pages(&store, 0..4, LEN);
    let pin = store.pin(&keys(0..2));
    store_pages(&store, 100..160, LEN);
    let here: Vec<bool> = (0..4).map(|n| is_page_present(&store, n, LEN)).collect();
    assert_eq!(here, [true, true, false, false]);
    drop(pin);
    store_pages(&store, 200..260, LEN);
    assert!(!is_page_present(&store, 0, LEN) && !is_page_present(&store, 1, LEN));
}

pub fn lease_holds_until_it_expires(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A lease would hold every object.
    }
    let store = world.open(&world.cold_config());
    store_pages(&store, 0..10, LEN);
    flush(&store);
    assert_eq!(store.lease(&keys(5..20), Duration::from_secs(3600)), 5);
    put_until(&store, 1000, LEN, 2 * LAP);
    for n in 0..10 {
        eprintln!("{n} {:?}", get_into(&store, key(n), &mut vec![0; LEN]));
    }
    let here: Vec<bool> = (3..7).map(|n| is_page_present(&store, n, LEN)).collect();
    assert_eq!(here, [false, false, true, true]);
}

pub fn expired_lease_holds_nothing(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A lease would hold every object.
    }
    let store = world.open(&world.cold_config());
    store_pages(&store, 0..5, LEN);
    flush(&store);
    // It expires long before a lap is written; in the simulation the clock is moved.
    let duration =
        if world.sim().is_some() { Duration::from_secs(60) } else { Duration::from_nanos(1) };
    assert_eq!(store.lease(&keys(0..5), duration), 5);
    if let Some(sim) = world.sim() {
        sim.runtime.run_for(Duration::from_secs(61));
    }
    put_until(&store, 1000, LEN, 2 * LAP);
    assert!((0..5).all(|n| !is_page_present(&store, n, LEN)));
}

pub fn pin_that_outlives_its_store_holds_nothing(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A pin would hold every object.
    }
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..3, LEN);
    let pin = store.pin(&keys(0..3));
    // The next store can open its files, and has its own pins.
    let store = world.reopen(store, &config);
    let second = store.pin(&keys(0..2));
    assert_eq!(second.pinned(), 2);
    drop(pin);
    assert_eq!(store.stats().objects_pinned, 2);
}

pub fn view_stays_valid_under_memory_pressure(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::mib(1)));
    let whole = bytes(0, LEN);
    store_page(&store, 0, LEN);
    assert!(store.view(&key(7)).expect("open").is_none());
    let view = store.view(&key(0)).expect("open").expect("in memory");
    store_pages(&store, 100..150, LEN);
    assert!(view[..] == whole[..]);
    assert_eq!(hit(&store, key(0), &whole), Tier::Memory);
    let again = store.view(&key(0)).expect("open").expect("in memory");
    drop(view);
    store_pages(&store, 200..250, LEN);
    assert!(again[..] == whole[..]);
    // The view keeps its bytes even after the object is removed.
    assert_eq!(store.remove(&[key(0)], Options::default()), Ok(1));
    store_pages(&store, 300..350, LEN);
    assert!(again[..] == whole[..]);
    assert_absent(world, &store, key(0), LEN);
    drop(again);
    assert_eq!(put(&store, key(0), &bytes(1, 3)), Ok(PutOutcome::Stored));
}

pub fn view_outlives_its_frame_without_dram(world: &TestEnv) {
    let store = world.open(&world.cold_config());
    let whole = bytes(0, LEN);
    store_page(&store, 0, LEN);
    // It may be only on SSD by now, except where nothing moves without a request.
    let view = store.view(&key(0)).expect("open");
    assert!(view.is_some() || world.sim().is_none() || !world.is_embedded());
    flush(&store);
    assert!(view.as_ref().is_none_or(|view| view[..] == whole[..]));
    drop(view);
    assert_eq!(store.stats().dram_bytes, 0, "the arena is a write buffer only");
    assert_eq!(hit(&store, key(0), &whole), Tier::Ssd);
}

pub fn remove_overrides_a_pin(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A pin would hold every object.
    }
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..3, LEN);
    flush(&store);
    let pin = store.pin(&keys(0..3));
    assert_eq!(store.remove(&[key(1)], Options::default()), Ok(1));
    assert_absent(world, &store, key(1), LEN);
    put_until(&store, 1000, LEN, 2 * LAP);
    assert_absent(world, &store, key(1), LEN);
    hit_page(&store, 0, LEN);
    drop(pin);
    let store = world.crash(store, &config);
    assert_absent(world, &store, key(1), LEN);
    // A store full of pinned pages is busy, not broken.
    let full = world.fresh(1);
    let store = full.open(&full.memory_config(Size::mib(1)));
    store_pages(&store, 0..15, LEN);
    let pin = store.pin(&keys(0..15));
    let busy = put_with(&store, key(99), &bytes(99, 500_000), NOW);
    refused(busy, ErrorKind::Busy, &no_room(500_000));
    drop(pin);
    assert_eq!(put(&store, key(99), &bytes(99, 500_000)), Ok(PutOutcome::Stored));
}
