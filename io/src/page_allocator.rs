//! Runs of pages: a best-fit allocator over a fixed number of 4096-byte pages.
//!
//! Invariants: free runs are disjoint and never adjacent (neighbours are merged at once), and
//! `by_start` and `by_len` hold exactly the same runs. Deterministic: among the shortest runs that
//! fit, it takes the one with the lowest address.

use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// The free pages of a region.
#[derive(Debug)]
pub struct Runs {
    /// Start to length, to find neighbours.
    by_start: BTreeMap<u32, u32>,
    /// (length, start), to find the best fit.
    by_len: BTreeSet<(u32, u32)>,
    free: u32,
    pages: u32,
}

impl Runs {
    /// A region of `pages` free pages.
    pub fn new(pages: u32) -> Runs {
        let mut runs =
            Runs { by_start: BTreeMap::new(), by_len: BTreeSet::new(), free: pages, pages };
        if pages > 0 {
            runs.insert(0, pages);
        }
        runs
    }

    /// Allocate a run of `pages` pages and return its start page; `None` if no free run is that
    /// long, or for 0.
    pub fn alloc(&mut self, pages: u32) -> Option<u32> {
        if pages == 0 {
            return None;
        }
        let &(len, start) = self.by_len.range((pages, 0)..).next()?;
        self.remove(start, len);
        if len > pages {
            self.insert(start + pages, len - pages);
        }
        self.free -= pages;
        Some(start)
    }

    /// Free `pages` pages from `start`; they need not be a whole allocation.
    ///
    /// # Panics
    /// If a page is outside the region or already free: continuing would hand out the same bytes
    /// twice.
    pub fn free(&mut self, start: u32, pages: u32) {
        if pages == 0 {
            return;
        }
        let end = start.checked_add(pages).filter(|end| *end <= self.pages);
        let Some(end) = end else {
            panic!("freed outside the region: start={start} pages={pages}")
        };
        let before = self.by_start.range(..end).next_back().map(|(s, l)| (*s, *l));
        let after = self.by_start.get(&end).copied();
        let overlaps = before.is_some_and(|(s, l)| s + l > start);
        assert!(!overlaps, "freed twice: start={start} pages={pages}");

        let (mut from, mut len) = (start, pages);
        if let Some((s, l)) = before.filter(|(s, l)| s + l == start) {
            self.remove(s, l);
            (from, len) = (s, len + l);
        }
        if let Some(l) = after {
            self.remove(end, l);
            len += l;
        }
        self.insert(from, len);
        self.free += pages;
    }

    /// Free pages in all.
    pub fn free_pages(&self) -> u32 {
        self.free
    }

    /// Pages of the longest run that `alloc` could give.
    pub fn largest_free(&self) -> u32 {
        self.by_len.last().map_or(0, |(len, _)| *len)
    }

    fn insert(&mut self, start: u32, len: u32) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u32 = 64;

    /// A slow reference allocator.
    struct Bitmap(Vec<bool>);

    impl Bitmap {
        fn free_runs(&self) -> Vec<(u32, u32)> {
            let mut runs: Vec<(u32, u32)> = Vec::new();
            for page in (0..PAGES).filter(|p| !self.0[*p as usize]) {
                match runs.last_mut() {
                    Some((len, start)) if *start + *len == page => *len += 1,
                    _ => runs.push((1, page)),
                }
            }
            runs
        }

        fn best_fit(&self, pages: u32) -> Option<u32> {
            self.free_runs()
                .into_iter()
                .filter(|(len, _)| *len >= pages)
                .min()
                .map(|(_, start)| start)
        }

        fn set(&mut self, start: u32, pages: u32, taken: bool) {
            for page in start..start + pages {
                assert_ne!(self.0[page as usize], taken, "page={page} taken={taken} already");
                self.0[page as usize] = taken;
            }
        }
    }

    proptest! {
        #[test]
        fn page_runs_agree_with_bitmap_model(steps in prop::collection::vec((any::<bool>(), 1..20u32, any::<prop::sample::Index>()), 1..200)) {
            let mut runs = Runs::new(PAGES);
            let mut model = Bitmap(vec![false; PAGES as usize]);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (take, pages, which) in steps {
                if take || held.is_empty() {
                    let start = runs.alloc(pages);
                    prop_assert_eq!(start, model.best_fit(pages));
                    if let Some(start) = start {
                        model.set(start, pages, true);
                        held.push((start, pages));
                    }
                } else {
                    let (start, pages) = held.swap_remove(which.index(held.len()));
                    model.set(start, pages, false);
                    runs.free(start, pages);
                }
                let free = model.free_runs();
                prop_assert_eq!(runs.free_pages(), free.iter().map(|(len, _)| len).sum::<u32>());
                prop_assert_eq!(runs.largest_free(), free.iter().map(|(len, _)| *len).max().unwrap_or(0));
            }
            for (start, pages) in held {
                runs.free(start, pages);
            }
            prop_assert_eq!(runs.largest_free(), PAGES);
            prop_assert_eq!(runs.alloc(PAGES), Some(0));
        }
    }

    #[test]
    fn empty_region_allocates_nothing() {
        let mut runs = Runs::new(0);
        assert_eq!(runs.alloc(1), None);
        assert_eq!(runs.alloc(0), None);
        assert_eq!(runs.largest_free(), 0);
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn double_free_panics() {
        let mut runs = Runs::new(8);
        let start = runs.alloc(4).unwrap();
        runs.free(start, 4);
        runs.free(start + 1, 1);
    }

    #[test]
    #[should_panic(expected = "freed outside")]
    fn free_outside_region_panics() {
        Runs::new(8).free(7, 2);
    }
}
