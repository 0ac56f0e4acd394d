//! Every single bit of every header, flipped: it is noticed, or (in the manifest) mended from the other copy.
//! Exhaustive, not sampled: FAULTS row 4.

mod common;

use common::*;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{self, CHUNK_BYTES, CheckpointFacts, ChunkHead, ChunkKind};
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::footer::{self, FooterFacts};
use pagelith_layouts::ids::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::manifest::{Manifest, Superblock, decode as decode_manifest};
use pagelith_layouts::record::{Record, RecordFacts, RecordKind};
use pagelith_layouts::segment::{decode_head, encode_head};

/// Flip each of the first `bits` bits of `bytes` in turn; `survives` says whether it went unnoticed.
fn flip_each(bytes: &mut [u8], bits: usize, survives: impl Fn(&[u8]) -> bool) {
    assert!(survives(bytes), "the untouched bytes are read");
    for bit in 0..bits {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!survives(bytes), "bit={bit} byte={} was flipped unnoticed", bit / 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

fn flip_all(bytes: &mut [u8], survives: impl Fn(&[u8]) -> bool) {
    flip_each(bytes, bytes.len() * 8, survives);
}

#[test]
fn record_header_of_one() {
    let object = Object { key: key(1, Role::Target, "kv", "k"), bytes: bytes(1, 70_000) };
    let mut header = try_header(&facts(identity(1, 2), 4096), &[object]).expect("within the rules");
    flip_all(&mut header, |b| Record::decode(b).is_ok());
}

#[test]
fn record_header_of_a_group() {
    let (facts, objects) = group_of_three(4096);
    let mut header = try_header(&facts, &objects).expect("within the rules");
    flip_all(&mut header, |b| Record::decode(b).is_ok());
}

#[test]
fn tombstones() {
    let facts = RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), 4096) };
    let gone = [1, 2].map(|page| Object { key: key(page, Role::Draft, "kv", "k"), bytes: vec![] });
    flip_all(&mut try_header(&facts, &gone).expect("within the rules"), |b| Record::decode(b).is_ok());
}

#[test]
fn segment_head() {
    let mut block = encode_head(identity(1, 2), SegmentOrder(7), 1 << 20);
    flip_all(&mut block, |b| decode_head(b, STORE, SegmentId(1)).is_ok());
}

#[test]
fn footer_of_three_entries() {
    let (facts, objects) = group_of_three(4096);
    let image = record(&facts, &objects);
    let entries: Vec<_> = footer::entries_of(&Record::decode(&image).expect("what was written")).collect();
    let footer_facts = FooterFacts {
        identity: identity(1, 2),
        order: SegmentOrder(7),
        min_sequence: facts.sequence,
        max_sequence: facts.sequence,
        data_end: 5 * ALIGN,
    };
    let mut bytes = footer::encode(&footer_facts, &entries);
    assert_eq!(bytes.len() as u64, ALIGN);
    flip_all(&mut bytes, |b| footer::decode(b, identity(1, 2), 1 << 20).is_ok());
}

/// Each flip in one copy: the store opens with what it had, and the caller learns what to mend. The same flip in
/// both copies: refused.
#[test]
fn manifest_blocks() {
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
        if bit % 8 == 0 {
            assert_eq!(
                decode_manifest([&bad, &bad]).map(|_| ()).map_err(|d| d.index),
                Err(block),
                "bit={bit}"
            );
        }
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
fn checkpoint_head() {
    let mut block = checkpoint::encode_head(&checkpoint_facts());
    flip_all(&mut block, |b| checkpoint::decode_head(b, STORE).is_ok());
}

#[test]
fn checkpoint_chunk_head() {
    let mut chunk = vec![0; CHUNK_BYTES];
    assert!(checkpoint::encode_chunk(&mut chunk, ChunkKind::Entries, STORE, 5, 1, &bytes(1, 64)));
    let facts = checkpoint_facts();
    flip_each(&mut chunk, (ChunkHead::BYTES + 64) * 8, |b| checkpoint::decode_chunk(b, &facts, 1).is_ok());
}
