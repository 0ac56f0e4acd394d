//! The memory of the index: a ring of packed entries, the arithmetic of homes and distances on it,
//! and the probe sequence, which the writer and the readers share.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::atomic_array::AtomicArray;
use pagelith_io::prefetch;
use pagelith_io::seqlock::{ReadStamp, SeqLocks};

use super::entry::{
    Entry, PackedEntry, SLOT_BYTES, SLOT_WORDS, fingerprint_of, link_of, name_of, stored,
};

/// Fewest slots of a stripe. A probe at the usual load reads four slots, mostly of one stripe.
const STRIPE_SLOTS_MIN: usize = 16;
/// Slots in a cache line of 64 bytes.
const SLOTS_PER_LINE: usize = 64 / SLOT_BYTES;
/// Most stripes. So few that their versions stay in a CPU core's private cache, and so many that a
/// batch of 1,024 keys seldom shares a stripe with a change.
const STRIPES_MAX: usize = 1 << 16;

/// A ring of slots, initially empty, that one thread changes while others read.
///
/// Mapped rather than allocated: pages are zeroed and allocated on first touch, a mapping is
/// aligned so that no slot crosses a cache line, and a failure is a value instead of an abort.
pub(crate) struct Table {
    words: AtomicArray,
    count: usize,
    versions: SeqLocks,
    /// A slot's stripe is its number shifted right by this.
    stripe_shift: u32,
}

impl Table {
    /// A table of as many slots as fit into `bytes` together with the versions of their stripes.
    pub(crate) fn new(bytes: usize) -> std::io::Result<Table> {
        let most = bytes / SLOT_BYTES;
        let stripe = most.div_ceil(STRIPES_MAX).max(STRIPE_SLOTS_MIN).next_power_of_two();
        let stripes = most.div_ceil(stripe);
        let count = (bytes - stripes * size_of::<u32>()) / SLOT_BYTES;
        let words = AtomicArray::new(count * SLOT_WORDS)?;
        Ok(Table {
            words,
            count,
            versions: SeqLocks::new(stripes),
            stripe_shift: stripe.trailing_zeros(),
        })
    }

    /// Fault in the memory of the slots now.
    pub(crate) fn prefault(&self) -> std::io::Result<()> {
        self.words.prefault()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Memory of slots and versions, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.count * SLOT_BYTES + self.versions.len() * size_of::<u32>()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> PackedEntry {
        PackedEntry::from_words(self.slot(at).each_ref().map(|word| word.load(Relaxed)))
    }

    #[inline]
    pub(crate) fn fingerprint(&self, at: usize) -> u128 {
        let [low, high, ..] = self.slot(at);
        fingerprint_of(low.load(Relaxed), high.load(Relaxed))
    }

    /// Writer only. [`Table::begin`] must be called first, so that readers detect the change.
    #[inline]
    pub(crate) fn set(&self, at: usize, slot: PackedEntry) {
        for (word, value) in self.slot(at).iter().zip(slot.to_words()) {
            word.store(value, Relaxed);
        }
    }

    #[inline]
    fn slot(&self, at: usize) -> &[AtomicU64; SLOT_WORDS] {
        &self.words.as_chunks().0[at]
    }

    /// Begin to change the stripe of a slot. Returns the stripe, unless its change has begun
    /// already.
    #[inline]
    pub(crate) fn begin(&self, at: usize) -> Option<u32> {
        let stripe = at >> self.stripe_shift;
        self.versions.begin(stripe).then_some(stripe as u32)
    }

    /// End the change of a stripe: readers may accept it again.
    pub(crate) fn end(&self, stripe: u32) {
        self.versions.end(stripe as usize);
    }

    /// Version of a slot's stripe, to be taken before the slot is read; `None` if the stripe is
    /// being changed.
    #[inline]
    pub(crate) fn stamp(&self, at: usize) -> Option<ReadStamp> {
        self.versions.stamp(at >> self.stripe_shift)
    }

    /// Whether no stripe has changed since its version was taken.
    #[inline]
    pub(crate) fn validate(&self, stamps: &[ReadStamp]) -> bool {
        self.versions.validate(stamps)
    }

    /// Home slot of a fingerprint: its high half scaled to the ring (D. Lemire, "Fast random
    /// integer generation in an interval", 2019), so the ring need not be a power of two and homes
    /// are in the order of fingerprints. 0 if the ring has no slots.
    #[inline]
    pub(crate) fn home(&self, fingerprint: u128) -> usize {
        (((fingerprint >> 64) * self.count as u128) >> 64) as usize
    }

    /// Number of slots from the home of a fingerprint to its slot `at`.
    #[inline]
    pub(crate) fn distance(&self, at: usize, fingerprint: u128) -> usize {
        let home = self.home(fingerprint);
        if at >= home { at - home } else { at + self.count - home }
    }

    #[inline]
    pub(crate) fn next(&self, at: usize) -> usize {
        if at + 1 == self.count { 0 } else { at + 1 }
    }

    /// The slot `steps` after `from`. Callers pass at most a few times the ring's length, so the
    /// sum cannot overflow.
    pub(crate) fn forward(&self, from: usize, steps: usize) -> usize {
        (from + steps) % self.count
    }

    /// Prefetches the homes of these fingerprints and the versions of their stripes, all
    /// concurrently.
    #[inline]
    pub(crate) fn prefetch(&self, homes_of: impl Iterator<Item = u128>) {
        if self.count == 0 {
            return;
        }
        for fingerprint in homes_of {
            let home = self.home(fingerprint);
            prefetch::line(&self.slot(home)[0]);
            // An entry is two slots after its home on average, which is in the next cache line.
            prefetch::line(&self.slot((home + SLOTS_PER_LINE).min(self.count - 1))[0]);
            self.versions.prefetch(home >> self.stripe_shift);
        }
    }

    /// All entries with this fingerprint, with their slots. Here and in the methods below, `enter`
    /// is called with a slot of each stripe before any slot of that stripe is read.
    #[inline]
    pub(crate) fn find(
        &self,
        fingerprint: u128,
        enter: impl Fn(usize),
    ) -> impl Iterator<Item = (usize, Entry)> {
        self.positions(fingerprint, enter).map(|at| (at, self.get(at).unpack()))
    }

    /// Slot of an attached object's link, and the name of the base in it.
    #[inline]
    pub(crate) fn link(&self, fingerprint: u128, enter: impl Fn(usize)) -> Option<(usize, u64)> {
        let mut links = self.positions(link_of(fingerprint), enter);
        links.find_map(|at| self.get(at).as_link().map(|(_, base)| (at, base)))
    }

    /// All entries of objects named `name`.
    #[inline]
    pub(crate) fn find_named(
        &self,
        name: u64,
        enter: impl Fn(usize),
    ) -> impl Iterator<Item = Entry> {
        let entries = self.matching(u128::from(name) << 64, move |f| name_of(f) == name, enter);
        entries
            .map(|at| self.get(at))
            .filter(|slot| slot.as_link().is_none())
            .map(|slot| slot.unpack())
    }

    /// Slots of the entries with this fingerprint.
    #[inline]
    pub(crate) fn positions(
        &self,
        fingerprint: u128,
        enter: impl Fn(usize),
    ) -> impl Iterator<Item = usize> {
        let sought = stored(fingerprint);
        self.matching(sought, move |found| found == sought, enter)
    }

    /// Slots of the entries that `is_sought`, all of which have the home of `like`. Stops at the
    /// first slot that is empty or whose entry is nearer to its home than a sought entry would be
    /// in that slot: insert would have placed the sought entry before it.
    #[inline]
    fn matching(
        &self,
        like: u128,
        is_sought: impl Fn(u128) -> bool,
        enter: impl Fn(usize),
    ) -> impl Iterator<Item = usize> {
        let stripe_mask = (1 << self.stripe_shift) - 1;
        let mut at = self.home(like);
        let mut distance = 0;
        std::iter::from_fn(move || {
            while distance < self.count {
                if distance == 0 || at & stripe_mask == 0 {
                    enter(at);
                }
                let (slot, resident) = (at, self.fingerprint(at));
                let found = resident != 0 && is_sought(resident);
                if !found && (resident == 0 || self.distance(slot, resident) < distance) {
                    distance = usize::MAX;
                    break;
                }
                at = self.next(at);
                distance += 1;
                if found {
                    return Some(slot);
                }
            }
            None
        })
    }
}
