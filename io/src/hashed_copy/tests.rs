#![allow(clippy::disallowed_methods, reason = "another thread that writes is what is tested")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

const STORES: [CopyMode; 2] = [CopyMode::Cached, CopyMode::NonTemporal];

fn bytes(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Copies one block with every kind of store, by each method, between these offsets of larger
/// memory, in pieces that end at `cuts`.
fn copies_are_right(len: usize, (at, source): (usize, usize), cuts: &[usize]) {
    let from = bytes(source + len);
    let from = &from[source..];
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).chain([len]).collect();
    ends.sort_unstable();
    for case in 0..8 {
        let (stores, shared) = (STORES[case % 2], case / 2 % 2 == 1);
        let mut copy = BlockCopy::new(len, stores);
        if case / 4 == 1 {
            copy.sum = Sum::Separate(SeparateHash::Empty);
        }
        let what = format!(
            "len={len} {stores:?} shared={shared} separate={} at={at} source={source} ends={ends:?}",
            case / 4
        );
        let mut memory = vec![0xEE; at + len + 70];
        let mut start = 0;
        for end in &ends {
            let to = &mut memory[at + start..at + end];
            match shared {
                // SAFETY: a borrow of as many bytes.
                true => unsafe { copy.copy_shared(to, from[start..*end].as_ptr()) },
                false => copy.piece(to, &from[start..*end]),
            }
            start = *end;
        }
        assert_eq!(copy.finish().to_le_bytes(), checksum(from), "{what}");
        assert!(memory[at..at + len] == *from, "{what}");
        assert!(memory[..at].iter().chain(&memory[at + len..]).all(|b| *b == 0xEE), "{what}");
    }
}

#[test]
fn boundary_lengths_are_copied_and_hashed() {
    let borders = [0usize, 1, 64, 240, 256, 1024, 2048, 4096, 5120, 32_768];
    for len in borders.iter().flat_map(|border| border.saturating_sub(65)..border + 66) {
        copies_are_right(len, (len % 3, len % 2), &[]);
    }
}

proptest! {
    #[test]
    fn random_pieces_are_copied_and_hashed_as_one_block(
        len in 0usize..12_000, at in 0usize..70, source in 0usize..70, cuts in prop::collection::vec(0usize..12_000, 0..6),
    ) {
        copies_are_right(len, (at, source), &cuts);
    }

    #[test]
    fn whole_stripe_pieces_are_copied_and_hashed(blocks in prop::collection::vec(1usize..100, 1..8), past in 0usize..64) {
        let ends = blocks.iter().scan(0, |end, stripes| { *end += stripes * 64; Some(*end) });
        let ends: Vec<usize> = ends.collect();
        copies_are_right(ends[ends.len() - 1] + past, (0, 0), &ends);
    }

    #[test]
    fn blocks_are_copied_between_random_pieces(
        blocks in prop::collection::vec(0usize..3000, 0..6), to in cuts(), from in cuts(), past in any::<bool>(),
    ) {
        let len = blocks.iter().sum();
        let (bytes, mut memory) = (bytes(len), vec![0xEE; len]);
        let mut targets: Vec<&mut [u8]> = Vec::new();
        let mut left = &mut memory[..];
        for cut in to {
            let (next, rest) = left.split_at_mut(cut.min(left.len()));
            targets.push(next);
            left = rest;
        }
        targets.push(left);
        let mut rest = &bytes[..];
        let mut pieces: Vec<SourcePiece<'_>> = from.into_iter().map_while(|cut| rest.split_off(..cut)).map(SourcePiece::Private).collect();
        pieces.push(SourcePiece::Private(rest));
        let mut sums = Vec::new();
        let all = copy_blocks(targets, pieces, blocks.iter().copied(), STORES[usize::from(past)], |sum| sums.push(sum));
        prop_assert!(all);
        let mut rest = &bytes[..];
        let of = |len: &usize| checksum(rest.split_off(..*len).expect("all of it"));
        prop_assert_eq!(sums, blocks.iter().map(of).collect::<Vec<_>>());
        prop_assert!(memory == bytes);
    }
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..5000, 0..5)
}

#[test]
fn pieces_shorter_than_blocks_are_reported() {
    for (to, from) in [(4999, 5000), (5000, 4999), (0, 5000), (5000, 0)] {
        let (mut memory, bytes) = (vec![0; to], bytes(from));
        let mut sums = Vec::new();
        let all = copy_blocks(
            [&mut memory[..]],
            [SourcePiece::Private(&bytes)],
            [2500, 2500],
            CopyMode::NonTemporal,
            |sum| sums.push(sum),
        );
        assert!(!all, "to={to} from={from}");
        assert_eq!(sums.len(), usize::from(to.min(from) > 0), "to={to} from={from}");
    }
}

#[test]
fn copier_keeps_no_state_between_copies() {
    for stores in STORES {
        let mut copier = Copier::new(stores);
        // The previous copy may have any length, and may have ended in the middle of a block.
        for (len, available) in
            [(5000, 5000), (100, 100), (5000, 2600), (300, 300), (0, 0), (70, 10), (5000, 5000)]
        {
            let (mut memory, bytes) = (vec![0; len], bytes(available));
            let mut sums = Vec::new();
            let all =
                copier.copy([&mut memory[..]], [SourcePiece::Private(&bytes)], [len], |sum| {
                    sums.push(sum)
                });
            assert_eq!(all, len == available, "len={len} available={available}");
            assert_eq!(
                sums,
                if all { vec![checksum(&bytes)] } else { vec![] },
                "len={len} available={available}"
            );
            assert!(memory[..available] == bytes, "len={len} available={available}");
        }
    }
}

#[test]
fn bytes_in_place_are_hashed() {
    for len in [0, 100, 241, 5000, 32_768] {
        let (mut whole, mut pieces) = (
            BlockCopy::new(len, CopyMode::NonTemporal),
            BlockCopy::new(len, CopyMode::NonTemporal),
        );
        let source = bytes(len);
        whole.hash_in_place(&source);
        let (first, rest) = source.split_at(len / 3);
        pieces.hash_in_place(first);
        let mut to = vec![0; rest.len()];
        pieces.piece(&mut to, rest);
        assert_eq!(whole.finish().to_le_bytes(), checksum(&source), "len={len}");
        assert_eq!(pieces.finish().to_le_bytes(), checksum(&source), "len={len}");
        assert!(to == rest, "len={len}");
    }
}

/// Stops the other thread, also when an assertion fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[cfg_attr(
    pagelith_tsan,
    ignore = "a data race on purpose: another process's bytes change during a copy"
)]
fn checksum_matches_copy_of_changing_bytes() {
    // A page-sized block, and one so short that each of its bytes changes all the time; each length
    // ends within a stripe and at the end of one.
    for words in [4096, 40] {
        let shared: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        let (mut turn, mut mixtures, mut before) = (0, 0, Vec::new());
        std::thread::scope(|scope| {
            let _stop_on_drop = StopOnDrop(&stop);
            scope.spawn(|| {
                let mut value = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    value = value.wrapping_add(0x0101_0101_0101_0101);
                    shared.iter().for_each(|word| word.store(value, Ordering::Relaxed));
                }
            });
            while mixtures < 1000 {
                let len = words * 8 - turn % 2 * 37;
                let mut to = vec![0; len];
                let mut copy = BlockCopy::new(len, STORES[turn % 4 / 2]);
                // SAFETY: `len` bytes, written by a thread that represents another process.
                unsafe { copy.copy_shared(&mut to, shared.as_ptr().cast()) };
                assert_eq!(copy.finish().to_le_bytes(), checksum(&to), "words={words} turn={turn}");
                // Unchanged bytes prove nothing: the other thread is waiting for a CPU.
                match to == before || to.first() == to.last() {
                    true => std::thread::yield_now(),
                    false => mixtures += 1,
                }
                (turn, before) = (turn + 1, to);
            }
        });
    }
}

#[test]
#[should_panic(expected = "no more than the block has")]
fn piece_beyond_block_panics() {
    BlockCopy::new(300, CopyMode::Cached).piece(&mut [0; 301], &[0; 301]);
}

#[test]
fn finish_of_incomplete_block_panics() {
    for len in [1, 300, 5000] {
        let mut copy = BlockCopy::new(len, CopyMode::Cached);
        copy.piece(&mut vec![0; len - 1], &vec![0; len - 1]);
        let finished = catch_unwind(AssertUnwindSafe(|| copy.finish()));
        assert!(finished.is_err(), "len={len}");
    }
}
