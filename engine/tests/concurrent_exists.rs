//! Lock-free `exists` while other threads put, remove and evict: every answer was true at one
//! moment. On real threads; `sim/concurrency` explores all orders of a few steps.
#![allow(clippy::disallowed_methods, reason = "the test needs real threads")]

use std::sync::atomic::{AtomicBool, Ordering};

use pagelith::config::DramPolicy;
use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::{Config, MachineLimits, Options, PutSlice, Size, Store};

/// Objects that stay, each on its own page.
const KEPT: u32 = 400;
/// Pages of three objects that are put and removed.
const PAGES: u32 = 200;
const ROUNDS: u32 = 300;

fn key(page: u32, component: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(
        Namespace::default().id(),
        PrefixHash(hash),
        Role::Target,
        "kv",
        component,
        Shard::Whole,
    )
    .expect("a key")
}

fn page(n: u32) -> [ObjectKey; 3] {
    ["k", "v", "s"].map(|component| key(1_000_000 + n, component))
}

/// A store of DRAM with an index that is nearly full, so that entries displace one another, and
/// room for half of the pages.
fn store(policy: DramPolicy) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(u64::from(KEPT + 3 * PAGES / 2) * 4096);
    config.dram.policy = policy;
    config.index.max_objects = Some(u64::from(KEPT + 3 * PAGES));
    Store::open(config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"))
        .expect("open")
}

fn put(store: &Store, objects: &[ObjectKey]) {
    let objects: Vec<_> =
        objects.iter().map(|key| PutSlice { key: *key, pieces: &[&[7; 100]] }).collect();
    // With other writers there may be no room at once, or the object may be present already.
    let _ = store.put_groups(&[&objects], Options::default());
}

fn check_exists_during_changes(policy: DramPolicy) {
    let store = store(policy);
    let kept: Vec<_> = (0..KEPT).map(|n| key(n, "k")).collect();
    kept.iter().for_each(|key| put(&store, &[*key]));
    let pin = store.pin(&kept);
    let pages: Vec<_> = (0..PAGES).flat_map(page).collect();
    let over = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = [0u64; 2];
            loop {
                // The last look is after all changes.
                let last = over.load(Ordering::Relaxed);
                let here = store.exists_batch(&kept, Options::default());
                assert_eq!(here.iter().position(|here| !here), None, "a kept key is not found");
                assert_eq!(store.exists_prefix(&kept, Options::default()), kept.len());
                for (n, here) in
                    store.exists_batch(&pages, Options::default()).chunks(3).enumerate()
                {
                    assert!(
                        here.iter().all(|h| *h == here[0]),
                        "a part of page {n} is here: {here:?}"
                    );
                    looks[usize::from(here[0])] += 1;
                }
                if last {
                    return looks;
                }
            }
        });
        for round in 0..ROUNDS {
            for n in 0..PAGES {
                match (n + round) % 3 {
                    0 => drop(store.remove(&page(n)[..1], Options::default())),
                    _ => put(&store, &page(n)),
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        looking.join().expect("every look was right")
    });
    drop(pin);
    assert!(looks.iter().all(|looks| *looks > 0), "pages were all here or all gone: {looks:?}");
}

#[test]
fn exists_sees_whole_pages_and_kept_keys_during_changes() {
    check_exists_during_changes(DramPolicy::Lru);
}

#[test]
fn exists_sees_whole_pages_under_s3fifo() {
    check_exists_during_changes(DramPolicy::S3Fifo);
}
