//! The history of pages, in a tier or in none: class and time of the last touch of each, in 4
//! bytes.
//!
//! A set-associative table of buckets of one cache line. An entry has a tag of 12 bits: one in 250
//! pages that are not in the table is taken for another page, which costs a wrong class and never a
//! wrong byte. The page that was touched longest ago leaves a full bucket.
//!
//! ```text
//! tag 12, never 0 | refused 1 | class 7 | step of time of the last touch 12
//! ```

use pagelith_io::prefetch;

use super::class::{CLASS_BITS, PageClass};
use super::policy_key::PolicyKey;

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

/// A slot in the table, until it changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistorySlot {
    bucket: usize,
    at: usize,
}

/// Class of a page at its last touch, and the steps of time since.
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

    fn bucket_of(&self, page: PolicyKey) -> usize {
        ((u128::from(page.0) * self.buckets.len() as u128) >> 64) as usize
    }

    /// Prefetch the bucket of a page into the CPU cache.
    #[inline]
    pub(super) fn prefetch(&self, page: PolicyKey) {
        prefetch::line(&self.buckets[self.bucket_of(page)]);
    }

    /// The slot of a page, which another page has if it is not known, and its last touch.
    #[inline]
    pub(super) fn find(&self, page: PolicyKey, now: u32) -> (HistorySlot, Option<LastTouch>) {
        let bucket = self.bucket_of(page);
        let entries = &self.buckets[bucket].0;
        if let Some(at) = position(entries, tag_of(page)) {
            let entry = entries[at];
            let class = PageClass::from_number(entry >> CLASS_AT);
            let refused = entry >> REFUSED_AT & 1 == 1;
            return (
                HistorySlot { bucket, at },
                Some(LastTouch { class, age: age(now, entry), refused }),
            );
        }
        // The slot of the page that was touched longest ago; an empty slot is older than all.
        let order = |(at, entry): (usize, &u32)| {
            let age = if *entry == 0 { 1 << TIME_BITS } else { age(now, *entry) };
            age * BUCKET_ENTRIES as u32 + at as u32
        };
        let oldest = entries.iter().enumerate().map(order).fold(0, u32::max);
        (HistorySlot { bucket, at: oldest as usize % BUCKET_ENTRIES }, None)
    }

    /// The last touch of a page, if it is known.
    pub(super) fn get(&self, page: PolicyKey, now: u32) -> Option<LastTouch> {
        self.find(page, now).1
    }

    /// Note a touch of a page at its slot, and whether it was refused.
    #[inline]
    pub(super) fn set(
        &mut self,
        slot: HistorySlot,
        page: PolicyKey,
        class: PageClass,
        now: u32,
        refused: bool,
    ) {
        let entry = tag_of(page) << TAG_AT
            | u32::from(refused) << REFUSED_AT
            | (class.number() as u32) << CLASS_AT
            | now & TIME_MASK;
        self.buckets[slot.bucket].0[slot.at] = entry;
    }

    /// Note whether the page that was touched last was refused.
    pub(super) fn set_refused(&mut self, page: PolicyKey, refused: bool) {
        let bucket = self.bucket_of(page);
        let entries = &mut self.buckets[bucket].0;
        if let Some(at) = position(entries, tag_of(page)) {
            entries[at] = entries[at] & !(1 << REFUSED_AT) | u32::from(refused) << REFUSED_AT;
        }
    }

    /// Forget a page.
    pub(super) fn forget(&mut self, page: PolicyKey) {
        let bucket = self.bucket_of(page);
        let entries = &mut self.buckets[bucket].0;
        let tag = tag_of(page);
        entries.iter_mut().filter(|entry| **entry >> TAG_AT == tag).for_each(|entry| *entry = 0);
    }

    /// Time has advanced by one step: remove old entries of a part of the table. All of it is swept
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

/// The slot of a tag. Without branches: which slot it is cannot be predicted.
#[inline]
fn position(entries: &[u32; BUCKET_ENTRIES], tag: u32) -> Option<usize> {
    let is_equal = |(at, entry): (usize, &u32)| u32::from(*entry >> TAG_AT == tag) << at;
    let equal = entries.iter().enumerate().map(is_equal).fold(0, |all, one| all | one);
    (equal != 0).then_some(equal.trailing_zeros() as usize)
}

fn tag_of(page: PolicyKey) -> u32 {
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
    fn page(n: u64) -> PolicyKey {
        PolicyKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn set(history: &mut History, page: PolicyKey, class: PageClass, now: u32) {
        let (slot, _) = history.find(page, now);
        history.set(slot, page, class, now, false);
    }

    fn class(number: u32) -> PageClass {
        PageClass::from_number(number)
    }

    #[test]
    fn last_touch_of_a_page_is_known_with_its_age() {
        let mut history = History::new(1000);
        for n in 0..500 {
            set(&mut history, page(n), class(n as u32), 10);
        }
        set(&mut history, page(7), class(99), 30);
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
        (0..40_960).for_each(|n| set(&mut history, page(n), class(1), n as u32 / 256));
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
        set(&mut history, page(1), class(3), 5);
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
