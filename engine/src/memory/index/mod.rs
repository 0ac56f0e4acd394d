//! The in-memory index: fingerprint of a key -> where its object is, how long, how recently used.
//!
//! Open addressing with linear probing in Robin Hood order (P. Celis, "Robin Hood hashing", 1986) and
//! backward-shift deletion, so there are no tombstones and nothing degrades with age. All memory is mapped at
//! creation: 32-byte entries at a load of at most 0.8, hence 40 bytes an object, and it never grows.
//!
//! Invariants, on the ring of slots:
//! 1. From an entry's home to the entry, no slot is empty.
//! 2. Walking forward, homes never go backwards within a run of full slots.
//! 3. Somewhere there is a slot that is empty or holds an entry at its home; no entry lies past it that
//!    belongs before it. (Even a full ring has one: n entries in n slots cannot all be displaced.)
//!
//! It is a multimap: a fingerprint is a hash, not an identity. Several entries may have the same one, and the
//! caller tells them apart by the keys that their records hold. When *all* entries have the same one (the
//! test mode with a constant hash) every operation is a walk over all of them, and still right.
//!
//! What is attached to a base group has a second entry, its link, which names a member of that group: an object
//! of the index is one entry, an attached one is two.
//!
//! One thread changes it, behind `&mut`, while others read it by a [`Reader`], which learns whether what it read was so at
//! one moment: everything that is changed until [`Index::publish`] becomes visible to them at once.
#![allow(unreachable_pub, reason = "the crate root decides how far the index can be seen")]

mod entry;
mod read;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use entry::Slot;
use table::Table;

pub use read::{Marks, Reader};

pub use entry::{Entry, FRAME_MAX, SEGMENT_MAX, SsdPlace, TICK_MODULUS, name_of, tick_age};

/// How many home slots are asked for before the first is looked at: enough to keep a core's line fill buffers
/// (10 to 16 on current x86 and Arm cores) busy.
pub(crate) const PREFETCH_GROUP: usize = 16;

/// Memory of an index for each object that it can hold: 32-byte entries at a load of 0.8, and their stripes' versions out of
/// the same.
const BYTES_AN_OBJECT: usize = 40;

/// Why the index refused. Whatever the reason, it is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// The system has no memory for this many objects: open with fewer.
    #[error("no memory for the index max_objects={max_objects} errno={errno}")]
    OutOfMemory {
        /// What was asked for.
        max_objects: u64,
        /// The system's error number, 0 if the size alone ruled it out.
        errno: i32,
    },
    /// It holds `max_objects` entries: remove one first.
    #[error("index is full capacity={capacity}")]
    Full {
        /// How many entries it can hold.
        capacity: u64,
    },
    /// A field of the entry does not fit its bits.
    #[error("index entry field out of range field={field} value={value} min={min} max={max}")]
    Range {
        /// Name of the field.
        field: &'static str,
        /// What it was.
        value: u32,
        /// The least it may be.
        min: u32,
        /// The most it may be.
        max: u32,
    },
}

/// What lies in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visited {
    /// Where an object is.
    Object(Entry),
    /// What an object is attached to.
    Link {
        /// The attached object's.
        fingerprint: u128,
        /// Name of a member of its base group.
        base: u64,
    },
}

/// The index of a store. See the module's text for how it works.
pub struct Index {
    table: Arc<Table>,
    /// Stripes that readers do not believe until the next `publish`.
    begun: Vec<u32>,
    len: usize,
    links: usize,
    capacity: usize,
}

#[allow(clippy::len_without_is_empty, reason = "nobody asks")]
impl Index {
    /// An empty index with room for exactly `max_objects` entries.
    pub fn new(max_objects: u64) -> Result<Index, IndexError> {
        let no_memory = |errno| IndexError::OutOfMemory { max_objects, errno };
        let capacity = usize::try_from(max_objects).map_err(|_| no_memory(0))?;
        let bytes = capacity.checked_mul(BYTES_AN_OBJECT).ok_or(no_memory(0))?;
        let table = Table::new(bytes).map_err(|e| no_memory(e.raw_os_error().unwrap_or(0)))?;
        Ok(Index { table: Arc::new(table), begun: Vec::new(), len: 0, links: 0, capacity })
    }

    /// Give all of it its memory now: else pages come as entries do. Fails as [`Words::prefault`](pagelith_io::words::Words::prefault).
    pub fn prefault(&self) -> std::io::Result<()> {
        self.table.prefault()
    }

    /// The index as threads see it that do not have it.
    pub fn reader(&self) -> Reader {
        Reader::new(self.table.clone())
    }

    /// What was changed since the last time may be seen by readers, all of it at once.
    pub fn publish(&mut self) {
        self.begun.drain(..).for_each(|stripe| self.table.end(stripe));
    }

    fn set(&mut self, at: usize, slot: Slot) {
        self.begun.extend(self.table.begin(at));
        self.table.set(at, slot);
    }

    /// How many entries it can hold.
    pub fn capacity(&self) -> u64 {
        self.capacity as u64
    }

    /// How many entries it holds.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// How many of them are objects.
    pub fn objects(&self) -> u64 {
        (self.len - self.links) as u64
    }

    /// How many of them are links.
    pub fn links(&self) -> u64 {
        self.links as u64
    }

    /// Memory set aside for entries, bytes: at most 40 for each of [`capacity`](Index::capacity), all of it
    /// counted whether touched yet or not. The system rounds it up to whole pages.
    pub fn memory_bytes(&self) -> u64 {
        self.table.bytes() as u64
    }

    /// Adds an entry, also next to others with the same fingerprint.
    pub fn insert(&mut self, entry: &Entry) -> Result<(), IndexError> {
        self.insert_slot(Slot::pack(entry)?)
    }

    /// Notes that the object with this fingerprint is attached to the base group that has a member of the name
    /// `base` ([`name_of`] its fingerprint). Takes an entry of its own.
    pub fn insert_link(&mut self, fingerprint: u128, base: u64) -> Result<(), IndexError> {
        self.insert_slot(Slot::link(fingerprint, base))?;
        self.links += 1;
        Ok(())
    }

    fn insert_slot(&mut self, mut carried: Slot) -> Result<(), IndexError> {
        if self.len == self.capacity {
            return Err(IndexError::Full { capacity: self.capacity() });
        }
        self.len += 1;
        let mut at = self.table.home(carried.fingerprint);
        let mut distance = 0;
        // Ends: there are at least `capacity` slots and fewer entries, so one is empty.
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

    /// The base that an attached object names.
    pub fn link(&self, fingerprint: u128) -> Option<u64> {
        self.table.link(fingerprint, |_| ()).map(|(_, base)| base)
    }

    /// All entries of objects that `name` is the name of: by 64 bits, so one may be another's, once in 2^64.
    pub fn find_named(&self, name: u64) -> impl Iterator<Item = Entry> {
        self.table.find_named(name, |_| ())
    }

    /// Whether there is an entry with this fingerprint.
    pub fn contains(&self, fingerprint: u128) -> bool {
        self.find(fingerprint).next().is_some()
    }

    /// Rewrites, in place, the first entry with this fingerprint that `matches`, and says whether there was
    /// one. What `change` does to the fingerprint is ignored.
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
        self.set(at, Slot::pack(&entry)?);
        Ok(true)
    }

    /// Notes when the entry that [`locate`](Index::locate) found at `at` was last used, modulo [`TICK_MODULUS`];
    /// returns when it was before.
    pub fn replace_tick(&mut self, at: usize, tick: u32) -> u32 {
        let slot = self.table.get(at);
        // Readers do not rely on ticks.
        self.table.set(at, slot.with_tick(tick));
        slot.tick()
    }

    /// Removes and returns the first entry with this fingerprint that `matches`.
    pub fn remove(&mut self, fingerprint: u128, matches: impl FnMut(&Entry) -> bool) -> Option<Entry> {
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
        // Whoever follows and is away from home moves one nearer, so that no hole stands in a probe's way.
        for _ in 1..self.table.count() {
            let next = self.table.next(hole);
            let slot = self.table.get(next);
            if slot.is_empty() || self.table.distance(next, slot.fingerprint) == 0 {
                break;
            }
            self.set(hole, slot);
            hole = next;
        }
        self.set(hole, Slot::EMPTY);
        self.len -= 1;
    }

    /// How many homes there are: the end of the range for [`visit_homes`](Index::visit_homes).
    pub fn home_slots(&self) -> u64 {
        self.table.count() as u64
    }

    /// How many homes to visit in one critical section: some 100 us of them at most, and so few that also a small index
    /// takes several, and what changes between two is met in small stores as in large ones.
    pub fn walk_piece(&self) -> u64 {
        (self.home_slots() / 16).clamp(64, 4096)
    }

    /// Visits every entry whose *home* is in `from..to`. An entry's home is a function of its fingerprint
    /// alone, so a caller that walks all homes in pieces, while inserts and removes between the pieces shift
    /// entries to and fro, meets every entry that was there throughout exactly once. Positions would not do:
    /// a remove can pull an entry from ahead of a cursor to behind it (missed), an insert can push one from
    /// behind it to ahead (met twice).
    pub fn visit_homes(&self, from: u64, to: u64, mut visit: impl FnMut(Visited)) {
        let count = self.table.count();
        let to = to.min(self.home_slots());
        if from >= to {
            return;
        }
        // Both are at most `count`, a usize.
        let (from, span) = (from as usize, (to - from) as usize);
        // An entry may lie almost a whole ring past its home; every pass over two rings meets it.
        for step in 0..2 * count {
            let at = self.table.forward(from, step);
            let slot = self.table.get(at);
            if slot.is_empty() {
                if step >= span {
                    return;
                }
                continue;
            }
            // Below zero: it belongs before `from` and was pushed here.
            let Some(home) = step.checked_sub(self.table.distance(at, slot.fingerprint)) else { continue };
            if home >= span {
                return;
            }
            visit(match slot.as_link() {
                Some((fingerprint, base)) => Visited::Link { fingerprint, base },
                None => Visited::Object(slot.unpack()),
            });
        }
    }

    /// The first entry with this fingerprint that `matches`, and where it is until the next insert or remove.
    #[inline]
    pub fn locate(
        &self,
        fingerprint: u128,
        mut matches: impl FnMut(&Entry) -> bool,
    ) -> Option<(usize, Entry)> {
        self.table.find(fingerprint, |_| ()).find(|(_, entry)| matches(entry))
    }
}
