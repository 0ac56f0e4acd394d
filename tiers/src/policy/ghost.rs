//! The ghost queue: pages that were evicted lately. Its table has 13 to 26 bytes for each.
//!
//! A set-associative table of buckets of one cache line. An entry has 32 bits of the page's
//! fingerprint and the number of its eviction. It is in the queue while fewer evictions followed
//! than the queue is long. Two pages are confused with a chance of 2^-29, which costs one place in
//! the wrong queue. (Yang et al., section 4.2, keep their ghost queue in such a table.)

const BUCKET_ENTRIES: usize = 8;
/// Entries of a bucket that a table of the right size uses on average. With more, buckets overflow
/// and lose their oldest entries.
const BUCKET_LOAD: usize = 5;

/// An entry; eviction 0 means none.
#[derive(Clone, Copy, Debug, Default)]
struct GhostEntry {
    hash: u32,
    eviction: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket([GhostEntry; BUCKET_ENTRIES]);

/// A bounded queue of pages.
#[derive(Debug, Default)]
pub(super) struct Ghost {
    buckets: Vec<Bucket>,
    /// Number of the last eviction, which wraps and is never 0.
    eviction: u32,
    len_max: usize,
}

impl Ghost {
    fn bucket(&mut self, hash: u32) -> Option<&mut Bucket> {
        let at = (u64::from(hash) * self.buckets.len() as u64) >> u32::BITS;
        self.buckets.get_mut(at as usize)
    }

    fn age(&self, entry: GhostEntry) -> u32 {
        if entry.eviction == 0 { u32::MAX } else { self.eviction.wrapping_sub(entry.eviction) }
    }

    /// Add a page as the newest, in a queue of `len_max` pages from now on.
    pub(super) fn remember(&mut self, hash: u32, len_max: usize) {
        self.len_max = len_max.min(u32::MAX as usize / 2);
        if self.len_max > self.buckets.len() * BUCKET_LOAD {
            self.grow();
        }
        self.eviction = self.eviction.wrapping_add(1).max(1);
        let entry = GhostEntry { hash, eviction: self.eviction };
        self.insert(entry);
    }

    /// Insert an entry in the place of the same page, or of the oldest one.
    fn insert(&mut self, new: GhostEntry) {
        let now = self.eviction;
        let Some(Bucket(entries)) = self.bucket(new.hash) else { return };
        let age = |entry: &GhostEntry| match entry.eviction {
            0 => u32::MAX,
            eviction => now.wrapping_sub(eviction),
        };
        let same = entries.iter().position(|e| e.eviction != 0 && e.hash == new.hash);
        let oldest = || (0..BUCKET_ENTRIES).max_by_key(|at| age(&entries[*at])).unwrap_or(0);
        let at = same.unwrap_or_else(oldest);
        entries[at] = new;
    }

    /// Twice the room that the queue needs.
    fn grow(&mut self) {
        let count = (2 * self.len_max).div_ceil(BUCKET_LOAD);
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); count]);
        for entry in old.into_iter().flat_map(|bucket| bucket.0) {
            if entry.eviction != 0 {
                self.insert(entry);
            }
        }
    }

    /// Remove a page; returns whether it was in the queue.
    pub(super) fn recall(&mut self, hash: u32) -> bool {
        let Some(Bucket(entries)) = self.bucket(hash).copied() else { return false };
        let Some(entry) = entries.into_iter().find(|e| e.eviction != 0 && e.hash == hash) else {
            return false;
        };
        let known = (self.age(entry) as usize) < self.len_max;
        if let Some(Bucket(entries)) = self.bucket(hash) {
            let same = entries.iter_mut().filter(|e| e.hash == hash);
            same.for_each(|entry| *entry = GhostEntry::default());
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes scatter.
    fn hash(page: u32) -> u32 {
        page.wrapping_mul(0x9e37_79b1)
    }

    #[test]
    fn ghost_queue_drops_oldest_first() {
        let mut ghost = Ghost::default();
        (0..5).for_each(|page| ghost.remember(hash(page), 3));
        let known: Vec<bool> = (0..5).map(|page| ghost.recall(hash(page))).collect();
        assert_eq!(known, [false, false, true, true, true]);
        assert!(!ghost.recall(hash(4)), "a page is recalled once");
    }

    #[test]
    fn ghost_remembered_again_is_newest() {
        let mut ghost = Ghost::default();
        [1, 2, 1, 3].into_iter().for_each(|page| ghost.remember(hash(page), 2));
        assert_eq!([1, 2, 3].map(|page| ghost.recall(hash(page))), [true, false, true]);
    }

    #[test]
    fn nearly_all_pages_of_a_long_queue_are_known_and_none_before() {
        let mut ghost = Ghost::default();
        let (pages, len) = (100_000, 20_000);
        (0..pages).for_each(|page| ghost.remember(hash(page), len as usize));
        assert_eq!((0..pages - len).filter(|page| ghost.recall(hash(*page))).count(), 0);
        let known = (pages - len..pages).filter(|page| ghost.recall(hash(*page))).count();
        assert!(known > len as usize * 97 / 100, "known={known}");
        let bytes = ghost.buckets.len() * size_of::<Bucket>();
        assert!(bytes <= len as usize * 26, "bytes={bytes}");
    }

    #[test]
    fn pages_stay_known_while_the_queue_grows() {
        let mut ghost = Ghost::default();
        (0..200).for_each(|page| ghost.remember(hash(page), 1 + page as usize));
        assert!((100..200).all(|page| ghost.recall(hash(page))));
    }
}
