//! Eviction order, promotion, and a full index.

use super::harness::Store;
use pagelith::config::Promote;
use pagelith::layouts::key::ObjectKey;
use pagelith::{Options, PutOutcome, PutSlice, Size, Tier};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 64 << 10;

/// Put a chain of pages as one request, head first.
fn put_chain(store: &Store, pages: std::ops::Range<u64>) {
    let data: Vec<_> = pages.clone().map(|n| bytes(n, LEN)).collect();
    let pieces: Vec<[&[u8]; 1]> = data.iter().map(|d| [&d[..]]).collect();
    let puts: Vec<_> =
        pages.zip(&pieces).map(|(n, pieces)| PutSlice { key: key(n), pieces }).collect();
    let outcomes = store.put_batch(&puts, Options::default());
    assert_eq!(outcomes, vec![Ok(PutOutcome::Stored); puts.len()]);
}

/// The pages that are present, deepest last; one lookup at the end, since a lookup counts as a use.
fn present_pages(store: &Store, pages: std::ops::Range<u64>) -> Vec<u64> {
    pages.filter(|n| is_page_present(store, *n, LEN)).collect()
}

pub fn eviction_takes_the_tail_of_a_chain_first(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    put_chain(&store, 0..8);
    put_chain(&store, 100..103);
    assert_eq!(present_pages(&store, 0..8), [0, 1, 2, 3, 4]);
    assert_eq!(present_pages(&store, 100..103), [100, 101, 102]);
}

pub fn least_recently_used_page_is_evicted_first(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    put_chain(&store, 0..4);
    put_chain(&store, 10..14);
    // The older chain is used again, by gets of one request.
    let request = store.begin_request();
    for n in 0..4u32 {
        let mut to = vec![0; LEN];
        let get = pagelith::GetSlice { key: key(n.into()), range: None, pieces: &mut [&mut to] };
        let options = Options::default().request(request).depth(n);
        assert!(store.get_batch(&mut [get], options)[0].as_ref().is_ok_and(|o| o.is_hit()));
    }
    put_chain(&store, 100..106);
    assert_eq!(present_pages(&store, 0..4), [0, 1]);
    assert_eq!(present_pages(&store, 10..14), [0; 0]);
}

pub fn exists_prefix_stops_at_the_first_hole(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A prefix lookup answers from fingerprints alone.
    }
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..5, LEN);
    store_pages(&store, 6..9, LEN);
    let keys: Vec<ObjectKey> = (0..9).map(key).collect();
    let check = |store: &Store| {
        let prefix = |from: usize| store.exists_prefix(&keys[from..], Options::default());
        assert_eq!((prefix(0), prefix(3), prefix(5), prefix(6)), (5, 2, 0, 3));
        assert_eq!(store.exists_prefix(&[], Options::default()), 0);
        let found = store.exists_batch(&keys, Options::default());
        assert_eq!(found, [true, true, true, true, true, false, true, true, true]);
    };
    check(&store);
    check(&world.reopen(store, &config));
}

pub fn ssd_hits_are_promoted_whole(world: &TestEnv) {
    let mut config = world.config();
    config.dram.promote = Promote::Always;
    let store = world.open(&config);
    store_page(&store, 50, LEN);
    assert_eq!(put_group(&store, &group(1, 3)), Ok(PutOutcome::Stored));
    let store = world.reopen(store, &config);
    assert_eq!(hit_page(&store, 50, LEN), Tier::Ssd);
    assert_eq!(hit_page(&store, 50, LEN), Tier::Memory);
    assert_eq!(store.stats().promoted, 1);
    // A part of an object, or of a group, is not promoted.
    let page = group(1, 3);
    for _ in 0..2 {
        for (key, bytes) in &page {
            assert_eq!(hit(&store, *key, bytes), Tier::Ssd);
        }
    }
    assert_eq!((store.stats().promoted, store.stats().dram_objects), (1, 1));
    let mut memory: Vec<Vec<u8>> = page.iter().map(|(_, b)| vec![0; b.len()]).collect();
    let mut lent: Vec<[&mut [u8]; 1]> = memory.iter_mut().map(|m| [&mut m[..]]).collect();
    let mut gets: Vec<_> = page
        .iter()
        .zip(&mut lent)
        .map(|((key, _), pieces)| pagelith::GetSlice { key: *key, range: None, pieces })
        .collect();
    assert!(store.get_batch(&mut gets, Options::default()).iter().all(|o| o.is_ok()));
    for (key, bytes) in &page {
        assert_eq!(hit(&store, *key, bytes), Tier::Memory);
    }
    // A promoted page can be evicted, and is still on SSD.
    store_pages(&store, 100..200, LEN);
    assert_eq!(hit_page(&store, 50, LEN), Tier::Ssd);
}

pub fn promotion_can_be_switched_off(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    store_page(&store, 50, LEN);
    let store = world.reopen(store, &config);
    for _ in 0..3 {
        assert_eq!(hit_page(&store, 50, LEN), Tier::Ssd);
    }
    assert_eq!((store.stats().promoted, store.stats().dram_bytes), (0, 0));
}

pub fn full_index_refuses_puts(world: &TestEnv) {
    let mut config = world.memory_config(Size::mib(2));
    config.index.max_objects = Some(16);
    let store = world.open(&config);
    store_pages(&store, 0..16, 100);
    let pin = store.pin(&(0..16).map(key).collect::<Vec<_>>());
    assert_eq!(put(&store, key(16), &bytes(16, 100)), Ok(PutOutcome::Refused));
    gone_unless_constant(world, &store, 16);
    assert_eq!(store.stats().puts_refused, 1);
    assert_eq!(store.flush(Options::default()).map(|r| r.refused_objects), Ok(1));
    drop(pin);
    store_page(&store, 17, 100);
    assert_eq!(store.stats().objects, 16, "one left for it");
    assert_eq!(put_group(&store, &group(50, 17)), Ok(PutOutcome::Refused));
    assert_eq!(store.stats().objects, 16, "the index is too small for it, so none left");
}

fn gone_unless_constant(world: &TestEnv, store: &Store, n: u64) {
    if world.tells_keys_apart() {
        assert_absent(world, store, key(n), 100);
    }
}

pub fn full_index_makes_room_by_reclaim(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    for (max, len) in [(64, 60_000), (64, 4000)] {
        let world = world.fresh(1);
        let mut config = world.cold_config();
        config.index.max_objects = Some(max);
        let store = world.open(&config);
        let mut stored = 0;
        for n in 0..4 * max {
            match put(&store, key(n), &bytes(n, len)) {
                Ok(PutOutcome::Stored) => stored += 1,
                // Reclaim makes room asynchronously, once the flusher and the device get to it.
                Ok(PutOutcome::Refused) => {
                    until(&world, "room is made", || store.stats().objects < max)
                }
                other => panic!("{other:?} n={n}"),
            }
            flush(&store);
        }
        assert!(store.stats().objects <= max);
        assert!(
            stored > max,
            "old objects make room for new ones stored={stored} max={max} len={len}"
        );
    }
}
