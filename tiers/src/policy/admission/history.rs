//! The history of pages, in a tier or in none: class and time of the last touch of each, in 4
//! bytes.
//!
//! A set-associative table of buckets of one cache line. An entry has a tag of 12 bits: one in 250
//! pages that are not in the table is taken for another page, which costs a wrong class and never a
//! wrong byte. The page that was touched longest ago leaves a full bucket.
//!
//! ```text
//! tag 12, never 0 | refused 1 | class 7 | unit of time of the last touch 12
//! ```

use super::class::{CLASS_BITS, PageClass};
use super::page_hash::PageHash;

const BUCKET_ENTRIES: usize = 16;
const TAG_BITS: u32 = 12;
const TIME_BITS: u32 = 12;
const TIME_MASK: u32 = (1 << TIME_BITS) - 1;
const CLASS_AT: u32 = TIME_BITS;
const REFUSED_AT: u32 = CLASS_AT + CLASS_BITS;
const TAG_AT: u32 = REFUSED_AT + 1;
/// Entries older than this are removed, before their time wraps.
const AGE_MAX: u32 = 1 << (TIME_BITS - 1);

const _: () = assert!(TAG_AT + TAG_BITS == u32::BITS);

/// A bucket; 0 is no entry, since tags are not 0.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket([u32; BUCKET_ENTRIES]);

/// The table.
pub(super) struct History {
    buckets: Vec<Bucket>,
    /// Next bucket to be swept of old entries.
    sweep: usize,
}

/// Bytes of a table for `pages` pages.
pub(super) fn bytes_for(pages: u64) -> u64 {
    pages.div_ceil(BUCKET_ENTRIES as u64).max(1) * size_of::<Bucket>() as u64
}

/// Class of a page at its last touch, and the units of time since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LastTouch {
    pub(super) class: PageClass,
    pub(super) age: u32,
    /// It was not written then.
    pub(super) refused: bool,
}

impl History {
    /// A table for `pages` pages.
    pub(super) fn new(pages: u64) -> History {
        let count = (bytes_for(pages) / size_of::<Bucket>() as u64) as usize;
        let mut buckets = pagelith_io::hugepage::table(count);
        buckets.resize(count, Bucket([0; BUCKET_ENTRIES]));
        History { buckets, sweep: 0 }
    }

    fn bucket(&mut self, page: PageHash) -> &mut Bucket {
        let at = (u128::from(page.0) * self.buckets.len() as u128) >> 64;
        &mut self.buckets[at as usize]
    }

    /// The last touch of a page, if it is known.
    pub(super) fn get(&mut self, page: PageHash, now: u32) -> Option<LastTouch> {
        let tag = tag_of(page);
        let entry = *self.bucket(page).0.iter().find(|entry| **entry >> TAG_AT == tag)?;
        let class = PageClass::from_number(entry >> CLASS_AT);
        Some(LastTouch { class, age: age(now, entry), refused: entry >> REFUSED_AT & 1 == 1 })
    }

    /// Note a touch.
    pub(super) fn set(&mut self, page: PageHash, class: PageClass, now: u32) {
        let tag = tag_of(page);
        let entries = &mut self.bucket(page).0;
        let oldest = || {
            let of = |entry: u32| if entry == 0 { u32::MAX } else { age(now, entry) };
            (0..BUCKET_ENTRIES).max_by_key(|at| of(entries[*at])).unwrap_or(0)
        };
        let at = entries.iter().position(|entry| *entry >> TAG_AT == tag).unwrap_or_else(oldest);
        entries[at] = tag << TAG_AT | (class.number() as u32) << CLASS_AT | now & TIME_MASK;
    }

    /// Note whether the page that was touched last was refused.
    pub(super) fn set_refused(&mut self, page: PageHash, refused: bool) {
        let tag = tag_of(page);
        let entry = self.bucket(page).0.iter_mut().find(|entry| **entry >> TAG_AT == tag);
        entry.into_iter().for_each(|entry| {
            *entry = *entry & !(1 << REFUSED_AT) | u32::from(refused) << REFUSED_AT;
        });
    }

    /// Forget a page.
    pub(super) fn forget(&mut self, page: PageHash) {
        let tag = tag_of(page);
        let entries = self.bucket(page).0.iter_mut();
        entries.filter(|entry| **entry >> TAG_AT == tag).for_each(|entry| *entry = 0);
    }

    /// Time has advanced by one unit: remove old entries of a part of the table. All of it is swept
    /// within a quarter of the time in which entries wrap.
    pub(super) fn tick(&mut self, now: u32) {
        let part = self.buckets.len().div_ceil((AGE_MAX / 2) as usize);
        for _ in 0..part {
            let bucket = &mut self.buckets[self.sweep];
            let old = |entry: &&mut u32| age(now, **entry) > AGE_MAX;
            bucket.0.iter_mut().filter(old).for_each(|entry| *entry = 0);
            self.sweep = (self.sweep + 1) % self.buckets.len();
        }
    }
}

fn tag_of(page: PageHash) -> u32 {
    // The upper bits choose the bucket.
    (page.0 as u32 & ((1 << TAG_BITS) - 1)).max(1)
}

fn age(now: u32, entry: u32) -> u32 {
    now.wrapping_sub(entry) & TIME_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that scatters.
    fn page(n: u64) -> PageHash {
        PageHash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn class(number: u32) -> PageClass {
        PageClass::from_number(number)
    }

    #[test]
    fn last_touch_of_a_page_is_known_with_its_age() {
        let mut history = History::new(1000);
        for n in 0..500 {
            history.set(page(n), class(n as u32), 10);
        }
        history.set(page(7), class(99), 30);
        history.set_refused(page(7), true);
        let known = history.get(page(7), 35).expect("known");
        assert_eq!(known, LastTouch { class: class(99), age: 5, refused: true });
        assert_eq!(
            history.get(page(8), 35).map(|last| (last.class, last.age)),
            Some((class(8), 25))
        );
        history.set_refused(page(7), false);
        assert_eq!(history.get(page(7), 35).map(|last| last.refused), Some(false));
        history.forget(page(7));
        assert_eq!(history.get(page(7), 35), None);
    }

    #[test]
    fn pages_touched_last_stay_in_a_table_that_is_too_small() {
        let mut history = History::new(4096);
        (0..40_960).for_each(|n| history.set(page(n), class(1), n as u32 / 256));
        let known = |range: std::ops::Range<u64>, history: &mut History| {
            range.filter(|n| history.get(page(*n), 160).is_some_and(|l| l.age < 40)).count()
        };
        let young = known(38_912..40_960, &mut history);
        assert!(young > 2000, "young={young}");
        let old = known(0..20_480, &mut history);
        assert!(old < 20_480 / 50, "old={old}: other pages with the same tag");
    }

    #[test]
    fn entry_is_removed_before_its_time_wraps() {
        let mut history = History::new(1000);
        history.set(page(1), class(3), 5);
        for now in 6..20_000 {
            history.tick(now);
            if let Some(last) = history.get(page(1), now) {
                assert_eq!(last.age, now - 5);
            }
        }
        assert_eq!(history.get(page(1), 20_000), None);
    }

    #[test]
    fn memory_is_four_bytes_a_page() {
        assert_eq!(bytes_for(1 << 20), 4 << 20);
        assert_eq!(bytes_for(0), 64);
    }
}
