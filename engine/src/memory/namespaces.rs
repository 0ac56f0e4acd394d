//! The namespaces in which objects were put, in the order of their first put. Fixed memory; the
//! holder of the core lock adds, and any thread looks up without it.
//!
//! Invariant: the slot of a namespace is written before its row is, and neither changes after.

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

/// The set of namespaces.
pub(crate) struct KnownNamespaces {
    slots: Box<[Slot]>,
    count: AtomicU64,
    /// Objects of other namespaces may be stored too.
    others: AtomicBool,
}

impl KnownNamespaces {
    /// For a store that is new, or for one that may have objects of any namespace.
    pub fn new(is_new: bool) -> KnownNamespaces {
        KnownNamespaces {
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
        let known = KnownNamespaces::new(true);
        assert!(!known.lacks(id(1)), "an empty store has no other namespace");
        (0..NAMESPACES_KNOWN_MAX as u32).for_each(|n| known.add(id(n)));
        known.add(id(3));
        assert_eq!((known.lacks(id(3)), known.lacks(id(9999))), (false, true));
        known.add(id(9999));
        assert!(!known.lacks(id(9998)), "more namespaces than rows");
        let reopened = KnownNamespaces::new(false);
        reopened.add(id(1));
        assert!(!reopened.lacks(id(2)));
    }

    #[test]
    fn rows_are_in_the_order_of_the_first_put() {
        let known = KnownNamespaces::new(true);
        [7, 1025, 2049, 1025, 7, 3].into_iter().for_each(|n| known.add(id(n)));
        let rows = [7, 1025, 2049, 3].map(|n| known.locate(words(id(n))).ok());
        assert_eq!(rows, [Some(0), Some(1), Some(2), Some(3)]);
    }
}
