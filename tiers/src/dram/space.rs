//! The allocator of the arena, in units of 4 KiB. It works
//! on numbers of units; the memory itself is
//! [`ArenaMemory`](super::arena::ArenaMemory), which readers and writers use without this
//! allocator's lock.
//!
//! Invariant: allocated extents never share a unit. Two objects never use the same memory, even if
//! other state of the store is wrong.
//!
//! Fragmentation:
//! - Internal: less than 4096 bytes per extent, that is at most 6 % for objects of 64 KiB and 0.005
//!   % for 75 MB.
//! - External: an extent is one run of units, so `alloc` may return `None` for a large one although
//!   [`ArenaSpace::free_bytes`] suffices. Extents of equal size (one pool) do not cause this. With
//!   mixed sizes, eviction resolves it: adjacent free runs merge, and eviction often
//!   frees pages of one request together, which are mostly adjacent. The ratio of
//!   [`ArenaSpace::largest_free_bytes`] to `free_bytes` is the measure.
//! - Extents are never moved, because readers hold addresses.

use pagelith_io::page_allocator::Runs;
use pagelith_layouts::align::{ALIGN, align_up};

/// A run of whole 4 KiB units of the arena with `bytes` bytes, padded with zeros to a multiple of
/// 4096. It is only a pair of numbers and gives no access to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Number of its first 4 KiB unit.
    pub first_unit: u32,
    /// Length in bytes without the padding, at least 1.
    pub bytes: u64,
}

impl Extent {
    /// Length in 4 KiB units.
    pub fn units(self) -> u32 {
        u32::try_from(self.bytes.div_ceil(ALIGN)).unwrap_or(u32::MAX)
    }

    /// Length in bytes with the padding.
    pub fn padded_bytes(self) -> u64 {
        align_up(self.bytes)
    }

    /// The same units with `bytes` bytes, if that length needs as many.
    pub fn resized_in_place(self, bytes: u64) -> Option<Extent> {
        let other = Extent { bytes, ..self };
        (bytes > 0 && other.units() == self.units()).then_some(other)
    }

    /// Offset in the arena in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.first_unit) * ALIGN
    }
}

/// The allocator of extents. It is not shared: the store's core owns it, under the core lock.
#[derive(Debug)]
pub struct ArenaSpace {
    runs: Runs,
    units: u32,
    in_use_peak: u32,
}

impl ArenaSpace {
    /// An allocator of `pages` free units of 4 KiB.
    pub(super) fn new(units: u32) -> ArenaSpace {
        ArenaSpace { runs: Runs::new(units), units, in_use_peak: 0 }
    }

    /// Allocate an extent for `bytes` bytes; its memory has bytes of earlier owners. `None` if no
    /// run of free units is long enough, or if `bytes` is 0.
    pub fn alloc(&mut self, bytes: u64) -> Option<Extent> {
        let units = u32::try_from(bytes.div_ceil(ALIGN)).ok().filter(|units| *units > 0)?;
        let first_unit = self.runs.alloc(units)?;
        self.in_use_peak = self.in_use_peak.max(self.units_in_use());
        Some(Extent { first_unit, bytes })
    }

    /// Free an extent that nothing reads or writes any more.
    ///
    /// # Panics
    /// If a unit of the extent is free already. To continue would allocate the same memory twice,
    /// which a store must never do.
    pub fn free(&mut self, extent: Extent) {
        self.runs.free(extent.first_unit, extent.units());
    }

    /// Size of the arena in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.units) * ALIGN
    }

    /// Bytes in free units.
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.runs.free_pages()) * ALIGN
    }

    /// Bytes in allocated units, padding included.
    pub fn in_use_bytes(&self) -> u64 {
        u64::from(self.units_in_use()) * ALIGN
    }

    /// Maximum of `in_use_bytes` so far.
    pub fn peak_bytes(&self) -> u64 {
        u64::from(self.in_use_peak) * ALIGN
    }

    /// Bytes of the longest run of free units: the largest extent that can be allocated now.
    pub fn largest_free_bytes(&self) -> u64 {
        u64::from(self.runs.largest_free()) * ALIGN
    }

    fn units_in_use(&self) -> u32 {
        self.units - self.runs.free_pages()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn extent_size_rounds_up_to_units() {
        let mut space = ArenaSpace::new(4);
        let units = |space: &mut ArenaSpace, bytes| {
            let extent = space.alloc(bytes)?;
            space.free(extent);
            Some((extent.units(), extent.padded_bytes()))
        };
        assert_eq!(units(&mut space, 1), Some((1, 4096)));
        assert_eq!(units(&mut space, 4096), Some((1, 4096)));
        assert_eq!(units(&mut space, 4097), Some((2, 8192)));
        assert_eq!(units(&mut space, 4 * 4096), Some((4, 4 * 4096)));
        assert_eq!(units(&mut space, 4 * 4096 + 1), None);
        assert_eq!(units(&mut space, 0), None);
        assert_eq!(units(&mut space, u64::MAX), None);
    }

    #[test]
    fn fragmentation_shows_in_largest_free_bytes() {
        let mut space = ArenaSpace::new(4);
        let extents: Vec<Extent> = (0..4).map(|_| space.alloc(4096).expect("room")).collect();
        assert_eq!((space.in_use_bytes(), space.free_bytes(), space.alloc(1)), (16384, 0, None));
        space.free(extents[0]);
        space.free(extents[2]);
        assert_eq!((space.free_bytes(), space.largest_free_bytes()), (8192, 4096));
        assert_eq!(space.alloc(8192), None, "two units are free, but not adjacent");
        space.free(extents[1]);
        assert_eq!(space.largest_free_bytes(), 3 * 4096);
        assert_eq!((space.peak_bytes(), space.capacity_bytes()), (16384, 16384));
    }

    proptest! {
        #[test]
        fn allocated_extents_never_overlap(
            steps in prop::collection::vec(
                (any::<bool>(), 1u64..40_000, any::<prop::sample::Index>()),
                1..200,
            )
        ) {
            const PAGES: u32 = 64;
            let mut space = ArenaSpace::new(PAGES);
            let mut out: Vec<Extent> = Vec::new();
            let mut peak = 0;
            for (alloc, bytes, which) in steps {
                if alloc {
                    let largest = space.largest_free_bytes();
                    let extent = space.alloc(bytes);
                    prop_assert_eq!(extent.is_some(), align_up(bytes) <= largest);
                    out.extend(extent);
                } else if !out.is_empty() {
                    space.free(out.swap_remove(which.index(out.len())));
                }
                let mut owner = [None; PAGES as usize];
                for extent in &out {
                    let first = extent.first_unit as usize;
                    for page in &mut owner[first..first + extent.units() as usize] {
                        prop_assert_eq!(page.replace(extent.first_unit), None, "two extents on a page");
                    }
                }
                let in_use = owner.iter().flatten().count() as u64 * ALIGN;
                peak = peak.max(in_use);
                prop_assert_eq!(space.in_use_bytes(), in_use);
                prop_assert_eq!(space.free_bytes(), space.capacity_bytes() - in_use);
                prop_assert_eq!(space.peak_bytes(), peak);
            }
            for extent in out {
                space.free(extent);
            }
            prop_assert_eq!(space.largest_free_bytes(), space.capacity_bytes());
        }
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn double_free_panics() {
        let mut space = ArenaSpace::new(4);
        let extent = space.alloc(4096).expect("room");
        space.free(extent);
        space.free(extent);
    }
}
