//! The manifest: two copies decode to one manifest, or are refused by name.

mod common;

use common::*;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::*;
use pagelith_layouts::manifest::*;

const BLOCK: usize = ALIGN as usize;
/// Superblock, two blocks of segments, two of namespaces.
const SEGMENTS: u32 = 130;
const NAMESPACES: u32 = 140;

fn superblock() -> Superblock {
    Superblock {
        segment_bytes: 1 << 20,
        capacity_bytes: 1 << 30,
        checkpoint_bytes: 1 << 20,
        objects_max: 1000,
        segment_count: SEGMENTS,
        dir_count: 2,
        block_bytes: BLOCK_BYTES,
        namespaces_max: NAMESPACES,
        fingerprint_key: std::array::from_fn(|i| i as u8),
        reserved: [0; 80],
    }
}

fn namespace(n: u32) -> NamespaceId {
    let mut id = [0; 16];
    id[..4].copy_from_slice(&n.to_le_bytes());
    NamespaceId(id)
}

fn manifest() -> Manifest {
    let mut m = Manifest::new(STORE, superblock());
    m.set_segment(SegmentId(0), Incarnation(3), SegmentOrder(8)).expect("a segment");
    m.set_segment(SegmentId(129), Incarnation(1), SegmentOrder(2)).expect("a segment");
    for n in 0..127 {
        m.set_generation(namespace(n), Generation(2 + u64::from(n))).expect("room");
    }
    m
}

fn damaged(damage: &[BlockDamage]) -> Vec<(usize, u32)> {
    damage.iter().map(|d| (d.copy, d.index)).collect()
}

#[test]
fn manifest_facts_round_trip() {
    let m = manifest();
    let copy = m.copy();
    assert_eq!(copy.len() as u64, Manifest::copy_bytes(SEGMENTS, NAMESPACES));
    assert_eq!(copy.len(), 5 * BLOCK);
    let (read, damage) = decode([&copy, &copy]).expect("two whole copies");
    assert_eq!((&read, damage), (&m, vec![]));
    assert_eq!((read.store(), read.superblock()), (STORE, &superblock()));
    assert_eq!(read.segment(SegmentId(0)), Some((Incarnation(3), SegmentOrder(8))));
    assert_eq!(read.segment(SegmentId(1)), Some((Incarnation(0), SegmentOrder(0))));
    assert_eq!(read.segment(SegmentId(130)), None);
    assert_eq!(read.generation(namespace(126)), Generation(128));
    assert_eq!(read.generation(namespace(127)), Generation::FIRST);
    assert_eq!(read.generations().count(), 127);
}

#[test]
fn manifest_change_returns_one_block_to_write() {
    let mut m = manifest();
    let before = m.copy();
    for (block, expected) in [
        (m.set_segment(SegmentId(125), Incarnation(1), SegmentOrder(9)), 1),
        (m.set_segment(SegmentId(126), Incarnation(1), SegmentOrder(10)), 2),
        (m.set_generation(namespace(0), Generation(50)), 3),
        (m.set_generation(namespace(126), Generation(900)), 4),
        (m.set_generation(namespace(127), Generation(2)), 4),
    ] {
        assert_eq!(block, Some(expected));
    }
    let after = m.copy();
    let changed: Vec<_> =
        (0..5).filter(|i| before[i * BLOCK..][..BLOCK] != after[i * BLOCK..][..BLOCK]).collect();
    assert_eq!(changed, [1, 2, 3, 4], "the superblock stays");
    assert_eq!(m.set_segment(SegmentId(SEGMENTS), Incarnation(1), SegmentOrder(1)), None);
    assert_eq!(m.block(5), [0; BLOCK]);
}

#[test]
fn generation_is_never_lowered_and_namespaces_are_bounded() {
    let mut m = manifest();
    m.set_generation(namespace(5), Generation(3)).expect("known");
    assert_eq!(m.generation(namespace(5)), Generation(7));
    for n in 127..NAMESPACES {
        assert!(m.set_generation(namespace(n), Generation(2)).is_some());
    }
    let full = m.clone();
    assert_eq!(m.set_generation(namespace(NAMESPACES), Generation(2)), None);
    assert_eq!(m, full);
    assert!(
        m.set_generation(namespace(3), Generation(99)).is_some(),
        "a known one is still raised"
    );
}

#[test]
fn manifest_decodes_from_one_copy_or_blocks_of_both() {
    let m = manifest();
    let good = m.copy();
    for missing in [&[][..], &good[..BLOCK], &good[..good.len() - 1]] {
        let (read, damage) = decode([missing, &good]).expect("one whole copy");
        assert_eq!(read, m);
        assert!(!damage.is_empty() && damage.iter().all(|d| d.copy == 0), "{damage:?}");
        assert_eq!(decode([&good, missing]).expect("one whole copy").0, m);
    }
    // Even blocks are torn in one copy, odd blocks in the other.
    let mut copies = [good.clone(), good.clone()];
    for block in 0..5 {
        copies[block % 2][block * BLOCK + 2048..][..2048].fill(0xee);
    }
    let (read, damage) = decode([&copies[0], &copies[1]]).expect("one valid copy of every block");
    assert_eq!(read, m);
    assert_eq!(damaged(&damage), [(0, 0), (1, 1), (0, 2), (1, 3), (0, 4)]);
}

#[test]
fn block_torn_in_both_copies_is_refused_by_name() {
    let good = manifest().copy();
    for block in 0..5 {
        let mut torn = good.clone();
        torn[block * BLOCK + 100] ^= 1;
        let refused = decode([&torn, &torn]).expect_err("no valid version");
        assert_eq!(
            (refused.index, refused.error),
            (block as u32, FormatError::Checksum { structure: "manifest block" })
        );
    }
    let nothing = decode([&[], &[]]).expect_err("no manifest at all");
    assert_eq!(nothing.index, 0);
    let zeros = decode([&[0; BLOCK], &[0; BLOCK]]).expect_err("never written");
    assert_eq!(zeros.error, FormatError::Empty { structure: "manifest block" });
}

#[test]
fn newer_block_version_is_used_from_either_copy() {
    let old = manifest();
    let mut new = old.clone();
    let block = new.set_segment(SegmentId(0), Incarnation(4), SegmentOrder(11)).expect("a segment");
    let (old_copy, mut mixed) = (old.copy(), old.copy());
    mixed[block as usize * BLOCK..][..BLOCK].copy_from_slice(&new.block(block));
    for (copies, stale) in [([&old_copy[..], &mixed], 0), ([&mixed, &old_copy], 1)] {
        let (read, damage) = decode(copies).expect("both valid");
        assert_eq!((&read, damaged(&damage)), (&new, vec![(stale, block)]));
        assert!(damage[0].error.to_string().contains("older than the other copy"));
    }
    // A crash during the first write: the block in the other copy is used.
    mixed[block as usize * BLOCK + 4000] ^= 1;
    let (read, damage) = decode([&mixed, &old_copy]).expect("one valid");
    assert_eq!((read, damaged(&damage)), (old, vec![(0, block)]));
}

/// Two changes in one round: a new namespace fills a block, another one begins the next block.
/// Power fails after only the second of the two blocks was written.
#[test]
fn blocks_changed_together_may_be_written_in_any_order() {
    let mut m = Manifest::new(STORE, superblock());
    (0..125).for_each(|n| _ = m.set_generation(namespace(n), Generation(2)));
    let before = m.copy();
    assert_eq!(m.set_generation(namespace(125), Generation(2)), Some(3));
    assert_eq!(m.set_generation(namespace(126), Generation(2)), Some(4));
    let mut half = before.clone();
    half[4 * BLOCK..].copy_from_slice(&m.block(4));
    let (mut read, damage) = decode([&half, &before]).expect("both valid");
    assert_eq!(damaged(&damage), [(1, 4)]);
    let raised = [124, 125, 126].map(|n| read.generation(namespace(n)).0);
    assert_eq!(raised, [2, 1, 2]);
    assert_eq!(read.copy(), half, "every fact stays in its block");
    // Later changes fill the gap, and raise a namespace of the last block in place.
    assert_eq!(read.set_generation(namespace(126), Generation(3)), Some(4));
    assert_eq!(read.set_generation(namespace(127), Generation(2)), Some(3));
    let copy = read.copy();
    assert_eq!(decode([&copy, &copy]), Ok((read, vec![])));
}

#[test]
fn contradicting_manifest_copies_are_refused() {
    let a = manifest();
    // A copy of another store, as after a drive was mounted in the wrong place, even if it is
    // newer.
    let mut b = Manifest::new(StoreId([9; 16]), superblock()).copy();
    let newer = 5u64.to_le_bytes();
    forge(&mut b[..BLOCK], 8, at(&BlockHead::STRUCTURE, "sequence"), &newer);
    let error = decode([&a.copy(), &b]).expect_err("two stores");
    assert_eq!((error.copy, error.index), (1, 0));
    assert!(error.error.to_string().contains("does not match field=store"), "{}", error.error);
    // Equal sequence with different facts: a write was lost, and it cannot be identified.
    let (mut x, mut y) = (a.clone(), a);
    x.set_generation(namespace(0), Generation(70)).expect("known");
    y.set_generation(namespace(0), Generation(80)).expect("known");
    let error = decode([&x.copy(), &y.copy()]).expect_err("two histories");
    assert_eq!(error.index, 3);
    assert!(
        error.error.to_string().contains("equal in copies with different content"),
        "{}",
        error.error
    );
}

#[test]
fn block_of_other_store_counts_as_damage() {
    let m = manifest();
    let good = m.copy();
    let mut strange = good.clone();
    strange[2 * BLOCK..3 * BLOCK]
        .copy_from_slice(&Manifest::new(StoreId([9; 16]), superblock()).block(2));
    strange[3 * BLOCK..4 * BLOCK].copy_from_slice(&good[4 * BLOCK..]);
    let (read, damage) = decode([&strange, &good]).expect("one whole copy");
    assert_eq!((read, damaged(&damage)), (m, vec![(0, 2), (0, 3)]));
}

#[test]
fn newer_format_in_one_copy_is_refused_by_name() {
    let good = manifest().copy();
    for block in [0, 4] {
        let mut newer = good.clone();
        let place = &mut newer[block * BLOCK..][..BLOCK];
        forge(place, 8, at(&BlockHead::STRUCTURE, "version"), &[2, 0]);
        for copies in [[&good[..], &newer], [&newer, &good]] {
            let error = decode(copies).expect_err("a newer format");
            let expected = FormatError::Version { structure: "manifest block", found: 2, known: 1 };
            assert_eq!((error.index as usize, error.error), (block, expected));
        }
    }
}

#[test]
fn invalid_manifest_block_is_refused_by_field() {
    let good = manifest().copy();
    let head = |field| at(&BlockHead::STRUCTURE, field);
    let body = |field| BlockHead::BYTES + at(&Superblock::STRUCTURE, field);
    let fact = |i: usize| BlockHead::BYTES + i * 32;
    let u64s = |v: u64| v.to_le_bytes().to_vec();
    let u32s = |v: u32| v.to_le_bytes().to_vec();
    let first_namespace = namespace(0).0.to_vec();
    for (block, offset, value, field) in [
        (0, head("kind"), vec![2], "kind"),
        (0, head("reserved"), vec![1], "facts"),
        (0, head("reserved2"), vec![1], "facts"),
        (0, head("count"), u32s(2), "facts"),
        (0, body("segment_bytes"), u64s(0), "segment_bytes"),
        (0, body("segment_bytes"), u64s(8192), "segment_bytes"),
        (0, body("segment_bytes"), u64s((1 << 20) + 1), "segment_bytes"),
        (0, body("segment_bytes"), u64s(512 << 20), "segment_bytes"),
        (0, body("checkpoint_bytes"), u64s(1), "checkpoint_bytes"),
        (0, body("segment_count"), u32s(0), "segment_count"),
        (0, body("segment_count"), u32s(u32::MAX), "segment_count"),
        (0, body("namespaces_max"), u32s(u32::MAX), "segment_count"),
        (0, body("dir_count"), u32s(0), "dir_count"),
        (0, body("block_bytes"), u32s(0), "block_bytes"),
        (0, body("block_bytes"), u32s(512), "block_bytes"),
        (0, body("reserved"), vec![1], "facts"),
        (0, BLOCK - 1, vec![1], "facts"),
        (1, head("kind"), vec![3], "kind"),
        (1, head("count"), u32s(127), "count"),
        (1, head("count"), u32s(125), "count"),
        (1, fact(0) + 16, vec![1], "facts"),
        (2, head("count"), u32s(5), "kind"),
        (2, BLOCK - 1, vec![1], "facts"),
        (3, head("kind"), vec![2], "kind"),
        (3, head("count"), u32s(125), "facts"),
        (3, head("sequence"), u64s(0), "sequence"),
        (3, head("sequence"), u64s(u64::MAX), "sequence"),
        (1, fact(0), u64s(u64::MAX), "incarnation"),
        (1, fact(0) + 8, u64s(u64::MAX), "incarnation"),
        (3, fact(5) + 16, u64s(u64::MAX), "namespace"),
        (3, fact(5) + 16, u64s(0), "namespace"),
        (3, fact(5) + 24, vec![1], "facts"),
        (4, fact(0), first_namespace, "namespace"),
        (4, head("count"), u32s(15), "kind"),
    ] {
        let mut bytes = good.clone();
        forge(&mut bytes[block * BLOCK..][..BLOCK], 8, offset, &value);
        let refused = decode([&bytes, &bytes]).expect_err("a broken rule").error.to_string();
        assert!(
            refused.contains(&format!("field={field} ")),
            "{block} {offset} {value:?}: {refused}"
        );
    }
}

/// Found by the fuzz target `manifest_decode`.
#[test]
fn manifest_block_with_missing_segments_is_refused() {
    const COUNT_AT: usize = 56;
    let copy = manifest().copy();
    for (index, count) in [(1, 0), (1, 125), (2, 0), (2, 3)] {
        let mut short = copy.clone();
        let block = &mut short[index * BLOCK..][..BLOCK];
        let facts = (BLOCK - 64) / 32;
        let kept = if index == 1 { facts } else { SEGMENTS as usize - facts };
        assert!(count < kept, "index={index}");
        block[64 + count * 32..].fill(0);
        forge(block, 8, COUNT_AT, &(count as u32).to_le_bytes());
        let refused = decode([&short, &short]).expect_err("segments are missing");
        assert_eq!((refused.copy, refused.index as usize), (0, index), "{refused:?}");
    }
}
