//! Salvage of a manifest that does not decode, and a manifest written over it.

mod common;

use common::{NAMESPACE, STORE};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::*;
use pagelith_layouts::manifest::{Manifest, Superblock, decode, salvage};

const BLOCK: usize = ALIGN as usize;

/// Two blocks of segment facts (130 segments), one of namespace facts.
fn manifest(store: StoreId) -> Manifest {
    let superblock = Superblock {
        segment_bytes: 1 << 20,
        capacity_bytes: 1 << 30,
        checkpoint_bytes: 1 << 20,
        objects_max: 1000,
        segment_count: 130,
        dir_count: 1,
        block_bytes: BLOCK_BYTES,
        namespaces_max: 8,
        fingerprint_key: [5; 192],
        reserved: [0; 80],
    };
    let mut m = Manifest::new(store, superblock);
    m.set_segment(SegmentId(2), Incarnation(3), SegmentOrder(9)).expect("a segment");
    m.set_segment(SegmentId(129), Incarnation(4), SegmentOrder(10)).expect("a segment");
    m.set_generation(NAMESPACE, Generation(4)).expect("room");
    m
}

fn wipe(copy: &mut [u8], block: usize) {
    copy[block * BLOCK..(block + 1) * BLOCK].fill(0);
}

#[test]
fn salvage_takes_each_block_independently() {
    let m = manifest(STORE);
    let [mut first, mut second] = [m.copy(), m.copy()];
    wipe(&mut first, 1);
    wipe(&mut second, 1);
    wipe(&mut first, 3);
    decode([&first, &second]).expect_err("block 1 is in neither");
    let saved = salvage([&first, &second]).expect("the superblock is there");
    assert_eq!((saved.store, &saved.superblock), (STORE, m.superblock()));
    assert!(saved.segments[..126].iter().all(Option::is_none));
    assert_eq!(saved.segments[129], Some((Incarnation(4), SegmentOrder(10))));
    assert_eq!(
        (saved.generations, saved.namespace_blocks_lost),
        (vec![(NAMESPACE, Generation(4))], 0)
    );
    wipe(&mut second, 3);
    let saved = salvage([&first, &second]).expect("the superblock is there");
    assert_eq!((saved.generations, saved.namespace_blocks_lost), (vec![], 1));
}

#[test]
fn salvage_prefers_newer_version_and_higher_facts() {
    let (older, mut newer) = (manifest(STORE), manifest(STORE));
    newer.set_segment(SegmentId(2), Incarnation(8), SegmentOrder(11)).expect("a segment");
    let saved = salvage([&newer.copy(), &older.copy()]).expect("whole");
    assert_eq!(saved.segments[2], Some((Incarnation(8), SegmentOrder(11))));
    let mut other = manifest(STORE);
    other.set_segment(SegmentId(3), Incarnation(1), SegmentOrder(12)).expect("a segment");
    decode([&newer.copy(), &other.copy()]).expect_err("equal sequence, other facts");
    let saved = salvage([&newer.copy(), &other.copy()]).expect("whole blocks");
    assert_eq!(saved.segments[2], Some((Incarnation(8), SegmentOrder(11))));
    assert_eq!(saved.segments[3], Some((Incarnation(1), SegmentOrder(12))));
}

#[test]
fn salvage_without_single_superblock_is_refused() {
    let mut copy = manifest(STORE).copy();
    let said = |copies: [&[u8]; 2]| salvage(copies).expect_err("nothing to go by").to_string();
    let other = manifest(StoreId([9; 16])).copy();
    assert!(said([&copy, &other]).contains("two stores"));
    wipe(&mut copy, 0);
    assert_eq!(said([&copy, &[]]), "no superblock found");
    assert_eq!(said([&[], &[7; 100]]), "no superblock found");
}

/// The new manifest is written block by block in any order and may be incomplete: a reader uses
/// each new block that was written, and both copies are equal at the end.
#[test]
fn manifest_written_over_damaged_copies_supersedes_them() {
    let old = manifest(STORE);
    let [mut first, mut second] = [old.copy(), old.copy()];
    wipe(&mut first, 1);
    wipe(&mut second, 1);
    let saved = salvage([&first, &second]).expect("the superblock is there");
    let new = Manifest::overwriting(STORE, saved.superblock, [&first, &second])
        .with_segments(&saved.segments);
    let blocks = new.copy();
    for at in 0..blocks.len() / BLOCK {
        let range = at * BLOCK..(at + 1) * BLOCK;
        first[range.clone()].copy_from_slice(&blocks[range]);
        match decode([&first, &second]) {
            Ok((read, _)) => assert_eq!(read.block(at as u32), new.block(at as u32), "block={at}"),
            Err(d) => assert_eq!((at, d.index), (0, 1), "only while block 1 is nowhere"),
        }
    }
    assert_eq!(decode([&first, &second]).expect("whole").0, new);
    assert_eq!(new.segment(SegmentId(129)), Some((Incarnation(4), SegmentOrder(10))));
}
