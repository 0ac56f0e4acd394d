//! The objects of a page become visible, stay and disappear together.

use super::harness::Store;
use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, Options, PutOutcome, Size};

use super::env::TestEnv;
use super::helpers::*;

fn present_count(store: &Store, group: &[(ObjectKey, Vec<u8>)]) -> usize {
    group.iter().filter(|(key, bytes)| is_present(store, *key, bytes)).count()
}

pub fn group_is_visible_whole_or_not_at_all(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    let mut page = group(1, 10);
    assert_eq!(present_count(&store, &page), 0);
    let last = std::mem::take(&mut page[9].1);
    let message = format!("object has no bytes key={} length=0", page[9].0);
    refused(put_group(&store, &page), ErrorKind::Invalid, &message);
    page[9].1 = last;
    assert_eq!(present_count(&store, &page), 0, "no refused object");
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
    assert_eq!(present_count(&store, &page), 10);
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::AlreadyPresent));
    let store = world.reopen(store, &config);
    assert_eq!(present_count(&store, &page), 10);
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::AlreadyPresent));
}

pub fn group_of_ten_objects_is_one_record_on_ssd(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    for n in 0..8 {
        assert_eq!(put_group(&store, &group(n, 10)), Ok(PutOutcome::Stored));
    }
    store.close().expect("closed");
    for n in 0..8 {
        let places: Vec<_> = group(n, 10).iter().map(|(key, _)| find(world, *key)).collect();
        assert!(places.iter().all(|p| p.record == places[0].record), "n={n} {places:?}");
        assert!(places.is_sorted_by(|a, b| a.payload < b.payload), "n={n} {places:?}");
    }
    let store = world.open(&config);
    for n in 0..8 {
        assert_eq!(present_count(&store, &group(n, 10)), 10, "n={n}");
    }
}

pub fn group_is_evicted_whole(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::mib(1)));
    let pages = 40;
    for n in 0..pages {
        assert_eq!(put_group(&store, &group(n, 10)), Ok(PutOutcome::Stored), "n={n}");
    }
    let counts: Vec<usize> = (0..pages).map(|n| present_count(&store, &group(n, 10))).collect();
    assert!(counts.iter().all(|c| [0, 10].contains(c)), "{counts:?}");
    assert!(counts.contains(&0) && counts[39] == 10, "{counts:?}");
}

pub fn group_larger_than_a_segment_is_invalid(world: &TestEnv) {
    let store = world.open(&world.config());
    let page: Vec<_> = group(1, 4).into_iter().map(|(key, _)| (key, bytes(1, 300_000))).collect();
    // Four payloads of 303,104 bytes and a header of one block, against a segment less header and
    // footer.
    let message = format!(
        "group is larger than a segment's payload; raise ssd.segment_bytes key={} bytes=1216512 \
         max=1040384",
        page[0].0
    );
    refused(put_group(&store, &page), ErrorKind::Invalid, &message);
    assert_eq!(present_count(&store, &page), 0);
    assert_eq!(put_group(&store, &page[..3]), Ok(PutOutcome::Stored));
    flush(&store);
    assert_eq!(present_count(&store, &page[..3]), 3);
}

pub fn invalid_groups_are_refused(world: &TestEnv) {
    let store = world.open(&world.config());
    let (a, b) = (group(1, 2), group(2, 1));
    let mixed = [a[0].clone(), b[0].clone()];
    let message = format!("a group has objects of two pages key={} other={}", b[0].0, a[0].0);
    refused(put_group(&store, &mixed), ErrorKind::Invalid, &message);
    let twice = [a[0].clone(), a[1].clone(), a[0].clone()];
    let message = format!("a group has a key twice key={}", a[0].0);
    refused(put_group(&store, &twice), ErrorKind::Invalid, &message);
    refused(put_group(&store, &[]), ErrorKind::Invalid, "a group has no object");
    let many: Vec<_> =
        (0..1025).map(|m| (key_in(namespace("m"), 3, &format!("c{m}")), vec![1])).collect();
    let message = "a group has too many objects objects=1025 max=1024";
    refused(put_group(&store, &many), ErrorKind::Invalid, message);
    // One outcome per group, in order, independent of its neighbours' faults.
    let piece: [&[u8]; 1] = [b"x"];
    let one = [pagelith::PutSlice { key: key(5), pieces: &piece }];
    let outcomes = store.put_groups(&[&[], &one, &[]], Options::default());
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(
        present_count(&store, &mixed)
            + present_count(&store, &twice)
            + present_count(&store, &many),
        0
    );
}

pub fn group_put_adopts_standalone_objects(world: &TestEnv) {
    for config in [world.config(), world.cold_config()] {
        let world = world.fresh(1);
        let mut config = config;
        config.ssd.dirs = world.paths();
        let store = world.open(&config);
        let page = group(1, 3);
        assert_eq!(put_group(&store, &page[1..2]), Ok(PutOutcome::Stored));
        flush(&store);
        assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
        assert_eq!(present_count(&store, &page), 3);
        let store = world.reopen(store, &config);
        assert_eq!(present_count(&store, &page), 3);
        if world.tells_keys_apart() {
            assert_eq!(store.stats().objects, 3, "the standalone object is not counted twice");
        }
    }
}

/// A crash restores more objects than the index ever held: those that were dropped to make room are
/// still in the log.
pub fn groups_without_index_room_after_a_crash_are_dropped_whole(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let mut config = world.config();
    config.index.max_objects = Some(64);
    let mut store = world.open(&config);
    for n in 0..30 {
        assert_eq!(put_group(&store, &group(n, 6)), Ok(PutOutcome::Stored), "n={n}");
        flush(&store);
    }
    for round in 0..3 {
        store = world.crash(store, &config);
        assert!(store.stats().objects <= 64, "round={round}");
        let exist = |n| {
            let keys: Vec<_> = group(n, 6).iter().map(|(key, _)| *key).collect();
            store.exists_batch(&keys, Options::default()).into_iter().filter(|here| *here).count()
        };
        let counts: Vec<usize> = (0..30).map(exist).collect();
        assert!(counts.iter().all(|count| [0, 6].contains(count)), "round={round} {counts:?}");
        assert!(
            (0..30).all(|n| present_count(&store, &group(n, 6)) == counts[n as usize]),
            "round={round}"
        );
    }
}

pub fn group_is_whole_or_gone_after_a_crash(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let config = world.config();
    let mut store = world.open(&config);
    for round in 0..4 {
        for n in round * 10..round * 10 + 10 {
            assert_eq!(put_group(&store, &group(n, 10)), Ok(PutOutcome::Stored), "n={n}");
        }
        if round == 1 {
            flush(&store);
        }
        store = world.crash(store, &config);
        let counts: Vec<usize> = (0..40).map(|n| present_count(&store, &group(n, 10))).collect();
        assert!(counts.iter().all(|c| [0, 10].contains(c)), "{counts:?}");
        if round >= 1 {
            assert_eq!(counts[10..20], [10; 10], "flushed groups are present");
        }
    }
}
