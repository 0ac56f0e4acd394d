//! Removes objects and clears namespaces, durably.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::MEMBERS_MAX;
use pagelith_tiers::policy::FrameId;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::request::Options;
use crate::memory::departed::Departure;
use crate::memory::frames::FrameRef;
use crate::memory::index::Entry;
use crate::memory::index::{SlotContent, SsdLocation, name_of};
use crate::read::get::ProbedObject;
use crate::state::core::Core;
use crate::state::jobs::Job;
use crate::state::peer_queue::PeerJob;
use crate::state::session_io::recency;
use crate::state::shared::Shared;
use crate::store::session::Session;
use crate::store::session_pool::SessionPool;

/// Remove `keys`, the rest of their groups and the objects attached to them. They are invisible at
/// once; their tombstones are synced before this returns.
pub(crate) fn remove(pool: &SessionPool, keys: &[ObjectKey], options: Options) -> Result<usize> {
    let shared = &pool.shared;
    let deadline = shared.deadline(options.timeout);
    let _removing = shared.remote.removal_fence.begin();
    let PendingRemoval { answers, here, gone } = pool
        .with_session(options.timeout, |session| {
            begin(shared, session, keys, &options, deadline)
        })??;
    // Take every answer, even after a failed one, so that none stays in the core.
    let notified = notify_peers(shared, |id| PeerJob::Remove { id, keys: gone });
    let results: Vec<_> = answers
        .into_iter()
        .chain(notified)
        .map(|id| shared.wait_for_job(id, deadline, "remove"))
        .collect();
    results.into_iter().collect::<Result<()>>()?;
    Ok(here)
}

/// A removal that took effect in this store and is not durable yet.
pub(crate) struct PendingRemoval {
    /// The answers to wait for.
    pub answers: Vec<u64>,
    /// How many of the keys were stored.
    pub here: usize,
    /// The keys and all members of their groups: a peer may hold objects attached to a member of a
    /// group that it has lost itself.
    pub gone: Vec<ObjectKey>,
}

/// Make the objects invisible and queue their tombstones.
pub(crate) fn begin(
    shared: &Shared,
    session: &mut Session,
    keys: &[ObjectKey],
    options: &Options,
    deadline: Mono,
) -> Result<PendingRemoval> {
    shared.check_open()?;
    let at = recency(shared, options);
    let mut gone: BTreeSet<ObjectKey> = keys.iter().copied().collect();
    let mut here = vec![false; keys.len()];
    let answers = loop {
        // Find their locations and the other members of their groups, which only record headers
        // list.
        let probed = session.probe(keys, at, deadline);
        let mut core = shared.lock();
        let again =
            if keys.iter().zip(&probed).any(|(key, p)| has_moved(shared, &core, key, p.as_ref())) {
                true
            } else {
                let found = probed.iter().any(Option::is_some);
                let mut removed = BTreeSet::new();
                for (key, probed) in keys.iter().zip(probed) {
                    unlink(shared, &mut core, key, probed, (&mut gone, &mut removed));
                }
                for (key, here) in keys.iter().zip(&mut here) {
                    *here |= removed.contains(key);
                }
                // With a constant fingerprint a key may be stored in several locations.
                found && shared.config.constant_fingerprint()
            };
        if !again {
            core.remove_from_pending_groups(&gone);
            shared.admission.forget(&gone);
            break queue_tombstones(&mut core, &gone);
        }
        drop(core);
        if deadline.since(shared.now()).is_zero() {
            let detail = "remove did not end in time; raise its timeout, or remove fewer at once";
            let detail = format!("{detail} keys={}", keys.len());
            return Err(Error::new(ErrorKind::Unavailable, detail));
        }
    };
    shared.signals.flusher.raise();
    drop_attached(shared, &gone);
    let here = here.into_iter().filter(|here| *here).count();
    Ok(PendingRemoval { answers, here, gone: gone.into_iter().collect() })
}

/// Whether a probe is outdated: the record was reinserted or written since, so members of its group
/// might be missed.
fn has_moved(shared: &Shared, core: &Core, key: &ObjectKey, probed: Option<&ProbedObject>) -> bool {
    let generation = core.generation(key.namespace());
    let fingerprint = |key: &ObjectKey| shared.fingerprint(key, generation);
    if core.find_memory(key, fingerprint(key), generation).is_some() {
        return false;
    }
    match probed {
        Some(p) => {
            let in_place = |(key, location): &(ObjectKey, SsdLocation)| {
                core.index.find(fingerprint(key)).any(|e| e.ssd == Some(*location))
            };
            let own = p.members.iter().filter(|(k, _)| k == key).any(in_place);
            !own && !core.find_ssd(fingerprint(key)).is_empty()
        }
        None => {
            !shared.config.constant_fingerprint() && !core.find_ssd(fingerprint(key)).is_empty()
        }
    }
}

/// Remove a key and its group from DRAM and the index. Adds the members of the group to `gone`, and
/// those that were stored to `removed`.
fn unlink(
    shared: &Shared,
    core: &mut Core,
    key: &ObjectKey,
    probed: Option<ProbedObject>,
    (gone, removed): (&mut BTreeSet<ObjectKey>, &mut BTreeSet<ObjectKey>),
) {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if let Some((FrameRef { id, .. }, _)) = core.find_memory(key, fingerprint, generation) {
        let data = core.dram.frames.get(id).map(|f| f.data.clone());
        for m in data.iter().flat_map(|data| &data.members) {
            gone.insert(m.key);
            removed.insert(m.key);
            core.pins.end_lease(m.fingerprint);
        }
        core.drop_frame(id, true, Departure::Removed);
    }
    for (sibling, location) in probed.map(|p| p.members).unwrap_or_default() {
        let fingerprint = shared.fingerprint(&sibling, generation);
        let at = |e: &Entry| e.ssd == Some(location);
        if let Some(entry) = core.remove_entry(fingerprint, at, Departure::Removed) {
            core.emit_removed(&sibling, &entry);
            core.pins.end_lease(fingerprint);
            removed.insert(sibling);
        }
        gone.insert(sibling);
    }
    if !shared.config.constant_fingerprint() {
        // It may have been reinserted since its header was read.
        let on_ssd = |e: &Entry| e.frame.is_none();
        while let Some(entry) = core.remove_entry(fingerprint, on_ssd, Departure::Removed) {
            core.emit_removed(key, &entry);
            core.pins.end_lease(fingerprint);
            removed.insert(*key);
        }
    }
}

/// Drop objects that were attached to removed ones, so that they do not return with a later base of
/// the same name; after a crash the bases' tombstones hide them. They are invisible already, so
/// this may take a walk over the index: only links name the base.
fn drop_attached(shared: &Shared, gone: &BTreeSet<ObjectKey>) {
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
            SlotContent::Link { fingerprint, base } if names.contains(&base) => {
                attached.push(fingerprint)
            }
            SlotContent::Link { .. } | SlotContent::Object(_) => {}
        });
        attached
            .into_iter()
            .for_each(|fingerprint| drop_attached_object(&mut core, fingerprint, before));
        drop(core);
        core = shared.lock();
    }
}

/// Drop an attached object, unless it was put since.
fn drop_attached_object(core: &mut Core, fingerprint: u128, before: Sequence) {
    let entries: Vec<_> = core.index.find(fingerprint).filter(|e| e.attached).collect();
    for entry in entries {
        match entry.frame.map(FrameId) {
            Some(id) if core.dram.frames.get(id).is_some_and(|f| f.data.sequence < before) => {
                core.drop_frame(id, true, Departure::Removed);
            }
            Some(_) => {}
            None => {
                // Hide all members of the record at once; the walk reaches the others later.
                core.hide_record(&entry);
                core.remove_entry(fingerprint, |e| *e == entry, Departure::Removed);
            }
        }
    }
}

/// Queue tombstones for all removed keys, even those not in the index: an older record may still be
/// on SSD and return after a crash.
fn queue_tombstones(core: &mut Core, gone: &BTreeSet<ObjectKey>) -> Vec<u64> {
    let mut by_namespace: BTreeMap<NamespaceId, Vec<ObjectKey>> = BTreeMap::new();
    gone.iter().for_each(|k| by_namespace.entry(k.namespace()).or_default().push(*k));
    let mut answers = Vec::new();
    for (namespace, keys) in by_namespace {
        let generation = core.generation(namespace);
        for keys in keys.chunks(MEMBERS_MAX) {
            let sequence = core.next_sequence();
            let keys = keys.to_vec();
            answers.extend(core.submit_job(|id| Job::Tombstones {
                id,
                generation,
                sequence,
                keys,
            }));
        }
    }
    answers
}

/// Raise a namespace's generation: its objects are unreachable at once, and durably so once this
/// returns.
pub(crate) fn clear(
    shared: &Shared,
    namespace: NamespaceId,
    options: Options,
) -> Result<Generation> {
    let deadline = shared.deadline(options.timeout);
    let _removing = shared.remote.removal_fence.begin();
    let (generation, answer) = begin_clear(shared, namespace)?;
    let notified = notify_peers(shared, |id| PeerJob::Clear { id, namespace });
    let results: Vec<_> = answer
        .into_iter()
        .chain(notified)
        .map(|id| shared.wait_for_job(id, deadline, "clear"))
        .collect();
    results.into_iter().collect::<Result<()>>()?;
    Ok(generation)
}

/// Notify the peers; returns the answer to wait for, if there are peers.
pub(crate) fn notify_peers(shared: &Shared, job: impl FnOnce(u64) -> PeerJob) -> Option<u64> {
    let remote = shared.remote.peers.as_ref()?;
    let asked = shared.lock().submit_peer_job(job);
    remote.writer_signal.raise();
    asked
}

/// Make a namespace's objects unreachable; returns the answer to wait for.
pub(crate) fn begin_clear(
    shared: &Shared,
    namespace: NamespaceId,
) -> Result<(Generation, Option<u64>)> {
    shared.check_open()?;
    let mut core = shared.lock();
    let has_row = core.visibility.generations().contains_key(&namespace);
    let (holds, may_hold) = core.holds_of(namespace);
    if !has_row && !may_hold {
        // Nothing of it can return after a crash, so it needs no row: rows are few, and all clients
        // share them.
        core.clear_pending_groups(namespace);
        return Ok((core.generation(namespace), None));
    }
    let max = shared.config.namespaces_max();
    // Namespaces that only may hold objects get half of the rows, to leave the rest for those that
    // do.
    let room = if holds { max } else { max.div_ceil(2) };
    if !core.visibility.has_room(namespace, room as usize) {
        let detail = format!(
            "no room for another cleared namespace namespace={namespace} namespaces_max={max}"
        );
        return Err(Error::new(ErrorKind::NoSpace, detail));
    }
    let generation = core.clear(namespace);
    let answer = core.submit_job(|id| Job::Clear { id, namespace, generation });
    drop(core);
    shared.signals.flusher.raise();
    Ok((generation, answer))
}
