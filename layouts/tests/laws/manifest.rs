//! The manifest under random changes, crashes between its two copies, and damage.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::ids::*;
use pagelith_layouts::manifest::{Manifest, Superblock, decode};
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

/// Three blocks, with a fact in each.
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

/// Make the change in memory; the block that it is in, none if there was no room.
fn apply(m: &mut Manifest, change: &Change) -> Option<u32> {
    match change {
        Change::Segment(at, incarnation, order) => {
            let segments = m.superblock().segment_count as usize;
            let id = SegmentId(at.index(segments) as u32);
            m.set_segment(id, Incarnation(*incarnation), SegmentOrder(*order))
        }
        Change::Namespace(n, generation) => m.set_generation(NamespaceId([*n; 16]), Generation(*generation)),
    }
}

fn put(copy: &mut [u8], m: &Manifest, block: u32) {
    let at = block as usize * BLOCK;
    copy[at..at + BLOCK].copy_from_slice(&m.block(block));
}

proptest! {
    #![proptest_config(config(128))]

    /// Power is cut in the middle of any change: before the first write, in it (torn), between the two, in the
    /// second, after. What opens is what was there before or after that change, and nothing else.
    #[test]
    fn a_crash_in_a_change_leaves_it_made_or_not(
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
        // A torn write leaves the front new and the rest old.
        let torn = match crash { 1 => Some(0), 3 => Some(1), _ => None };
        if let Some(torn) = torn {
            let old = before.block(block);
            copies[torn][at + tear..at + BLOCK].copy_from_slice(&old[tear..]);
        }
        let (read, damage) = decode([&copies[0], &copies[1]]).expect("one copy is whole");
        prop_assert!(read == before || read == m, "neither before nor after");
        if crash >= 3 {
            prop_assert!(read == m, "the change was whole in one copy");
        }
        prop_assert!(damage.iter().all(|d| d.index == block));
        // Mended as told, the copies agree.
        damage.iter().for_each(|d| put(&mut copies[d.copy], &read, d.index));
        prop_assert!(copies[0] == copies[1]);
        prop_assert_eq!(decode([&copies[0], &copies[1]]), Ok((read, vec![])));
    }

    /// Each block is damaged in one copy or in none, and blocks of the other may be of an earlier age.
    #[test]
    fn one_valid_version_of_each_block_is_enough(
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
}
