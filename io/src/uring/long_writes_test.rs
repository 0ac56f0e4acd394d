//! Long writes that are split into several entries.

use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use tempfile::TempDir;

use super::slots::ENTRY_BYTES;
use super::tests::{LONG, queue_over_bytes};
use super::*;
use crate::buffer::{AlignedBuf, Part};
use crate::op_check::PARTS_MAX;

const FILE: usize = 8 << 20;
const UNIT: usize = 4096;

/// A part whose bytes encode their offset in the file.
fn part(at: usize, len: usize) -> Part {
    let mut buf = AlignedBuf::new(len).unwrap();
    buf.iter_mut().enumerate().for_each(|(i, byte)| *byte = byte_at(at + i));
    buf.into_part()
}

fn byte_at(at: usize) -> u8 {
    (at / 4096 * 7 + at % 251) as u8
}

/// Write parts of these lengths from `offset` and return the number of entries. Checks that the
/// file holds them, and that no other byte changed.
fn write(depth: usize, offset: usize, lengths: &[usize]) -> Option<usize> {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a");
    std::fs::write(&path, vec![0xEE; FILE]).unwrap();
    let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let (mut queue, file) = queue_over_bytes(open().into(), FILE as u64, depth)?;
    let mut at = offset;
    let mut next = |len: &usize| {
        at += len;
        part(at - len, *len)
    };
    let parts = lengths.iter().map(&mut next).collect();
    queue.submit(1, Op::Write { file, offset: offset as u64, parts }).unwrap();
    let entries = queue.extra_entries + 1;
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(&mut done, LONG);
    }
    assert_eq!((done.len(), queue.strays, queue.extra_entries), (1, 0, 0));
    done.remove(0).result.unwrap();
    let mut bytes = vec![0; FILE];
    open().read_exact_at(&mut bytes, 0).unwrap();
    let end = offset + lengths.iter().sum::<usize>();
    for (i, byte) in bytes.into_iter().enumerate() {
        let expected = if (offset..end).contains(&i) { byte_at(i) } else { 0xEE };
        assert_eq!(byte, expected, "at={i} offset={offset} lengths={lengths:?}");
    }
    Some(entries)
}

#[test]
fn long_write_is_split_and_short_one_is_not() {
    let mib = ENTRY_BYTES as usize;
    for (lengths, entries) in [
        (vec![mib], 1),
        (vec![UNIT, mib - UNIT], 1),
        // A write of the log: it may exceed its gather size by a header or an object.
        (vec![UNIT, mib], 1),
        (vec![2 * mib - UNIT], 1),
        (vec![2 * mib], 2),
        (vec![UNIT, 2 * mib], 2),
        (vec![UNIT, 4 * mib], 4),
        (vec![4 * mib], 4),
        (vec![mib - UNIT, UNIT, UNIT, 2 * mib], 3),
    ] {
        let Some(made) = write(8, 3 * UNIT, &lengths) else { return };
        assert_eq!(made, entries, "{lengths:?}");
    }
}

#[test]
fn long_write_without_room_stays_one_entry() {
    let Some(made) = write(1, 0, &[UNIT, 4 << 20]) else { return };
    assert_eq!(made, 1);
}

/// The most parts that a write may have, not aligned to the ends of entries.
#[test]
fn most_parts_are_written_with_and_without_room() {
    let lengths: Vec<usize> = std::iter::once(UNIT).chain([2 * UNIT; PARTS_MAX - 1]).collect();
    for (depth, entries) in [(1, 1), (8, 7)] {
        let Some(made) = write(depth, 0, &lengths) else { return };
        assert_eq!(made, entries, "depth={depth}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_parts_are_written_exactly(
        offset in 0usize..64,
        lengths in prop::collection::vec(1usize..500, 1..5),
        depth in 1usize..9,
    ) {
        let lengths: Vec<usize> = lengths.into_iter().map(|units| units * UNIT).collect();
        let entries = (lengths.iter().sum::<usize>() / ENTRY_BYTES as usize).max(1);
        let made = write(depth, offset * UNIT, &lengths);
        // A ring has at least one extra entry for each operation.
        prop_assert!(made.is_none_or(|made| made == entries || (made == 1 && entries > depth + 1)), "{made:?}");
    }
}
