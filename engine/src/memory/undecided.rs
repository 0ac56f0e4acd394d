//! Attached records on SSD that a sync has covered before their base: they are durable once their
//! base is, and a restart hides them if it never is.
//!
//! Invariant, under the core's lock: a record is in the table only while the index leads to its
//! objects there.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::NamespaceId;
use rustc_hash::FxHashMap;

use crate::memory::departed::Departure;
use crate::memory::index::RecordPlace;

/// A record that waits for its base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UndecidedRecord {
    pub namespace: Option<NamespaceId>,
    pub objects: u64,
    pub bytes: u64,
    /// Name of its base.
    pub base: u64,
}

/// The records that wait for their base.
#[derive(Debug, Default)]
pub(crate) struct UndecidedRecords {
    records: FxHashMap<RecordPlace, UndecidedRecord>,
    by_base: BTreeSet<(u64, RecordPlace)>,
    /// Bases that have left the index, and why; some are in it again. The next sync decides.
    left: BTreeMap<u64, Departure>,
    /// For each base, the number of attached records that were written and that no sync has
    /// covered: they are in the table next, and their base may leave before.
    unsynced: FxHashMap<u64, usize>,
}

impl UndecidedRecords {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether any record waits for its base, or will.
    pub fn needs_bases(&self) -> bool {
        !self.is_empty() || !self.unsynced.is_empty()
    }

    /// Whether a record waits for this base.
    pub fn has_base(&self, base: u64) -> bool {
        self.places_of(base).next().is_some()
    }

    /// The bases that records wait for.
    pub fn bases(&self) -> BTreeSet<u64> {
        self.by_base.iter().map(|(base, _)| *base).collect()
    }

    /// An object has left the index that records may wait for, now or once they are synced.
    pub fn base_left(&mut self, base: u64, departure: Departure) {
        if self.unsynced.contains_key(&base) || self.has_base(base) {
            self.left.insert(base, departure);
        }
    }

    /// An attached record was written, and no sync has covered it.
    pub fn add_unsynced(&mut self, base: u64) {
        *self.unsynced.entry(base).or_default() += 1;
    }

    /// A sync has covered an attached record, or it was given up.
    pub fn remove_unsynced(&mut self, base: u64) {
        let Some(records) = self.unsynced.get_mut(&base) else { return };
        *records -= 1;
        if *records == 0 {
            self.unsynced.remove(&base);
        }
    }

    /// Take the bases that have left the index since the last call.
    pub fn take_left(&mut self) -> BTreeMap<u64, Departure> {
        std::mem::take(&mut self.left)
    }

    pub fn insert(&mut self, place: RecordPlace, record: UndecidedRecord) {
        self.by_base.insert((record.base, place));
        self.records.insert(place, record);
    }

    pub fn remove(&mut self, place: RecordPlace) -> Option<UndecidedRecord> {
        let record = self.records.remove(&place)?;
        self.by_base.remove(&(record.base, place));
        Some(record)
    }

    /// Remove the records that wait for this base.
    pub fn remove_of_base(&mut self, base: u64) -> Vec<(RecordPlace, UndecidedRecord)> {
        let places: Vec<_> = self.places_of(base).collect();
        places.into_iter().filter_map(|place| Some((place, self.remove(place)?))).collect()
    }

    /// Remove the records of a namespace.
    pub fn remove_of_namespace(&mut self, namespace: NamespaceId) -> Vec<UndecidedRecord> {
        let of_namespace = self.records.iter().filter(|(_, r)| r.namespace == Some(namespace));
        let places: Vec<_> = of_namespace.map(|(place, _)| *place).collect();
        places.into_iter().filter_map(|place| self.remove(place)).collect()
    }

    fn places_of(&self, base: u64) -> impl Iterator<Item = RecordPlace> + '_ {
        let all = (base, (0, 0))..=(base, (u32::MAX, u16::MAX));
        self.by_base.range(all).map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(base: u64) -> UndecidedRecord {
        UndecidedRecord { namespace: None, objects: 1, bytes: 1, base }
    }

    #[test]
    fn records_of_a_base_are_found_without_those_of_others() {
        let mut undecided = UndecidedRecords::default();
        for base in [0, 1, 7, u64::MAX] {
            undecided.insert((base as u32, 0), record(base));
            undecided.insert((base as u32, u16::MAX), record(base));
        }
        for base in [0, 1, 7, u64::MAX] {
            let places: Vec<_> = undecided.places_of(base).collect();
            assert_eq!(places, [(base as u32, 0), (base as u32, u16::MAX)], "base={base}");
        }
        assert!(!undecided.has_base(2));
        assert_eq!(undecided.remove((7, 0)).map(|record| record.base), Some(7));
        assert!(undecided.remove((7, 0)).is_none() && undecided.has_base(7));
        assert_eq!(undecided.remove((7, u16::MAX)).map(|record| record.base), Some(7));
        assert!(!undecided.has_base(7) && !undecided.is_empty());
        assert_eq!(undecided.bases(), BTreeSet::from([0, 1, u64::MAX]));
    }
}
