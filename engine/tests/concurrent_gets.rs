//! Lock-free `get` while other threads put, remove, clear, evict and reclaim: the bytes were put
//! under that whole key, and a page is present or absent as a whole. On real threads;
//! `sim/concurrency` explores all orders of a few steps.
#![allow(clippy::disallowed_methods, reason = "the test needs real threads")]

use std::sync::atomic::{AtomicBool, Ordering};

use pagelith::config::DramPolicy;
use pagelith::layouts::{
    ids::NamespaceId, ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace,
    shard::Shard,
};
use pagelith::{Config, GetSlice, MachineLimits, Options, PutSlice, Size, Store};

/// Pages of three objects that are put and removed, and pages that stay pinned.
const PAGES: u32 = 120;
const KEPT: u32 = 60;
const ROUNDS: u32 = 60;
const LEN: usize = 5000;

fn namespace(model: &str) -> NamespaceId {
    Namespace { model: model.into(), ..Namespace::default() }.id()
}

fn page(model: &str, n: u32) -> [ObjectKey; 3] {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    let key = |component| {
        ObjectKey::new(
            namespace(model),
            PrefixHash(hash),
            Role::Target,
            "kv",
            component,
            Shard::Whole,
        )
    };
    ["k", "v", "s"].map(|component| key(component).expect("a key"))
}

/// The bytes of every put of a key; different keys have different bytes.
fn bytes_of(key: &ObjectKey) -> Vec<u8> {
    let seed =
        key.as_bytes().iter().fold(7u32, |sum, b| sum.wrapping_mul(31).wrapping_add(u32::from(*b)));
    (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ seed).to_be_bytes()[0]).collect()
}

fn put(store: &Store, keys: &[ObjectKey; 3]) {
    let bytes = keys.each_ref().map(bytes_of);
    let pieces = bytes.each_ref().map(|bytes| [&bytes[..]]);
    let objects: Vec<_> =
        keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
    // With other writers there may be no room at once, or the object may be present already.
    let _ = store.put_groups(&[&objects], Options::default());
}

/// Get some pages in one batch; returns the numbers of misses and hits. Each page is got as a whole
/// or not at all, unless a part of it is on SSD: staging memory may then be taken before its read,
/// which makes the outcomes differ.
fn get(store: &Store, keys: &[ObjectKey], to: &mut [Vec<u8>], whole: bool) -> [u64; 2] {
    let mut pieces: Vec<[&mut [u8]; 1]> = to.iter_mut().map(|to| [&mut to[..]]).collect();
    let mut gets: Vec<_> = keys
        .iter()
        .zip(&mut pieces)
        .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
        .collect();
    let outcomes = store.get_batch(&mut gets, Options::default());
    let hits: Vec<bool> = outcomes.iter().map(|o| o.as_ref().expect("no error").is_hit()).collect();
    for (at, hit) in hits.iter().enumerate().filter(|(_, hit)| **hit) {
        assert!(
            *hit && to[at] == bytes_of(&keys[at]),
            "a hit brought other bytes key={}",
            keys[at]
        );
    }
    for (keys, hits) in keys.chunks(3).zip(hits.chunks(3)) {
        assert!(
            !whole || hits.iter().all(|h| *h == hits[0]),
            "a part of a page {} {hits:?}",
            keys[0]
        );
    }
    let hit = hits.iter().filter(|hit| **hit).count() as u64;
    [hits.len() as u64 - hit, hit]
}

/// Two threads get while a third changes the contents.
fn check_gets_during_changes(store: &Store, whole: bool) -> [u64; 2] {
    let kept: Vec<_> = (0..KEPT).map(|n| page("kept", n)).collect();
    kept.iter().for_each(|keys| put(store, keys));
    let kept: Vec<ObjectKey> = kept.into_iter().flatten().collect();
    let pin = store.pin(&kept);
    assert_eq!(pin.pinned(), kept.len());
    let pages: Vec<ObjectKey> =
        ["a", "b"].iter().flat_map(|m| (0..PAGES).flat_map(|n| page(m, n))).collect();
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let getting: Vec<_> = [0, 1]
            .map(|thread| {
                let (pages, kept, over) = (&pages, &kept, &over);
                scope.spawn(move || {
                    let mut to = vec![vec![0; LEN]; 48];
                    let (mut seen, mut turns_after) = ([0, 0], 0);
                    for turn in (thread..).step_by(2) {
                        // The end state has both too, for a thread that has not run before.
                        turns_after += usize::from(over.load(Ordering::Relaxed));
                        if turns_after > pages.len()
                            || turns_after > 0 && seen.iter().all(|count| *count > 0)
                        {
                            return seen;
                        }
                        let at = (turn * 48) % pages.len();
                        let [misses, hits] =
                            get(store, &pages[at..pages.len().min(at + 48)], &mut to, whole);
                        seen = [seen[0] + misses, seen[1] + hits];
                        let at = (turn * 3) % kept.len();
                        let [misses, _] = get(store, &kept[at..at + 3], &mut to, whole);
                        assert_eq!(misses, 0, "a kept page is missed");
                    }
                    seen
                })
            })
            .into_iter()
            .collect();
        for round in 0..ROUNDS {
            for n in 0..PAGES {
                match (n + round) % 5 {
                    0 => drop(store.remove(&page("a", n)[..1], Options::default())),
                    1 => put(store, &page("b", n)),
                    _ => put(store, &page("a", n)),
                }
            }
            if round % 7 == 6 {
                store.clear(namespace("b"), Options::default()).expect("cleared");
            }
        }
        over.store(true, Ordering::Relaxed);
        getting
            .into_iter()
            .map(|thread| thread.join().expect("every get was right"))
            .collect::<Vec<_>>()
    });
    drop(pin);
    // Frames that are being written are held, too.
    store.flush(Options::default()).expect("written");
    assert_eq!((store.stats().damaged, store.stats().readers), (0, 0));
    seen.into_iter().fold([0, 0], |sum, seen| [sum[0] + seen[0], sum[1] + seen[1]])
}

/// Room for the pinned pages and half of the others.
fn in_memory(policy: DramPolicy) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(u64::from(KEPT + PAGES) * 3 * 8192);
    config.dram.policy = policy;
    // Nearly full, so that entries displace one another.
    config.index.max_objects = Some(u64::from(KEPT + 3 * PAGES / 2) * 3);
    Store::open(config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid"))
        .expect("open")
}

#[test]
fn concurrent_gets_return_correct_bytes_and_whole_pages() {
    for policy in [DramPolicy::Lru, DramPolicy::S3Fifo] {
        let store = in_memory(policy);
        let seen = check_gets_during_changes(&store, true);
        assert!(seen.iter().all(|seen| *seen > 0), "hits and misses {seen:?}");
        store.clear(namespace("kept"), Options::default()).expect("cleared");
        store.clear(namespace("a"), Options::default()).expect("cleared");
        store.clear(namespace("b"), Options::default()).expect("cleared");
        assert_eq!(store.stats().dram_bytes, 0, "a frame was not freed by its last reader");
    }
}

/// An SSD tier of few segments, which are reclaimed repeatedly, and DRAM for a part of the pages.
#[test]
fn concurrent_gets_from_ssd_during_reclaim_are_correct() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::default();
    config.dram.bytes = Size::mib(2);
    config.ssd.dirs = vec![dir.path().to_path_buf()];
    config.ssd.bytes = Size::mib(24);
    config.ssd.segment_bytes = Some(Size::mib(2));
    let config = config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
    let store = Store::open(config).expect("open");
    let seen = check_gets_during_changes(&store, false);
    assert!(seen.iter().all(|seen| *seen > 0), "hits and misses {seen:?}");
    let (reclaimed, from_ssd) = (store.stats().segments_reclaimed, store.stats().hits_ssd);
    assert!(
        reclaimed > 0 && from_ssd > 0,
        "segments reclaimed {reclaimed}, hits from SSD {from_ssd}"
    );
    store.abandon();
}
