//! Existence of keys, from the index alone, for thousands of keys at a time. Without the core's
//! lock while the index is stable.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;

use pagelith_layouts::ids::{Generation, NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::{FrameId, LastRequests, Recency};

use crate::memory::index::{Entry, PREFETCH_GROUP, TICK_MODULUS};
use crate::read::absence::AbsenceFinder;
use crate::read::locate::leave_frame;
use crate::read::page_depth::PageDepths;
use crate::state::absence::{Absence, AbsenceCounts};
use crate::state::core::Core;
use crate::state::frame_access::FrameReadGuard;
use crate::state::read_view::{LOCK_FREE_TRIES, Snapshot};
use crate::state::recency;
use crate::state::recency::{FoundObject, record};
use crate::state::shared::Shared;

/// Which of `keys` are present, all at one moment. A present object counts as requested.
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
    lookup_locked(shared, core, at, |lookup| lookup.each(keys)).0
}

/// The answer of `query`, whose lookups were all true at one moment. `query` may run several times;
/// the objects that its last run found count as requested, and its keys are counted.
pub(crate) fn lookup_at_one_moment<R>(
    shared: &Shared,
    at: Recency,
    mut query: impl FnMut(&mut IndexLookup<'_>) -> R,
) -> R {
    let read_view = &shared.read_view;
    // A policy that counts every access needs the lock anyway.
    for _ in 0..LOCK_FREE_TRIES {
        let epoch_guard = crossbeam_epoch::pin();
        let snapshot = read_view.read(&epoch_guard);
        let mut lookup = IndexLookup::new(AbsenceFinder::new(shared, &snapshot, None), at);
        let answer = query(&mut lookup);
        let IndexLookup { requested, superseded, found, absent, .. } = lookup;
        if snapshot.validate(&epoch_guard) {
            drop(epoch_guard);
            record(shared, &requested, at, LastRequests::refresh);
            if !superseded.is_empty() {
                let mut core = shared.lock();
                superseded.iter().for_each(|object| object.demote_in(&mut core));
            }
            shared.reads.counters.add_exists(at.request, found, &absent);
            return answer;
        }
    }
    let (answer, found, absent) = lookup_locked(shared, &mut shared.lock(), at, query);
    shared.reads.counters.add_exists(at.request, found, &absent);
    answer
}

/// The same under the lock: the published state is complete and does not change. Returns the number
/// of keys found, and the others by cause, too.
fn lookup_locked<R>(
    shared: &Shared,
    core: &mut Core,
    at: Recency,
    query: impl FnOnce(&mut IndexLookup<'_>) -> R,
) -> (R, u64, AbsenceCounts) {
    let epoch_guard = crossbeam_epoch::pin();
    let snapshot = shared.read_view.read(&epoch_guard);
    let finder = AbsenceFinder::new(shared, &snapshot, Some(&core.pending_groups));
    let mut lookup = IndexLookup::new(finder, at);
    let answer = query(&mut lookup);
    let IndexLookup { requested, superseded, found, absent, .. } = lookup;
    recency::record_locked(shared, core, &requested, at, LastRequests::refresh);
    superseded.iter().for_each(|object| object.demote_in(core));
    (answer, found, absent)
}

/// Whether a state is in DRAM, does not leave it first yet, and will if it is demoted: its frame
/// has no other object of its page. Without the core's lock, or each lookup of a state that stays
/// would take it.
fn may_leave_first(shared: &Shared, entry: &Entry) -> bool {
    let read_view = &shared.read_view;
    let Some(frame) = entry.frame.map(FrameId) else { return false };
    if read_view.last_requests.leaves_first(frame) {
        return false;
    }
    let entered = read_view.frames.enter(frame.0 as usize).map(FrameReadGuard::new);
    let Some(entered) = entered else { return false };
    let is_alone = entered.has_one_pool();
    // Takes the lock only if the frame was dropped meanwhile, hence never for a caller that has it.
    leave_frame(shared, entered, frame);
    is_alone
}

/// A key of a lookup.
struct LookedUp<K> {
    fingerprint: u128,
    depth: u32,
    key: K,
    is_used: bool,
}

/// Lookups in the index.
pub(crate) struct IndexLookup<'a> {
    shared: &'a Shared,
    snapshot: &'a Snapshot<'a>,
    finder: AbsenceFinder<'a>,
    depth: u32,
    /// The current tick, in the form that the index stores.
    tick: u32,
    /// Present keys that count as requested.
    requested: Vec<FoundObject>,
    /// States in DRAM that should leave it first and do not yet.
    superseded: Vec<FoundObject>,
    /// Number of present keys.
    found: u64,
    /// Absent keys, by cause.
    absent: AbsenceCounts,
}

impl<'a> IndexLookup<'a> {
    fn new(finder: AbsenceFinder<'a>, at: Recency) -> IndexLookup<'a> {
        let (shared, snapshot) = (finder.shared, finder.snapshot);
        let tick = (shared.read_view.tick.load(Ordering::Relaxed) % u64::from(TICK_MODULUS)) as u32;
        let absent = AbsenceCounts::default();
        let (depth, requested, superseded, found) = (at.depth, Vec::new(), Vec::new(), 0);
        IndexLookup { shared, snapshot, finder, depth, tick, requested, superseded, found, absent }
    }

    /// Which of `keys` are present.
    pub fn each(&mut self, keys: impl Iterator<Item: Borrow<ObjectKey>>) -> Vec<bool> {
        self.lookup(keys.map(|key| (key, true)), false)
    }

    /// The same, with each key whether it counts as requested.
    pub fn each_if_requested(
        &mut self,
        keys: impl Iterator<Item = (ObjectKey, bool)>,
    ) -> Vec<bool> {
        self.lookup(keys, false)
    }

    /// Mark `keys` that are present as requested, after they were looked up. The first is this many
    /// pages after the query's first. They are not counted again.
    pub fn mark_requested(&mut self, page: usize, keys: impl Iterator<Item = ObjectKey>) {
        let (depth, found, absent) = (self.depth, self.found, self.absent);
        self.depth = depth.saturating_add(u32::try_from(page).unwrap_or(u32::MAX));
        self.each(keys);
        (self.depth, self.found, self.absent) = (depth, found, absent);
    }

    /// Note the states of a prompt, as of [`crate::api::hits::KeyLookup::note_states`].
    pub fn note_states(
        &mut self,
        pages: &[PrefixHash],
        state: &[ObjectKey],
        states: &[bool],
        usable: usize,
    ) {
        let Some(first) = state.first() else { return };
        let superseded = self.shared.superseded.look_up(first, pages, states, usable);
        let generation = self.snapshot.visibility.generation(first.namespace());
        for page in superseded {
            for key in state.iter().map(|object| object.on_page(pages[page])) {
                let fingerprint = self.shared.fingerprint(&key, generation);
                let Some(entry) = self.snapshot.find(fingerprint) else { continue };
                if may_leave_first(self.shared, &entry) {
                    self.superseded.push(FoundObject::new(&entry, self.depth, self.tick));
                }
            }
        }
    }

    /// How many of `keys` are present before the first that is absent.
    pub fn prefix(&mut self, keys: impl Iterator<Item: Borrow<ObjectKey>>) -> usize {
        let given = keys.size_hint();
        let found = self.lookup(keys.map(|key| (key, true)), true);
        // The keys after the first absent one are not looked up.
        if given.1 == Some(given.0) {
            self.absent[Absence::Stranded.number()] += (given.0 - found.len()) as u64;
        }
        found.into_iter().take_while(|present| *present).count()
    }

    fn lookup<K: Borrow<ObjectKey>>(
        &mut self,
        mut keys: impl Iterator<Item = (K, bool)>,
        stop: bool,
    ) -> Vec<bool> {
        let mut found = Vec::with_capacity(keys.size_hint().0);
        self.requested.reserve(keys.size_hint().0);
        self.snapshot.reserve(keys.size_hint().0);
        let mut depths = PageDepths::default();
        // The keys of a batch usually have one namespace.
        let mut last_namespace: Option<(NamespaceId, Generation)> = None;
        // Those that are compared now, and those that are prefetched meanwhile. Each step handles a
        // whole group, so that its cache misses overlap, also with the comparisons of the group
        // before.
        let (mut group, mut next) = (Vec::<LookedUp<K>>::new(), Vec::new());
        let mut absent = Vec::new();
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
                next.push(LookedUp { fingerprint, depth, key, is_used });
            }
            let seen = self.requested.len();
            for (at, LookedUp { fingerprint, depth, key, is_used }) in group.iter().enumerate() {
                let entry = self.snapshot.find(*fingerprint);
                found.push(entry.is_some());
                self.found += u64::from(entry.is_some());
                match entry {
                    Some(_) if !is_used => {}
                    Some(entry) => self.requested.push(FoundObject::new(&entry, *depth, self.tick)),
                    None if stop => {
                        self.finder.count(key.borrow(), *fingerprint, &mut self.absent);
                        return found;
                    }
                    None => {
                        self.finder.prefetch(*fingerprint);
                        absent.push(at);
                    }
                }
            }
            for LookedUp { fingerprint, key, .. } in absent.drain(..).map(|at| &group[at]) {
                self.finder.count(key.borrow(), *fingerprint, &mut self.absent);
            }
            recency::prefetch(self.shared, &self.requested[seen..]);
            if next.is_empty() {
                return found;
            }
            std::mem::swap(&mut group, &mut next);
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;
    use crate::api::request::{Options, PutSlice};
    use crate::config::{Config, MachineLimits};
    use crate::server::tests::key;
    use crate::state::session_io::recency;
    use crate::store::embedded::Store;

    const PAGES: u8 = 3;

    fn state(page: u8) -> ObjectKey {
        let namespace = key(page, "k").namespace();
        ObjectKey::new(namespace, PrefixHash([page; 32]), Role::Target, "mamba", "s", Shard::Whole)
            .expect("a key")
    }

    /// States that a lookup of all pages would let leave first, under the lock.
    fn superseded_by_a_lookup(store: &Store) -> usize {
        let pages: Vec<_> = (0..PAGES).map(|page| PrefixHash([page; 32])).collect();
        let at = recency(&store.shared, &Options::default());
        lookup_at_one_moment(&store.shared, at, |lookup| {
            lookup.note_states(&pages, &[state(0)], &[true; PAGES as usize], PAGES.into());
            lookup.superseded.len()
        })
    }

    #[test]
    fn superseded_state_that_stays_costs_later_lookups_no_lock() {
        for in_one_group in [false, true] {
            let mut config = Config::default();
            config.dram.bytes = crate::Size::mib(4);
            config.index.max_objects = Some(1000);
            let facts = MachineLimits::of_this_machine().expect("facts");
            let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
            for page in 0..PAGES {
                let (bytes, keys) = ([page; 100], [key(page, "k"), state(page)]);
                let pieces = [&bytes[..]];
                let both = keys.map(|key| PutSlice { key, pieces: &pieces });
                let groups: &[&[PutSlice<'_>]] =
                    if in_one_group { &[&both] } else { &[&both[..1], &both[1..]] };
                let outcomes = store.put_groups(groups, Options::default());
                assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
            }
            let expected = if in_one_group { 0 } else { usize::from(PAGES) - 1 };
            assert_eq!(superseded_by_a_lookup(&store), expected, "in_one_group={in_one_group}");
            assert_eq!(superseded_by_a_lookup(&store), 0, "in_one_group={in_one_group}");
        }
    }
}
