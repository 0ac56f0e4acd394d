//! Hints that sessions have ended, and how many of them were wrong, by namespace.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::sync::{AtomicU64, Mutex, MutexGuard, PoisonError};
use pagelith_layouts::ids::NamespaceId;
use pagelith_tiers::policy::Predictions;

/// Namespaces whose hints are measured: the first that give some. Hints of others are not followed.
const NAMESPACES: usize = 64;
/// Words of a [`WatchFilter`].
const FILTER_WORDS: usize = 1 << 14;
/// Objects are added to a filter until it is made anew.
const FILTERED_MAX: usize = FILTER_WORDS * 64 / 4;

/// The hints of a store. Its lock is a leaf.
pub(crate) struct Hints {
    /// Which objects are watched; absent before the first hint.
    filter: OnceLock<WatchFilter>,
    table: Mutex<HintTable>,
}

struct HintTable {
    predictions: Predictions,
    rows: HashMap<NamespaceId, usize>,
    counts: HintCounts,
    /// Objects that were added to the filter.
    filtered: usize,
}

/// Counts of hints that sessions have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HintCounts {
    pub given: u64,
    pub followed: u64,
    pub wrong: u64,
}

/// A bit for each watched object, so that requests for others need no lock. Some others have the
/// bit of a watched one.
struct WatchFilter(Box<[AtomicU64]>);

impl WatchFilter {
    fn new() -> WatchFilter {
        WatchFilter((0..FILTER_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        (&self.0[(hash >> 6) as usize % FILTER_WORDS], 1 << (hash % 64))
    }

    fn add(&self, hash: u64) {
        let (word, bit) = self.place(hash);
        word.fetch_or(bit, Relaxed);
    }

    fn may_have(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        word.load(Relaxed) & bit != 0
    }

    /// Have these objects only. A request meanwhile may not be seen: its hint then counts as right.
    fn reset(&self, watched: impl Iterator<Item = u64>) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
        watched.for_each(|hash| self.add(hash));
    }
}

impl Hints {
    /// For a store of at most `objects` objects, with the setting `hints.trust`.
    pub fn new(trust: f64, objects: u64) -> Hints {
        let predictions = Predictions::new(NAMESPACES, trust, objects);
        let (rows, counts) = (HashMap::new(), HintCounts::default());
        let table = HintTable { predictions, rows, counts, filtered: 0 };
        Hints { filter: OnceLock::new(), table: Mutex::new(table) }
    }

    /// A session has ended, and its last objects are not expected to be requested. Returns whether
    /// the hint is to be followed.
    pub fn session_ended(&self, namespace: NamespaceId, last: &[u64]) -> bool {
        let filter = self.filter.get_or_init(WatchFilter::new);
        let HintTable { predictions, rows, counts, filtered } = &mut *self.lock();
        let free = rows.len();
        let row = *rows.entry(namespace).or_insert(free);
        if row == NAMESPACES {
            rows.remove(&namespace);
        }
        let is_followed = predictions.predict(row, last);
        for hash in last.iter().filter(|hash| predictions.watches(**hash)) {
            filter.add(*hash);
            *filtered += 1;
        }
        if *filtered > FILTERED_MAX {
            filter.reset(predictions.watched());
            *filtered = 0;
        }
        counts.given += 1;
        counts.followed += u64::from(is_followed);
        is_followed
    }

    /// Objects are requested.
    pub fn requested(&self, fingerprints: impl Iterator<Item = u128>) {
        let Some(filter) = self.filter.get() else { return };
        let hashes = fingerprints.map(watched_hash);
        let mut watched = hashes.filter(|hash| filter.may_have(*hash)).peekable();
        if watched.peek().is_none() {
            return;
        }
        let HintTable { predictions, counts, .. } = &mut *self.lock();
        watched.for_each(|hash| counts.wrong += u64::from(predictions.request(hash)));
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
pub(crate) fn watched_hash(fingerprint: u128) -> u64 {
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

    #[test]
    fn requests_for_objects_that_are_not_watched_take_no_lock() {
        let hints = Hints::new(0.95, 1000);
        let objects = |n: u64| u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        hints.requested((0..10).map(objects));
        assert!(hints.session_ended(NamespaceId([1; 16]), &[watched_hash(objects(7))]));
        let held = hints.lock();
        hints.requested((100..200).map(objects));
        assert_eq!(held.counts.wrong, 0);
        drop(held);
        hints.requested((0..10).map(objects));
        assert_eq!(hints.counts().wrong, 1);
    }

    #[test]
    fn filter_has_watched_objects_also_after_it_was_made_anew() {
        let filter = WatchFilter::new();
        filter.add(5);
        filter.reset([9, 1 << 40].into_iter());
        assert!(filter.may_have(9) && filter.may_have(1 << 40) && !filter.may_have(5));
    }
}
