//! Hints that sessions have ended or will go on, and how many of them were wrong, by namespace.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::clock::Mono;
use pagelith_io::sync::{AtomicBool, Mutex, MutexGuard, PoisonError};
use pagelith_layouts::ids::NamespaceId;
use pagelith_tiers::policy::{Expectations, Predictions};

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
    expectations: Expectations,
    rows: HashMap<NamespaceId, usize>,
    counts: HintCounts,
}

/// Counts of hints of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindCounts {
    pub given: u64,
    pub followed: u64,
    pub wrong: u64,
}

/// Counts of hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HintCounts {
    /// That sessions have ended.
    pub ended: KindCounts,
    /// That sessions are expected back.
    pub expected: KindCounts,
}

impl HintTable {
    /// The row of a namespace; [`NAMESPACES`], which is none, for those that are too many.
    fn row(&mut self, namespace: NamespaceId) -> usize {
        let free = self.rows.len();
        let row = *self.rows.entry(namespace).or_insert(free);
        if row == NAMESPACES {
            self.rows.remove(&namespace);
        }
        row
    }
}

impl Hints {
    /// For a store of at most `objects` objects, with the setting `hints.trust`.
    pub fn new(trust: f64, objects: u64) -> Hints {
        let predictions = Predictions::new(NAMESPACES, trust, objects);
        let expectations = Expectations::new(NAMESPACES, trust);
        let (rows, counts) = (HashMap::new(), HintCounts::default());
        let table = Mutex::new(HintTable { predictions, expectations, rows, counts });
        Hints { is_on: AtomicBool::new(false), table }
    }

    /// A session has ended, and its last objects are not expected to be requested. Returns whether
    /// the hint is to be followed.
    pub fn session_ended(&self, namespace: NamespaceId, last: &[u64]) -> bool {
        self.is_on.store(true, Relaxed);
        let table = &mut *self.lock();
        let row = table.row(namespace);
        let is_followed = table.predictions.predict(row, last);
        table.counts.ended.given += 1;
        table.counts.ended.followed += u64::from(is_followed);
        is_followed
    }

    /// A session is expected to go on before `until`, with requests for these last objects. Returns
    /// whether the hint is to be followed.
    pub fn expected_back(
        &self,
        namespace: NamespaceId,
        last: &[u64],
        until: Mono,
        now: Mono,
    ) -> bool {
        self.is_on.store(true, Relaxed);
        let table = &mut *self.lock();
        let row = table.row(namespace);
        let is_followed = table.expectations.expect(row, last, until, now);
        table.counts.expected.given += 1;
        table.counts.expected.followed += u64::from(is_followed);
        is_followed
    }

    /// Objects are requested.
    pub fn requested(&self, fingerprints: impl Iterator<Item = u128>, now: impl Fn() -> Mono) {
        if self.is_on.load(Relaxed) {
            let HintTable { predictions, expectations, counts, .. } = &mut *self.lock();
            for page in fingerprints.map(page_of) {
                counts.ended.wrong += u64::from(predictions.request(page));
                if expectations.watches(page) {
                    expectations.request(page, now());
                }
            }
        }
    }

    /// The counts at this time.
    pub fn counts(&self, now: Mono) -> HintCounts {
        let HintTable { expectations, counts, .. } = &mut *self.lock();
        expectations.decide_due(now);
        counts.expected.wrong = expectations.wrong();
        *counts
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
        let ended = KindCounts { given: followed + 2, followed, wrong: 0 };
        assert_eq!(hints.counts(Mono(0)), HintCounts { ended, ..HintCounts::default() });
    }
}
