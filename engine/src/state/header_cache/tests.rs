use std::collections::BTreeMap;

use pagelith_layouts::ids::{
    Generation, GroupId, Incarnation, PrefixHash, SegmentId, Sequence, StoreId,
};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::namespace::Namespace;
use pagelith_layouts::record::{GroupKind, MemberSpec, RecordFacts, RecordKind, encode};
use pagelith_layouts::shard::Shard as ModelShard;
use proptest::prelude::*;

use super::*;

fn segment_identity(segment: u32, incarnation: u64) -> SegmentIdentity {
    let (segment, incarnation) = (SegmentId(segment), Incarnation(incarnation));
    SegmentIdentity { store: StoreId([7; 16]), segment, incarnation }
}

/// A header of an object of `blocks` blocks, without its padding.
fn header(identity: SegmentIdentity, offset: u64, blocks: usize, sequence: u64) -> Vec<u8> {
    let namespace = Namespace::default().id();
    let key =
        ObjectKey::new(namespace, PrefixHash([7; 32]), Role::Target, "kv", "k", ModelShard::Whole);
    let key = key.expect("a key");
    let facts = RecordFacts {
        identity,
        offset,
        kind: RecordKind::Data,
        group_kind: GroupKind::Single,
        namespace: key.namespace(),
        generation: Generation::FIRST,
        sequence: Sequence(sequence),
        group: GroupId(sequence),
        base_group: GroupId(0),
        block_bytes: 4096,
        depth: 0,
        reinserted: false,
    };
    let checksums: Vec<_> = (0..blocks).map(|i| [i as u8; 16]).collect();
    let member = MemberSpec { key, length: blocks as u64 * 4096, checksums: &checksums };
    let bytes = encode(&facts, &[member]).expect("a header");
    Record::decode(&bytes).expect("whole").trimmed().to_vec()
}

/// Headers of objects with fewer blocks than this are short enough for the smallest shard.
const BLOCKS_MAX: usize = 160;

proptest! {
    /// A lookup returns the last header inserted for its location, or nothing. The last insert of
    /// all is always found, also after a ring was reset because its line counter ran out.
    #[test]
    fn lookup_returns_last_insert_of_place(
        bytes in 0u64..1 << 20,
        late in any::<bool>(),
        steps in prop::collection::vec((0u32..4, 1u64..3, 1u64..64, 1..BLOCKS_MAX, 0u8..8), 1..400),
    ) {
        let headers = HeaderCache::new(bytes).expect("memory");
        for shard in headers.0.iter().filter(|_| late) {
            let mut shard = shard.lock().expect("not poisoned");
            shard.head = TableEntry::LINES_MAX - 3 * shard.ring_lines();
        }
        let mut expected_headers = BTreeMap::new();
        for (step, (segment, incarnation, block, blocks, action)) in steps.into_iter().enumerate() {
            let (identity, offset) = (segment_identity(segment, incarnation), block * ALIGN);
            headers.prefetch([(identity, offset)].into_iter());
            let known = headers.get(identity, offset);
            let expected = expected_headers.get(&(segment, incarnation, block));
            prop_assert!(known.is_none() || known.as_deref() == expected.map(Vec::as_slice));
            if action == 0 {
                headers.remove(identity, offset);
                expected_headers.remove(&(segment, incarnation, block));
                prop_assert_eq!(headers.get(identity, offset), None);
                continue;
            }
            let header = header(identity, offset, blocks, 1 + step as u64);
            headers.prefetch_insert(identity, offset);
            headers.insert(identity, offset, &header);
            let known = headers.get(identity, offset);
            prop_assert_eq!(known.as_deref(), (bytes >= SHARD_BYTES_MIN).then_some(&header[..]));
            expected_headers.insert((segment, incarnation, block), header);
        }
    }
}

/// If headers are inserted in log order, the newest are cached, nearly as many as fit.
#[test]
fn newest_headers_of_log_are_cached() {
    let headers = HeaderCache::new(4 << 20).expect("memory");
    let location = |i: u64| (segment_identity((i / 1000) as u32, 1), (1 + i % 1000 * 17) * ALIGN);
    let header_of = |i: u64| header(location(i).0, location(i).1, 2, 1 + i);
    assert_eq!(header_of(0).len(), TYPICAL_BYTES);
    let fit = (4 << 20) / TYPICAL_BYTES as u64;
    for i in 0..3 * fit {
        let (identity, offset) = location(i);
        headers.insert(identity, offset, &header_of(i));
    }
    let is_cached = |i: &u64| {
        headers.get(location(*i).0, location(*i).1).is_some_and(|known| *known == header_of(*i))
    };
    let cached_newest = (3 * fit - fit * 8 / 10..3 * fit).filter(is_cached).count() as u64;
    assert!(cached_newest > fit * 7 / 10, "cached={cached_newest} of={}", fit * 8 / 10);
    assert_eq!((0..fit).filter(is_cached).count(), 0, "headers older than the capacity are cached");
}

/// An entry with the hash bits of another location, or with an overwritten header, does not return
/// the header that is stored at its position.
#[test]
fn entry_of_other_place_does_not_return_its_header() {
    let headers = HeaderCache::new(SHARD_BYTES_MIN).expect("memory");
    let [own, other] = [1, 2].map(|segment| (segment_identity(segment, 1), ALIGN));
    headers.insert(other.0, other.1, &header(other.0, other.1, 2, 1));
    let key = HeaderKey::new(own.0, own.1);
    headers.0[0].lock().expect("not poisoned").set(key.hash, 0, TableEntry::new(key.hash, 0));
    assert_eq!(headers.get(own.0, own.1), None);
    headers.insert(own.0, own.1, &header(own.0, own.1, 3, 2));
    assert_eq!(headers.get(own.0, own.1), Some(header(own.0, own.1, 3, 2).into()));
    assert_eq!(headers.get(other.0, other.1), Some(header(other.0, other.1, 2, 1).into()));
}

/// Bytes that overwrote a header are not returned for it, even if they begin like it.
#[test]
fn overwritten_header_is_not_returned() {
    let headers = HeaderCache::new(SHARD_BYTES_MIN).expect("memory");
    let location = |i: u64| (segment_identity(1, 1), (1 + i) * ALIGN);
    let header_of = |i: u64| header(location(i).0, location(i).1, 2, 1 + i);
    let lap = headers.0[0].lock().expect("not poisoned").ring_lines()
        / header_of(0).len().div_ceil(LINE) as u64;
    (0..lap).for_each(|i| headers.insert(location(i).0, location(i).1, &header_of(i)));
    assert_eq!(headers.get(location(0).0, location(0).1), Some(header_of(0).into()));
    let mut similar = header_of(0);
    *similar.last_mut().expect("bytes") ^= 1;
    headers.insert(location(lap).0, location(lap).1, &similar);
    assert_eq!(headers.get(location(0).0, location(0).1), None);
}

/// Memory is used from one end, whichever shards the headers belong to.
#[test]
fn first_pieces_of_all_shards_are_adjacent() {
    let headers = HeaderCache::new(64 << 20).expect("memory");
    let piece = |shard: &Mutex<CacheShard>, at: usize| {
        shard.lock().expect("not poisoned").ring[at].as_ptr().addr()
    };
    let first: Vec<usize> = headers.0.iter().map(|shard| piece(shard, 0)).collect();
    let second = headers.0.iter().map(|shard| piece(shard, 1)).min();
    assert!(first.iter().max() < second.as_ref());
    assert!(first.iter().max().unwrap() - first.iter().min().unwrap() < HUGE_PAGE as usize);
}
