//! The in-memory index: fingerprint of a key -> location, length and recency of its object.
//!
//! Open addressing with linear probing in Robin Hood order (P. Celis, "Robin Hood hashing", 1986)
//! and backward-shift deletion, so there are no tombstones and lookups do not slow down with age.
//! All memory is mapped at creation: 32-byte entries at a load of at most 0.8, hence 40 bytes per
//! object. It never grows.
//!
//! Invariants, on the ring of slots:
//! 1. From an entry's home to the entry, no slot is empty.
//! 2. Walking forward, homes never go backwards within a run of full slots.
//! 3. At least one slot is empty or holds an entry at its home, and no entry whose home is before
//!    that slot is stored after it. (Even a full ring has one: n entries in n slots cannot all be
//!    displaced.)
//!
//! It is a multimap: a fingerprint is a hash, not an identity. Several entries may have the same
//! one, and the caller distinguishes them by the keys in their records. If *all* entries have the
//! same one (the test mode with a constant hash), every operation walks all entries and is still
//! correct.
//!
//! An object that is attached to a base group has a second entry, its link, which names a member of
//! that group. So an object takes one entry, an attached object two.
//!
//! One thread changes it through `&mut` while others read it through an [`IndexReader`], which
//! detects whether all its reads saw one state. All changes before [`Index::publish`] become
//! visible to readers at once.
#![allow(unreachable_pub, reason = "the crate root decides the visibility of the index")]

mod entry;
mod read;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use entry::PackedEntry;
use table::Table;

pub use read::{IndexReader, ReadStamps};

pub use entry::{
    Entry, FRAME_MAX, RecordPlace, SsdLocation, TICK_MODULUS, name_of, newest_tick, tick_age,
};

/// Home slots to prefetch before the first is read: enough to keep a CPU core's line fill buffers
/// (10 to 16 on current x86 and Arm cores) busy.
pub(crate) const PREFETCH_GROUP: usize = 16;

/// Memory of an index per object of its capacity: a 32-byte entry at a load of 0.8. The versions of
/// the stripes are part of it.
const BYTES_PER_OBJECT: usize = 40;

/// Why the index refused an operation. The index is unchanged in every case.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The system has no memory for this many objects: open with fewer.
    #[error("no memory for the index max_objects={max_objects} errno={errno}")]
    OutOfMemory {
        /// The requested capacity.
        max_objects: u64,
        /// The system's error number, 0 if the size alone ruled it out.
        errno: i32,
    },
    /// It holds `capacity` entries: remove one first.
    #[error("index is full capacity={capacity}")]
    Full {
        /// Most entries that it can hold.
        capacity: u64,
    },
    /// A field of the entry does not fit its bits.
    #[error("index entry field out of range field={field} value={value} min={min} max={max}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// The refused value.
        value: u32,
        /// Lower bound, inclusive.
        min: u32,
        /// Upper bound, inclusive.
        max: u32,
    },
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotContent {
    /// The entry of an object.
    Object(Entry),
    /// The link of an attached object.
    Link {
        /// The attached object's fingerprint.
        fingerprint: u128,
        /// Name of a member of its base group.
        base: u64,
    },
}

/// The index of a store. The module documentation describes how it works.
pub struct Index {
    table: Arc<Table>,
    /// Stripes that were changed since the last `publish`; readers reject what they read from them.
    dirty_stripes: Vec<u32>,
    len: usize,
    links: usize,
    capacity: usize,
}

#[allow(clippy::len_without_is_empty, reason = "no caller needs it")]
impl Index {
    /// An empty index with room for exactly `max_objects` entries.
    pub fn new(max_objects: u64) -> Result<Index, IndexError> {
        let no_memory = |errno| IndexError::OutOfMemory { max_objects, errno };
        let capacity = usize::try_from(max_objects).map_err(|_| no_memory(0))?;
        let bytes = capacity.checked_mul(BYTES_PER_OBJECT).ok_or(no_memory(0))?;
        let table = Table::new(bytes).map_err(|e| no_memory(e.raw_os_error().unwrap_or(0)))?;
        Ok(Index { table: Arc::new(table), dirty_stripes: Vec::new(), len: 0, links: 0, capacity })
    }

    /// Fault in all of its memory now. Otherwise pages are allocated as entries are inserted. Fails
    /// as [`AtomicArray::prefault`](pagelith_io::atomic_array::AtomicArray::prefault).
    pub fn prefault(&self) -> std::io::Result<()> {
        self.table.prefault()
    }

    /// A reader for threads without the core's lock.
    pub fn reader(&self) -> IndexReader {
        IndexReader::new(self.table.clone())
    }

    /// Make all changes since the last call visible to readers at once.
    pub fn publish(&mut self) {
        self.dirty_stripes.drain(..).for_each(|stripe| self.table.end(stripe));
    }

    fn set(&mut self, at: usize, slot: PackedEntry) {
        self.dirty_stripes.extend(self.table.begin(at));
        self.table.set(at, slot);
    }

    /// Most entries that it can hold.
    pub fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Number of entries that are objects.
    pub fn objects(&self) -> u64 {
        (self.len - self.links) as u64
    }

    /// Number of entries that are links.
    pub fn links(&self) -> u64 {
        self.links as u64
    }

    /// Memory mapped for entries, bytes: at most 40 per entry of [`capacity`](Index::capacity).
    /// Pages count whether they were touched or not. The system rounds it up to whole pages.
    pub fn memory_bytes(&self) -> u64 {
        self.table.bytes() as u64
    }

    /// Adds an entry, even if others have the same fingerprint.
    pub fn insert(&mut self, entry: &Entry) -> Result<(), IndexError> {
        self.insert_slot(PackedEntry::pack(entry)?)
    }

    /// Adds the link of the object with this fingerprint to the base group that has a member named
    /// `base` ([`name_of`] its fingerprint). It takes one entry.
    pub fn insert_link(&mut self, fingerprint: u128, base: u64) -> Result<(), IndexError> {
        self.insert_slot(PackedEntry::link(fingerprint, base))?;
        self.links += 1;
        Ok(())
    }

    fn insert_slot(&mut self, mut carried: PackedEntry) -> Result<(), IndexError> {
        if self.len == self.capacity {
            return Err(IndexError::Full { capacity: self.capacity() });
        }
        self.len += 1;
        let mut at = self.table.home(carried.fingerprint);
        let mut distance = 0;
        // The loop ends: there are at least `capacity` slots and fewer entries, so one is empty.
        loop {
            let resident = self.table.get(at);
            if resident.is_empty() {
                self.set(at, carried);
                return Ok(());
            }
            let resident_distance = self.table.distance(at, resident.fingerprint);
            if resident_distance < distance {
                self.set(at, carried);
                carried = resident;
                distance = resident_distance;
            }
            at = self.table.next(at);
            distance += 1;
        }
    }

    /// All entries with this fingerprint, in no promised order.
    #[inline]
    pub fn find(&self, fingerprint: u128) -> impl Iterator<Item = Entry> {
        self.table.find(fingerprint, |_| ()).map(|(_, entry)| entry)
    }

    /// Name of the base that an attached object links to.
    pub fn link(&self, fingerprint: u128) -> Option<u64> {
        self.table.link(fingerprint, |_| ()).map(|(_, base)| base)
    }

    /// All entries of objects named `name`. Names have 64 bits, so with a chance of 2^-64 an entry
    /// belongs to another object.
    pub fn find_named(&self, name: u64) -> impl Iterator<Item = Entry> {
        self.table.find_named(name, |_| ())
    }

    /// Whether there is an entry with this fingerprint.
    pub fn contains(&self, fingerprint: u128) -> bool {
        self.find(fingerprint).next().is_some()
    }

    /// Rewrites, in place, the first entry with this fingerprint that `matches`; false if none
    /// does. A change of the fingerprint by `change` is ignored.
    ///
    /// # Errors
    /// [`IndexError::Range`] if the changed entry does not fit; the old one stays.
    pub fn update(
        &mut self,
        fingerprint: u128,
        matches: impl FnMut(&Entry) -> bool,
        change: impl FnOnce(&mut Entry),
    ) -> Result<bool, IndexError> {
        let Some((at, mut entry)) = self.locate(fingerprint, matches) else { return Ok(false) };
        change(&mut entry);
        entry.fingerprint = fingerprint;
        self.set(at, PackedEntry::pack(&entry)?);
        Ok(true)
    }

    /// Sets the tick, modulo [`TICK_MODULUS`], of the entry that [`locate`](Index::locate) found at
    /// `at`, and returns the former one.
    pub fn replace_tick(&mut self, at: usize, tick: u32) -> u32 {
        let slot = self.table.get(at);
        // Readers do not rely on ticks.
        self.table.set(at, slot.with_tick(tick));
        slot.tick()
    }

    /// Removes and returns the first entry with this fingerprint that `matches`.
    pub fn remove(
        &mut self,
        fingerprint: u128,
        matches: impl FnMut(&Entry) -> bool,
    ) -> Option<Entry> {
        let (at, removed) = self.locate(fingerprint, matches)?;
        self.remove_slot(at);
        Some(removed)
    }

    /// Removes an attached object's link; false if it has none.
    pub fn remove_link(&mut self, fingerprint: u128) -> bool {
        let Some((at, _)) = self.table.link(fingerprint, |_| ()) else { return false };
        self.remove_slot(at);
        self.links -= 1;
        true
    }

    fn remove_slot(&mut self, mut hole: usize) {
        // Each following entry that is not at its home moves one slot back, so that no hole ends a
        // probe early.
        for _ in 1..self.table.count() {
            let next = self.table.next(hole);
            let slot = self.table.get(next);
            if slot.is_empty() || self.table.distance(next, slot.fingerprint) == 0 {
                break;
            }
            self.set(hole, slot);
            hole = next;
        }
        self.set(hole, PackedEntry::EMPTY);
        self.len -= 1;
    }

    /// Number of homes: the end of the range for [`visit_homes`](Index::visit_homes).
    pub fn home_slots(&self) -> u64 {
        self.table.count() as u64
    }

    /// Number of homes to visit in one critical section, which takes some 100 us at most. Even a
    /// small index needs several sections, so that tests with small stores also meet changes
    /// between two sections.
    pub fn walk_piece(&self) -> u64 {
        (self.home_slots() / 16).clamp(64, 4096)
    }

    /// Visits every entry whose *home* is in `from..to`. An entry's home is a function of its
    /// fingerprint alone, so a caller may walk all homes in pieces while inserts and removes
    /// between the pieces shift entries. It visits every entry that was present throughout exactly
    /// once. A walk by positions would not: a remove can move an entry from a position after the
    /// cursor to one before it (missed), an insert the other way (visited twice).
    pub fn visit_homes(&self, from: u64, to: u64, mut visit: impl FnMut(SlotContent)) {
        let count = self.table.count();
        let to = to.min(self.home_slots());
        if from >= to {
            return;
        }
        // Both are at most `count`, a usize.
        let (from, span) = (from as usize, (to - from) as usize);
        // An entry may be stored almost a whole ring after its home, so two passes over the ring
        // visit it.
        for step in 0..2 * count {
            let at = self.table.forward(from, step);
            let slot = self.table.get(at);
            if slot.is_empty() {
                if step >= span {
                    return;
                }
                continue;
            }
            // Below zero: its home is before `from`, and it was displaced to this slot.
            let Some(home) = step.checked_sub(self.table.distance(at, slot.fingerprint)) else {
                continue;
            };
            if home >= span {
                return;
            }
            visit(match slot.as_link() {
                Some((fingerprint, base)) => SlotContent::Link { fingerprint, base },
                None => SlotContent::Object(slot.unpack()),
            });
        }
    }

    /// The first entry with this fingerprint that `matches`, and its slot, valid until the next
    /// insert or remove.
    #[inline]
    pub fn locate(
        &self,
        fingerprint: u128,
        mut matches: impl FnMut(&Entry) -> bool,
    ) -> Option<(usize, Entry)> {
        self.table.find(fingerprint, |_| ()).find(|(_, entry)| matches(entry))
    }
}
