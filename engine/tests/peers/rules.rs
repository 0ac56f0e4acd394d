//! Hit rules of a store with a peer: what counts may lie here or there.

use pagelith::attach::Attached;
use pagelith::{HitPolicy, PagesFound, PagesQuery, PoolQuery};

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

pub fn is(usable_pages: usize, anchor_pages: usize, pool_pages: [usize; 2], stops: &[usize]) -> PagesFound {
    PagesFound { usable_pages, anchor_pages, pool_pages: pool_pages.to_vec(), stops: stops.to_vec() }
}

#[test]
fn hit_rules_ask_peers() {
    let owner = Process::new(&memory());
    let front = owner.front(&memory(), offer());
    // KV of pages 0 to 5, the first two here alone; an indexer on each of them; states of 0 here, of 1, 3 and 4 there.
    for page in 0..6 {
        let store = if page < 2 { &front } else { &*owner.store };
        put(store, &kv(page));
        put(if page % 2 == 0 { &front } else { &owner.store }, &[object(page, "indexer", "x")]);
    }
    until("the peer has what was put here", || front.stats().remote_stored == 7);
    put_state(&front, 0);
    until("the peer has what was attached here", || front.stats().remote_stored == 8);
    [1, 3, 4].into_iter().for_each(|page| put_state(&owner.store, page));
    let expected = is(5, 6, [5, 6], &[1, 2, 4, 5]);
    assert_eq!(found(|query| front.exists_groups(query, Options::default())), expected);
    // The peer has all of it by itself.
    assert_eq!(found(|query| owner.store.exists_groups(query, Options::default())), expected);
    // So do clients of a store that has peers.
    let served = Process::of(front);
    let client = Attached::to(&served.address, None, PATIENCE).expect("attached");
    assert_eq!(found(|query| client.exists_groups(query, Options::default())), expected);
    // A peer that is gone has nothing.
    drop(owner);
    let alone = is(1, 2, [1, 1], &[1]);
    assert_eq!(found(|query| served.store.exists_groups(query, Options::default())), alone);
    assert_eq!(found(|query| client.exists_groups(query, Options::default())), alone);
}
