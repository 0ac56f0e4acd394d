//! Hit rules: how long a prefix can be restored when a page's state is spread over several pools.

use std::collections::BTreeSet;
use std::time::Duration;

use super::harness::Store;
use super::random_queries::{PrefixQuery, SmallRng, objects, page, pages, spread};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::{
    CompletedBatch, ErrorKind, HitPolicy, Options, PagesFound, PagesQuery, PoolQuery, PutOutcome,
    PutSlice, Result, Size,
};

use super::env::TestEnv;
use super::helpers::*;

const MAMBA: HitPolicy<'_> = HitPolicy::TrailingPages(1);

fn put_all(store: &Store, keys: &[ObjectKey]) {
    let puts: Vec<_> = keys.iter().map(|key| PutSlice { key: *key, pieces: &[b"state"] }).collect();
    assert_eq!(
        store.put_batch(&puts, Options::default()),
        vec![Ok(PutOutcome::Stored); keys.len()]
    );
}

fn ask(store: &Store, query: &PagesQuery<'_>) -> PagesFound {
    store.exists_groups(query, Options::default()).expect("a query")
}

pub fn hit_rules_match_the_model_for_any_residency(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Queries answer from fingerprints alone.
    }
    let mut dice = SmallRng(1);
    let mut sparse = 0;
    for round in 0..32 {
        let world = world.fresh(1);
        let config = world.config();
        let mut store = world.open(&config);
        let asked = PrefixQuery::random(&mut dice);
        let mut put = BTreeSet::new();
        for (pool, keys) in asked.all_keys().into_iter().enumerate() {
            // Pools whole, with few holes, with many; the anchor mostly whole, so that other pools
            // decide.
            let holes_in_64 = if pool == 0 { [0, 0, 1, 2] } else { [0, 2, 8, 32] };
            let holes = holes_in_64[dice.below(4) as usize];
            put.extend(keys.into_iter().filter(|_| dice.below(64) >= holes));
        }
        put_all(&store, &put.iter().copied().collect::<Vec<_>>());
        let expected = asked.expected(&put);
        sparse += usize::from(expected.stops.len() < expected.usable_pages);
        assert_eq!(asked.ask(|query| ask(&store, query)), expected, "round={round}");
        store = world.reopen(store, &config);
        assert_eq!(asked.ask(|query| ask(&store, query)), expected, "round={round}, from SSD");
        let gone: Vec<_> = put.iter().copied().filter(|_| dice.below(32) == 0).collect();
        assert_eq!(store.remove(&gone, Options::default()), Ok(gone.len()), "round={round}");
        gone.iter().for_each(|key| assert!(put.remove(key)));
        assert_eq!(
            asked.ask(|query| ask(&store, query)),
            asked.expected(&put),
            "round={round}, after removals"
        );
    }
    assert!(sparse >= 8, "stops with holes were among them sparse={sparse}");
}

pub fn page_counts_only_with_all_its_objects(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Queries answer from fingerprints alone.
    }
    let store = world.open(&world.config());
    let kv = objects(Role::Target, "kv", &["k", "v"]);
    let mamba = objects(Role::Target, "mamba", &["temporal", "conv_0"]);
    let span = pages(0..3);
    let pools = [PoolQuery { objects: &mamba, policy: MAMBA }];
    let query = PagesQuery { pages: &span, anchor: &kv, pools: &pools };
    let expect = |put: ObjectKey, usable_pages, anchor_pages, mamba_pages, stops: &[usize]| {
        put_all(&store, &[put]);
        let pool_pages = vec![mamba_pages];
        let expected = PagesFound { usable_pages, anchor_pages, pool_pages, stops: stops.to_vec() };
        assert_eq!(ask(&store, &query), expected, "put={put}");
    };
    expect(kv[0].on_page(span[0]), 0, 0, 0, &[]);
    expect(mamba[0].on_page(span[1]), 0, 0, 0, &[]);
    expect(kv[1].on_page(span[0]), 0, 1, 0, &[]);
    expect(kv[1].on_page(span[1]), 0, 1, 0, &[]);
    expect(kv[0].on_page(span[1]), 0, 2, 0, &[]);
    expect(mamba[1].on_page(span[1]), 2, 2, 2, &[2]);
    expect(mamba[1].on_page(span[0]), 2, 2, 2, &[2]);
    expect(mamba[0].on_page(span[0]), 2, 2, 2, &[1, 2]);
}

pub fn query_of_thousands_of_pages_is_answered(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Queries answer from fingerprints alone.
    }
    let store = world.open(&world.memory_config(Size::mib(16)));
    let kv = objects(Role::Target, "kv", &["k", "v"]);
    let mamba = objects(Role::Target, "mamba", &["temporal"]);
    let span = pages(0..4000);
    put_all(&store, &spread(&kv, &span[..1500]));
    let checkpoints: Vec<_> = span.iter().copied().skip(7).step_by(8).take(240).collect();
    put_all(&store, &spread(&mamba, &checkpoints));
    let pools = [PoolQuery { objects: &mamba, policy: MAMBA }];
    let found = ask(&store, &PagesQuery { pages: &span, anchor: &kv, pools: &pools });
    assert_eq!(
        (found.usable_pages, found.anchor_pages, found.pool_pages),
        (1496, 1500, vec![1496])
    );
    assert_eq!(found.stops, (8..=1496).step_by(8).collect::<Vec<_>>());
}

pub fn only_usable_pages_count_as_used(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Queries answer from fingerprints alone.
    }
    const LEN: usize = 64 << 10;
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    let kv = [key(0)];
    let mamba = objects(Role::Target, "mamba", &["temporal"]);
    let checkpoint = |n: u64| mamba[0].on_page(page(n));
    let put_one = |key| assert_eq!(put(&store, key, &bytes(1, LEN)), Ok(PutOutcome::Stored));
    // Pages 0 and 1, a checkpoint of 1, and one of 5, which the anchor's hole makes useless.
    [key(0), key(1), checkpoint(1), checkpoint(5)].into_iter().for_each(put_one);
    (10..14).map(key).for_each(put_one);
    let pools = [PoolQuery { objects: &mamba, policy: MAMBA }];
    let found = ask(&store, &PagesQuery { pages: &pages(0..6), anchor: &kv, pools: &pools });
    assert_eq!((found.stops, found.anchor_pages), (vec![2], 2));
    (20..24).map(key).for_each(put_one);
    let here = |keys: &[ObjectKey]| store.exists_batch(keys, Options::default());
    assert_eq!(here(&[key(0), key(1), checkpoint(1), checkpoint(5)]), [true, true, true, false]);
    assert_eq!(here(&[key(10), key(11), key(12), key(13)]), [false, false, false, true]);
}

pub fn superseded_state_does_not_count_as_used(world: &TestEnv) {
    // With equal fingerprints, lookups cannot distinguish the states.
    if !world.tells_keys_apart() {
        return;
    }
    const LEN: usize = 64 << 10;
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    let kv = [key(0)];
    let mamba = objects(Role::Target, "mamba", &["temporal"]);
    let state = |n: u64| mamba[0].on_page(page(n));
    let put_one = |key| assert_eq!(put(&store, key, &bytes(1, LEN)), Ok(PutOutcome::Stored));
    [key(0), key(1), state(0), state(1)].into_iter().for_each(put_one);
    (10..14).map(key).for_each(put_one);
    let pools = [PoolQuery { objects: &mamba, policy: MAMBA }];
    let found = ask(&store, &PagesQuery { pages: &pages(0..2), anchor: &kv, pools: &pools });
    assert_eq!(found.stops, vec![1, 2]);
    (20..24).map(key).for_each(put_one);
    let here = |keys: &[ObjectKey]| store.exists_batch(keys, Options::default());
    assert_eq!(here(&[key(0), key(1), state(0), state(1)]), [true, true, false, true]);
    assert_eq!(here(&[key(10), key(11), key(12), key(13)]), [false, false, false, true]);
}

/// A full store of 8 objects: pages 0 to 2, states of pages 0 and 1, attached to them, and other
/// pages. The states are recent.
fn store_with_states(world: &TestEnv) -> (Store, ObjectKey) {
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    let mamba = objects(Role::Target, "mamba", &["temporal"])[0];
    [key(0), key(1), key(2)].into_iter().for_each(|key| put_one(&store, key));
    (0..2).for_each(|n| attach_state(&store, mamba, n));
    (10..13).for_each(|n| put_one(&store, key(n)));
    let states = [mamba.on_page(page(0)), mamba.on_page(page(1))];
    assert_eq!(store.exists_batch(&states, Options::default()), [true, true]);
    (store, mamba)
}

const OBJECT_LEN: usize = 64 << 10;

fn put_one(store: &Store, key: ObjectKey) {
    assert_eq!(put(store, key, &bytes(1, OBJECT_LEN)), Ok(PutOutcome::Stored), "{key}");
}

fn attach_state(store: &Store, mamba: ObjectKey, n: u64) {
    let bytes = bytes(n, OBJECT_LEN);
    let state = [PutSlice { key: mamba.on_page(page(n)), pieces: &[&bytes] }];
    let stored = store.put_attached(&[(key(n), &state)], Options::default());
    assert_eq!(stored, [Ok(PutOutcome::Stored)], "page={n}");
}

pub fn superseded_state_leaves_first(world: &TestEnv) {
    // With equal fingerprints, lookups cannot distinguish the states.
    if !world.tells_keys_apart() {
        return;
    }
    let (store, mamba) = store_with_states(world);
    let kv = [key(0)];
    let pools = [PoolQuery { objects: &[mamba], policy: MAMBA }];
    let present = |keys: &[ObjectKey]| store.exists_batch(keys, Options::default());
    let state = |n: u64| mamba.on_page(page(n));
    // The lookup goes on from the state of page 1.
    let found = ask(&store, &PagesQuery { pages: &pages(0..3), anchor: &kv, pools: &pools });
    assert_eq!(found.stops, [1, 2]);
    put_one(&store, key(20));
    assert_eq!(present(&[state(0), state(1), key(10)]), [false, true, true]);
    // The state of page 2 supersedes that of page 1, though a lookup made it recent.
    assert_eq!(present(&[state(1), key(0), key(1), key(2)]), [true; 4]);
    (11..13).for_each(|n| assert!(present(&[key(n)])[0]));
    attach_state(&store, mamba, 2);
    let evicted = [key(10), key(11), key(12), key(20)];
    let before = present(&evicted);
    put_one(&store, key(21));
    assert_eq!(present(&[state(1), state(2)]), [false, true]);
    assert_eq!(present(&evicted), before, "only the state left");
}

pub fn superseded_state_in_one_group_with_its_page_stays(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let store = world.open(&world.memory_config(Size::kib(8 * 64)));
    let mamba = objects(Role::Target, "mamba", &["temporal"])[0];
    let state = |n: u64| mamba.on_page(page(n));
    for n in 0..2 {
        let both = [key(n), state(n)].map(|key| (key, bytes(1, OBJECT_LEN)));
        assert_eq!(put_group(&store, &both), Ok(PutOutcome::Stored), "page={n}");
    }
    [key(2), key(10), key(11), key(12)].into_iter().for_each(|key| put_one(&store, key));
    let kv = [key(0)];
    let pools = [PoolQuery { objects: &[mamba], policy: MAMBA }];
    let found = ask(&store, &PagesQuery { pages: &pages(0..3), anchor: &kv, pools: &pools });
    assert_eq!(found.stops, [1, 2]);
    put_one(&store, key(20));
    let keys = [key(0), state(0), key(1), state(1), key(10)];
    let present = store.exists_batch(&keys, Options::default());
    assert_eq!(present, [true, true, true, true, false]);
}

pub fn state_with_two_continuations_is_not_superseded(world: &TestEnv) {
    if !world.tells_keys_apart() || !world.is_embedded() {
        return;
    }
    let (store, mamba) = store_with_states(world);
    let kv = [key(0)];
    let pools = [PoolQuery { objects: &[mamba], policy: MAMBA }];
    let other = [page(0), page(5)];
    let found = ask(&store, &PagesQuery { pages: &other, anchor: &kv, pools: &pools });
    assert_eq!(found.stops, [1]);
    let found = ask(&store, &PagesQuery { pages: &pages(0..3), anchor: &kv, pools: &pools });
    assert_eq!(found.stops, [1, 2]);
    put_one(&store, key(20));
    let states = [mamba.on_page(page(0)), mamba.on_page(page(1))];
    assert_eq!(store.exists_batch(&states, Options::default()), [true, true]);
}

pub fn query_counts_each_key_once(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Queries answer from fingerprints alone.
    }
    let store = world.open(&world.config());
    let kv = [key(0)];
    let mamba = objects(Role::Target, "mamba", &["temporal"]);
    let state = |n: u64| mamba[0].on_page(page(n));
    put_all(&store, &[key(0), key(1), state(0), state(1)]);
    let counts = || {
        let stats = store.stats();
        (stats.exists_found, stats.exists_absent.values().sum::<u64>())
    };
    let before = counts();
    let pools = [PoolQuery { objects: &mamba, policy: MAMBA }];
    // Four keys are present, one of them superseded. Page 2 is the first hole.
    let found = ask(&store, &PagesQuery { pages: &pages(0..3), anchor: &kv, pools: &pools });
    assert_eq!(found.stops, vec![1, 2]);
    let after = counts();
    assert_eq!((after.0 - before.0, after.1 - before.1), (4, 1));
}

pub fn session_answers_queries_at_once(world: &TestEnv) {
    let store = world.open(&world.config());
    let kv = objects(Role::Target, "kv", &["k"]);
    let span = pages(0..4);
    put_all(&store, &spread(&kv, &span));
    let mut session = store.session().expect("a session");
    let query = PagesQuery { pages: &span, anchor: &kv, pools: &[] };
    let ticket = session.submit_exists_groups(&query, Options::default());
    let Some((done, CompletedBatch::ExistsGroups(Ok(found)))) = session.poll() else {
        panic!("not answered at once")
    };
    assert_eq!((done, found), (ticket, ask(&store, &query)));
    let expected = PagesFound {
        usable_pages: 4,
        anchor_pages: 4,
        pool_pages: vec![],
        stops: vec![1, 2, 3, 4],
    };
    assert_eq!(ask(&store, &query), expected);
    store.close().expect("closed");
    let ticket = session.submit_exists_groups(&query, Options::default());
    let answer = session.wait(ticket, Duration::from_secs(30));
    let Some(CompletedBatch::ExistsGroups(closed)) = answer else {
        panic!("not an answer: {answer:?}")
    };
    refused(closed, ErrorKind::Closed, "store is closed");
}

pub fn empty_and_invalid_queries_are_answered(world: &TestEnv) {
    let store = world.open(&world.config());
    let kv = objects(Role::Target, "kv", &["k"]);
    put_all(&store, &spread(&kv, &pages(0..1)));
    let mamba = objects(Role::Target, "mamba", &["temporal"]);
    let pools = [PoolQuery { objects: &mamba, policy: MAMBA }];
    let answer = |anchor: &[ObjectKey], pools: &[PoolQuery<'_>]| -> Result<PagesFound> {
        store.exists_groups(&PagesQuery { pages: &[], anchor, pools }, Options::default())
    };
    let nothing = PagesFound { pool_pages: vec![0], ..PagesFound::default() };
    assert_eq!(answer(&kv, &pools), Ok(nothing.clone()));
    assert_eq!(answer(&[], &pools), Ok(nothing));
    let message = "a query names a pool twice field=pools[1].objects pool=mamba";
    refused(answer(&kv, &[pools[0], pools[0]]), ErrorKind::Invalid, message);
    let message =
        "an anchor without objects needs a pool with all_pages or trailing_pages field=pools";
    refused(answer(&[], &[]), ErrorKind::Invalid, message);
}
