use std::collections::BTreeMap;

use pagelith_layouts::ids::{Generation, GroupId, Incarnation, PrefixHash, SegmentId, Sequence, StoreId};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::namespace::Namespace;
use pagelith_layouts::record::{GroupKind, MemberSpec, RecordFacts, RecordKind, encode};
use pagelith_layouts::shard::Shard as OfModel;
use proptest::prelude::*;

use super::*;

fn at(segment: u32, incarnation: u64) -> SegmentIdentity {
    let (segment, incarnation) = (SegmentId(segment), Incarnation(incarnation));
    SegmentIdentity { store: StoreId([7; 16]), segment, incarnation }
}

/// A header of an object of so many blocks, without its padding.
fn header(identity: SegmentIdentity, offset: u64, blocks: usize, sequence: u64) -> Vec<u8> {
    let namespace = Namespace::default().id();
    let key = ObjectKey::new(namespace, PrefixHash([7; 32]), Role::Target, "kv", "k", OfModel::Whole);
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
        moved: false,
    };
    let checksums: Vec<_> = (0..blocks).map(|i| [i as u8; 16]).collect();
    let member = MemberSpec { key, length: blocks as u64 * 4096, checksums: &checksums };
    let bytes = encode(&facts, &[member]).expect("a header");
    Record::decode(&bytes).expect("whole").trimmed().to_vec()
}

/// So many blocks make a header that is shorter than this.
const BLOCKS_MAX: usize = 160;

proptest! {
    /// Whatever is said of a place is what was last kept for it, and what was kept last of all is known: also where a ring has taken
    /// so many headers that it begins anew.
    #[test]
    fn what_is_known_is_what_was_kept(
        bytes in 0u64..1 << 20,
        late in any::<bool>(),
        steps in prop::collection::vec((0u32..4, 1u64..3, 1u64..64, 1..BLOCKS_MAX, 0u8..8), 1..400),
    ) {
        let headers = HeaderCache::new(bytes).expect("memory");
        for shard in headers.0.iter().filter(|_| late) {
            let mut shard = shard.lock().expect("not poisoned");
            shard.head = Entry::LINES_MAX - 3 * shard.ring_lines();
        }
        let mut kept = BTreeMap::new();
        for (step, (segment, incarnation, block, blocks, what)) in steps.into_iter().enumerate() {
            let (identity, offset) = (at(segment, incarnation), block * ALIGN);
            headers.prefetch([(identity, offset)].into_iter());
            let known = headers.get(identity, offset);
            let expected = kept.get(&(segment, incarnation, block));
            prop_assert!(known.is_none() || known.as_deref() == expected.map(Vec::as_slice));
            if what == 0 {
                headers.remove(identity, offset);
                kept.remove(&(segment, incarnation, block));
                prop_assert_eq!(headers.get(identity, offset), None);
                continue;
            }
            let header = header(identity, offset, blocks, 1 + step as u64);
            headers.expect(identity, offset);
            headers.keep(identity, offset, &header);
            let known = headers.get(identity, offset);
            prop_assert_eq!(known.as_deref(), (bytes >= SHARD_BYTES_MIN).then_some(&header[..]));
            kept.insert((segment, incarnation, block), header);
        }
    }
}

/// Of headers in the order of a log, the newest are known: nearly as many as fit.
#[test]
fn the_newest_of_a_log_are_known() {
    let headers = HeaderCache::new(4 << 20).expect("memory");
    let place = |i: u64| (at((i / 1000) as u32, 1), (1 + i % 1000 * 17) * ALIGN);
    let of = |i: u64| header(place(i).0, place(i).1, 2, 1 + i);
    assert_eq!(of(0).len(), EXPECTED_BYTES);
    let fit = (4 << 20) / EXPECTED_BYTES as u64;
    for i in 0..3 * fit {
        let (identity, offset) = place(i);
        headers.keep(identity, offset, &of(i));
    }
    let known = |i: &u64| headers.get(place(*i).0, place(*i).1).is_some_and(|known| *known == of(*i));
    let newest = (3 * fit - fit * 8 / 10..3 * fit).filter(known).count() as u64;
    assert!(newest > fit * 7 / 10, "known={newest} of={}", fit * 8 / 10);
    assert_eq!((0..fit).filter(known).count(), 0, "older than all that fits");
}

/// An entry that another place's hash looks like, or that is older than what lies there now, leads to nobody else's header.
#[test]
fn a_header_is_its_places_whatever_an_entry_says() {
    let headers = HeaderCache::new(SHARD_BYTES_MIN).expect("memory");
    let [mine, others] = [1, 2].map(|segment| (at(segment, 1), ALIGN));
    headers.keep(others.0, others.1, &header(others.0, others.1, 2, 1));
    let name = Name::new(mine.0, mine.1);
    headers.0[0].lock().expect("not poisoned").set(name.hash, 0, Entry::new(name.hash, 0));
    assert_eq!(headers.get(mine.0, mine.1), None);
    headers.keep(mine.0, mine.1, &header(mine.0, mine.1, 3, 2));
    assert_eq!(headers.get(mine.0, mine.1), Some(header(mine.0, mine.1, 3, 2).into()));
    assert_eq!(headers.get(others.0, others.1), Some(header(others.0, others.1, 2, 1).into()));
}

/// What was written over a header counts for nothing, even if it begins as that did.
#[test]
fn what_lies_where_a_header_was_is_not_that_header() {
    let headers = HeaderCache::new(SHARD_BYTES_MIN).expect("memory");
    let place = |i: u64| (at(1, 1), (1 + i) * ALIGN);
    let of = |i: u64| header(place(i).0, place(i).1, 2, 1 + i);
    let lap = headers.0[0].lock().expect("not poisoned").ring_lines() / of(0).len().div_ceil(LINE) as u64;
    (0..lap).for_each(|i| headers.keep(place(i).0, place(i).1, &of(i)));
    assert_eq!(headers.get(place(0).0, place(0).1), Some(of(0).into()));
    let mut like = of(0);
    *like.last_mut().expect("bytes") ^= 1;
    headers.keep(place(lap).0, place(lap).1, &like);
    assert_eq!(headers.get(place(0).0, place(0).1), None);
}

/// Memory is taken from one end, whatever shards the headers come to.
#[test]
fn first_pieces_lie_side_by_side() {
    let headers = HeaderCache::new(64 << 20).expect("memory");
    let piece =
        |shard: &Mutex<Shard>, at: usize| shard.lock().expect("not poisoned").ring[at].as_ptr().addr();
    let first: Vec<usize> = headers.0.iter().map(|shard| piece(shard, 0)).collect();
    let second = headers.0.iter().map(|shard| piece(shard, 1)).min();
    assert!(first.iter().max() < second.as_ref());
    assert!(first.iter().max().unwrap() - first.iter().min().unwrap() < HUGE_PAGE as usize);
}
