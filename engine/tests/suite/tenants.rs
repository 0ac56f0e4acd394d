//! Namespaces of one store: their counts.

use pagelith::layouts::key::ObjectKey;
use pagelith::{NamespaceStats, Options, PutOutcome};

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 30_000;
/// Bytes of the arena for one object.
const PADDED: u64 = 32 << 10;

fn key_of(name: &str, n: u64) -> ObjectKey {
    key_in(namespace(name), n, "k")
}

fn store_of(store: &Store, name: &str, n: u64) {
    assert_eq!(put(store, key_of(name, n), &bytes(n, LEN)), Ok(PutOutcome::Stored), "n={n}");
}

fn stats_of(store: &Store, name: &str) -> NamespaceStats {
    let all = store.stats().namespaces;
    *all.get(&namespace(name).to_string()).unwrap_or_else(|| panic!("{name} is not in {all:?}"))
}

pub fn counts_of_each_namespace_add_up(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Objects of two namespaces would be compared on SSD.
    }
    let mut config = world.config();
    assert!(world.open(&config).stats().namespaces.is_empty(), "nothing is counted by default");
    let world = world.fresh(1);
    config.ssd.dirs = world.paths();
    config.namespaces.counted = 2;
    let store = world.open(&config);
    for (name, pages) in [("a", 4), ("b", 2), ("c", 3), ("d", 1)] {
        (0..pages).for_each(|n| store_of(&store, name, n));
    }
    flush(&store);
    (0..6).for_each(|n| _ = is_present(&store, key_of("a", n), &bytes(n, LEN)));
    hit(&store, key_of("c", 1), &bytes(1, LEN));
    let of = |pages: u64, hits: u64, misses: u64| {
        let mut stats = NamespaceStats::default();
        (stats.dram_objects, stats.dram_bytes) = (pages, pages * PADDED);
        (stats.hits, stats.misses, stats.bytes_got) = (hits, misses, hits * LEN as u64);
        (stats.puts_stored, stats.bytes_put) = (pages, pages * LEN as u64);
        stats.bytes_to_ssd = pages * LEN as u64;
        stats
    };
    let stats = store.stats();
    assert_eq!(stats.namespaces.len(), 3);
    assert_eq!(stats_of(&store, "a"), of(4, 4, 2));
    assert_eq!(stats_of(&store, "b"), of(2, 0, 0));
    assert_eq!(stats.namespaces["others"], of(4, 1, 0));
    store.clear(namespace("a"), Options::default()).expect("cleared");
    let mut cleared = of(4, 4, 2);
    (cleared.dram_objects, cleared.dram_bytes) = (0, 0);
    assert_eq!(stats_of(&store, "a"), cleared);
    // After a reopen a namespace is known once it is read.
    let store = world.reopen(store, &config);
    hit(&store, key_of("b", 1), &bytes(1, LEN));
    assert_eq!((stats_of(&store, "b").hits, stats_of(&store, "b").puts_stored), (1, 0));
}
