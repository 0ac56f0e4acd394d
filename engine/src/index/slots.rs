//! The memory of the index: a ring of packed entries, and the arithmetic of homes and distances on it.

use pagelith_io::buffer::AlignedBuf;

use super::entry::{SLOT_BYTES, Slot, fingerprint_of};

/// A ring of `count` slots, all empty at first.
///
/// Mapped rather than allocated: the pages come zeroed and only when first touched, a mapping is aligned so
/// that no slot crosses a cache line, and a failure is a value instead of an abort.
pub(super) struct Slots {
    bytes: AlignedBuf,
    count: usize,
}

impl Slots {
    /// `count * SLOT_BYTES` must not overflow.
    pub(super) fn new(count: usize) -> std::io::Result<Slots> {
        Ok(Slots { bytes: AlignedBuf::new(count * SLOT_BYTES)?, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, at: usize) -> Slot {
        Slot::from_bytes(&self.bytes.as_chunks().0[at])
    }

    pub(super) fn fingerprint(&self, at: usize) -> u128 {
        fingerprint_of(&self.bytes.as_chunks().0[at])
    }

    pub(super) fn set(&mut self, at: usize, slot: Slot) {
        self.bytes.as_chunks_mut().0[at] = slot.to_bytes();
    }

    /// Where a fingerprint would like to be: its high half scaled to the ring (D. Lemire, "Fast random
    /// integer generation in an interval", 2019), so the ring need not be a power of two and homes are in the
    /// order of fingerprints. 0 if the ring has no slots.
    pub(super) fn home(&self, fingerprint: u128) -> usize {
        (((fingerprint >> 64) * self.count as u128) >> 64) as usize
    }

    /// How many slots past its home a fingerprint found at `at` lies.
    pub(super) fn distance(&self, at: usize, fingerprint: u128) -> usize {
        let home = self.home(fingerprint);
        if at >= home { at - home } else { at + self.count - home }
    }

    pub(super) fn next(&self, at: usize) -> usize {
        if at + 1 == self.count { 0 } else { at + 1 }
    }

    /// The slot `steps` after `from`; a few turns of the ring at most, so the sum cannot overflow.
    pub(super) fn forward(&self, from: usize, steps: usize) -> usize {
        (from + steps) % self.count
    }
}
