//! Existence: from the index alone, thousands of keys in one critical section.

use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::core::Core;
use crate::index::PREFETCH_GROUP;
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
    let mut entries = Vec::with_capacity(PREFETCH_GROUP);
    let mut touched = Vec::with_capacity(PREFETCH_GROUP);
    // The keys of a batch are of one namespace, mostly.
    let mut of: Option<(NamespaceId, Generation)> = None;
    loop {
        group.clear();
        group.extend(keys.by_ref().take(PREFETCH_GROUP));
        if group.is_empty() {
            return found;
        }
        fingerprints.clear();
        fingerprints.extend(group.iter().map(|key| {
            let namespace = key.namespace();
            let known = of.filter(|known| known.0 == namespace);
            let (_, generation) =
                *of.insert(known.unwrap_or_else(|| (namespace, core.generation(namespace))));
            shared.fingerprint(key, generation)
        }));
        core.index.prefetch(&fingerprints);
        // One step for all of the group at a time, so that their misses of the cache are under way together.
        entries.clear();
        entries.extend(fingerprints.iter().map(|f| core.index.locate(*f, |e| core.is_visible(e))));
        core.frames.prefetch(entries.iter().filter_map(|e| e.as_ref()?.1.frame));
        for (key, entry) in group.iter().zip(&entries) {
            let depth = at.depth.saturating_add(steps.step(key));
            found.push(entry.is_some());
            match entry {
                Some((slot, entry)) => {
                    let at = Recency { depth, ..at };
                    touched.extend(core.touch_located(*slot, entry, at).map(|frame| (frame, at)));
                }
                None if stop => break,
                None => {}
            }
        }
        core.policy.touch_all(&touched);
        touched.clear();
        if stop && found.last() == Some(&false) {
            return found;
        }
    }
}
