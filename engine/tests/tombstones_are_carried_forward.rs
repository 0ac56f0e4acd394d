//! Regression: reclaiming a segment whose tombstones were still needed never ended, because reclaim
//! was not notified that its tombstones had been written. Once all segments were full, the store
//! accepted no more puts.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagelith::config::{SsdAdmissionRule, SsdPolicy, ValidConfig};
use pagelith::io::fault::IoFault;
use pagelith::io::probe::{BackendChoice, open_disk};
use pagelith::io::runtime::{Env, Join, Runtime, Task};
use pagelith::io::signal::Signal;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::{Config, MachineLimits, Options, PutOutcome, PutSlice, Size, Store};

const BYTES: usize = 60 << 10;

fn key(n: u32) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    ObjectKey::new(
        Namespace::default().id(),
        PrefixHash(hash),
        Role::Target,
        "kv",
        "k",
        Shard::Whole,
    )
    .unwrap()
}

fn put(store: &Store, n: u32) {
    let bytes = vec![n as u8; BYTES];
    let outcomes =
        store.put_batch(&[PutSlice { key: key(n), pieces: &[&bytes] }], Options::default());
    assert_eq!(outcomes, [Ok(PutOutcome::Stored)], "n={n}");
}

/// A runtime that runs no task: the recovered state stays unchanged.
struct Still;

impl Runtime for Still {
    fn spawn(&self, _: &str, _: Box<dyn Task>, _: Signal) -> Result<Box<dyn Join>, IoFault> {
        Ok(Box::new(Still))
    }

    fn pause(&self, _: &Signal, _: u64, timeout: Duration) {
        panic!("no call waits timeout={timeout:?}")
    }
}

impl Join for Still {
    fn join(&self, _: Duration) -> bool {
        true
    }
}

fn open(home: &Path, policy: SsdPolicy) -> Store {
    Store::open(valid(home, policy)).unwrap()
}

/// The state that a crash left, before anything is reclaimed; recency is lost.
fn open_still(home: &Path, policy: SsdPolicy) -> Store {
    let valid = valid(home, policy);
    let env = Env {
        disk: Some(open_disk(valid.ssd_dirs(), BackendChoice::Auto).unwrap()),
        clock: Arc::new(SystemClock::new()),
        entropy: Arc::new(SystemEntropy),
        runtime: Arc::new(Still),
    };
    Store::open_in(valid, env).unwrap()
}

fn valid(home: &Path, policy: SsdPolicy) -> ValidConfig {
    let mut config = Config::default();
    config.deadline_ms = 60_000;
    config.dram.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(16);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.policy = policy;
    // Everything is written, so that the log wraps.
    config.ssd.admission = SsdAdmissionRule::Through;
    config.ssd.dirs = vec![home.join("store")];
    config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap()
}

#[test]
fn log_wraps_with_tombstones_carried_forward() {
    let home = tempfile::tempdir().unwrap();
    let open = || open(home.path(), SsdPolicy::Fifo);
    let store = open();
    let per_segment = (1 << 20) as u32 / BYTES as u32;
    // Each segment has objects that the next one's tombstones shadow, so these are needed when
    // theirs is reclaimed.
    for n in 0..per_segment * 40 {
        put(&store, n);
        if n % 4 == 3 {
            store.remove(&[key(n - 3)], Options::default()).unwrap();
        }
    }
    store.flush(Options::default()).unwrap();
    assert!(store.stats().segments_reclaimed > 20, "{:?}", store.stats());
    store.abandon();
    let store = open();
    let all: Vec<_> = (0..per_segment * 40).map(key).collect();
    let here = store.exists_batch(&all, Options::default());
    let back: Vec<_> = (0..here.len()).filter(|n| n % 4 == 0 && here[*n]).collect();
    assert!(back.is_empty(), "removed objects are back: {back:?}");
    assert!(here.iter().filter(|h| **h).count() as u32 > 5 * per_segment);
}

#[test]
fn object_in_a_segment_older_than_its_tombstone_stays_removed() {
    let home = tempfile::tempdir().unwrap();
    let open = || open(home.path(), SsdPolicy::Recency);
    let store = open();
    // The first segment's pages.
    (0..15).for_each(|n| put(&store, n));
    let old: Vec<_> = (1..15).map(key).collect();
    (100..130).for_each(|n| put(&store, n));
    // The tombstone follows them, in another segment.
    store.flush(Options::default()).unwrap();
    store.remove(&[key(0)], Options::default()).unwrap();
    let mut next = 200;
    while store.stats().segments_reclaimed < 48 {
        put(&store, next);
        next += 1;
        // Recently used: others are reclaimed first, and the tombstone of one of its objects must
        // move.
        assert_eq!(store.exists_prefix(&old, Options::default()), old.len(), "next={next}");
    }
    store.flush(Options::default()).unwrap();
    store.abandon();
    // Without a checkpoint, each segment is read again.
    for which in 0..2 {
        let file = home.path().join("store").join(format!("checkpoint.{which}"));
        let bytes = std::fs::metadata(&file).unwrap().len() as usize;
        std::fs::write(&file, vec![0; bytes]).unwrap();
    }
    let store = open_still(home.path(), SsdPolicy::Recency);
    assert_eq!(
        store.exists_batch(&[key(0), key(1), key(14)], Options::default()),
        [false, true, true]
    );
}
