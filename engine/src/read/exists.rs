//! Existence: from the index alone, thousands of keys at a time, and without the core's lock as long as nothing changes
//! where they are looked for.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;

use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::api::page_depth::PageSteps;
use crate::memory::index::{PREFETCH_GROUP, TICK_MODULUS};
use crate::state::core::Core;
use crate::state::read_view::{LOCK_FREE_TRIES, Snapshot};
use crate::state::recency;
use crate::state::recency::{FoundObject, record};
use crate::state::shared::Shared;

/// Which of `keys` are here, all of them at one moment. What is here counts as asked for.
pub(crate) fn exists(
    shared: &Shared,
    keys: impl Iterator<Item: Borrow<ObjectKey>> + Clone,
    at: Recency,
) -> Vec<bool> {
    at_one_moment(shared, at, |look| look.each(keys.clone()))
}

/// How many of `keys` are here before the first that is not.
pub(crate) fn prefix(
    shared: &Shared,
    keys: impl Iterator<Item: Borrow<ObjectKey>> + Clone,
    at: Recency,
) -> usize {
    at_one_moment(shared, at, |look| look.prefix(keys.clone()))
}

/// As [`exists`], for who has the core and has changed nothing.
pub(crate) fn under(
    shared: &Shared,
    core: &mut Core,
    keys: impl Iterator<Item: Borrow<ObjectKey>>,
    at: Recency,
) -> Vec<bool> {
    locked(shared, core, at, |look| look.each(keys))
}

/// What `ask` finds by looks at the index, all of which were true at one moment. It may be asked several times. What it
/// found the last time counts as asked for.
pub(crate) fn at_one_moment<R>(shared: &Shared, at: Recency, mut ask: impl FnMut(&mut Look<'_>) -> R) -> R {
    let read_view = &shared.read_view;
    // Where every request has to be told of, the lock is needed anyway.
    for _ in 0..if read_view.counts_touches { 0 } else { LOCK_FREE_TRIES } {
        let pin = crossbeam_epoch::pin();
        let reading = read_view.read(&pin);
        let mut look = Look::new(shared, &reading, at);
        let answer = ask(&mut look);
        let touched = look.touched;
        if reading.validate(&pin) {
            drop(pin);
            record(shared, &touched, at);
            return answer;
        }
    }
    locked(shared, &mut shared.lock(), at, ask)
}

/// Under the lock what is published is all there is, and nothing changes.
fn locked<R>(shared: &Shared, core: &mut Core, at: Recency, ask: impl FnOnce(&mut Look<'_>) -> R) -> R {
    let pin = crossbeam_epoch::pin();
    let reading = shared.read_view.read(&pin);
    let mut look = Look::new(shared, &reading, at);
    let answer = ask(&mut look);
    look.touched.iter().for_each(|touched| touched.record_in(core, at));
    answer
}

/// Looks at the index.
pub(crate) struct Look<'a> {
    shared: &'a Shared,
    reading: &'a Snapshot<'a>,
    depth: u32,
    /// The tick that counts as now, as the index has it.
    tick: u32,
    touched: Vec<FoundObject>,
}

impl<'a> Look<'a> {
    fn new(shared: &'a Shared, reading: &'a Snapshot<'a>, at: Recency) -> Look<'a> {
        let tick = (shared.read_view.tick.load(Ordering::Relaxed) % u64::from(TICK_MODULUS)) as u32;
        Look { shared, reading, depth: at.depth, tick, touched: Vec::new() }
    }

    /// Which of `keys` are here.
    pub fn each(&mut self, keys: impl Iterator<Item: Borrow<ObjectKey>>) -> Vec<bool> {
        self.look(keys, false)
    }

    /// How many of `keys` are here before the first that is not.
    pub fn prefix(&mut self, keys: impl Iterator<Item: Borrow<ObjectKey>>) -> usize {
        self.look(keys, true).into_iter().take_while(|here| *here).count()
    }

    fn look<K: Borrow<ObjectKey>>(&mut self, mut keys: impl Iterator<Item = K>, stop: bool) -> Vec<bool> {
        let mut found = Vec::with_capacity(keys.size_hint().0);
        self.touched.reserve(keys.size_hint().0);
        self.reading.reserve(keys.size_hint().0);
        let mut steps = PageSteps::default();
        // The keys of a batch are of one namespace, mostly.
        let mut of: Option<(NamespaceId, Generation)> = None;
        // By fingerprint and depth, what is looked for, and what comes while it is: one step for all of
        // a group at a time, so that their misses of the cache are under way together, and those of the
        // next group while this one is compared.
        let (mut group, mut next) = (Vec::<(u128, u32)>::new(), Vec::new());
        loop {
            next.clear();
            for key in keys.by_ref().take(PREFETCH_GROUP) {
                let namespace = key.borrow().namespace();
                let known = of.filter(|known| known.0 == namespace);
                let generation = || self.reading.visibility.generation(namespace);
                let (_, generation) = *of.insert(known.unwrap_or_else(|| (namespace, generation())));
                let fingerprint = self.shared.fingerprint(key.borrow(), generation);
                self.shared.read_view.index.prefetch(&[fingerprint]);
                next.push((fingerprint, self.depth.saturating_add(steps.step(key.borrow()))));
            }
            let seen = self.touched.len();
            for (fingerprint, depth) in &group {
                let entry = self.reading.find(*fingerprint);
                found.push(entry.is_some());
                match entry {
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
