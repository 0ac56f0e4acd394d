//! The namespaces in which objects were put or found, in the order of the first, and their counts.
//! Fixed memory; the holder of the core lock adds, and any thread looks up and counts without it.
//!
//! Invariants:
//! - The slot of a namespace is written before its row is, and neither changes after.
//! - The first namespaces have counts of their own, and all others share the last ones. So a frame
//!   is subtracted from the counts to which it was added.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use pagelith_layouts::ids::NamespaceId;

/// Most namespaces that are known.
pub(crate) const NAMESPACES_KNOWN_MAX: usize = 512;
const SLOTS: usize = 2 * NAMESPACES_KNOWN_MAX;

#[derive(Default)]
struct Slot {
    /// Number of the namespace plus one; 0 if the slot is empty.
    row: AtomicU64,
    id: [AtomicU64; 2],
}

/// Counts of one namespace, or of all others.
#[derive(Default)]
pub(crate) struct NamespaceCounts {
    pub dram_objects: AtomicU64,
    pub dram_bytes: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub bytes_got: AtomicU64,
    pub puts_stored: AtomicU64,
    pub bytes_put: AtomicU64,
    pub bytes_to_ssd: AtomicU64,
}

impl NamespaceCounts {
    /// A frame of `objects` objects in `bytes` bytes of the arena was inserted.
    pub fn frame_inserted(&self, objects: u64, bytes: u64) {
        self.dram_objects.fetch_add(objects, Relaxed);
        self.dram_bytes.fetch_add(bytes, Relaxed);
    }

    /// It was freed.
    pub fn frame_freed(&self, objects: u64, bytes: u64) {
        self.dram_objects.fetch_sub(objects, Relaxed);
        self.dram_bytes.fetch_sub(bytes, Relaxed);
    }

    pub fn count_hit(&self, bytes: u64) {
        self.count_hits(1, bytes);
    }

    pub fn count_hits(&self, objects: u64, bytes: u64) {
        self.hits.fetch_add(objects, Relaxed);
        self.bytes_got.fetch_add(bytes, Relaxed);
    }

    pub fn count_miss(&self) {
        self.misses.fetch_add(1, Relaxed);
    }

    pub fn count_put(&self, objects: u64, bytes: u64) {
        self.puts_stored.fetch_add(objects, Relaxed);
        self.bytes_put.fetch_add(bytes, Relaxed);
    }

    /// Bytes of objects were written to SSD.
    pub fn count_written(&self, bytes: u64) {
        self.bytes_to_ssd.fetch_add(bytes, Relaxed);
    }
}

/// The set of namespaces.
pub(crate) struct KnownNamespaces {
    slots: Box<[Slot]>,
    /// Counts of the first namespaces, and of all others; empty if nothing is counted.
    counts: Box<[NamespaceCounts]>,
    count: AtomicU64,
    /// Objects of other namespaces may be stored too.
    others: AtomicBool,
}

impl KnownNamespaces {
    /// For a store that is new, or for one that may have objects of any namespace. The first
    /// `counted` namespaces have counts of their own; with 0 nothing is counted.
    pub fn new(is_new: bool, counted: usize) -> KnownNamespaces {
        let rows = if counted > 0 { counted.min(NAMESPACES_KNOWN_MAX) + 1 } else { 0 };
        KnownNamespaces {
            counts: (0..rows).map(|_| NamespaceCounts::default()).collect(),
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            count: AtomicU64::new(0),
            others: AtomicBool::new(!is_new),
        }
    }

    /// Add a namespace, under the core lock.
    pub fn add(&self, namespace: NamespaceId) {
        let id = words(namespace);
        let Err(slot) = self.locate(id) else { return };
        let count = self.count.load(Relaxed);
        match slot.filter(|_| (count as usize) < NAMESPACES_KNOWN_MAX) {
            Some(slot) => {
                slot.id.iter().zip(id).for_each(|(word, id)| word.store(id, Relaxed));
                slot.row.store(count + 1, Release);
                self.count.store(count + 1, Relaxed);
            }
            None => self.others.store(true, Relaxed),
        }
    }

    /// Whether a namespace has a row, or no row is left.
    pub fn has(&self, namespace: NamespaceId) -> bool {
        self.locate(words(namespace)).is_ok()
            || self.count.load(Relaxed) as usize >= NAMESPACES_KNOWN_MAX
    }

    /// Whether anything is counted.
    pub fn is_counting(&self) -> bool {
        !self.counts.is_empty()
    }

    /// The counts to which a namespace belongs; `None` if nothing is counted.
    pub fn counts(&self, namespace: NamespaceId) -> Option<&NamespaceCounts> {
        let others = self.counts.len().checked_sub(1)?;
        let row = self.locate(words(namespace)).map_or(others, |row| row.min(others));
        self.counts.get(row)
    }

    /// The counts of each counted namespace, and of all others (`None`).
    pub fn all_counts(&self) -> Vec<(Option<NamespaceId>, &NamespaceCounts)> {
        let Some(others) = self.counts.len().checked_sub(1) else { return Vec::new() };
        let mut all: Vec<_> = self.counts.iter().map(|counts| (None, counts)).collect();
        for slot in &self.slots {
            let row = slot.row.load(Acquire) as usize;
            if (1..=others).contains(&row) {
                let [low, high] = slot.id.each_ref().map(|word| word.load(Relaxed));
                let id = u128::from(low) | u128::from(high) << 64;
                all[row - 1].0 = Some(NamespaceId(id.to_le_bytes()));
            }
        }
        let used = self.count.load(Relaxed) as usize;
        all.into_iter()
            .enumerate()
            .filter(|(row, _)| *row < used || *row == others)
            .map(|(_, c)| c)
            .collect()
    }

    /// Whether nothing was put in this namespace, and something in another.
    pub fn lacks(&self, namespace: NamespaceId) -> bool {
        self.count.load(Relaxed) > 0
            && !self.others.load(Relaxed)
            && self.locate(words(namespace)).is_err()
    }

    /// The namespace's row, or the empty slot in which it belongs.
    fn locate(&self, id: [u64; 2]) -> Result<usize, Option<&Slot>> {
        let home = id[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 32;
        for at in (0..SLOTS).map(|step| (home + step) % SLOTS) {
            let slot = &self.slots[at];
            match slot.row.load(Acquire) {
                0 => return Err(Some(slot)),
                row if slot.id.each_ref().map(|word| word.load(Relaxed)) == id => {
                    return Ok(row as usize - 1);
                }
                _ => {}
            }
        }
        Err(None)
    }
}

fn words(namespace: NamespaceId) -> [u64; 2] {
    let id = u128::from_le_bytes(namespace.0);
    [id as u64, (id >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> NamespaceId {
        NamespaceId(u128::from(n).to_le_bytes())
    }

    #[test]
    fn namespace_is_lacking_only_if_all_others_are_known() {
        let known = KnownNamespaces::new(true, 0);
        assert!(!known.lacks(id(1)), "an empty store has no other namespace");
        (0..NAMESPACES_KNOWN_MAX as u32).for_each(|n| known.add(id(n)));
        known.add(id(3));
        assert_eq!((known.lacks(id(3)), known.lacks(id(9999))), (false, true));
        known.add(id(9999));
        assert!(!known.lacks(id(9998)), "more namespaces than rows");
        let reopened = KnownNamespaces::new(false, 0);
        reopened.add(id(1));
        assert!(!reopened.lacks(id(2)));
    }

    #[test]
    fn namespaces_beyond_the_counted_share_the_last_counts() {
        assert!(KnownNamespaces::new(true, 0).counts(id(1)).is_none());
        let known = KnownNamespaces::new(true, 2);
        let count = |n| known.counts(id(n)).expect("counted").count_miss();
        count(1);
        (1..=4).for_each(|n| {
            known.add(id(n));
            count(n);
        });
        let all = known.all_counts();
        let misses: Vec<_> = all.iter().map(|(id, c)| (*id, c.misses.load(Relaxed))).collect();
        assert_eq!(misses, [(Some(id(1)), 1), (Some(id(2)), 1), (None, 3)]);
    }

    #[test]
    fn rows_are_in_the_order_of_the_first_put() {
        let known = KnownNamespaces::new(true, 0);
        [7, 1025, 2049, 1025, 7, 3].into_iter().for_each(|n| known.add(id(n)));
        let rows = [7, 1025, 2049, 3].map(|n| known.locate(words(id(n))).ok());
        assert_eq!(rows, [Some(0), Some(1), Some(2), Some(3)]);
    }
}
