//! Existence: from the index alone, thousands of keys in one critical section.

use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::index::{Entry, PREFETCH_GROUP};
use crate::session::page_steps;
use crate::shared::Shared;

/// Which of `keys` are here. What is here counts as asked for.
pub(crate) fn exists(shared: &Shared, keys: &[ObjectKey], at: Recency) -> Vec<bool> {
    look(shared, keys, at, false)
}

/// How many of `keys` are here before the first that is not.
pub(crate) fn prefix(shared: &Shared, keys: &[ObjectKey], at: Recency) -> usize {
    look(shared, keys, at, true).into_iter().take_while(|here| *here).count()
}

fn look(shared: &Shared, keys: &[ObjectKey], at: Recency, stop: bool) -> Vec<bool> {
    let mut core = shared.lock();
    let mut found = Vec::with_capacity(keys.len());
    let mut fingerprints = Vec::with_capacity(PREFETCH_GROUP);
    for (i, step) in page_steps(keys.iter()).enumerate() {
        if i % PREFETCH_GROUP == 0 {
            let group = keys[i..].iter().take(PREFETCH_GROUP);
            fingerprints.clear();
            fingerprints.extend(group.map(|k| shared.fingerprint(k, core.generation(k.namespace()))));
            core.index.prefetch(&fingerprints);
        }
        let fingerprint = fingerprints[i % PREFETCH_GROUP];
        let entry = core.index.find(fingerprint).next();
        found.push(entry.is_some());
        match entry {
            Some(entry) => {
                let at = Recency { depth: at.depth.saturating_add(step), ..at };
                core.touch(fingerprint, |e: &Entry| *e == entry, at);
            }
            None if stop => break,
            None => {}
        }
    }
    found
}
