//! Existence of keys, from the index alone, for thousands of keys at a time. Without the core's
//! lock while the index is stable.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;

use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::memory::index::{PREFETCH_GROUP, TICK_MODULUS};
use crate::read::page_depth::PageDepths;
use crate::state::core::Core;
use crate::state::read_view::{LOCK_FREE_TRIES, Snapshot};
use crate::state::recency;
use crate::state::recency::{FoundObject, record};
use crate::state::shared::Shared;

/// Which of `keys` are present, all at one moment. A present object counts as used.
pub(crate) fn exists(
    shared: &Shared,
    keys: impl Iterator<Item: Borrow<ObjectKey>> + Clone,
    at: Recency,
) -> Vec<bool> {
    lookup_at_one_moment(shared, at, |lookup| lookup.each(keys.clone()))
}

/// How many of `keys` are present before the first that is absent.
pub(crate) fn prefix(
    shared: &Shared,
    keys: impl Iterator<Item: Borrow<ObjectKey>> + Clone,
    at: Recency,
) -> usize {
    lookup_at_one_moment(shared, at, |lookup| lookup.prefix(keys.clone()))
}

/// As [`exists`], for a caller that holds the core's lock and has changed nothing.
pub(crate) fn exists_locked(
    shared: &Shared,
    core: &mut Core,
    keys: impl Iterator<Item: Borrow<ObjectKey>>,
    at: Recency,
) -> Vec<bool> {
    lookup_locked(shared, core, at, |lookup| lookup.each(keys))
}

/// The answer of `query`, whose lookups were all true at one moment. `query` may run several times;
/// the objects that its last run found count as used.
pub(crate) fn lookup_at_one_moment<R>(
    shared: &Shared,
    at: Recency,
    mut query: impl FnMut(&mut IndexLookup<'_>) -> R,
) -> R {
    let read_view = &shared.read_view;
    // A policy that counts every access needs the lock anyway.
    for _ in 0..LOCK_FREE_TRIES {
        let pin = crossbeam_epoch::pin();
        let snapshot = read_view.read(&pin);
        let mut lookup = IndexLookup::new(shared, &snapshot, at);
        let answer = query(&mut lookup);
        let touched = lookup.touched;
        if snapshot.validate(&pin) {
            drop(pin);
            record(shared, &touched, at);
            return answer;
        }
    }
    lookup_locked(shared, &mut shared.lock(), at, query)
}

/// The same under the lock: the published state is complete and does not change.
fn lookup_locked<R>(
    shared: &Shared,
    core: &mut Core,
    at: Recency,
    query: impl FnOnce(&mut IndexLookup<'_>) -> R,
) -> R {
    let pin = crossbeam_epoch::pin();
    let snapshot = shared.read_view.read(&pin);
    let mut lookup = IndexLookup::new(shared, &snapshot, at);
    let answer = query(&mut lookup);
    lookup.touched.iter().for_each(|touched| touched.record_in(core, at));
    answer
}

/// Lookups in the index.
pub(crate) struct IndexLookup<'a> {
    shared: &'a Shared,
    snapshot: &'a Snapshot<'a>,
    depth: u32,
    /// The current tick, in the form that the index stores.
    tick: u32,
    touched: Vec<FoundObject>,
}

impl<'a> IndexLookup<'a> {
    fn new(shared: &'a Shared, snapshot: &'a Snapshot<'a>, at: Recency) -> IndexLookup<'a> {
        let tick = (shared.read_view.tick.load(Ordering::Relaxed) % u64::from(TICK_MODULUS)) as u32;
        IndexLookup { shared, snapshot, depth: at.depth, tick, touched: Vec::new() }
    }

    /// Which of `keys` are present.
    pub fn each(&mut self, keys: impl Iterator<Item: Borrow<ObjectKey>>) -> Vec<bool> {
        self.lookup(keys.map(|key| (key, true)), false)
    }

    /// The same, with each key whether it counts as used.
    pub fn each_if_used(&mut self, keys: impl Iterator<Item = (ObjectKey, bool)>) -> Vec<bool> {
        self.lookup(keys, false)
    }

    /// Count `keys` that are present as used. The first is this many pages after the query's first.
    pub fn count_from_page(&mut self, page: usize, keys: impl Iterator<Item = ObjectKey>) {
        let depth = self.depth;
        self.depth = depth.saturating_add(u32::try_from(page).unwrap_or(u32::MAX));
        self.each(keys);
        self.depth = depth;
    }

    /// How many of `keys` are present before the first that is absent.
    pub fn prefix(&mut self, keys: impl Iterator<Item: Borrow<ObjectKey>>) -> usize {
        let keys = keys.map(|key| (key, true));
        self.lookup(keys, true).into_iter().take_while(|present| *present).count()
    }

    fn lookup<K: Borrow<ObjectKey>>(
        &mut self,
        mut keys: impl Iterator<Item = (K, bool)>,
        stop: bool,
    ) -> Vec<bool> {
        let mut found = Vec::with_capacity(keys.size_hint().0);
        self.touched.reserve(keys.size_hint().0);
        self.snapshot.reserve(keys.size_hint().0);
        let mut depths = PageDepths::default();
        // The keys of a batch usually have one namespace.
        let mut last_namespace: Option<(NamespaceId, Generation)> = None;
        // Fingerprint, depth and use of the keys that are compared now, and of those that are
        // prefetched meanwhile. Each step handles a whole group, so that its cache misses overlap,
        // also with the comparisons of the group before.
        let (mut group, mut next) = (Vec::<(u128, u32, bool)>::new(), Vec::new());
        loop {
            next.clear();
            for (key, is_used) in keys.by_ref().take(PREFETCH_GROUP) {
                let namespace = key.borrow().namespace();
                let known = last_namespace.filter(|known| known.0 == namespace);
                let generation = || self.snapshot.visibility.generation(namespace);
                let (_, generation) =
                    *last_namespace.insert(known.unwrap_or_else(|| (namespace, generation())));
                let fingerprint = self.shared.fingerprint(key.borrow(), generation);
                self.shared.read_view.index.prefetch(&[fingerprint]);
                let depth = self.depth.saturating_add(depths.depth_of(key.borrow()));
                next.push((fingerprint, depth, is_used));
            }
            let seen = self.touched.len();
            for (fingerprint, depth, is_used) in &group {
                let entry = self.snapshot.find(*fingerprint);
                found.push(entry.is_some());
                match entry {
                    Some(_) if !is_used => {}
                    Some(entry) => self.touched.push(FoundObject::new(&entry, *depth, self.tick)),
                    None if stop => return found,
                    None => {}
                }
            }
            recency::prefetch(self.shared, &self.touched[seen..]);
            if next.is_empty() {
                return found;
            }
            std::mem::swap(&mut group, &mut next);
        }
    }
}
