//! Hit rules of a store with a peer: objects may be local or at the peer.

use pagelith::client::Client;
use pagelith::{HitPolicy, PagesFound, PagesQuery, PoolQuery};

use super::random_queries::{PrefixQuery, SmallRng};
use super::*;

pub fn object(page: u64, pool: &str, component: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, key(page, "k").hash(), Role::Target, pool, component, Shard::Whole)
        .expect("a key")
}

pub fn kv(page: u64) -> [ObjectKey; 2] {
    [key(page, "k"), key(page, "v")]
}

/// A page's state, attached to its KV.
fn put_state(store: &Store, page: u64) {
    let state = object(page, "mamba", "temporal");
    let bytes = content(&state);
    let group = [PutSlice { key: state, pieces: &[&bytes] }];
    let stored = store.put_attached(&[(key(page, "k"), &group)], Options::default());
    assert_eq!(stored, [Ok(PutOutcome::Stored)]);
}

pub fn found(ask: impl Fn(&PagesQuery<'_>) -> pagelith::Result<PagesFound>) -> PagesFound {
    let pages: Vec<PrefixHash> = (0..7).map(|page| key(page, "k").hash()).collect();
    let (state, indexer) = ([object(0, "mamba", "temporal")], [object(0, "indexer", "x")]);
    let pools = [
        PoolQuery { objects: &state, policy: HitPolicy::TrailingPages(1) },
        PoolQuery { objects: &indexer, policy: HitPolicy::AllPages },
    ];
    ask(&PagesQuery { pages: &pages, anchor: &kv(0), pools: &pools }).expect("a query")
}

pub fn is(
    usable_pages: usize,
    anchor_pages: usize,
    pool_pages: [usize; 2],
    stops: &[usize],
) -> PagesFound {
    PagesFound {
        usable_pages,
        anchor_pages,
        pool_pages: pool_pages.to_vec(),
        stops: stops.to_vec(),
    }
}

#[test]
fn hit_rules_include_peers() {
    let owner = Process::new(&memory());
    let front = owner.front(&memory(), offer());
    // KV of pages 0 to 5, the first two only local; an indexer on each of them; states of 0 local,
    // of 1, 3 and 4 at the peer.
    for page in 0..6 {
        let store = if page < 2 { &front } else { &*owner.store };
        put(store, &kv(page));
        put(if page % 2 == 0 { &front } else { &owner.store }, &[object(page, "indexer", "x")]);
    }
    until("the peer has the local puts", || front.stats().remote_stored == 7);
    put_state(&front, 0);
    until("the peer has the attached objects", || front.stats().remote_stored == 8);
    [1, 3, 4].into_iter().for_each(|page| put_state(&owner.store, page));
    let expected = is(5, 6, [5, 6], &[1, 2, 4, 5]);
    assert_eq!(found(|query| front.exists_groups(query, Options::default())), expected);
    // The peer has all of it itself.
    assert_eq!(found(|query| owner.store.exists_groups(query, Options::default())), expected);
    // Clients of a store with peers get the same answers.
    let served = Process::of(front);
    let client = Client::to(&served.address, None, WAIT_MAX).expect("attached");
    assert_eq!(found(|query| client.exists_groups(query, Options::default())), expected);
    // An unreachable peer has nothing.
    drop(owner);
    let alone = is(1, 2, [1, 1], &[1]);
    assert_eq!(found(|query| served.store.exists_groups(query, Options::default())), alone);
    assert_eq!(found(|query| client.exists_groups(query, Options::default())), alone);
}

/// Pages after the first hole of the anchor are no prefix, however many there are.
#[test]
fn hit_rules_stop_at_the_first_hole_of_the_anchor() {
    let owner = Process::new(&memory());
    let front = owner.front(&memory(), offer());
    let pages: Vec<PrefixHash> = (0..8).map(|page| key(page, "k").hash()).collect();
    let anchor = |store: &Store| {
        let query = PagesQuery { pages: &pages, anchor: &kv(0), pools: &[] };
        store.exists_groups(&query, Options::default()).expect("a query")
    };
    let first = |n: usize| PagesFound {
        usable_pages: n,
        anchor_pages: n,
        pool_pages: Vec::new(),
        stops: (1..=n).collect(),
    };
    // The hole is page 2; the pages after it are local, at the peer, and local again.
    for page in [0, 1, 3, 4, 5, 6, 7] {
        put(if page % 2 == 0 { &owner.store } else { &front }, &kv(page));
    }
    assert_eq!(anchor(&front), first(2));
    // Half of a page is a hole too, wherever that half is.
    put(&owner.store, &[key(2, "k")]);
    assert_eq!(anchor(&front), first(2));
    put(&front, &[key(2, "v")]);
    assert_eq!(anchor(&front), first(8));
    front.remove(&kv(0), Options::default()).expect("removed here and there");
    assert_eq!(anchor(&front), first(0));
}

/// Random residency, each object local or at the peer.
#[test]
fn hit_rules_over_peers_are_those_of_one_store_with_any_residency() {
    let mut dice = SmallRng(7);
    let (mut holes, mut sparse) = (0, 0);
    for round in 0..48 {
        let owner = Process::new(&memory());
        let front = owner.front(&memory(), offer());
        let asked = PrefixQuery::random(&mut dice);
        let mut whole = std::collections::BTreeSet::new();
        for (pool, keys) in asked.all_keys().into_iter().enumerate() {
            // The anchor is mostly whole, so that other pools decide.
            let holes_in_64 = if pool == 0 { [0, 0, 1, 2] } else { [0, 2, 8, 32] };
            let holes_in_64 = holes_in_64[dice.below(4) as usize];
            for key in keys {
                if dice.below(64) < holes_in_64 {
                    continue;
                }
                let store = if dice.below(2) == 0 { &front } else { &*owner.store };
                let slice = PutSlice { key, pieces: &[b"state"] };
                let stored = store.put_batch(&[slice], Options::default()).remove(0);
                assert_eq!(stored, Ok(PutOutcome::Stored), "round={round} key={key}");
                whole.insert(key);
            }
        }
        let expected = asked.expected(&whole);
        let of = |store: &Store| {
            asked.ask(|query| store.exists_groups(query, Options::default()).expect("a query"))
        };
        assert_eq!(of(&front), expected, "round={round}");
        holes += usize::from(asked.has_hole_in_anchor(&whole));
        sparse += usize::from(expected.stops.len() < expected.usable_pages);
    }
    assert!(
        holes >= 6 && sparse >= 6,
        "too few of those that matter holes={holes} sparse={sparse}"
    );
}
