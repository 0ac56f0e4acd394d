//! The manifest under random changes, crashes between its two copies, and damage.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::*;
use pagelith_layouts::manifest::{Manifest, Superblock, decode, salvage};
use proptest::prelude::*;
use proptest::sample::Index;

use super::common::{NAMESPACE, STORE};
use super::config;

const BLOCK: usize = ALIGN as usize;

fn empty(segment_count: u32, namespaces_max: u32) -> Manifest {
    let superblock = Superblock {
        segment_bytes: 1 << 20,
        capacity_bytes: 1 << 40,
        checkpoint_bytes: 1 << 20,
        objects_max: 1000,
        segment_count,
        dir_count: 1,
        block_bytes: BLOCK_BYTES,
        namespaces_max,
        fingerprint_key: [5; 192],
        reserved: [0; 80],
    };
    Manifest::new(STORE, superblock)
}

/// A manifest of three blocks, with a fact in each.
pub(super) fn small() -> Manifest {
    let mut m = empty(3, 8);
    m.set_segment(SegmentId(2), Incarnation(3), SegmentOrder(9)).expect("a segment");
    m.set_generation(NAMESPACE, Generation(4)).expect("room");
    m
}

/// A change of one fact.
#[derive(Clone, Debug)]
enum Change {
    Segment(Index, u64, u64),
    Namespace(u8, u64),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        (any::<Index>(), 0..u64::MAX, 0..u64::MAX).prop_map(|(s, i, o)| Change::Segment(s, i, o)),
        (any::<u8>(), 1..u64::MAX).prop_map(|(n, g)| Change::Namespace(n, g)),
    ];
    prop::collection::vec(change, 1..200)
}

/// Apply the change in memory; returns its block, `None` if the table is full.
fn apply(m: &mut Manifest, change: &Change) -> Option<u32> {
    match change {
        Change::Segment(at, incarnation, order) => {
            let segments = m.superblock().segment_count as usize;
            let id = SegmentId(at.index(segments) as u32);
            m.set_segment(id, Incarnation(*incarnation), SegmentOrder(*order))
        }
        Change::Namespace(n, generation) => {
            m.set_generation(NamespaceId([*n; 16]), Generation(*generation))
        }
    }
}

fn put(copy: &mut [u8], m: &Manifest, block: u32) {
    let at = block as usize * BLOCK;
    copy[at..at + BLOCK].copy_from_slice(&m.block(block));
}

proptest! {
    #![proptest_config(config(128))]

    /// Power fails during any change: before the first write, in it (torn), between the two writes,
    /// in the second, or after it. The decoded manifest is that before or after the change, and
    /// nothing else.
    #[test]
    fn crash_during_manifest_change_leaves_old_or_new_state(
        sizes in (1..400u32, 1..300u32),
        changes in changes(),
        crash in 0..5u8,
        tear in 0..BLOCK,
    ) {
        let mut m = empty(sizes.0, sizes.1);
        let mut copies = [m.copy(), m.copy()];
        let (last, before_last) = changes.split_last().expect("at least one");
        for change in before_last {
            if let Some(block) = apply(&mut m, change) {
                copies.iter_mut().for_each(|c| put(c, &m, block));
            }
        }
        let before = m.clone();
        let Some(block) = apply(&mut m, last) else { return Ok(()) };
        let at = block as usize * BLOCK;
        let written = [crash >= 1, crash >= 3];
        for (copy, _) in copies.iter_mut().zip(written).filter(|(_, written)| *written) {
            put(copy, &m, block);
        }
        // A torn write leaves new bytes at the front and old bytes after them.
        let torn = match crash { 1 => Some(0), 3 => Some(1), _ => None };
        if let Some(torn) = torn {
            let old = before.block(block);
            copies[torn][at + tear..at + BLOCK].copy_from_slice(&old[tear..]);
        }
        let (read, damage) = decode([&copies[0], &copies[1]]).expect("one copy is whole");
        prop_assert!(read == before || read == m, "neither the old nor the new manifest");
        if crash >= 3 {
            prop_assert!(read == m, "the change was complete in one copy");
        }
        prop_assert!(damage.iter().all(|d| d.index == block));
        // After the reported repairs, the copies are equal.
        damage.iter().for_each(|d| put(&mut copies[d.copy], &read, d.index));
        prop_assert!(copies[0] == copies[1]);
        prop_assert_eq!(decode([&copies[0], &copies[1]]), Ok((read, vec![])));
    }

    /// Each block is damaged in at most one copy, and blocks of the other copy may be older
    /// versions.
    #[test]
    fn manifest_with_one_valid_version_of_each_block_decodes(
        sizes in (1..400u32, 1..300u32),
        changes in changes(),
        harm in prop::collection::vec((0..5u8, any::<Index>()), 8),
    ) {
        let mut m = empty(sizes.0, sizes.1);
        let early = m.copy();
        changes.iter().for_each(|c| _ = apply(&mut m, c));
        let good = m.copy();
        let mut copies = [good.clone(), good.clone()];
        let mut expected = Vec::new();
        for (block, (how, at)) in (0..good.len() / BLOCK).zip(harm.iter().cycle()) {
            let range = block * BLOCK..(block + 1) * BLOCK;
            let copy = usize::from(how % 2);
            let place = &mut copies[copy][range.clone()];
            match how {
                0 | 1 => place[at.index(BLOCK)] ^= 0x10,
                2 | 3 => place.copy_from_slice(&early[range]),
                _ => continue,
            }
            if copies[copy] != good && copies[copy][block * BLOCK..][..BLOCK] != good[block * BLOCK..][..BLOCK] {
                expected.push((copy, block as u32));
            }
        }
        let (read, damage) = decode([&copies[0], &copies[1]]).expect("one valid version of each block");
        prop_assert!(read == m);
        prop_assert_eq!(damage.iter().map(|d| (d.copy, d.index)).collect::<Vec<_>>(), expected);
    }

    /// Any valid superblock decodes; an invalid one is refused.
    #[test]
    fn superblock_round_trips_or_is_refused(
        store in any::<[u8; 16]>(),
        sizes in (any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>()),
        counts in (0..300u32, 0..5u32, 0..300u32),
        block_bytes in prop_oneof![(0..300u32).prop_map(|n| n * 4096), any::<u32>()],
        key in prop::array::uniform32(any::<u8>()),
    ) {
        let superblock = Superblock {
            segment_bytes: u64::from(sizes.0) % (1 << 16) * 4096,
            capacity_bytes: sizes.1,
            checkpoint_bytes: u64::from(sizes.2) * 4096,
            objects_max: sizes.3,
            segment_count: counts.0,
            dir_count: counts.1,
            block_bytes,
            namespaces_max: counts.2,
            fingerprint_key: std::array::from_fn(|i| key[i % 32] ^ i as u8),
            reserved: [0; 80],
        };
        let m = Manifest::new(StoreId(store), superblock);
        let copy = m.copy();
        let fits = superblock.segment_bytes >= 4 * ALIGN
            && counts.0 > 0
            && counts.1 > 0
            && (1..=256).contains(&(block_bytes / 4096))
            && block_bytes % 4096 == 0;
        let read = decode([&copy, &copy]);
        prop_assert_eq!(read.is_ok(), fits, "{:?}", read.err());
        if let Ok((read, damage)) = decode([&copy, &copy]) {
            prop_assert_eq!((read, damage), (m, vec![]));
        }
        let saved = salvage([&copy, &copy]).map(|s| (s.store, s.superblock));
        prop_assert_eq!(saved.ok(), fits.then_some((StoreId(store), superblock)));
    }

    /// For any damage: salvage returns exactly the intact facts, and a manifest written over the
    /// copies decodes.
    #[test]
    fn salvage_returns_exactly_intact_blocks(
        sizes in (1..400u32, 1..300u32),
        changes in changes(),
        lost in prop::collection::vec((0..4u8, any::<Index>()), 8),
    ) {
        let mut m = empty(sizes.0, sizes.1);
        changes.iter().for_each(|c| _ = apply(&mut m, c));
        let good = m.copy();
        let mut copies = [good.clone(), good.clone()];
        let segment_blocks = sizes.0.div_ceil(126) as usize;
        let mut gone = Vec::new();
        for (block, (how, at)) in (1..good.len() / BLOCK).zip(lost.iter().cycle()) {
            for copy in (0..2).filter(|copy| how & (1 << copy) != 0) {
                copies[copy][block * BLOCK + at.index(BLOCK)] ^= 1;
            }
            gone.extend((*how == 3).then_some(block));
        }
        let saved = salvage([&copies[0], &copies[1]]).expect("the superblock is whole");
        for (i, fact) in saved.segments.iter().enumerate() {
            let known = m.segment(SegmentId(i as u32)).filter(|_| !gone.contains(&(1 + i / 126)));
            prop_assert_eq!(*fact, known, "segment={}", i);
        }
        let lost_namespaces = gone.iter().filter(|b| **b > segment_blocks).count();
        prop_assert_eq!(saved.namespace_blocks_lost as usize, lost_namespaces);
        for (namespace, generation) in &saved.generations {
            prop_assert_eq!(m.generation(*namespace), *generation);
        }
        let over = Manifest::overwriting(saved.store, saved.superblock, [&copies[0], &copies[1]])
            .with_segments(&saved.segments);
        let copy = over.copy();
        for copies in [[&copy[..], &copies[1]], [&copies[0], &copy]] {
            prop_assert_eq!(decode(copies).map(|(read, _)| read), Ok(over.clone()));
        }
    }
}
