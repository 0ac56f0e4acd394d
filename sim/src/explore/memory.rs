//! Destinations of gets, and checks of their memory afterwards.
//!
//! A slot of memory is lent to one get; guard bytes surround its pieces. When the get has returned,
//! the slot rests for a while and is compared again before its reuse: bytes that changed meanwhile
//! were written by an operation that should have ended.

#![expect(
    unsafe_code,
    reason = "lends memory to gets in flight, as bindings of other languages do"
)]

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use pagelith::{AlignedBuf, Destination, Source};
use pagelith_io::shm::SharedRegion;
use pagelith_layouts::checksum::{Checksum, checksum};

use crate::entropy::SplitMix64;

/// Guard bytes on each side of a piece, and their value.
const GUARD: usize = 32;
const GUARD_BYTE: u8 = 0xA5;
/// Bytes of a small and of a large slot; the larger fits an object, page borders and guards.
const SIZES: [usize; 2] = [48 << 10, 160 << 10];
/// Slots that rest before their reuse.
const RETIRED_MAX: usize = 24;

/// The layout of a destination in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryShape {
    /// One piece that starts at a multiple of 4096.
    Aligned,
    /// One piece at any address.
    Ragged,
    /// Several pieces that start at multiples of 4096; all but the last are whole pages.
    Pages,
    /// Several pieces at any address.
    Scattered,
}

impl MemoryShape {
    /// A random shape.
    pub fn draw(rng: &mut SplitMix64) -> MemoryShape {
        [
            MemoryShape::Aligned,
            MemoryShape::Aligned,
            MemoryShape::Ragged,
            MemoryShape::Pages,
            MemoryShape::Scattered,
        ][rng.below(5) as usize]
    }
}

#[derive(Debug)]
struct Slot {
    ptr: NonNull<u8>,
    len: usize,
    keep: Arc<AlignedBuf>,
}

// SAFETY: the pointer is to the mapping that `keep` keeps, which no thread owns.
unsafe impl Send for Slot {}

/// A destination: a slot, and pieces within it.
#[derive(Debug)]
pub struct Target {
    slot: Slot,
    pieces: Vec<(usize, usize)>,
}

impl Target {
    /// The memory as the destination of one get.
    pub fn destination(&self) -> Destination {
        // SAFETY: a slot's pointer is to its mapping, which is never null.
        let piece = |(at, len): &(usize, usize)| (unsafe { self.slot.ptr.add(*at) }, *len);
        let pieces: Vec<_> = self.pieces.iter().map(piece).collect();
        // SAFETY: the pieces are within the slot's mapping (checked when they were made) and
        // initialised (mappings are zeroed). Nothing reads them before the get has returned the
        // destination. The mapping lives as long as the clone of `keep`.
        unsafe { Destination::borrowed(&pieces, Some(self.slot.keep.clone())) }
    }

    /// The memory as the source of one put.
    pub fn source(&self) -> Source {
        // SAFETY: a slot's pointer is to its mapping, which is never null.
        let piece = |(at, len): &(usize, usize)| (unsafe { self.slot.ptr.add(*at) }, *len);
        let pieces: Vec<_> = self.pieces.iter().map(piece).collect();
        // SAFETY: as for a destination, and nothing writes it before the put has returned it.
        unsafe { Source::borrowed(&pieces, Some(self.slot.keep.clone())) }
    }

    /// Whether this target is the only owner of the memory.
    pub fn is_sole_owner(&self) -> bool {
        Arc::strong_count(&self.slot.keep) == 1
    }

    /// Writes bytes into the pieces, in order: as many as they hold.
    pub fn fill(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        for (at, len) in &self.pieces {
            let (now, later) = left.split_at(*len);
            // SAFETY: within the mapping. The operation that it was lent to has ended; a violation
            // of that is what the test looks for.
            unsafe { self.slot.ptr.as_ptr().add(*at).copy_from_nonoverlapping(now.as_ptr(), *len) };
            left = later;
        }
    }

    /// Fills the pieces with one byte.
    pub fn fill_with(&mut self, byte: u8) {
        let len = self.pieces.iter().map(|(_, len)| len).sum();
        self.fill(&vec![byte; len]);
    }

    /// The slot's bytes from its first to its last guard. The get has ended, and its destination is
    /// dropped.
    fn bytes(&self) -> &[u8] {
        let (from, to) = self.span();
        // SAFETY: within the mapping, initialised, and nothing else owns the memory: the
        // destination's parts were dropped with the get. If a stray operation still had it, the
        // test would find that.
        unsafe { std::slice::from_raw_parts(self.slot.ptr.as_ptr().add(from), to - from) }
    }

    fn span(&self) -> (usize, usize) {
        let first = self.pieces.first().map_or(GUARD, |(at, _)| *at);
        let last = self.pieces.last().map_or(GUARD, |(at, len)| at + len);
        (first - GUARD, last + GUARD)
    }

    /// The bytes of each piece with their offset in the range of the get. The get has ended.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, &[u8])> + Clone {
        let from = self.span().0;
        let all = self.bytes();
        self.pieces.iter().scan(0, move |done, (at, len)| {
            let place = *done;
            *done += len;
            Some((place, &all[at - from..at - from + len]))
        })
    }

    /// Whether the guard bytes are unchanged.
    pub fn guards_hold(&self) -> bool {
        let from = self.span().0;
        let all = self.bytes();
        let mut edge = 0;
        self.pieces.iter().all(|(at, len)| {
            let before = &all[edge.max(at - from - GUARD)..at - from];
            let after = &all[at - from + len..at - from + len + GUARD];
            edge = at - from + len;
            before.iter().chain(after).all(|b| *b == GUARD_BYTE)
        })
    }
}

/// The memory of a run.
#[derive(Debug, Default)]
pub struct Memory {
    free: [Vec<Slot>; SIZES.len()],
    retired: VecDeque<(Target, Checksum)>,
}

impl Memory {
    /// Memory that processes on the host can share, and its regions; memory allocated beyond it is
    /// not shared.
    pub fn shown() -> (Memory, Vec<Arc<SharedRegion>>) {
        let mut memory = Memory::default();
        let regions = SIZES.iter().zip(&mut memory.free).map(|(size, free)| {
            let (buffers, region) = AlignedBuf::shown(RETIRED_MAX + 8, *size).expect("memory");
            free.extend(buffers.into_iter().map(Slot::of));
            region
        });
        let regions = regions.collect();
        (memory, regions)
    }

    /// A destination of `len` bytes.
    pub fn target(&mut self, len: usize, shape: MemoryShape, rng: &mut SplitMix64) -> Target {
        let mut cuts = vec![0, len];
        if matches!(shape, MemoryShape::Pages | MemoryShape::Scattered) {
            let unit = if shape == MemoryShape::Pages { 4096 } else { 1 };
            let cut = |rng: &mut SplitMix64| (1 + rng.below((len / unit) as u64)) as usize * unit;
            cuts.extend((0..1 + rng.below(2)).map(|_| cut(rng)).filter(|cut| *cut < len));
            cuts.sort_unstable();
            cuts.dedup();
        }
        let mut at = 0;
        let mut pieces = Vec::with_capacity(cuts.len() - 1);
        for cut in cuts.windows(2) {
            at += GUARD;
            match shape {
                MemoryShape::Aligned | MemoryShape::Pages => at = at.next_multiple_of(4096),
                MemoryShape::Ragged | MemoryShape::Scattered => at += 1 + rng.below(60) as usize,
            }
            pieces.push((at, cut[1] - cut[0]));
            at += cut[1] - cut[0] + GUARD;
        }
        let class =
            SIZES.iter().position(|size| at <= *size).expect("a slot takes every destination");
        let slot = self.free[class].pop().unwrap_or_else(|| Slot::new(SIZES[class]));
        assert!(at <= slot.len, "pieces inside of the slot");
        for (at, len) in &pieces {
            slot.guard(at - GUARD);
            slot.guard(at + len);
        }
        Target { slot, pieces }
    }

    /// A get has ended: keeps its memory for a while. Returns false if memory of an earlier get has
    /// changed.
    pub fn retire(&mut self, target: Target) -> bool {
        let sum = checksum(target.bytes());
        self.retired.push_back((target, sum));
        self.retired.len() <= RETIRED_MAX || self.check_oldest()
    }

    /// Checks all resting memory; false if some has changed.
    pub fn check_all(&mut self) -> bool {
        let mut held = true;
        while !self.retired.is_empty() {
            held &= self.check_oldest();
        }
        held
    }

    fn check_oldest(&mut self) -> bool {
        let Some((target, sum)) = self.retired.pop_front() else { return true };
        let held = checksum(target.bytes()) == sum;
        let class = SIZES.iter().position(|size| *size == target.slot.len).unwrap_or(0);
        self.free[class].push(target.slot);
        held
    }
}

impl Slot {
    fn new(len: usize) -> Slot {
        Slot::of(AlignedBuf::new(len).expect("memory"))
    }

    fn of(mut buf: AlignedBuf) -> Slot {
        let (ptr, len) = (NonNull::from(&mut buf[..]).cast(), buf.len());
        Slot { ptr, len, keep: Arc::new(buf) }
    }

    /// Writes guard bytes at `at`.
    fn guard(&self, at: usize) {
        assert!(at + GUARD <= self.len, "a guard inside of the slot");
        // SAFETY: within the mapping, and the slot is not lent yet.
        unsafe { self.ptr.as_ptr().add(at).write_bytes(GUARD_BYTE, GUARD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_pieces_cover_length_and_guards_hold() {
        let (mut memory, mut rng) = (Memory::default(), SplitMix64::new(1));
        for round in 0..200 {
            let len = 1 + rng.below(100_000) as usize;
            let shape = MemoryShape::draw(&mut rng);
            let target = memory.target(len, shape, &mut rng);
            assert_eq!(target.destination().len(), len as u64, "round={round}");
            let ends: Vec<_> = target.pieces().map(|(at, bytes)| at + bytes.len()).collect();
            assert_eq!(ends.last(), Some(&len), "round={round}");
            assert!(target.guards_hold(), "round={round} {shape:?}");
            assert!(memory.retire(target));
        }
        assert!(memory.check_all());
    }

    #[test]
    fn late_write_to_resting_memory_is_detected() {
        let (mut memory, mut rng) = (Memory::default(), SplitMix64::new(1));
        let target = memory.target(5000, MemoryShape::Aligned, &mut rng);
        let ptr = target.slot.ptr;
        let at = target.pieces[0].0;
        assert!(memory.retire(target));
        // SAFETY: within the mapping, which the resting slot keeps.
        unsafe { ptr.as_ptr().add(at + 4999).write(1) };
        assert!(!memory.check_all());
    }

    #[test]
    fn write_outside_piece_is_detected() {
        let (mut memory, mut rng) = (Memory::default(), SplitMix64::new(1));
        let target = memory.target(100, MemoryShape::Ragged, &mut rng);
        let (at, len) = target.pieces[0];
        // SAFETY: within the mapping, which the target keeps.
        unsafe { target.slot.ptr.as_ptr().add(at + len).write(1) };
        assert!(!target.guards_hold());
    }
}
