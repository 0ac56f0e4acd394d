//! Flips every single bit of every header: each flip is detected, or (in the manifest) repaired
//! from the other copy. Exhaustive, not sampled: row 4 of docs/faults.md.

mod common;

use common::*;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{
    self, CHUNK_BYTES, CHUNK_ITEMS, CheckpointEntry, CheckpointFacts, ChunkHead, ChunkKind,
    SegmentMark,
};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::footer::{self, FooterFacts};
use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::manifest::{Manifest, Superblock, decode as decode_manifest};
use pagelith_layouts::record::{
    GroupKind, MEMBERS_MAX, Member, Record, RecordFacts, RecordHead, RecordKind,
};
use pagelith_layouts::segment::{decode_head, encode_head};
use pagelith_layouts::shard::{Shard, Slice};

/// Flip each of these bits of `bytes` in turn; `survives` returns whether the flip is undetected.
fn flip_these(
    bytes: &mut [u8],
    bits: impl Iterator<Item = usize>,
    survives: impl Fn(&[u8]) -> bool,
) {
    assert!(survives(bytes), "the untouched bytes are read");
    for bit in bits {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!survives(bytes), "bit={bit} byte={} was flipped unnoticed", bit / 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

fn flip_all(bytes: &mut [u8], survives: impl Fn(&[u8]) -> bool) {
    let bits = 0..bytes.len() * 8;
    flip_these(bytes, bits, survives);
}

#[test]
fn record_header_with_one_member_detects_every_bit_flip() {
    let object = Object { key: key(1, Role::Target, "kv", "k"), bytes: bytes(1, 70_000) };
    let mut header = try_header(&facts(identity(1, 2), 4096), &[object]).expect("within the rules");
    flip_all(&mut header, |b| Record::decode(b).is_ok());
}

#[test]
fn record_header_of_group_detects_every_bit_flip() {
    let (facts, objects) = group_of_three(4096);
    let mut header = try_header(&facts, &objects).expect("within the rules");
    flip_all(&mut header, |b| Record::decode(b).is_ok());
}

#[test]
fn tombstone_header_detects_every_bit_flip() {
    let facts = RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), 4096) };
    let gone = [1, 2].map(|page| Object { key: key(page, Role::Draft, "kv", "k"), bytes: vec![] });
    flip_all(&mut try_header(&facts, &gone).expect("within the rules"), |b| {
        Record::decode(b).is_ok()
    });
}

/// Headers with as many members as fit one block, headers of two and three blocks, and tombstones
/// with many members.
#[test]
fn record_headers_with_many_members_detect_every_bit_flip() {
    let some = |members: u8| {
        let object =
            |i| Object { key: key(i, Role::Target, "kv", "k"), bytes: bytes(i.into(), 50) };
        (0..members).map(object).collect::<Vec<_>>()
    };
    for members in (1..=22).chain([23, 47]) {
        let group = RecordFacts { group_kind: GroupKind::Base, ..facts(identity(1, 2), 4096) };
        let mut header = try_header(&group, &some(members)).expect("within the rules");
        flip_all(&mut header, |b| Record::decode(b).is_ok());
    }
    let facts = RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), 4096) };
    let gone: Vec<_> = some(60).into_iter().map(|o| Object { bytes: vec![], ..o }).collect();
    flip_all(&mut try_header(&facts, &gone).expect("within the rules"), |b| {
        Record::decode(b).is_ok()
    });
}

/// The header with the most members. All bits would take minutes; this flips every bit of the head,
/// of the first and last member and checksum, and one bit of every 64 bytes between.
#[test]
fn record_header_with_most_members_detects_bit_flips() {
    let objects: Vec<_> = (0..MEMBERS_MAX)
        .map(|i| {
            let hash = PrefixHash(std::array::from_fn(|b| (i >> (b % 2 * 8)) as u8));
            let key = ObjectKey::new(NAMESPACE, hash, Role::Target, "kv", "k", Shard::Whole)
                .expect("valid names");
            Object { key, bytes: vec![7] }
        })
        .collect();
    let group = RecordFacts { group_kind: GroupKind::Base, ..facts(identity(1, 2), 4096) };
    let mut header = try_header(&group, &objects).expect("within the rules");
    let members_end = RecordHead::BYTES + MEMBERS_MAX * Member::BYTES;
    let sums_end = members_end + MEMBERS_MAX * 16;
    let whole =
        [0..RecordHead::BYTES + Member::BYTES, members_end - Member::BYTES..members_end + 16];
    let whole = whole.into_iter().chain(std::iter::once(sums_end - 16..sums_end + 8));
    let every_bit = whole.flatten().flat_map(|byte| byte * 8..byte * 8 + 8);
    let between = (0..header.len()).step_by(64).map(|byte| byte * 8 + byte / 64 % 8);
    flip_these(&mut header, every_bit.chain(between), |b| Record::decode(b).is_ok());
}

#[test]
fn record_header_of_attached_group_detects_every_bit_flip() {
    let (group, objects) = group_of_three(4096);
    let attached = RecordFacts {
        group_kind: GroupKind::Attached,
        base_group: GroupId(0x0123_4567_89AB_CDEF),
        ..group
    };
    let mut header = try_header(&attached, &objects).expect("within the rules");
    flip_all(&mut header, |b| Record::decode(b).is_ok());
}

#[test]
fn segment_header_detects_every_bit_flip() {
    let mut block = encode_head(identity(1, 2), SegmentOrder(7), 1 << 20);
    flip_all(&mut block, |b| decode_head(b, STORE, SegmentId(1)).is_ok());
}

/// A footer of these adjacent records.
fn footer_of(records: &[Vec<u8>]) -> Vec<u8> {
    let decoded: Vec<_> =
        records.iter().map(|r| Record::decode(r).expect("what was written")).collect();
    let entries: Vec<_> = decoded.iter().flat_map(footer::entries_of).collect();
    let facts = FooterFacts {
        identity: identity(1, 2),
        order: SegmentOrder(7),
        min_sequence: Sequence(entries.iter().map(|e| e.sequence).min().unwrap_or(u64::MAX)),
        max_sequence: Sequence(entries.iter().map(|e| e.sequence).max().unwrap_or(0)),
        data_end: ALIGN + records.iter().map(|r| r.len() as u64).sum::<u64>(),
    };
    footer::encode(&facts, &entries)
}

#[test]
fn footer_with_three_entries_detects_every_bit_flip() {
    let (facts, objects) = group_of_three(4096);
    let mut bytes = footer_of(&[record(&facts, &objects)]);
    assert_eq!(bytes.len() as u64, ALIGN);
    flip_all(&mut bytes, |b| footer::decode(b, identity(1, 2), 1 << 20).is_ok());
}

/// Footers without entries, with tombstones and attached objects, and with two blocks.
#[test]
fn footers_of_other_records_detect_every_bit_flip() {
    let (base, objects) = group_of_three(4096);
    let group = record(&base, &objects);
    let at = 4096 + group.len() as u64;
    let attached = RecordFacts {
        offset: at,
        group_kind: GroupKind::Attached,
        base_group: GroupId(77),
        ..base
    };
    let attached = record(&attached, &objects[..1]);
    let at = at + attached.len() as u64;
    let gone = [1, 2].map(|page| Object { key: key(page, Role::Draft, "kv", "k"), bytes: vec![] });
    let gone =
        record(&RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), at) }, &gone);
    let many: Vec<_> = (0..30u64)
        .map(|i| {
            record(
                &facts(identity(1, 2), 4096 + i * 8192),
                &[Object { bytes: bytes(i, 9), ..objects[0].clone() }],
            )
        })
        .collect();
    for (records, blocks) in [(vec![], 1), (vec![group, attached, gone], 1), (many, 2)] {
        let mut bytes = footer_of(&records);
        assert_eq!(bytes.len() as u64, blocks * ALIGN);
        flip_all(&mut bytes, |b| footer::decode(b, identity(1, 2), 1 << 20).is_ok());
    }
}

/// A flip in one copy: the manifest is unchanged, and the damaged block is reported for repair. The
/// same flip in both copies is refused.
#[test]
fn manifest_block_bit_flip_in_one_copy_is_repaired() {
    let superblock = Superblock {
        segment_bytes: 1 << 20,
        capacity_bytes: 1 << 30,
        checkpoint_bytes: 1 << 20,
        objects_max: 1000,
        segment_count: 3,
        dir_count: 1,
        block_bytes: BLOCK_BYTES,
        namespaces_max: 8,
        fingerprint_key: [5; 192],
        reserved: [0; 80],
    };
    let mut manifest = Manifest::new(STORE, superblock);
    manifest.set_segment(SegmentId(2), Incarnation(3), SegmentOrder(9)).expect("a segment");
    manifest.set_generation(NAMESPACE, Generation(4)).expect("room");
    let good = manifest.copy();
    let mut bad = good.clone();
    for bit in 0..good.len() * 8 {
        let block = (bit / 8 / ALIGN as usize) as u32;
        bad[bit / 8] ^= 1 << (bit % 8);
        let turn = bit % 2;
        let copies = if turn == 0 { [&bad[..], &good] } else { [&good, &bad[..]] };
        let (read, damage) = decode_manifest(copies).expect("the other copy is whole");
        assert!(read == manifest, "bit={bit} changed what was read");
        assert_eq!(
            damage.iter().map(|d| (d.copy, d.index)).collect::<Vec<_>>(),
            [(turn, block)],
            "bit={bit}"
        );
        let both = decode_manifest([&bad, &bad]).map(|_| ()).map_err(|d| d.index);
        assert_eq!(both, Err(block), "bit={bit}");
        bad[bit / 8] ^= 1 << (bit % 8);
    }
}

fn checkpoint_facts() -> CheckpointFacts {
    CheckpointFacts {
        store: STORE,
        serial: 5,
        sequence: Sequence(100),
        next_sequence: Sequence(120),
        replay_from: SegmentOrder(9),
        segment_count: 4,
        entry_count: 2,
        chunk_count: 2,
        clean: false,
    }
}

#[test]
fn checkpoint_header_detects_every_bit_flip() {
    let mut block = checkpoint::encode_head(&checkpoint_facts());
    flip_all(&mut block, |b| checkpoint::decode_head(b, STORE).is_ok());
}

/// Chunks with items of every kind: marks, objects, attached objects, links and withdrawals. Flips
/// every bit of the used part, and one bit of every byte of the zero padding.
#[test]
fn checkpoint_chunks_detect_every_bit_flip() {
    let marks =
        [SegmentMark { incarnation: 3, order: 4, min_sequence: u64::MAX, data_end: 8192 }; 4];
    let object = CheckpointEntry {
        fingerprint: [9; 16],
        segment: 2,
        record_sector: 5,
        payload_sector: 1,
        length: 4000,
        tick: CheckpointEntry::tick(77, true),
    };
    let links = CheckpointEntry::links(u128::from_le_bytes([9; 16]), 0x0123_4567_89AB_CDEF);
    let entries = [object, links, CheckpointEntry::withdrawal(2, 9)];
    let facts = checkpoint_facts();
    let marks: &[u8] = bytemuck::cast_slice(&marks);
    for (kind, items) in
        [(ChunkKind::Segments, marks), (ChunkKind::Entries, bytemuck::cast_slice(&entries))]
    {
        let mut chunk = vec![0; CHUNK_BYTES];
        assert!(checkpoint::encode_chunk(&mut chunk, kind, STORE, 5, 1, items));
        let used = ChunkHead::BYTES + items.len();
        let padding = (used..CHUNK_BYTES).map(|byte| byte * 8 + byte % 8);
        flip_these(&mut chunk, (0..used * 8).chain(padding), |b| {
            checkpoint::decode_chunk(b, &facts, 1).is_ok()
        });
        // `chunk_serial` verifies the whole chunk.
        flip_these(&mut chunk, 0..used * 8, |b| checkpoint::chunk_serial(b, STORE).is_some());
    }
}

/// A full chunk: every byte is used.
#[test]
fn full_checkpoint_chunk_detects_every_bit_flip() {
    let facts = checkpoint_facts();
    let mut chunk = vec![0; CHUNK_BYTES];
    let items = bytes(3, CHUNK_ITEMS * CheckpointEntry::BYTES);
    assert!(checkpoint::encode_chunk(&mut chunk, ChunkKind::Entries, STORE, 5, 1, &items));
    let bits = 0..CHUNK_BYTES * 8;
    flip_these(&mut chunk, bits, |b| checkpoint::decode_chunk(b, &facts, 1).is_ok());
}

/// The 128 bytes of a key, which every record, footer and tombstone contains. A key has no checksum
/// of its own, so a flip that gives a valid key must give another key.
#[test]
fn key_with_flipped_bit_is_other_key_or_refused() {
    let rank = Slice::new(3, 8).expect("rank below of");
    let shard = Shard::Rank { tp: rank, pp: rank, cp: rank, dcp: rank };
    let key = ObjectKey::new(NAMESPACE, PrefixHash([5; 32]), Role::Draft, "swa.1", "k", shard)
        .expect("valid names");
    let mut bytes = *key.as_bytes();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = ObjectKey::decode(&bytes) {
            assert!(other != key && other.to_string() != key.to_string(), "bit={bit}");
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
