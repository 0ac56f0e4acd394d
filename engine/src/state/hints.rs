//! Hints that sessions have ended, and how many of them were wrong, by namespace.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::sync::{AtomicBool, Mutex, MutexGuard, PoisonError};
use pagelith_layouts::ids::NamespaceId;
use pagelith_tiers::policy::Predictions;

/// Namespaces whose hints are measured: the first that give some. Hints of others are not followed.
const NAMESPACES: usize = 64;

/// The hints of a store. Its lock is a leaf.
pub(crate) struct Hints {
    /// Whether there was any hint. Without hints requests need no lock.
    is_on: AtomicBool,
    table: Mutex<HintTable>,
}

struct HintTable {
    predictions: Predictions,
    rows: HashMap<NamespaceId, usize>,
    counts: HintCounts,
}

/// Counts of hints that sessions have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HintCounts {
    pub given: u64,
    pub followed: u64,
    pub wrong: u64,
}

impl Hints {
    /// For a store of at most `objects` objects, with the setting `hints.trust`.
    pub fn new(trust: f64, objects: u64) -> Hints {
        let predictions = Predictions::new(NAMESPACES, trust, objects);
        let (rows, counts) = (HashMap::new(), HintCounts::default());
        let table = Mutex::new(HintTable { predictions, rows, counts });
        Hints { is_on: AtomicBool::new(false), table }
    }

    /// A session has ended, and its last objects are not expected to be requested. Returns whether
    /// the hint is to be followed.
    pub fn session_ended(&self, namespace: NamespaceId, last: &[u64]) -> bool {
        self.is_on.store(true, Relaxed);
        let HintTable { predictions, rows, counts } = &mut *self.lock();
        let free = rows.len();
        let row = *rows.entry(namespace).or_insert(free);
        if row == NAMESPACES {
            rows.remove(&namespace);
        }
        let is_followed = predictions.predict(row, last);
        counts.given += 1;
        counts.followed += u64::from(is_followed);
        is_followed
    }

    /// Objects are requested.
    pub fn requested(&self, fingerprints: impl Iterator<Item = u128>) {
        if self.is_on.load(Relaxed) {
            let HintTable { predictions, counts, .. } = &mut *self.lock();
            for fingerprint in fingerprints {
                counts.wrong += u64::from(predictions.request(page_of(fingerprint)));
            }
        }
    }

    /// The counts.
    pub fn counts(&self) -> HintCounts {
        self.lock().counts
    }

    fn lock(&self) -> MutexGuard<'_, HintTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash by which an object is watched.
pub(crate) fn page_of(fingerprint: u128) -> u64 {
    fingerprint as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_beyond_the_measured_are_not_followed() {
        let hints = Hints::new(0.95, 1000);
        let ended = |n: usize| {
            let namespace = NamespaceId((n as u128).to_le_bytes());
            hints.session_ended(namespace, &[n as u64 + 1])
        };
        assert!((0..NAMESPACES).all(ended));
        assert!(!ended(NAMESPACES) && !ended(NAMESPACES + 1) && ended(0));
        let followed = NAMESPACES as u64 + 1;
        assert_eq!(hints.counts(), HintCounts { given: followed + 2, followed, wrong: 0 });
    }
}
