//! Helpers of the behaviours.

use std::time::{Duration, Instant};

use super::harness::Store;
use pagelith::io::buffer::AlignedBuf;
use pagelith::layouts::ids::{NamespaceId, PrefixHash, Sequence};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::record::Record;
use pagelith::layouts::shard::Shard;
use pagelith::{
    ErrorKind, GetOutcome, GetSlice, MissCause, Options, PutOutcome, PutSlice, Result, Tier,
};

use super::env::TestEnv;

pub const NOW: Options = Options::within(std::time::Duration::ZERO);

pub fn namespace(name: &str) -> NamespaceId {
    Namespace { model: name.into(), ..Namespace::default() }.id()
}

pub fn key_in(namespace: NamespaceId, n: u64, part: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    ObjectKey::new(namespace, PrefixHash(hash), Role::Target, "kv", part, Shard::Whole)
        .expect("a key")
}

/// The key of page `n`, in one namespace.
pub fn key(n: u64) -> ObjectKey {
    key_in(namespace("m"), n, "k")
}

/// Let the store's tasks run until a condition holds.
#[track_caller]
pub fn until(world: &TestEnv, what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        match world.sim() {
            Some(sim) => sim.runtime.run_for(Duration::from_millis(1)),
            None => std::thread::yield_now(),
        }
        // A longer wait is a hang.
        assert!(began.elapsed() < Duration::from_secs(60), "timed out waiting until {what}");
    }
}

/// `len` bytes that depend on the seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut state = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let (whole, rest) = out.as_chunks_mut::<8>();
    whole.iter_mut().for_each(|chunk| *chunk = next());
    rest.iter_mut().zip(next()).for_each(|(to, from)| *to = from);
    out
}

pub fn put(store: &Store, key: ObjectKey, bytes: &[u8]) -> Result<PutOutcome> {
    put_with(store, key, bytes, Options::default())
}

pub fn put_with(
    store: &Store,
    key: ObjectKey,
    bytes: &[u8],
    options: Options,
) -> Result<PutOutcome> {
    store.put_batch(&[PutSlice { key, pieces: &[bytes] }], options).remove(0)
}

/// Put page `n`'s usual bytes.
pub fn store_page(store: &Store, n: u64, len: usize) {
    assert_eq!(put(store, key(n), &bytes(n, len)), Ok(PutOutcome::Stored), "n={n}");
}

/// Put an object into a namespace: clearing an empty namespace changes nothing.
pub fn put_into_namespace(store: &Store, name: &str) {
    assert_eq!(
        put(store, key_in(namespace(name), 1, "k"), &bytes(1, 100)),
        Ok(PutOutcome::Stored),
        "{name}"
    );
}

pub fn store_pages(store: &Store, pages: std::ops::Range<u64>, len: usize) {
    pages.for_each(|n| store_page(store, n, len));
}

/// Put a group of (key, bytes).
pub fn put_group(store: &Store, objects: &[(ObjectKey, Vec<u8>)]) -> Result<PutOutcome> {
    let pieces: Vec<[&[u8]; 1]> = objects.iter().map(|(_, b)| [&b[..]]).collect();
    let group: Vec<_> = objects
        .iter()
        .zip(&pieces)
        .map(|((key, _), pieces)| PutSlice { key: *key, pieces })
        .collect();
    store.put_groups(&[&group], Options::default()).remove(0)
}

/// A group of `members` objects of page `n`, of different lengths.
pub fn group(n: u64, members: u64) -> Vec<(ObjectKey, Vec<u8>)> {
    (0..members)
        .map(|m| {
            let len = 1000 + 3000 * m as usize;
            (key_in(namespace("m"), n, &format!("c{m}")), bytes(n * 1000 + m, len))
        })
        .collect()
}

pub fn get_into(store: &Store, key: ObjectKey, to: &mut [u8]) -> Result<GetOutcome> {
    get_range(store, key, None, to)
}

pub fn get_range(
    store: &Store,
    key: ObjectKey,
    range: Option<std::ops::Range<u64>>,
    to: &mut [u8],
) -> Result<GetOutcome> {
    let get = GetSlice { key, range, pieces: &mut [to] };
    store.get_batch(&mut [get], Options::default()).remove(0)
}

/// Memory whose alignment requires staging.
pub struct Unaligned(AlignedBuf);

impl Unaligned {
    pub fn new(len: usize) -> Unaligned {
        Unaligned(AlignedBuf::new(len + 1).expect("memory"))
    }

    pub fn slice(&mut self) -> &mut [u8] {
        &mut self.0[1..]
    }
}

/// Get an object that must be present with these bytes; returns its tier.
#[track_caller]
pub fn hit(store: &Store, key: ObjectKey, expected: &[u8]) -> Tier {
    let mut to = AlignedBuf::new(expected.len()).expect("memory");
    let outcome = get_into(store, key, &mut to);
    let Ok(GetOutcome::Hit { tier, bytes }) = outcome else {
        panic!("not a hit key={key} {outcome:?}")
    };
    assert_eq!(bytes, expected.len() as u64, "key={key}");
    assert!(&to[..] == expected, "wrong bytes key={key}");
    tier
}

/// As [`hit`], into memory that requires staging.
#[track_caller]
pub fn hit_unaligned(store: &Store, key: ObjectKey, expected: &[u8]) -> Tier {
    let mut to = Unaligned::new(expected.len());
    let outcome = get_into(store, key, to.slice());
    let Ok(GetOutcome::Hit { tier, .. }) = outcome else {
        panic!("not a hit key={key} {outcome:?}")
    };
    assert!(to.slice() == expected, "wrong bytes key={key}");
    tier
}

/// Check that `bytes` went through the store's staging memory. Replies over a link do not.
#[track_caller]
pub fn staged(world: &TestEnv, store: &Store, bytes: usize) {
    let expected = if world.is_embedded() { bytes as u64 } else { 0 };
    assert_eq!(store.stats().staged_bytes, expected);
}

/// Page `n` must be present with its usual bytes.
#[track_caller]
pub fn hit_page(store: &Store, n: u64, len: usize) -> Tier {
    hit(store, key(n), &bytes(n, len))
}

/// Whether an object is present; if so, its bytes are correct.
#[track_caller]
pub fn is_present(store: &Store, key: ObjectKey, expected: &[u8]) -> bool {
    let mut to = AlignedBuf::new(expected.len()).expect("memory");
    match get_into(store, key, &mut to) {
        Ok(GetOutcome::Hit { .. }) => {
            assert!(&to[..] == expected, "wrong bytes key={key}");
            true
        }
        Ok(GetOutcome::Miss(_)) => false,
        Err(error) => panic!("key={key} {error}"),
    }
}

#[track_caller]
pub fn is_page_present(store: &Store, n: u64, len: usize) -> bool {
    is_present(store, key(n), &bytes(n, len))
}

/// An object must be absent.
#[track_caller]
pub fn assert_absent(world: &TestEnv, store: &Store, key: ObjectKey, len: usize) {
    if world.tells_keys_apart() {
        assert_eq!(store.exists_batch(&[key], Options::default()), vec![false], "key={key}");
    }
    let outcome = get_into(store, key, &mut vec![0; len]);
    assert_eq!(outcome, Ok(GetOutcome::Miss(MissCause::Absent)), "key={key}");
}

pub fn flush(store: &Store) {
    store.flush(Options::default()).expect("flushed");
}

/// The message of a put that found no memory for `bytes` bytes.
pub fn no_room(bytes: usize) -> String {
    let cause = "its frames are unwritten, pinned or being read";
    format!("no room in the arena: {cause}; retry, or raise dram.bytes bytes={bytes}")
}

#[track_caller]
pub fn refused<T: std::fmt::Debug>(outcome: Result<T>, kind: ErrorKind, message: &str) {
    let error = outcome.expect_err("refused");
    assert_eq!((error.kind, error.message.as_str()), (kind, message));
}

/// Put pages of `len` bytes each until `total` bytes were put, starting with page `from`; returns
/// the next page. Every put waits for room.
pub fn put_until(store: &Store, from: u64, len: usize, total: usize) -> u64 {
    let pages = from..from + (total / len) as u64;
    for n in pages.clone() {
        store_page(store, n, len);
    }
    flush(store);
    pages.end
}

/// Location of an object's record in the segments file of directory 0.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub record: u64,
    pub payload: u64,
    pub record_bytes: u64,
}

/// Find an object's youngest record, the first of several copies.
pub fn find(world: &TestEnv, key: ObjectKey) -> Found {
    let all = find_all(world, key);
    let youngest = all.iter().map(|(sequence, _)| *sequence).max();
    let first = all.into_iter().find(|(sequence, _)| Some(*sequence) == youngest);
    first.expect("a record of the key").1
}

/// Find all records of an object, with their sequence numbers.
pub fn find_all(world: &TestEnv, key: ObjectKey) -> Vec<(Sequence, Found)> {
    let file = world.read(0, "segments");
    let mut all = Vec::new();
    for at in (0..file.len()).step_by(4096) {
        if !file[at..].starts_with(b"PL") {
            continue;
        }
        let Ok(record) = Record::decode(&file[at..]) else { continue };
        let Some(member) = record.find(&key).filter(|m| m.length > 0) else { continue };
        let (at, sequence) = (at as u64, record.facts().sequence);
        let payload = at + member.payload_offset;
        all.push((sequence, Found { record: at, payload, record_bytes: record.record_bytes() }));
    }
    all
}
