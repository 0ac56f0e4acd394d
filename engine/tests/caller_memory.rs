//! Gets into caller memory, aligned or not, registered or not: correct bytes or a miss.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]

use std::os::unix::fs::FileExt;

use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::{
    AlignedBuf, Config, ErrorKind, GetOutcome, GetSlice, MachineLimits, Options, PutSlice, Size,
    Store, Tier,
};

const SLOT: usize = 320 << 10;
/// Lengths of all kinds: less than a block, not a multiple of a block, and long enough to be read
/// separately from the header.
const LENGTHS: [usize; 6] = [700, 4096, 65_536, 100_000, 262_144, 300_001];

fn key(n: usize) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
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

fn object(n: usize) -> Vec<u8> {
    (0..LENGTHS[n % LENGTHS.len()]).map(|i| ((i * 7 + n * 31) % 251) as u8).collect()
}

fn open(home: &tempfile::TempDir) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.dram.promote = pagelith::config::Promote::Never;
    config.ssd.bytes = Size::mib(64);
    config.ssd.dirs = vec![home.path().join("store")];
    Store::open(config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap()).unwrap()
}

/// Get `objects` into the front of their slots, shifted by some bytes; returns which were hits,
/// after comparing their bytes.
fn get(store: &Store, pool: &mut [u8], objects: std::ops::Range<usize>, shift: usize) -> Vec<bool> {
    pool.fill(0xee);
    let slots = pool.chunks_mut(SLOT).zip(objects.clone());
    let mut pieces: Vec<_> =
        slots.map(|(slot, n)| [&mut slot[shift..][..LENGTHS[n % LENGTHS.len()]]]).collect();
    let asked = objects.clone().zip(&mut pieces);
    let mut gets: Vec<_> =
        asked.map(|(n, pieces)| GetSlice { key: key(n), range: None, pieces }).collect();
    let outcomes = store.get_batch(&mut gets, Options::default());
    let here = |outcome: &pagelith::Result<GetOutcome>| match outcome.as_ref().expect("an answer") {
        GetOutcome::Hit { tier, .. } => *tier == Tier::Ssd,
        GetOutcome::Miss(_) => false,
    };
    let here: Vec<bool> = outcomes.iter().map(here).collect();
    for ((slot, n), here) in pool.chunks(SLOT).zip(objects).zip(&here) {
        let (front, end) = (&slot[..shift], &slot[shift + LENGTHS[n % LENGTHS.len()]..]);
        assert!(
            front.iter().chain(end).all(|b| *b == 0xee),
            "bytes around the destination of n={n} were written"
        );
        assert!(
            !here || slot[shift..].starts_with(&object(n)),
            "other bytes of n={n} shift={shift}"
        );
    }
    here
}

#[test]
fn hits_are_correct_with_any_registration() {
    let home = tempfile::tempdir().unwrap();
    let store = open(&home);
    for n in 0..60 {
        let bytes = object(n);
        let put = PutSlice { key: key(n), pieces: &[&bytes] };
        assert!(store.put_batch(&[put], Options::default())[0].is_ok());
    }
    store.close().unwrap();

    let store = open(&home);
    let mut pool = AlignedBuf::sparse(1, 30 * SLOT).unwrap().pop().unwrap();
    let half = store.register_memory(pool.as_ptr(), 15 * SLOT + 4096).unwrap();
    for round in 0..3 {
        // First with headers that are not cached, then with cached ones.
        for shift in [0, 4096, 1] {
            assert!(
                get(&store, &mut pool, 0..30, shift).iter().all(|here| *here),
                "round={round} shift={shift}"
            );
            assert!(
                get(&store, &mut pool, 30..60, shift).iter().all(|here| *here),
                "round={round} shift={shift}"
            );
        }
        let all = store.register_memory(pool.as_ptr(), pool.len()).unwrap();
        assert!(get(&store, &mut pool, 0..30, 0).iter().all(|here| *here));
        drop(all);
    }
    drop(half);
    assert!(get(&store, &mut pool, 0..30, 0).iter().all(|here| *here));
    assert_eq!(store.stats().damaged, 0);
    store.close().unwrap();

    // Change a byte in each MiB of the segments: some objects become misses, and none returns other
    // bytes.
    let segments = std::fs::File::options()
        .read(true)
        .write(true)
        .open(home.path().join("store/segments"))
        .unwrap();
    for at in (0..segments.metadata().unwrap().len()).step_by(1 << 20) {
        let mut byte = [0];
        segments.read_exact_at(&mut byte, at + 77_777).unwrap();
        segments.write_all_at(&[!byte[0]], at + 77_777).unwrap();
    }
    let store = open(&home);
    let _all = store.register_memory(pool.as_ptr(), pool.len()).unwrap();
    let here = [get(&store, &mut pool, 0..30, 0), get(&store, &mut pool, 30..60, 0)].concat();
    assert!(here.contains(&true) && here.contains(&false), "{here:?}");
}

#[test]
fn registration_failure_is_reported() {
    let home = tempfile::tempdir().unwrap();
    let store = open(&home);
    let memory = AlignedBuf::new(4096).unwrap();
    if !store.register_memory(memory.as_ptr(), 4096).unwrap().is_used() {
        return eprintln!("skipped: io_uring is refused here, and nothing is registered");
    }
    let error = store
        .register_memory(std::ptr::without_provenance(4096), 4096)
        .expect_err("nothing is there");
    assert_eq!((error.kind, error.errno), (ErrorKind::Invalid, Some(14)), "{error}");
    for len in [1 << 60, usize::MAX] {
        let error = store.register_memory(memory.as_ptr(), len).expect_err("more than there is");
        assert_eq!((error.kind, error.errno), (ErrorKind::Invalid, None), "{error}");
    }
    assert!(!store.register_memory(memory.as_ptr(), 0).unwrap().is_used());
    let outlives = store.register_memory(memory.as_ptr(), 4096).unwrap();
    store.close().unwrap();
    drop(outlives);
}

/// Regression: an object shorter than the alignment unit, read from SSD into memory that happens to
/// be aligned, was dropped as damaged, because the caller's only part was lost on completion of the
/// read.
#[test]
fn short_object_is_read_whole_into_aligned_memory() {
    let home = tempfile::tempdir().unwrap();
    let lengths = [1usize, 9, 511, 512, 4095, 4096, 4097];
    let store = open(&home);
    for (n, length) in (0..).zip(lengths) {
        let bytes = vec![n as u8 + 1; length];
        let outcomes =
            store.put_batch(&[PutSlice { key: key(n), pieces: &[&bytes] }], Options::default());
        assert!(outcomes[0].is_ok(), "{outcomes:?}");
    }
    store.close().unwrap();

    // After a reopen nothing is in memory.
    let store = open(&home);
    for (n, length) in (0..).zip(lengths) {
        let mut buffer = AlignedBuf::new(8192).unwrap();
        let mut pieces = [&mut buffer[..length]];
        let mut get = [GetSlice { key: key(n), range: None, pieces: &mut pieces }];
        let outcomes = store.get_batch(&mut get, Options::default());
        assert_eq!(outcomes, [Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: length as u64 })]);
        assert!(buffer[..length].iter().all(|b| *b == n as u8 + 1), "length={length}");
        assert!(
            buffer[length..].iter().all(|b| *b == 0),
            "bytes after the destination were written"
        );
    }
    assert_eq!(store.stats().damaged, 0);
}
