//! Step 3 of a put: a group becomes visible, and with it what waited for it.

use std::sync::Arc;

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::{FrameId, Recency};

use super::copied::Copied;
use super::{At, Came, Kind, Stored};
use crate::api::error::{Error, ErrorKind};
use crate::api::outcome::{FlushReport, PutOutcome, Tier};
use crate::memory::frames::{FrameData, FrameMember, FrameRef, FrameState, Members};
use crate::memory::index::{Entry, TICK_MODULUS, name_of};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;
use crate::state::pending_groups::Attached;
use crate::state::shared::Shared;

/// Make a group visible.
pub(crate) fn publish(
    shared: &Shared,
    core: &mut Core,
    kind: Kind<'_>,
    copied: Copied,
    at: Recency,
) -> Stored {
    let (doubt, whole) = (copied.doubt(), copied.is_whole());
    let Copied { mut data, number, here, open, came, .. } = copied;
    core.frames.give_back(number);
    let (fetched, generation) = (came == Came::Fetched, data.generation);
    if let Some(error) = doubt {
        return back(error, data);
    }
    if !whole {
        let detail = "not all of a group was copied";
        return back(Error::new(ErrorKind::Internal, detail), data);
    }
    let objects = data.members.len() as u64;
    if core.generation(data.namespace) != generation {
        // Cleared while it was being copied: stored, and gone already.
        give_back(core, &data.members);
        return Stored::Done(PutOutcome::Stored, Vec::new());
    }
    if let Came::OfStore(since) = came
        && !since.is_some_and(|since| shared.removals.none_since(since))
        && !mutant::on(Mutant::ToldBeforeOffers)
    {
        core.count_busy(data.members.iter().map(|m| &m.key), shared.now());
        return back(Error::busy("something was removed while it was on its way"), data);
    }
    // Nothing is known of most of what is put, and nothing gives way to it then.
    let meets_some = !here.is_empty() || data.members.iter().any(|m| core.index.contains(m.fingerprint));
    if meets_some && is_present(core, kind, &data.members, generation) {
        give_back(core, &data.members);
        core.counters.puts_present += if fetched { 0 } else { objects };
        return Stored::Done(PutOutcome::AlreadyPresent, Vec::new());
    }
    let changed_one = || changed(shared, core, &data.members, &here, generation);
    if let Some(key) = meets_some.then(changed_one).flatten() {
        let error = Error::busy(format!("an object was put, removed or is being written key={key}"));
        if !fetched {
            core.count_busy(data.members.iter().map(|m| &m.key), shared.now());
        }
        return back(error, data);
    }
    if let Some(error) = open.and_then(|id| lost(core, id)) {
        core.count_busy(data.members.iter().map(|m| &m.key), shared.now());
        return back(error, data);
    }
    let writes = core.ssd.as_ref().is_some_and(|s| s.health.writes());
    if core.write_buffer_only && !writes {
        // There is no tier left that would keep it.
        return refused(core, &data.members);
    }
    if let Kind::Attached(base) = kind {
        let attached = Attached { base: *base, generation, at, members: members_of(data), here };
        if core.is_base_present(name_of(shared.fingerprint(base, generation))) {
            return attach(shared, core, attached, came);
        }
        if came == Came::Put {
            return wait(shared, core, attached);
        }
        // What stores bring each other does not wait: behind a base that is not here it is not stored.
        give_back(core, &attached.members);
        core.counters.puts_refused += if fetched { 0 } else { objects };
        return Stored::Done(PutOutcome::Refused, Vec::new());
    }
    // First, so that a refusal leaves everything as it was.
    if !make_room(core, objects) {
        return refused(core, &data.members);
    }
    if core.frames.is_full() {
        return back(too_many(), data);
    }
    if meets_some {
        replace(shared, core, &data.members, generation);
    }
    let bytes = data.object_bytes();
    Arc::make_mut(&mut data).sequence = core.next_sequence();
    let frame = match insert(core, &data, at, came) {
        Ok(frame) => frame,
        Err(()) => return back(too_many(), data),
    };
    let mut frames: Vec<FrameRef> = frame.into_iter().collect();
    count(core, came, objects, bytes);
    if core.waiting.has_attached() {
        let keys: Vec<_> = data.members.iter().map(|m| m.key).collect();
        take_up(shared, core, &keys, generation, &mut frames);
    }
    Stored::Done(PutOutcome::Stored, frames)
}

/// What waited for these objects as its base becomes visible with them.
fn take_up(
    shared: &Shared,
    core: &mut Core,
    keys: &[ObjectKey],
    generation: Generation,
    frames: &mut Vec<FrameRef>,
) {
    for attached in core.waiting.take_attached(keys) {
        // What it met when it was put may have changed while it waited.
        if changed(shared, core, &attached.members, &attached.here, generation).is_some() {
            give_back(core, &attached.members);
            core.counters.groups_dropped += 1;
            continue;
        }
        match attach(shared, core, attached, Came::Put) {
            Stored::Done(_, more) => frames.extend(more),
            Stored::Back(_, members) => give_back(core, &members),
        }
    }
}

/// It is the caller's again.
fn back(error: Error, data: Arc<FrameData>) -> Stored {
    Stored::Back(error, members_of(data).into_vec())
}

/// The objects of a group that is not seen; nobody else has it.
fn members_of(data: Arc<FrameData>) -> Members {
    Arc::try_unwrap(data).map(|data| data.members).unwrap_or_default()
}

/// What keeps an open group from being committed that was admitted: it was aborted since, or objects were removed out
/// of the hands of who commits it. They must not come back with it.
fn lost(core: &Core, id: u64) -> Option<Error> {
    match core.waiting.get(id) {
        None => Some(crate::write::groups::gone()),
        Some(open) if open.lost_some => {
            Some(Error::busy(format!("an object of the group was removed key={}", open.required[0])))
        }
        Some(_) => None,
    }
}

/// Keep attached objects until their base is there.
fn wait(shared: &Shared, core: &mut Core, attached: Attached) -> Stored {
    if core.waiting.waits(&attached.base, &attached.members) {
        give_back(core, &attached.members);
        return Stored::Done(PutOutcome::Waiting, Vec::new());
    }
    let bytes = attached.members.iter().map(|m| m.extent.padded_bytes()).sum();
    if let Err(error) = core.room_to_wait(shared.now(), None, bytes) {
        core.count_busy(attached.members.iter().map(|m| &m.key), shared.now());
        return Stored::Back(error, attached.members.into_vec());
    }
    core.waiting.wait(attached, shared.group_deadline());
    Stored::Done(PutOutcome::Waiting, Vec::new())
}

/// Make attached objects visible beside their base, which is here.
fn attach(shared: &Shared, core: &mut Core, attached: Attached, came: Came) -> Stored {
    let Attached { base, generation, at, members, .. } = attached;
    let objects = members.len() as u64;
    let name = name_of(shared.fingerprint(&base, generation));
    // Each takes a link too. Making room may cost the base.
    if !make_room(core, 2 * objects) || !core.is_base_present(name) {
        return refused(core, &members);
    }
    if core.frames.is_full() {
        return Stored::Back(too_many(), members.into_vec());
    }
    replace(shared, core, &members, generation);
    let bytes: u64 = members.iter().map(|m| m.extent.bytes).sum();
    let data = FrameData {
        namespace: base.namespace(),
        generation,
        sequence: core.next_sequence(),
        group_kind: GroupKind::Attached,
        base_group: shared.group_name(&base, generation),
        base: Some(Box::new(base)),
        depth: at.depth,
        members,
    };
    let data = Arc::new(data);
    let frames = match insert(core, &data, at, came) {
        Ok(frame) => frame.into_iter().collect(),
        Err(()) => return back(too_many(), data),
    };
    for m in &data.members {
        let linked = core.index.insert_link(m.fingerprint, name);
        debug_assert!(linked.is_ok(), "{linked:?}");
    }
    count(core, came, objects, bytes);
    Stored::Done(PutOutcome::Stored, frames)
}

fn count(core: &mut Core, came: Came, objects: u64, bytes: u64) {
    match came {
        Came::Fetched => core.counters.promoted += 1,
        Came::Put | Came::OfStore(_) => {
            core.counters.puts_stored += objects;
            core.counters.bytes_put += bytes;
        }
    }
}

fn too_many() -> Error {
    Error::busy("too many pages in memory")
}

fn give_back(core: &mut Core, members: &[FrameMember]) {
    members.iter().for_each(|m| core.space.free(m.extent));
}

fn refused(core: &mut Core, members: &[FrameMember]) -> Stored {
    give_back(core, members);
    core.counters.puts_refused += members.len() as u64;
    if let Some(first) = members.first() {
        let refused = FlushReport { refused_objects: members.len() as u64, ..FlushReport::default() };
        core.flushes.add(first.key.namespace(), &refused);
    }
    Stored::Done(PutOutcome::Refused, Vec::new())
}

/// Whether DRAM holds exactly this group, seen by everybody.
fn is_present(core: &Core, kind: Kind<'_>, members: &[FrameMember], generation: Generation) -> bool {
    let Some(first) = members.first() else { return false };
    let Some((frame, _)) = core.find_memory(&first.key, first.fingerprint, generation) else { return false };
    let seen = core.index.find(first.fingerprint).any(|e| e.frame == Some(frame.id.0) && core.is_visible(&e));
    let Some(data) = core.frames.get(frame.id).map(|f| &f.data).filter(|_| seen) else { return false };
    let holds = |n: &FrameMember| data.members.iter().any(|m| m.key == n.key);
    let same = data.members.len() == members.len() && members.iter().all(holds);
    match kind {
        Kind::Single => true,
        Kind::Base => same && !data.is_attached(),
        Kind::Attached(_) => same && data.is_attached(),
    }
}

/// The first object that is no longer where admission met it (nowhere, if `here` has no word of it), or that is there and still on its way to SSD:
/// somebody may have been told that a flush covered it. What is gone may have been removed, and must not come
/// back with the group.
fn changed(
    shared: &Shared,
    core: &Core,
    members: &[FrameMember],
    here: &[Option<At>],
    generation: Generation,
) -> Option<ObjectKey> {
    let as_met = |(i, m): (usize, &FrameMember)| {
        let here = here.get(i).copied().flatten();
        let frame = core.find_memory(&m.key, m.fingerprint, generation).map(|(frame, _)| frame);
        match (here, frame) {
            (Some(At::Frame(met)), Some(frame)) => {
                met == frame && core.frames.get(frame.id).is_some_and(|f| f.state == FrameState::Clean)
            }
            (Some(At::Ssd(met)), None) => core.find_ssd(m.fingerprint).iter().any(|e| e.ssd == Some(met)),
            (None, None) => shared.config.constant_fingerprint() || core.find_ssd(m.fingerprint).is_empty(),
            (Some(At::Frame(_)), None) | (Some(At::Ssd(_)) | None, Some(_)) => false,
        }
    };
    members.iter().enumerate().find(|m| !as_met(*m)).map(|(_, m)| m.key)
}

/// Take what the group's objects were before out of the index, with all that lay with it: objects by themselves,
/// and what is attached to nothing.
fn replace(shared: &Shared, core: &mut Core, members: &[FrameMember], generation: Generation) {
    for m in members {
        if let Some((frame, _)) = core.find_memory(&m.key, m.fingerprint, generation) {
            core.drop_frame(frame.id, true);
        }
        if shared.config.constant_fingerprint() {
            continue;
        }
        while let Some(entry) = core.remove_entry(m.fingerprint, |e| e.frame.is_none()) {
            core.emit_removed(&m.key, &entry);
            // What was by itself has no siblings; those of what is attached are known to its header only.
            if entry.attached {
                core.hide_record(&entry);
            }
        }
    }
}

/// Room for so many entries in the index.
fn make_room(core: &mut Core, entries: u64) -> bool {
    while core.index.len() + entries > core.index.capacity() {
        // What is on SSD too would keep its entries, and all of DRAM would go for nothing.
        if !core.evict_one(true) {
            return false;
        }
    }
    true
}

/// Make a frame visible; with an SSD tier it is to be queued. Fails if there is no number for it.
fn insert(
    core: &mut Core,
    data: &Arc<FrameData>,
    at: Recency,
    came: Came,
) -> std::result::Result<Option<FrameRef>, ()> {
    let on_ssd = core.ssd.as_ref().is_some_and(|s| s.health.writes());
    let frame = core.frames.insert(data.clone(), FrameState::Queued, at).ok_or(())?;
    link(core, frame.id, data);
    if came == Came::Put
        && let Some(remote) = core.remote.as_mut()
    {
        core.counters.remote_skipped += remote.push_frame(frame, data.members.len() as u64);
    }
    if let Some(ssd) = core.ssd.as_mut().filter(|_| on_ssd) {
        ssd.unflushed_bytes += data.bytes();
        ssd.unqueued.insert(frame.serial, frame);
        return Ok(Some(frame));
    }
    if core.ssd.is_some() && came != Came::Fetched {
        core.count_lost(data.namespace, data.members.len());
    }
    core.mark_frame_clean(frame);
    Ok(None)
}

/// Enter a frame's objects into the index; there is room, the caller has seen to it.
fn link(core: &mut Core, id: FrameId, data: &FrameData) {
    let tick = (core.now_tick() % u64::from(TICK_MODULUS)) as u32;
    for m in &data.members {
        let entry = Entry {
            fingerprint: m.fingerprint,
            length: m.extent.bytes as u32,
            ssd: None,
            frame: Some(id.0),
            tick,
            freq: 0,
            attached: data.is_attached(),
        };
        let inserted = core.index.insert(&entry);
        debug_assert!(inserted.is_ok(), "{inserted:?}");
        core.events.stored(Tier::Memory, &m.key, true);
    }
}
