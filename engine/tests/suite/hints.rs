//! Hints about the future use of objects.

use std::time::Duration;

use super::harness::Store;
use super::random_queries::{objects, page};
use pagelith::config::DramPolicy;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::{ErrorKind, Hint, Options, Priority, PutOutcome, PutSlice, Size};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 64 << 10;
const DAY: Duration = Duration::from_secs(86_400);

/// A store without SSD that has room for 8 objects, with objects 0 to 7.
fn full(world: &TestEnv) -> Store {
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    store_pages(&store, 0..8, LEN);
    store
}

fn present(store: &Store, keys: &[ObjectKey]) -> Vec<bool> {
    store.exists_batch(keys, Options::default())
}

pub fn pages_of_ended_session_leave_first_until_requested(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = full(world);
    let session = [key(5), key(6), key(7)];
    assert_eq!(store.hint(&session, Hint::SessionEnded), Ok(3));
    assert_eq!(present(&store, &[key(5)]), [true]);
    store_pages(&store, 20..22, LEN);
    assert_eq!(present(&store, &session), [true, false, false]);
    let others: Vec<_> = (0..5).chain(20..22).map(key).collect();
    assert_eq!(present(&store, &others), [true; 7]);
    assert_eq!(store.hint(&[key(99)], Hint::SessionEnded), Ok(0), "an absent object");
    assert_eq!(store.hint(&[], Hint::SessionEnded), Ok(0));
}

pub fn caller_whose_hints_are_wrong_is_not_followed(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    let right = key_in(namespace("other"), 1, "k");
    put(&store, right, &bytes(1, LEN)).expect("stored");
    store_pages(&store, 0..6, LEN);
    let mut followed = 0;
    for n in (0..6).cycle().take(60) {
        followed += store.hint(&[key(n)], Hint::SessionEnded).expect("open");
        // Requested again, or put again if it has left.
        if !present(&store, &[key(n)])[0] {
            store_page(&store, n, LEN);
        }
    }
    assert!((1..20).contains(&followed), "{followed}");
    let stats = store.stats();
    assert_eq!((stats.hints_ended, stats.hints_ended_followed), (60, followed as u64));
    assert!(stats.hints_ended_wrong >= followed as u64 - 1, "{}", stats.hints_ended_wrong);
    // Another namespace has hints of its own.
    assert_eq!(store.hint(&[right], Hint::SessionEnded), Ok(1));
}

pub fn hint_is_wrong_if_what_left_is_put_again(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let state = objects(Role::Target, "mamba", &["temporal"])[0].on_page(page(0));
    let bytes = bytes(9, LEN);
    for ended in [key(6), state] {
        let world = world.fresh(1);
        let store = world.open(&world.memory_config(Size::kib(8 * 64)));
        let attach = || {
            let put = PutSlice { key: state, pieces: &[&bytes] };
            let outcomes = store.put_attached(&[(key(0), &[put])], Options::default());
            assert_eq!(outcomes, [Ok(PutOutcome::Stored)]);
        };
        store_page(&store, 0, LEN);
        attach();
        store_pages(&store, 1..7, LEN);
        assert_eq!(store.hint(&[ended], Hint::SessionEnded), Ok(1), "{ended}");
        store_page(&store, 20, LEN);
        // The base is requested, so that it stays.
        assert_eq!(present(&store, &[ended, key(0)]), [false, true], "{ended}");
        match ended == state {
            true => attach(),
            false => store_page(&store, 6, LEN),
        }
        assert_eq!(store.stats().hints_ended_wrong, 1, "{ended}");
    }
}

pub fn hint_is_wrong_if_any_object_of_its_last_page_is_requested(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    let object = |n, part| key_in(namespace("m"), n, part);
    let session = |n| [object(n, "k"), object(n, "v")];
    for key in [1, 2].map(session).concat() {
        put(&store, key, &bytes(1, LEN)).expect("stored");
    }
    for n in [1, 2] {
        assert_eq!(store.hint(&session(n), Hint::SessionEnded), Ok(2), "n={n}");
    }
    assert_eq!(present(&store, &[object(1, "k")]), [true]);
    assert_eq!(store.stats().hints_ended_wrong, 1);
    hit(&store, object(2, "k"), &bytes(1, LEN));
    assert_eq!(store.stats().hints_ended_wrong, 2);
    assert_eq!(present(&store, &session(1)), [true, true]);
    assert_eq!(store.stats().hints_ended_wrong, 2, "each hint counts once");
}

pub fn demoted_page_leaves_memory_and_stays_on_ssd(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let mut config = world.config();
    config.dram.bytes = Size::kib(32 * 64);
    let store = world.open(&config);
    store_pages(&store, 0..24, LEN);
    store.flush(Options::default()).expect("flushed");
    assert_eq!(store.hint(&[key(23)], Hint::Demote), Ok(1));
    store_pages(&store, 30..42, LEN);
    store.flush(Options::default()).expect("flushed");
    assert!(store.view(&key(23)).expect("open").is_none(), "in memory");
    assert!(store.view(&key(22)).expect("open").is_some(), "not in memory");
    assert!(is_present(&store, key(23), &bytes(23, LEN)));
    assert_eq!(store.stats().hints_ended, 0);
}

pub fn retained_pages_stay_and_take_at_most_a_quarter(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = full(world);
    assert_eq!(store.hint(&[key(0), key(1), key(99)], Hint::Retain(DAY)), Ok(2));
    let refused = store.hint(&[key(2)], Hint::Retain(DAY)).expect_err("more than a quarter");
    assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
    store_pages(&store, 20..32, LEN);
    assert_eq!(present(&store, &[key(0), key(1), key(2)]), [true, true, false]);
}

pub fn pages_retained_before_their_put_stay_and_take_at_most_a_quarter(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = full(world);
    let early = [key(20), key(21), key(22)];
    assert_eq!(store.hint(&early, Hint::Retain(DAY)), Ok(0), "none is present");
    store_pages(&store, 20..23, LEN);
    assert_eq!(store.stats().objects_leased, 2);
    store_pages(&store, 40..52, LEN);
    assert_eq!(present(&store, &early), [true, true, false]);
    let many: Vec<_> = (1000..17_385).map(key).collect();
    let refused = store.hint(&many, Hint::Retain(DAY)).expect_err("too many");
    assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
    assert!(refused.message.starts_with("too many objects are retained before"), "{refused}");
}

pub fn group_retained_before_its_put_is_leased_whole(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = full(world);
    let page = [key_in(namespace("m"), 20, "k"), key_in(namespace("m"), 20, "v")];
    assert_eq!(store.hint(&page, Hint::Retain(DAY)), Ok(0));
    let bytes = bytes(1, LEN);
    let pieces: [&[u8]; 1] = [&bytes];
    let group = page.map(|key| PutSlice { key, pieces: &pieces });
    assert_eq!(store.put_groups(&[&group], Options::default()), [Ok(PutOutcome::Stored)]);
    store_pages(&store, 40..52, LEN);
    assert_eq!(present(&store, &page), [true, true]);
}

pub fn page_put_after_its_retention_ended_is_not_kept(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else {
        return; // The clock must be moved.
    };
    let store = full(world);
    assert_eq!(store.hint(&[key(20)], Hint::Retain(Duration::from_secs(1))), Ok(0));
    sim.runtime.run_for(Duration::from_secs(2));
    store_pages(&store, 20..21, LEN);
    assert_eq!(store.stats().objects_leased, 0);
    store_pages(&store, 40..52, LEN);
    assert_eq!(present(&store, &[key(20)]), [false]);
}

pub fn pages_expected_back_stay_until_then(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let store = full(world);
    let hour = Hint::ExpectedBack(Duration::from_secs(3600));
    assert_eq!(store.hint(&[key(0), key(1), key(99)], hour), Ok(2));
    let refused = store.hint(&[key(2)], hour).expect_err("more than a quarter");
    assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
    store_pages(&store, 20..32, LEN);
    assert_eq!(present(&store, &[key(1), key(2)]), [true, false]);
    let stats = store.stats();
    assert_eq!((stats.hints_expected, stats.hints_expected_wrong), (2, 0));
    if let Some(sim) = world.sim() {
        sim.runtime.run_for(Duration::from_secs(3601));
        store_pages(&store, 40..52, LEN);
        assert_eq!(present(&store, &[key(0)]), [false]);
        assert_eq!(store.stats().hints_expected_wrong, 1, "page 2 did not come back");
    }
}

pub fn caller_whose_sessions_do_not_return_is_not_followed(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else {
        return; // The clock must be moved.
    };
    let store = full(world);
    let other = key_in(namespace("other"), 1, "k");
    put(&store, other, &bytes(1, LEN)).expect("stored");
    let soon = Hint::ExpectedBack(Duration::from_secs(1));
    let mut followed = 0;
    for _ in 0..60 {
        followed += store.hint(&[key(7)], soon).expect("within the bounds");
        sim.runtime.run_for(Duration::from_secs(2));
    }
    assert!((1..20).contains(&followed), "{followed}");
    let stats = store.stats();
    assert_eq!((stats.hints_expected, stats.hints_expected_wrong), (60, 60));
    assert_eq!(stats.hints_expected_followed, followed as u64);
    // Another namespace has hints of its own.
    assert_eq!(store.hint(&[other], soon), Ok(1));
}

pub fn page_of_low_priority_leaves_first_and_one_of_high_priority_later(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // All objects would be one.
    }
    let mut config = world.memory_config(Size::kib(8 * 64));
    config.dram.policy = DramPolicy::S3Fifo;
    let store = world.open(&config);
    store_pages(&store, 0..8, LEN);
    assert_eq!(store.hint(&[key(0), key(99)], Hint::Priority(Priority::High)), Ok(1));
    assert_eq!(store.hint(&[key(6)], Hint::Priority(Priority::Low)), Ok(1));
    store_page(&store, 20, LEN);
    assert_eq!(present(&store, &[key(6)]), [false]);
    store_pages(&store, 21..33, LEN);
    assert_eq!(present(&store, &[key(0), key(1), key(5)]), [true, false, false]);
}

pub fn hint_for_several_namespaces_is_refused(world: &TestEnv) {
    let store = full(world);
    let keys = [key(0), key_in(namespace("other"), 1, "k")];
    let second = Duration::from_secs(1);
    for hint in [
        Hint::SessionEnded,
        Hint::Demote,
        Hint::Retain(second),
        Hint::ExpectedBack(second),
        Hint::Priority(Priority::High),
    ] {
        let refused = store.hint(&keys, hint).expect_err("two namespaces");
        assert_eq!(refused.kind, ErrorKind::Invalid);
        assert!(refused.message.starts_with("a hint is for objects of one namespace"), "{refused}");
    }
}
