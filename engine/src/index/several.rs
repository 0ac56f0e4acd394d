//! Changing the index from several threads at once, each some entries: what changes together becomes visible together, as with
//! [`Index::publish`](super::Index::publish).
//!
//! Whoever changes something has begun all stripes first that this may touch (their versions are the locks): for each entry those from its
//! home to the first slot that is empty. Nothing is moved beyond that, and nobody else moves anything in it. A stripe that another has is
//! not waited for: who has some already gives them back, so that nobody waits for each other.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::Table;
use super::entry::{Entry, Slot, link_of, stored};

/// Most slots that an entry's way is followed to the first empty one. Runs of full slots longer than k are about exp(-k (a - 1 - ln a)) of all
/// at a load of a: none is at 0.8, where fingerprints are spread; where they are made equal all are.
const STEPS_MAX: usize = 4096;
/// How often somebody tries where others are.
const TRIES: u32 = 64;

/// Which of several entries went, in their order; `None` for one that was not there.
pub type Gone = SmallVec<[Option<bool>; 2]>;

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are entries with such a fingerprint.
    Met,
    /// There is no room for so many.
    Full,
    /// Others were there all the time, or there is too much in the way.
    Busy,
}

/// The index for who changes it beside others.
pub struct Writer {
    table: Arc<Table>,
    capacity: usize,
}

/// Stripes that somebody has begun; given back as they were, unless something was changed.
struct Begun<'a> {
    table: &'a Table,
    stripes: SmallVec<[u32; 8]>,
    changed: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        for stripe in &self.stripes {
            match self.changed {
                true => self.table.end(*stripe),
                false => self.table.abandon(*stripe),
            }
        }
    }
}

impl Begun<'_> {
    /// Have the stripe of a slot; false if another has it.
    fn have(&mut self, at: usize) -> bool {
        let stripe = self.table.stripe(at);
        if self.stripes.contains(&stripe) {
            return true;
        }
        let begun = self.table.try_begin(stripe);
        if begun {
            self.stripes.push(stripe);
        }
        begun
    }

    /// Have all from a fingerprint's home through the `empty`th slot that is empty.
    fn cover(&mut self, fingerprint: u128, mut empty: usize) -> bool {
        let mut at = self.table.home(fingerprint);
        for _ in 0..STEPS_MAX.min(self.table.count()) {
            if !self.have(at) {
                return false;
            }
            if self.table.fingerprint(at) == 0 {
                empty -= 1;
                if empty == 0 {
                    return true;
                }
            }
            at = self.table.next(at);
        }
        false
    }
}

/// Entries that somebody may add: they count as there. Those they removed are among them. Given back for what was not added: the count of all
/// entries is a line that everybody writes, and this is written once for many.
pub struct Allowance<'a> {
    table: &'a Table,
    entries: usize,
}

impl Drop for Allowance<'_> {
    fn drop(&mut self) {
        if self.entries > 0 {
            self.table.len.fetch_sub(self.entries, Relaxed);
        }
    }
}

/// Entries for which there is room.
#[must_use]
pub struct Inserting<'a> {
    slots: SmallVec<[Slot; 1]>,
    begun: Begun<'a>,
}

impl Inserting<'_> {
    /// They are there, all at once.
    pub fn insert(mut self, allowance: &mut Allowance<'_>) {
        let table = self.begun.table;
        self.begun.changed = true;
        allowance.entries -= self.slots.len();
        self.slots.drain(..).for_each(|slot| table.place(slot, |at, slot| table.set(at, slot)));
    }
}

impl Writer {
    pub(super) fn new(table: Arc<Table>, capacity: usize) -> Writer {
        Writer { table, capacity }
    }

    /// Starts bringing these fingerprints' homes into the cache, to be changed. Changes nothing.
    pub fn prefetch(&self, fingerprints: &[u128]) {
        self.table.prefetch_to_write(fingerprints.iter().map(|f| stored(*f)));
    }

    /// Have what is on the way of each of these, with room for as many `more`.
    fn begin(&self, fingerprints: impl Iterator<Item = u128> + Clone, more: usize) -> Option<Begun<'_>> {
        for at in 0..TRIES {
            let mut begun = Begun { table: &self.table, stripes: SmallVec::new(), changed: false };
            if fingerprints.clone().all(|f| begun.cover(stored(f), more.max(1))) {
                return Some(begun);
            }
            drop(begun);
            (0..1u32 << at.min(6)).for_each(|_| std::hint::spin_loop());
        }
        None
    }

    /// Be allowed so many entries; fewer, if there is no room for so many.
    pub fn allow(&self, entries: usize) -> Allowance<'_> {
        let before = self.table.len.fetch_add(entries, Relaxed);
        let over = (before + entries).saturating_sub(self.capacity).min(entries);
        if over > 0 {
            self.table.len.fetch_sub(over, Relaxed);
        }
        Allowance { table: &self.table, entries: entries - over }
    }

    /// Have the way of these entries, unless there is one already with the fingerprint of one of them. Theirs differ from one another. Until they
    /// are inserted nobody finds out whether they are there.
    pub fn begin_insert(
        &self,
        entries: &[Entry],
        allowance: &Allowance<'_>,
    ) -> Result<Inserting<'_>, Refused> {
        if allowance.entries < entries.len() {
            return Err(Refused::Full);
        }
        let slots: Result<_, _> = entries.iter().map(Slot::pack).collect();
        let slots = slots.map_err(|_| Refused::Busy)?;
        let fingerprints = entries.iter().map(|e| e.fingerprint);
        let begun = self.begin(fingerprints, entries.len()).ok_or(Refused::Busy)?;
        if entries.iter().any(|e| self.table.positions(e.fingerprint, |_| ()).next().is_some()) {
            return Err(Refused::Met);
        }
        Ok(Inserting { slots, begun })
    }

    /// Take a frame out of the entries that have it, one for each of these fingerprints, all at once: those of objects that are on SSD too
    /// stay, the others go, with their links if they are `attached`; which of them went is `told` before anybody can find out. False, and nothing is changed, if others were there all the time.
    pub fn remove_frame(
        &self,
        fingerprints: impl Iterator<Item = u128> + Clone,
        frame: u32,
        attached: bool,
        allowance: &mut Allowance<'_>,
        told: impl FnOnce(Gone),
    ) -> bool {
        let links = fingerprints.clone().filter(|_| attached).map(link_of);
        let Some(mut begun) = self.begin(fingerprints.clone().chain(links), 1) else { return false };
        begun.changed = true;
        let mut gone = Gone::new();
        for fingerprint in fingerprints {
            let mut entries = self.table.find(fingerprint, |_| ());
            let found = entries.find(|(_, e)| e.frame == Some(frame));
            gone.push(found.as_ref().map(|(_, entry)| entry.ssd.is_none()));
            let Some((at, entry)) = found else { continue };
            let kept = entry.ssd.and_then(|_| Slot::pack(&Entry { frame: None, ..entry }).ok());
            match kept {
                Some(slot) => self.table.set(at, slot),
                None => {
                    self.table.close_up(at, |at, slot| self.table.set(at, slot));
                    allowance.entries += 1;
                    if let Some((at, _)) =
                        entry.attached.then(|| self.table.link(fingerprint, |_| ())).flatten()
                    {
                        self.table.close_up(at, |at, slot| self.table.set(at, slot));
                        self.table.links.fetch_sub(1, Relaxed);
                        allowance.entries += 1;
                    }
                }
            }
        }
        // Whoever puts one of them again does so behind this.
        told(gone);
        true
    }
}
