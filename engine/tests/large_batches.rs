//! Batches that need more than the store can hold at once: more headers than a session's scratch
//! memory, and members of a group in reverse order beyond the staging budget. Also the cost of
//! reopening.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]

use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::{
    AlignedBuf, Config, GetOutcome, GetSlice, MachineLimits, Options, PutOutcome, PutSlice, Size,
    Store,
};

const FULL: usize = 20_000;

fn key(n: u32, part: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    ObjectKey::new(
        Namespace::default().id(),
        PrefixHash(hash),
        Role::Target,
        "kv",
        part,
        Shard::Whole,
    )
    .unwrap()
}

fn config(home: &tempfile::TempDir) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(16);
    config.ssd.bytes = Size::mib(64);
    config.ssd.dirs = vec![home.path().join("store")];
    config.dram.promote = pagelith::config::Promote::Never;
    config
}

fn open(config: &Config) -> Store {
    Store::open(config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap()).unwrap()
}

fn put(store: &Store, key: ObjectKey, bytes: &[u8]) {
    let outcomes = store.put_batch(&[PutSlice { key, pieces: &[bytes] }], Options::default());
    assert_eq!(outcomes, [Ok(PutOutcome::Stored)]);
}

/// Each object has its own record, and so its own header: 1200 of them are twice the scratch
/// memory.
#[test]
fn batch_with_more_headers_than_scratch_buffers_completes() {
    let home = tempfile::tempdir().unwrap();
    let config = config(&home);
    let store = open(&config);
    let count = 1200u32;
    (0..count).for_each(|n| put(&store, key(n, "k"), &vec![n as u8; 4096]));
    store.close().unwrap();
    let store = open(&config);
    for crooked in [0, 1] {
        let mut memory = AlignedBuf::new(count as usize * 8192).unwrap();
        let mut pieces: Vec<[&mut [u8]; 1]> =
            memory.chunks_mut(8192).map(|page| [&mut page[crooked..crooked + 4096]]).collect();
        let mut gets: Vec<_> = (0..)
            .zip(&mut pieces)
            .map(|(n, pieces)| GetSlice { key: key(n, "k"), range: None, pieces })
            .collect();
        let outcomes = store.get_batch(&mut gets, Options::default());
        let hits = outcomes.iter().filter(|o| o.as_ref().is_ok_and(GetOutcome::is_hit)).count();
        assert_eq!(hits, count as usize, "crooked={crooked} {:?}", store.stats().misses);
        let right = memory
            .chunks(8192)
            .zip(0u32..)
            .all(|(page, n)| page[crooked..crooked + 4096] == [n as u8; 4096]);
        assert!(right);
    }
}

/// Both members must be staged, one sub-batch each; the first in the batch is stored after the
/// other.
#[test]
fn last_member_of_a_group_may_be_got_first() {
    let home = tempfile::tempdir().unwrap();
    let mut config = config(&home);
    config.staging.bytes = Size::mib(2);
    let store = open(&config);
    let (k, v) = (vec![1u8; 1_500_000], vec![2u8; 1_500_000]);
    let page = [
        PutSlice { key: key(7, "k"), pieces: &[&k] },
        PutSlice { key: key(7, "v"), pieces: &[&v] },
    ];
    assert_eq!(store.put_groups(&[&page], Options::default()), [Ok(PutOutcome::Stored)]);
    store.close().unwrap();
    let store = open(&config);
    let (mut k2, mut v2) =
        (AlignedBuf::new(k.len() + 1).unwrap(), AlignedBuf::new(v.len() + 1).unwrap());
    let (mut kp, mut vp) = ([&mut k2[1..]], [&mut v2[1..]]);
    let mut gets = [
        GetSlice { key: key(7, "v"), range: None, pieces: &mut vp },
        GetSlice { key: key(7, "k"), range: None, pieces: &mut kp },
    ];
    let options = Options::default().timeout(std::time::Duration::from_secs(20));
    let outcomes = store.get_batch(&mut gets, options);
    assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(GetOutcome::is_hit)), "{outcomes:?}");
    assert!(k2[1..] == k[..] && v2[1..] == v[..]);
}

/// Each open prepares a segment that may not be written before the close. None of them may be lost.
#[test]
fn repeated_open_and_close_leaks_no_space() {
    let home = tempfile::tempdir().unwrap();
    let mut config = config(&home);
    config.ssd.segment_bytes = Some(Size::mib(4));
    for n in 0..8 {
        let store = open(&config);
        put(&store, key(n, "k"), &[n as u8; 100]);
        store.close().unwrap();
    }
    let store = open(&config);
    let segments = u64::from(store.opened().segments);
    let in_segment = (4 << 20) / 24_576;
    for n in 0..2 * segments * in_segment {
        put(&store, key(100 + n as u32, "k"), &vec![n as u8; FULL]);
    }
    store.flush(Options::default()).unwrap();
    // One is open, one spare, one being reclaimed, and the footers take some room.
    let expected = (segments - 4) * in_segment;
    assert!(store.stats().objects > expected, "{:?} expected={expected}", store.stats());
}
