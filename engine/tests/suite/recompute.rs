//! Gets of pages that the caller recomputes faster than the store loads them.

use std::time::Duration;

use pagelith::{GetOutcome, GetSlice, MissCause, Options, Tier};

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 50_000;
const PAGES: u64 = 8;

fn get_all(store: &Store) -> Vec<GetOutcome> {
    get_all_with(store, Options::default())
}

fn get_all_with(store: &Store, options: Options) -> Vec<GetOutcome> {
    let mut memory = vec![vec![0; LEN]; PAGES as usize];
    let mut gets: Vec<[&mut [u8]; 1]> = memory.iter_mut().map(|m| [&mut m[..]]).collect();
    let mut gets: Vec<_> = gets
        .iter_mut()
        .zip(0..)
        .map(|(pieces, n)| GetSlice { key: key(n), range: None, pieces })
        .collect();
    let outcomes = store.get_batch(&mut gets, options);
    drop(gets);
    let outcomes: Vec<_> = outcomes.into_iter().map(|o| o.expect("an outcome")).collect();
    for ((outcome, memory), n) in outcomes.iter().zip(&memory).zip(0..) {
        let is_hit = matches!(outcome, GetOutcome::Hit { .. });
        assert!(!is_hit || *memory == bytes(n, LEN), "wrong bytes n={n}");
    }
    outcomes
}

fn is_hit(outcome: &GetOutcome, from: Tier) -> bool {
    matches!(outcome, GetOutcome::Hit { tier, .. } if *tier == from)
}

pub fn load_that_is_slower_than_recomputing_is_a_miss(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Each get would read all records.
    }
    if let Some(sim) = world.sim() {
        sim.disk.set_latency(Duration::from_millis(1));
    }
    let mut config = world.cold_config();
    // A nanosecond a page: faster than any drive.
    (config.read.prefill_tokens_per_s, config.read.page_tokens) = (1_000_000_000, 1);
    let store = world.open(&config);
    store_pages(&store, 0..PAGES, LEN);
    flush(&store);
    let first = get_all(&store);
    assert!(first.iter().all(|outcome| is_hit(outcome, Tier::Ssd)), "nothing is known {first:?}");
    let cause = if world.is_embedded() { MissCause::Slow } else { MissCause::Absent };
    // A store process may measure the load after its answer.
    let misses = vec![GetOutcome::Miss(cause); PAGES as usize];
    until(world, "the load is measured", || get_all(&store) == misses);
    let stats = store.stats();
    assert!(stats.misses.get("slow") >= Some(&PAGES), "{stats:?}");
    assert_eq!(stats.misses.get("absent").copied().unwrap_or(0), 0, "{stats:?}");
    let keys: Vec<_> = (0..PAGES).map(key).collect();
    let present = store.exists_batch(&keys, Options::default());
    assert!(present.iter().all(|present| *present), "they are only not loaded");
    // 18 hours a page.
    (config.read.prefill_tokens_per_s, config.read.page_tokens) = (1, 65_536);
    let store = world.reopen(store, &config);
    for _ in 0..3 {
        assert!(get_all(&store).iter().all(|outcome| is_hit(outcome, Tier::Ssd)));
    }
}

pub fn pages_in_memory_are_never_recomputed(world: &TestEnv) {
    let mut config = world.config();
    (config.read.prefill_tokens_per_s, config.read.page_tokens) = (1_000_000_000, 1);
    let store = world.open(&config);
    store_pages(&store, 0..PAGES, LEN);
    for _ in 0..3 {
        assert!(get_all(&store).iter().all(|outcome| is_hit(outcome, Tier::Memory)));
    }
}

pub fn get_with_a_prefill_rate_decides_by_that_rate(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Each get would read all records.
    }
    if let Some(sim) = world.sim() {
        sim.disk.set_latency(Duration::from_millis(1));
    }
    let mut config = world.cold_config();
    config.read.page_tokens = 64;
    let store = world.open(&config);
    store_pages(&store, 0..PAGES, LEN);
    flush(&store);
    // Some 60 ns a page, and a minute.
    let fast = Options::default().prefill_tokens_per_s(1_000_000_000);
    let slow = Options::default().prefill_tokens_per_s(1);
    let all_hits = |outcomes: Vec<GetOutcome>| outcomes.iter().all(|o| is_hit(o, Tier::Ssd));
    assert!(all_hits(get_all_with(&store, fast)), "no load was measured before");
    let cause = if world.is_embedded() { MissCause::Slow } else { MissCause::Absent };
    // A store process may measure the load after its answer.
    let misses = vec![GetOutcome::Miss(cause); PAGES as usize];
    until(world, "the load is measured", || get_all_with(&store, fast) == misses);
    assert!(all_hits(get_all_with(&store, slow)), "the load is faster");
    assert!(all_hits(get_all(&store)), "the store has no rate of its own");
    assert!(store.stats().misses.get("slow") >= Some(&PAGES));
    // The rate of a call comes before the configured one.
    config.read.prefill_tokens_per_s = 1_000_000_000;
    let store = world.reopen(store, &config);
    assert!(all_hits(get_all_with(&store, slow)));
    assert!(all_hits(get_all_with(&store, slow)));
    // The tokens of a page are not known.
    (config.read.prefill_tokens_per_s, config.read.page_tokens) = (0, 0);
    let store = world.reopen(store, &config);
    assert!(all_hits(get_all_with(&store, fast)));
    assert!(all_hits(get_all_with(&store, fast)));
}
