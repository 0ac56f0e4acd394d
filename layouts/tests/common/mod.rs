//! Helpers with which the format tests build structures. Results depend only on the arguments;
//! nothing is random.

// Each test file is a separate program and uses a part of these helpers.
#![allow(dead_code)]

use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum, checksum_around};
use pagelith_layouts::format::Structure;
use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::record::{self, GroupKind, MemberSpec, RecordFacts, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_layouts::shard::Shard;

/// The store of all structures.
pub(crate) const STORE: StoreId = StoreId(*b"store for tests.");
/// The namespace of [`key`].
pub(crate) const NAMESPACE: NamespaceId = NamespaceId([0x11; 16]);

/// The identity of a segment of [`STORE`] in one incarnation.
pub(crate) fn identity(segment: u32, incarnation: u64) -> SegmentIdentity {
    SegmentIdentity {
        store: STORE,
        segment: SegmentId(segment),
        incarnation: Incarnation(incarnation),
    }
}

/// The key of a component of a page, with shard `Whole`.
pub(crate) fn key(page: u8, role: Role, pool: &str, component: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, PrefixHash([page; 32]), role, pool, component, Shard::Whole)
        .expect("valid names")
}

/// `length` bytes that differ from those of every other seed (SplitMix64).
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    words.flat_map(u64::to_le_bytes).take(length).collect()
}

/// An object and its bytes; empty in a tombstone.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Whole key.
    pub(crate) key: ObjectKey,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// The checksum of each block of `bytes`.
pub(crate) fn checksums(bytes: &[u8], block_bytes: u32) -> Vec<Checksum> {
    bytes.chunks(block_bytes as usize).map(checksum).collect()
}

/// Facts of a single data record at `offset` of `identity`, with default values for the other
/// fields.
pub(crate) fn facts(identity: SegmentIdentity, offset: u64) -> RecordFacts {
    RecordFacts {
        identity,
        offset,
        kind: RecordKind::Data,
        group_kind: GroupKind::Single,
        namespace: NAMESPACE,
        generation: Generation::FIRST,
        sequence: Sequence(1000 + offset),
        group: GroupId(1000 + offset),
        base_group: GroupId(0),
        block_bytes: BLOCK_BYTES,
        depth: 0,
        reinserted: false,
    }
}

/// The encoded header of a record; `None` if it breaks a rule of the format.
pub(crate) fn try_header(facts: &RecordFacts, objects: &[Object]) -> Option<Vec<u8>> {
    let sums: Vec<_> = objects.iter().map(|o| checksums(&o.bytes, facts.block_bytes)).collect();
    let spec = |(o, checksums): (&Object, _)| MemberSpec {
        key: o.key,
        length: o.bytes.len() as u64,
        checksums,
    };
    let members: Vec<_> = objects.iter().zip(sums.iter().map(Vec::as_slice)).map(spec).collect();
    record::encode(facts, &members)
}

/// A whole record: header and padded payloads.
pub(crate) fn record(facts: &RecordFacts, objects: &[Object]) -> Vec<u8> {
    let mut out = try_header(facts, objects).expect("a record within the format's rules");
    for o in objects {
        out.extend_from_slice(&o.bytes);
        out.resize(align_up(out.len() as u64) as usize, 0);
    }
    out
}

/// A base group of three small objects: the target's `k` and `v`, and the draft's `k`.
pub(crate) fn group_of_three(offset: u64) -> (RecordFacts, Vec<Object>) {
    let facts =
        RecordFacts { group_kind: GroupKind::Base, depth: 3, ..facts(identity(1, 2), offset) };
    let objects = vec![
        Object { key: key(1, Role::Target, "kv", "k"), bytes: bytes(1, 4000) },
        Object { key: key(1, Role::Target, "kv", "v"), bytes: bytes(2, 4096) },
        Object { key: key(1, Role::Draft, "kv", "k"), bytes: bytes(3, 100) },
    ];
    (facts, objects)
}

/// Byte offset of a field.
pub(crate) fn at(structure: &Structure, field: &str) -> usize {
    let found = structure.fields.iter().find(|f| f.name == field);
    found.unwrap_or_else(|| panic!("{} has no field {field}", structure.name)).offset
}

/// Write `value` at `offset` and recompute the checksum at `checksum_at`, as only an attacker or a
/// defect of the writer can do.
pub(crate) fn forge(bytes: &mut [u8], checksum_at: usize, offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
    let sum = checksum_around(bytes, checksum_at).expect("a hole inside");
    bytes[checksum_at..checksum_at + 16].copy_from_slice(&sum);
}
