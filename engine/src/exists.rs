//! Existence: from the index alone, thousands of keys in one critical section.

use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::core::Core;
use crate::index::{Entry, PREFETCH_GROUP};
use crate::session::PageSteps;
use crate::shared::Shared;

/// Which of `keys` are here. What is here counts as asked for.
pub(crate) fn exists(
    shared: &Shared,
    core: &mut Core,
    keys: impl Iterator<Item = ObjectKey>,
    at: Recency,
) -> Vec<bool> {
    look(shared, core, keys, at, false)
}

/// How many of `keys` are here before the first that is not.
pub(crate) fn prefix(
    shared: &Shared,
    core: &mut Core,
    keys: impl Iterator<Item = ObjectKey>,
    at: Recency,
) -> usize {
    look(shared, core, keys, at, true).into_iter().take_while(|here| *here).count()
}

fn look(
    shared: &Shared,
    core: &mut Core,
    mut keys: impl Iterator<Item = ObjectKey>,
    at: Recency,
    stop: bool,
) -> Vec<bool> {
    let mut found = Vec::with_capacity(keys.size_hint().0);
    let mut steps = PageSteps::default();
    let mut group = Vec::with_capacity(PREFETCH_GROUP);
    let mut fingerprints = Vec::with_capacity(PREFETCH_GROUP);
    loop {
        group.clear();
        group.extend(keys.by_ref().take(PREFETCH_GROUP));
        if group.is_empty() {
            return found;
        }
        fingerprints.clear();
        fingerprints.extend(group.iter().map(|k| shared.fingerprint(k, core.generation(k.namespace()))));
        core.index.prefetch(&fingerprints);
        for (key, fingerprint) in group.iter().zip(&fingerprints) {
            let depth = at.depth.saturating_add(steps.step(key));
            let entry = core.index.find(*fingerprint).find(|e| core.is_visible(e));
            found.push(entry.is_some());
            match entry {
                Some(entry) => {
                    core.touch(*fingerprint, |e: &Entry| *e == entry, Recency { depth, ..at });
                }
                None if stop => return found,
                None => {}
            }
        }
    }
}
