//! Tests of gets whose bytes changed in the arena after the put.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::namespace::Namespace;
use pagelith_layouts::shard::Shard;

use crate::api::outcome::{GetOutcome, MissCause, Tier};
use crate::api::request::{GetSlice, Options, PutSlice};
use crate::config::{Config, MachineLimits};
use crate::state::frame_access::UnpublishedExtent;
use crate::store::embedded::Store;
use crate::store::stepped_runtime::{SteppedRuntime, small_config};

const LENGTH: usize = 80_000;

fn store(verify_ratio: f64) -> Store {
    let mut config = Config::default();
    config.dram.bytes = crate::Size::mib(4);
    config.dram.verify_ratio = verify_ratio;
    config.index.max_objects = Some(1000);
    let facts = MachineLimits::of_this_machine().expect("facts");
    Store::open(config.validate(&facts).expect("valid")).expect("opened")
}

fn key() -> ObjectKey {
    let namespace = Namespace { model: "m".into(), page_tokens: 64, ..Namespace::default() }.id();
    ObjectKey::new(namespace, PrefixHash([7; 32]), Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

fn object() -> Vec<u8> {
    (0..LENGTH).map(|i| (i * 31 + i / 253) as u8).collect()
}

/// Put the object, then flip one bit of it in the arena.
fn put_and_flip(store: &Store, at: usize) {
    let mut bytes = object();
    let put = PutSlice { key: key(), pieces: &[&bytes] };
    store.put_batch(&[put], Options::default()).remove(0).expect("put");
    bytes[at] ^= 1;
    let core = store.shared.lock();
    let frames: Vec<_> = core
        .dram
        .frames
        .iter()
        .flat_map(|(_, f)| f.data.members.iter().map(|m| m.extent))
        .collect();
    assert_eq!(frames.len(), 1);
    let filled = UnpublishedExtent::new(frames[0]).fill(&store.shared.memory, &[&bytes]);
    assert!(filled.is_some());
}

fn get(store: &Store, range: Option<std::ops::Range<u64>>) -> (GetOutcome, Vec<u8>) {
    let mut bytes = vec![0xEE; range.as_ref().map_or(LENGTH, |r| (r.end - r.start) as usize)];
    let get = GetSlice { key: key(), range, pieces: &mut [&mut bytes] };
    let outcome = store.get_batch(&mut [get], Options::default()).remove(0).expect("got");
    (outcome, bytes)
}

#[test]
fn default_verify_ratio_detects_every_flipped_bit() {
    for at in [0, 32_767, 32_768, LENGTH - 1] {
        let store = store(Config::default().dram.verify_ratio);
        put_and_flip(&store, at);
        let (outcome, bytes) = get(&store, None);
        assert_eq!(outcome, GetOutcome::Miss(MissCause::Damaged), "at={at}");
        assert!(bytes.iter().all(|b| *b == 0), "damaged bytes were left in the destination");
        assert!(
            !store.exists_batch(&[key()], Options::default())[0],
            "a damaged object still exists"
        );
        put_and_flip(&store, at);
        assert!(store.view(&key()).expect("viewed").is_none(), "damaged bytes were viewed");
        let stats = store.stats();
        assert_eq!((stats.damaged, stats.hits_unverified, stats.dram_bytes), (2, 0, 0));
    }
}

#[test]
fn damage_found_before_the_write_is_reported_as_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = SteppedRuntime::default().open(&small_config(dir.path()));
    put_and_flip(&store, 0);
    assert_eq!(get(&store, None).0, GetOutcome::Miss(MissCause::Damaged));
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.lost_objects), (0, 1), "{report:?}");
    store.abandon();
}

#[test]
fn range_get_verifies_touched_blocks() {
    let store = store(1.0);
    put_and_flip(&store, 40_000);
    let (outcome, bytes) = get(&store, Some(70_000..70_010));
    assert_eq!(
        (outcome, &bytes[..]),
        (GetOutcome::Hit { tier: Tier::Memory, bytes: 10 }, &object()[70_000..70_010])
    );
    assert_eq!(get(&store, Some(33_000..33_010)).0, GetOutcome::Miss(MissCause::Damaged));
}

#[test]
fn unverified_hit_returns_flipped_bytes_and_is_counted() {
    let store = store(0.0);
    put_and_flip(&store, 100);
    let (outcome, bytes) = get(&store, None);
    let mut flipped = object();
    flipped[100] ^= 1;
    assert_eq!(
        (outcome, bytes),
        (GetOutcome::Hit { tier: Tier::Memory, bytes: LENGTH as u64 }, flipped)
    );
    assert_eq!(get(&store, Some(99..102)).1, [object()[99], object()[100] ^ 1, object()[101]]);
    assert_eq!((store.stats().hits_unverified, store.stats().hits_memory), (2, 2));
    assert!(store.view(&key()).expect("viewed").is_none(), "views are always verified");
}

/// The share of undetected damage is one minus the verify ratio.
#[test]
fn verify_ratio_of_quarter_detects_quarter_of_damage() {
    const ROUNDS: usize = 2000;
    let store = store(0.25);
    let mut found = 0;
    for _ in 0..ROUNDS {
        if !store.exists_batch(&[key()], Options::default())[0] {
            put_and_flip(&store, 5);
        }
        found += usize::from(get(&store, None).0 == GetOutcome::Miss(MissCause::Damaged));
    }
    // Five standard deviations of a fair draw.
    assert!(found.abs_diff(ROUNDS / 4) < 97, "found={found} of={ROUNDS}");
    assert_eq!(store.stats().hits_unverified as usize, ROUNDS - found);
}
