//! The memory of the index: a ring of packed entries, the arithmetic of homes and distances on it, and the walk of a
//! probe, which the one who changes it and those who only read it have in common.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::prefetch;
use pagelith_io::versions::{Mark, Versions};
use pagelith_io::words::Words;

use super::entry::{Entry, SLOT_BYTES, SLOT_WORDS, Slot, fingerprint_of, link_of, name_of, stored};

/// Fewest slots of a stripe: a probe at the usual load meets four, so that most are of one stripe.
const STRIPE_SLOTS_MIN: usize = 16;
/// Slots of a cache line of 64 bytes.
const SLOTS_A_LINE: usize = 64 / SLOT_BYTES;
/// Most stripes: their versions are to stay in a core's own cache, and a batch of 1,024 keys to be no neighbour of every change.
const STRIPES_MAX: usize = 1 << 16;

/// A ring of slots, all empty at first, that one thread changes while others read.
///
/// Mapped rather than allocated: the pages come zeroed and only when first touched, a mapping is aligned so
/// that no slot crosses a cache line, and a failure is a value instead of an abort.
pub(crate) struct Table {
    words: Words,
    count: usize,
    versions: Versions,
    /// A slot's stripe is its number shifted by so much.
    stripe_bits: u32,
}

impl Table {
    /// As many slots as fit into `bytes` together with the versions of their stripes.
    pub(crate) fn new(bytes: usize) -> std::io::Result<Table> {
        let most = bytes / SLOT_BYTES;
        let stripe = most.div_ceil(STRIPES_MAX).max(STRIPE_SLOTS_MIN).next_power_of_two();
        let stripes = most.div_ceil(stripe);
        let count = (bytes - stripes * size_of::<u32>()) / SLOT_BYTES;
        let words = Words::new(count * SLOT_WORDS)?;
        Ok(Table { words, count, versions: Versions::new(stripes), stripe_bits: stripe.trailing_zeros() })
    }

    /// Give the slots their memory now.
    pub(crate) fn prefault(&self) -> std::io::Result<()> {
        self.words.prefault()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// All that was set aside, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.count * SLOT_BYTES + self.versions.len() * size_of::<u32>()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Slot {
        Slot::from_words(self.slot(at).each_ref().map(|word| word.load(Relaxed)))
    }

    #[inline]
    pub(crate) fn fingerprint(&self, at: usize) -> u128 {
        let [low, high, ..] = self.slot(at);
        fingerprint_of(low.load(Relaxed), high.load(Relaxed))
    }

    /// For the one who changes the ring: readers have to be told first, by [`Table::begin`].
    #[inline]
    pub(crate) fn set(&self, at: usize, slot: Slot) {
        for (word, value) in self.slot(at).iter().zip(slot.to_words()) {
            word.store(value, Relaxed);
        }
    }

    #[inline]
    fn slot(&self, at: usize) -> &[AtomicU64; SLOT_WORDS] {
        &self.words.as_chunks().0[at]
    }

    /// The stripe of a slot is about to be changed; which one, unless it was begun before.
    #[inline]
    pub(crate) fn begin(&self, at: usize) -> Option<u32> {
        let stripe = at >> self.stripe_bits;
        self.versions.begin(stripe).then_some(stripe as u32)
    }

    /// What was changed in a stripe may be seen.
    pub(crate) fn end(&self, stripe: u32) {
        self.versions.end(stripe as usize);
    }

    /// A reader is about to look at a slot's stripe; `None` if it is being changed.
    #[inline]
    pub(crate) fn mark(&self, at: usize) -> Option<Mark> {
        self.versions.mark(at >> self.stripe_bits)
    }

    /// Whether nothing has changed since.
    #[inline]
    pub(crate) fn hold(&self, marks: &[Mark]) -> bool {
        self.versions.hold(marks)
    }

    /// Where a fingerprint would like to be: its high half scaled to the ring (D. Lemire, "Fast random
    /// integer generation in an interval", 2019), so the ring need not be a power of two and homes are in the
    /// order of fingerprints. 0 if the ring has no slots.
    #[inline]
    pub(crate) fn home(&self, fingerprint: u128) -> usize {
        (((fingerprint >> 64) * self.count as u128) >> 64) as usize
    }

    /// How many slots past its home a fingerprint found at `at` lies.
    #[inline]
    pub(crate) fn distance(&self, at: usize, fingerprint: u128) -> usize {
        let home = self.home(fingerprint);
        if at >= home { at - home } else { at + self.count - home }
    }

    #[inline]
    pub(crate) fn next(&self, at: usize) -> usize {
        if at + 1 == self.count { 0 } else { at + 1 }
    }

    /// The slot `steps` after `from`; a few turns of the ring at most, so the sum cannot overflow.
    pub(crate) fn forward(&self, from: usize, steps: usize) -> usize {
        (from + steps) % self.count
    }

    /// Brings the homes of these fingerprints, and their stripes' versions, under way into the cache, all at once.
    #[inline]
    pub(crate) fn prefetch(&self, homes_of: impl Iterator<Item = u128>) {
        if self.count == 0 {
            return;
        }
        for fingerprint in homes_of {
            let home = self.home(fingerprint);
            prefetch::line(&self.slot(home)[0]);
            // An entry lies two slots behind its home on average, which is in the next line.
            prefetch::line(&self.slot((home + SLOTS_A_LINE).min(self.count - 1))[0]);
            self.versions.prefetch(home >> self.stripe_bits);
        }
    }

    /// All entries with this fingerprint and where they are. As for what follows, `enter` is told of a slot in each stripe
    /// before anything there is looked at.
    #[inline]
    pub(crate) fn find(
        &self,
        fingerprint: u128,
        enter: impl Fn(usize),
    ) -> impl Iterator<Item = (usize, Entry)> {
        self.positions(fingerprint, enter).map(|at| (at, self.get(at).unpack()))
    }

    /// The base that an attached object names, and where its link is.
    #[inline]
    pub(crate) fn link(&self, fingerprint: u128, enter: impl Fn(usize)) -> Option<(usize, u64)> {
        let mut links = self.positions(link_of(fingerprint), enter);
        links.find_map(|at| self.get(at).as_link().map(|(_, base)| (at, base)))
    }

    /// All entries of objects that `name` is the name of.
    #[inline]
    pub(crate) fn find_named(&self, name: u64, enter: impl Fn(usize)) -> impl Iterator<Item = Entry> {
        let entries = self.matching(u128::from(name) << 64, move |f| name_of(f) == name, enter);
        entries.map(|at| self.get(at)).filter(|slot| slot.as_link().is_none()).map(|slot| slot.unpack())
    }

    /// Where entries with this fingerprint are.
    #[inline]
    pub(crate) fn positions(&self, fingerprint: u128, enter: impl Fn(usize)) -> impl Iterator<Item = usize> {
        let sought = stored(fingerprint);
        self.matching(sought, move |found| found == sought, enter)
    }

    /// Where entries are that `is_sought`, all of which have the home of `like`. Stops at the first slot that is empty or
    /// whose resident is nearer its home than the sought would be there: insert would have put the sought before it.
    #[inline]
    fn matching(
        &self,
        like: u128,
        is_sought: impl Fn(u128) -> bool,
        enter: impl Fn(usize),
    ) -> impl Iterator<Item = usize> {
        let place_in_stripe = (1 << self.stripe_bits) - 1;
        let mut at = self.home(like);
        let mut distance = 0;
        std::iter::from_fn(move || {
            while distance < self.count {
                if distance == 0 || at & place_in_stripe == 0 {
                    enter(at);
                }
                let (here, resident) = (at, self.fingerprint(at));
                let found = resident != 0 && is_sought(resident);
                if !found && (resident == 0 || self.distance(here, resident) < distance) {
                    distance = usize::MAX;
                    break;
                }
                at = self.next(at);
                distance += 1;
                if found {
                    return Some(here);
                }
            }
            None
        })
    }
}
