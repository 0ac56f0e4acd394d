//! Removing objects and clearing namespaces, durably.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::MEMBERS_MAX;

use crate::batch::Options;
use crate::core::{Core, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::frames::FrameRef;
use crate::get::Probed;
use crate::session::recency;
use crate::shared::Shared;
use crate::store::Store;

/// Remove `keys` and the rest of their groups: invisible at once, tombstones synced before it returns.
pub(crate) fn remove(store: &Store, keys: &[ObjectKey], options: Options) -> Result<usize> {
    let shared = &store.shared;
    shared.check_open()?;
    let deadline = shared.deadline(options.timeout);
    let at = recency(shared, &options);
    // Where they lie, and who lies with them: only the headers know.
    let probed = store.with_session(|session| session.probe(keys, at, deadline))?;
    let mut core = shared.lock();
    let mut gone: BTreeSet<ObjectKey> = keys.iter().copied().collect();
    let mut here = 0;
    for (key, probed) in keys.iter().zip(probed) {
        here += usize::from(unlink(shared, &mut core, key, probed, &mut gone));
    }
    let answers = queue_tombstones(&mut core, &gone);
    drop(core);
    shared.work.raise();
    for id in answers {
        shared.await_answer(id, deadline, "remove")?;
    }
    Ok(here)
}

/// Take a key and its group out of DRAM and index; true if it was there.
fn unlink(
    shared: &Shared,
    core: &mut Core,
    key: &ObjectKey,
    probed: Option<Probed>,
    gone: &mut BTreeSet<ObjectKey>,
) -> bool {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    let mut found = false;
    if let Some((FrameRef { id, .. }, _)) = core.find_memory(key, fingerprint, generation) {
        gone.extend(core.frames.get(id).into_iter().flat_map(|f| f.data.members.iter().map(|m| m.key)));
        core.drop_frame(id, true);
        found = true;
    }
    for (sibling, place) in probed.map(|p| p.siblings).unwrap_or_default() {
        let fingerprint = shared.fingerprint(&sibling, generation);
        found |= core.remove_entry(fingerprint, |e| e.ssd == Some(place)).is_some();
        gone.insert(sibling);
    }
    if !shared.config.constant_fingerprint() {
        // It may have moved since its header was read.
        while core.remove_entry(fingerprint, |e| e.frame.is_none()).is_some() {
            found = true;
        }
    }
    found
}

/// Tombstones for all of `gone`, also for what is not in the index: an older record of it may still lie on
/// SSD, and come back at a crash.
fn queue_tombstones(core: &mut Core, gone: &BTreeSet<ObjectKey>) -> Vec<u64> {
    let mut by_namespace: BTreeMap<NamespaceId, Vec<ObjectKey>> = BTreeMap::new();
    gone.iter().for_each(|k| by_namespace.entry(k.namespace()).or_default().push(*k));
    let mut answers = Vec::new();
    for (namespace, keys) in by_namespace {
        let generation = core.generation(namespace);
        for keys in keys.chunks(MEMBERS_MAX) {
            let sequence = core.next_sequence();
            let keys = keys.to_vec();
            answers.extend(core.ask(|id| Job::Tombstones { id, generation, sequence, keys }));
        }
    }
    answers
}

/// Raise a namespace's generation: what it holds is unreachable at once, and for ever once this returns.
pub(crate) fn clear(shared: &Shared, namespace: NamespaceId, options: Options) -> Result<Generation> {
    shared.check_open()?;
    let deadline = shared.deadline(options.timeout);
    let mut core = shared.lock();
    let known = core.generations.contains_key(&namespace);
    if !known && core.generations.len() >= shared.config.namespaces_max() as usize {
        let max = shared.config.namespaces_max();
        let detail =
            format!("no room for another cleared namespace namespace={namespace} namespaces_max={max}");
        return Err(Error::new(ErrorKind::NoSpace, detail));
    }
    let generation = Generation(core.generation(namespace).0 + 1);
    core.generations.insert(namespace, generation);
    let old: Vec<_> = core
        .frames
        .iter()
        .filter(|(_, f)| !f.dead && f.data.namespace == namespace)
        .map(|(id, _)| id)
        .collect();
    old.into_iter().for_each(|id| core.drop_frame(id, true));
    let answer = core.ask(|id| Job::Clear { id, namespace, generation });
    drop(core);
    shared.work.raise();
    if let Some(id) = answer {
        shared.await_answer(id, deadline, "clear")?;
    }
    Ok(generation)
}
