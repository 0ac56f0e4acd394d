//! Which pages of the arena are taken. Plain numbers: the memory itself is
//! [`ArenaMemory`](super::arena::ArenaMemory), which readers and writers use without this allocator's lock.
//!
//! Invariant: extents that are out never share a page. Whatever else is wrong with a store, two objects are
//! never in the same memory.
//!
//! Waste. Inside: less than 4096 bytes an extent, 6 % at 64 KiB objects in the worst case, 0.005 % at 75 MB.
//! Outside: an extent is one run, so free pages can be too scattered for a large one; `alloc` then says
//! `None` while [`ArenaSpace::free_bytes`] would be enough. Equal sizes (one pool) do not scatter. With mixed
//! sizes the answer is eviction: freed neighbours join, and evicting by recency frees the pages of one chain,
//! which mostly lie side by side. [`ArenaSpace::largest_free_bytes`] beside `free_bytes` shows how bad it is.
//! Nothing is ever moved: readers hold addresses.

use pagelith_io::runs::Runs;
use pagelith_layouts::align::{ALIGN, align_up};

/// A run of whole pages of the arena that holds `bytes` bytes, then zeros up to the next multiple of 4096.
/// Plain numbers: holding one gives no right to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Where it starts, in pages of 4096 bytes.
    pub first_page: u32,
    /// Length in bytes without the padding, at least 1.
    pub bytes: u64,
}

impl Extent {
    /// Length in pages of 4096 bytes.
    pub fn pages(self) -> u32 {
        u32::try_from(self.bytes.div_ceil(ALIGN)).unwrap_or(u32::MAX)
    }

    /// Length in bytes with the padding.
    pub fn padded_bytes(self) -> u64 {
        align_up(self.bytes)
    }

    /// The same pages for `bytes` bytes, if those take as many.
    pub fn of_as_many_pages(self, bytes: u64) -> Option<Extent> {
        let other = Extent { bytes, ..self };
        (bytes > 0 && other.pages() == self.pages()).then_some(other)
    }

    /// Where it starts in the arena, in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.first_page) * ALIGN
    }
}

/// Allocates extents. Not shared: the store's locked core owns it.
#[derive(Debug)]
pub struct ArenaSpace {
    runs: Runs,
    pages: u32,
    in_use_peak: u32,
}

impl ArenaSpace {
    /// All of `pages` pages of 4096 bytes free.
    pub(super) fn new(pages: u32) -> ArenaSpace {
        ArenaSpace { runs: Runs::new(pages), pages, in_use_peak: 0 }
    }

    /// An extent for `bytes` bytes, whose memory still holds what was there before. `None` if no run of free
    /// pages is long enough, or for 0 bytes.
    pub fn alloc(&mut self, bytes: u64) -> Option<Extent> {
        let pages = u32::try_from(bytes.div_ceil(ALIGN)).ok().filter(|pages| *pages > 0)?;
        let first_page = self.runs.alloc(pages)?;
        self.in_use_peak = self.in_use_peak.max(self.pages_in_use());
        Some(Extent { first_page, bytes })
    }

    /// Take an extent back that `alloc` gave out, once nothing reads or writes it any more.
    ///
    /// # Panics
    /// If a page of the extent is free already: to go on would hand out the same memory twice, and that is
    /// the one thing a store may never do.
    pub fn free(&mut self, extent: Extent) {
        self.runs.free(extent.first_page, extent.pages());
    }

    /// Size of the arena in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.pages) * ALIGN
    }

    /// Bytes in free pages.
    pub fn free_bytes(&self) -> u64 {
        u64::from(self.runs.free_pages()) * ALIGN
    }

    /// Bytes in pages that are out, padding included.
    pub fn in_use_bytes(&self) -> u64 {
        u64::from(self.pages_in_use()) * ALIGN
    }

    /// The most that `in_use_bytes` ever was.
    pub fn peak_bytes(&self) -> u64 {
        u64::from(self.in_use_peak) * ALIGN
    }

    /// Bytes of the longest run of free pages: the largest extent that can be had now.
    pub fn largest_free_bytes(&self) -> u64 {
        u64::from(self.runs.largest_free()) * ALIGN
    }

    fn pages_in_use(&self) -> u32 {
        self.pages - self.runs.free_pages()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_round_up_to_pages_and_the_whole_arena_is_one_extent() {
        let mut space = ArenaSpace::new(4);
        let pages = |space: &mut ArenaSpace, bytes| {
            let extent = space.alloc(bytes)?;
            space.free(extent);
            Some((extent.pages(), extent.padded_bytes()))
        };
        assert_eq!(pages(&mut space, 1), Some((1, 4096)));
        assert_eq!(pages(&mut space, 4096), Some((1, 4096)));
        assert_eq!(pages(&mut space, 4097), Some((2, 8192)));
        assert_eq!(pages(&mut space, 4 * 4096), Some((4, 4 * 4096)));
        assert_eq!(pages(&mut space, 4 * 4096 + 1), None);
        assert_eq!(pages(&mut space, 0), None);
        assert_eq!(pages(&mut space, u64::MAX), None);
    }

    #[test]
    fn scattered_free_pages_are_visible_in_the_figures() {
        let mut space = ArenaSpace::new(4);
        let extents: Vec<Extent> = (0..4).map(|_| space.alloc(4096).expect("room")).collect();
        assert_eq!((space.in_use_bytes(), space.free_bytes(), space.alloc(1)), (16384, 0, None));
        space.free(extents[0]);
        space.free(extents[2]);
        assert_eq!((space.free_bytes(), space.largest_free_bytes()), (8192, 4096));
        assert_eq!(space.alloc(8192), None, "two pages are free, but not side by side");
        space.free(extents[1]);
        assert_eq!(space.largest_free_bytes(), 3 * 4096);
        assert_eq!((space.peak_bytes(), space.capacity_bytes()), (16384, 16384));
    }

    proptest! {
        #[test]
        fn extents_that_are_out_never_overlap(
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
                    let first = extent.first_page as usize;
                    for page in &mut owner[first..first + extent.pages() as usize] {
                        prop_assert_eq!(page.replace(extent.first_page), None, "two extents on a page");
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
    fn freeing_twice_is_not_survived() {
        let mut space = ArenaSpace::new(4);
        let extent = space.alloc(4096).expect("room");
        space.free(extent);
        space.free(extent);
    }
}
