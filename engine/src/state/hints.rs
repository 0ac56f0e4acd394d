//! Hints that sessions have ended or will go on, and how many of them were wrong, by namespace.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::clock::Mono;
use pagelith_io::sync::{AtomicU64, Mutex, MutexGuard, PoisonError};
use pagelith_layouts::ids::NamespaceId;
use pagelith_tiers::policy::{Expectations, Predictions};

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
    expectations: Expectations,
    rows: HashMap<NamespaceId, usize>,
    counts: HintCounts,
    /// Objects that were added to the filter.
    filtered: usize,
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

    /// Add those of these objects that are watched now to the filter.
    fn filter(&mut self, filter: &WatchFilter, objects: &[u64]) {
        let HintTable { predictions, expectations, filtered, .. } = self;
        let is_watched = |hash: &&u64| predictions.watches(**hash) || expectations.watches(**hash);
        for hash in objects.iter().filter(is_watched) {
            filter.add(*hash);
            *filtered += 1;
        }
        if *filtered > FILTERED_MAX {
            filter.reset(predictions.watched().chain(expectations.watched()));
            *filtered = 0;
        }
    }
}

/// A bit for each watched object, so that requests for others need no lock. Some others have the
/// bit of a watched one.
struct WatchFilter(Box<[AtomicU64]>);

impl WatchFilter {
    fn new() -> WatchFilter {
        WatchFilter((0..FILTER_WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    fn bit_of(&self, hash: u64) -> (&AtomicU64, u64) {
        (&self.0[(hash >> 6) as usize % FILTER_WORDS], 1 << (hash % 64))
    }

    fn add(&self, hash: u64) {
        let (word, bit) = self.bit_of(hash);
        word.fetch_or(bit, Relaxed);
    }

    fn may_have(&self, hash: u64) -> bool {
        let (word, bit) = self.bit_of(hash);
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
        let expectations = Expectations::new(NAMESPACES, trust);
        let (rows, counts) = (HashMap::new(), HintCounts::default());
        let table = HintTable { predictions, expectations, rows, counts, filtered: 0 };
        Hints { filter: OnceLock::new(), table: Mutex::new(table) }
    }

    /// A session has ended, and its last objects are not expected to be requested. Returns whether
    /// the hint is to be followed.
    pub fn session_ended(&self, namespace: NamespaceId, last: &[u64]) -> bool {
        let filter = self.filter.get_or_init(WatchFilter::new);
        let table = &mut *self.lock();
        let row = table.row(namespace);
        let is_followed = table.predictions.predict(row, last);
        table.filter(filter, last);
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
        let filter = self.filter.get_or_init(WatchFilter::new);
        let table = &mut *self.lock();
        let row = table.row(namespace);
        let is_followed = table.expectations.expect(row, last, until, now);
        table.filter(filter, last);
        table.counts.expected.given += 1;
        table.counts.expected.followed += u64::from(is_followed);
        is_followed
    }

    /// Objects are requested.
    pub fn requested(&self, fingerprints: impl Iterator<Item = u128>, now: impl Fn() -> Mono) {
        let Some(filter) = self.filter.get() else { return };
        let hashes = fingerprints.map(watched_hash);
        let mut watched = hashes.filter(|hash| filter.may_have(*hash)).peekable();
        if watched.peek().is_none() {
            return;
        }
        let HintTable { predictions, expectations, counts, .. } = &mut *self.lock();
        for hash in watched {
            counts.ended.wrong += u64::from(predictions.request(hash));
            if expectations.watches(hash) {
                expectations.request(hash, now());
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
        let ended = KindCounts { given: followed + 2, followed, wrong: 0 };
        assert_eq!(hints.counts(Mono(0)), HintCounts { ended, ..HintCounts::default() });
    }

    #[test]
    fn requests_for_objects_that_are_not_watched_take_no_lock() {
        let hints = Hints::new(0.95, 1000);
        let objects = |n: u64| u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let requested =
            |range: std::ops::Range<u64>| hints.requested(range.map(objects), || Mono(0));
        requested(0..10);
        assert!(hints.session_ended(NamespaceId([1; 16]), &[watched_hash(objects(7))]));
        let held = hints.lock();
        requested(100..200);
        assert_eq!(held.counts.ended.wrong, 0);
        drop(held);
        requested(0..10);
        assert_eq!(hints.counts(Mono(0)).ended.wrong, 1);
    }

    #[test]
    fn filter_has_watched_objects_also_after_it_was_made_anew() {
        let filter = WatchFilter::new();
        filter.add(5);
        filter.reset([9, 1 << 40].into_iter());
        assert!(filter.may_have(9) && filter.may_have(1 << 40) && !filter.may_have(5));
    }
}
