//! Removing objects and clearing namespaces, durably.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::MEMBERS_MAX;
use pagelith_tiers::policy::FrameId;

use crate::batch::Options;
use crate::core::{Core, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::frames::FrameRef;
use crate::get::Probed;
use crate::index::{SsdPlace, Visited, name_of};
use crate::remote::queue::RemoteJob;
use crate::session::{Session, recency};
use crate::shared::Shared;
use crate::store::Store;

/// Remove `keys`, the rest of their groups and what is attached to them: invisible at once, tombstones synced
/// before it returns.
pub(crate) fn remove(store: &Store, keys: &[ObjectKey], options: Options) -> Result<usize> {
    let shared = &store.shared;
    let deadline = shared.deadline(options.timeout);
    let _removing = shared.removals.begin();
    let Begun { answers, here, gone } =
        store.with_session(options.timeout, |session| begin(shared, session, keys, &options, deadline))??;
    // Every answer is taken, also behind one that failed: nobody else would.
    let told = tell(shared, |id| RemoteJob::Remove { id, keys: gone });
    let ends: Vec<_> =
        answers.into_iter().chain(told).map(|id| shared.await_answer(id, deadline, "remove")).collect();
    ends.into_iter().collect::<Result<()>>()?;
    Ok(here)
}

/// A removal that is invisible here.
pub(crate) struct Begun {
    /// The answers to wait for.
    pub answers: Vec<u64>,
    /// How many of the keys were here.
    pub here: usize,
    /// They, and what lay with them: a peer may have something attached to an object of a group that it has no more.
    pub gone: Vec<ObjectKey>,
}

/// Make them invisible and queue their tombstones.
pub(crate) fn begin(
    shared: &Shared,
    session: &mut Session,
    keys: &[ObjectKey],
    options: &Options,
    deadline: Mono,
) -> Result<Begun> {
    shared.check_open()?;
    let at = recency(shared, options);
    let mut gone: BTreeSet<ObjectKey> = keys.iter().copied().collect();
    let mut here = vec![false; keys.len()];
    let answers = loop {
        // Where they lie, and who lies with them: only the headers know.
        let probed = session.probe(keys, at, deadline);
        let mut core = shared.lock();
        let again = if keys.iter().zip(&probed).any(|(key, p)| has_moved(shared, &core, key, p.as_ref())) {
            true
        } else {
            let found = probed.iter().any(Option::is_some);
            for ((key, probed), here) in keys.iter().zip(probed).zip(&mut here) {
                *here |= unlink(shared, &mut core, key, probed, &mut gone);
            }
            // Under one fingerprint for all, a key may have been found in one place and lie in another too.
            found && shared.config.constant_fingerprint()
        };
        if !again {
            core.remove_waiting(&gone);
            break queue_tombstones(&mut core, &gone);
        }
        drop(core);
        if deadline.since(shared.now()).is_zero() {
            return Err(Error::new(ErrorKind::Unavailable, "remove did not end in time"));
        }
    };
    shared.work.raise();
    forget_attached(shared, &gone);
    let here = here.into_iter().filter(|here| *here).count();
    Ok(Begun { answers, here, gone: gone.into_iter().collect() })
}

/// Whether what a probe said of a key is no longer so: its record was moved or written meanwhile, and who lies
/// with it would be missed.
fn has_moved(shared: &Shared, core: &Core, key: &ObjectKey, probed: Option<&Probed>) -> bool {
    let generation = core.generation(key.namespace());
    let fingerprint = |key: &ObjectKey| shared.fingerprint(key, generation);
    if core.find_memory(key, fingerprint(key), generation).is_some() {
        return false;
    }
    match probed {
        Some(p) => {
            let lies = |(key, place): &(ObjectKey, SsdPlace)| {
                core.index.find(fingerprint(key)).any(|e| e.ssd == Some(*place))
            };
            let own = p.siblings.iter().filter(|(k, _)| k == key).any(lies);
            !own && !core.find_ssd(fingerprint(key)).is_empty()
        }
        None => !shared.config.constant_fingerprint() && !core.find_ssd(fingerprint(key)).is_empty(),
    }
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
        let data = core.frames.get(id).map(|f| f.data.clone());
        for m in data.iter().flat_map(|data| &data.members) {
            gone.insert(m.key);
            core.pins.end_lease(m.fingerprint);
        }
        core.drop_frame(id, true);
        found = true;
    }
    for (sibling, place) in probed.map(|p| p.siblings).unwrap_or_default() {
        let fingerprint = shared.fingerprint(&sibling, generation);
        if let Some(entry) = core.remove_entry(fingerprint, |e| e.ssd == Some(place)) {
            core.note_gone(&sibling, &entry);
            core.pins.end_lease(fingerprint);
            found = true;
        }
        gone.insert(sibling);
    }
    if !shared.config.constant_fingerprint() {
        // It may have moved since its header was read.
        while let Some(entry) = core.remove_entry(fingerprint, |e| e.frame.is_none()) {
            core.note_gone(key, &entry);
            core.pins.end_lease(fingerprint);
            found = true;
        }
    }
    found
}

/// Drop what was attached to objects that are `gone`, so that it does not come back with a later base of the
/// same name; after a crash their tombstones hide it. It is invisible already, so this takes its time: a walk over
/// the index, since only links know.
fn forget_attached(shared: &Shared, gone: &BTreeSet<ObjectKey>) {
    let mut core = shared.lock();
    if core.index.links() == 0 {
        return;
    }
    let name = |key: &ObjectKey| name_of(shared.fingerprint(key, core.generation(key.namespace())));
    let names: HashSet<u64> = gone.iter().map(name).collect();
    let before = core.sequence;
    let homes = core.index.home_slots();
    let piece = core.index.walk_piece();
    for from in (0..homes).step_by(piece as usize) {
        let mut attached = Vec::new();
        core.index.visit_homes(from, from + piece, |visited| match visited {
            Visited::Link { fingerprint, base } if names.contains(&base) => attached.push(fingerprint),
            Visited::Link { .. } | Visited::Object(_) => {}
        });
        attached.into_iter().for_each(|fingerprint| forget_one(&mut core, fingerprint, before));
        drop(core);
        core = shared.lock();
    }
}

/// Drop an attached object, unless it was put since.
fn forget_one(core: &mut Core, fingerprint: u128, before: Sequence) {
    let entries: Vec<_> = core.index.find(fingerprint).filter(|e| e.attached).collect();
    for entry in entries {
        match entry.frame.map(FrameId) {
            Some(id) if core.frames.get(id).is_some_and(|f| f.data.sequence < before) => {
                core.drop_frame(id, true);
            }
            Some(_) => {}
            None => {
                // All that lies with it at once, although the walk comes to the others later.
                core.hide_record(&entry);
                core.remove_entry(fingerprint, |e| *e == entry);
            }
        }
    }
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
    let deadline = shared.deadline(options.timeout);
    let _removing = shared.removals.begin();
    let (generation, answer) = begin_clear(shared, namespace)?;
    let told = tell(shared, |id| RemoteJob::Clear { id, namespace });
    let ends: Vec<_> =
        answer.into_iter().chain(told).map(|id| shared.await_answer(id, deadline, "clear")).collect();
    ends.into_iter().collect::<Result<()>>()?;
    Ok(generation)
}

/// Have peers told; the answer to wait for, if there are any.
pub(crate) fn tell(shared: &Shared, job: impl FnOnce(u64) -> RemoteJob) -> Option<u64> {
    let remote = shared.remote.as_ref()?;
    let asked = shared.lock().ask_remote(job);
    remote.work.raise();
    asked
}

/// Make what the namespace holds unreachable; the answer to wait for.
pub(crate) fn begin_clear(shared: &Shared, namespace: NamespaceId) -> Result<(Generation, Option<u64>)> {
    shared.check_open()?;
    let mut core = shared.lock();
    let rows = core.visibility.generations();
    let (has_row, rows) = (rows.contains_key(&namespace), rows.len());
    let (holds, may_hold) = core.holds_of(namespace);
    if !has_row && !may_hold {
        // Nothing of it can come back: a row would be for nothing, and everybody's are few.
        core.clear_waiting_groups(namespace);
        return Ok((core.generation(namespace), None));
    }
    let max = shared.config.namespaces_max();
    // Clears on suspicion leave half of them for namespaces that hold something.
    let room = if holds { max } else { max.div_ceil(2) };
    if !has_row && rows >= room as usize {
        let detail =
            format!("no room for another cleared namespace namespace={namespace} namespaces_max={max}");
        return Err(Error::new(ErrorKind::NoSpace, detail));
    }
    let generation = core.clear(namespace);
    let answer = core.ask(|id| Job::Clear { id, namespace, generation });
    drop(core);
    shared.work.raise();
    Ok((generation, answer))
}
