//! Publication, after the copy: a group becomes visible, together with the attached groups that
//! waited for it.

use std::sync::Arc;

use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::{FrameId, Recency};

use super::copy::ConfirmedGroup;
use super::{Published, ReturnedGroup, admit, into_members};
use crate::api::error::Error;
use crate::api::outcome::{FlushReport, PutOutcome, Tier};
use crate::memory::departed::Departure;
use crate::memory::frames::{FrameData, FrameMember, FrameRef, FrameState};
use crate::memory::index::{Entry, TICK_MODULUS, name_of};
use crate::memory::visibility::VisibilityFilter;
use crate::read::pin;
use crate::state::core::Core;
use crate::state::pending_groups::AttachedGroup;
use crate::state::put_spec::{Location, PutKind, PutOrigin};
use crate::state::quota::{QuotaRoom, no_own_room};
use crate::state::shared::Shared;

/// Make a group visible.
pub(crate) fn publish(
    shared: &Shared,
    core: &mut Core,
    kind: PutKind<'_>,
    group: ConfirmedGroup,
    at: Recency,
) -> Result<Published, ReturnedGroup> {
    let ConfirmedGroup { mut data, existing, open_group, origin } = group;
    let (fetched, generation) = (origin == PutOrigin::Fetched, data.generation);
    let objects = data.members.len() as u64;
    if core.generation(data.namespace) != generation {
        // The namespace was cleared while the group was copied: stored, and removed by the clear.
        free_members(core, &data.members);
        return Ok(Published::without_frames(PutOutcome::Stored));
    }
    if let PutOrigin::Offered(since) = origin
        && !since.is_some_and(|since| shared.remote.removal_fence.is_unchanged_since(since))
        && !mutant::on(Mutant::NotifiedBeforeOffers)
    {
        shared.count_busy(core, data.members.iter().map(|m| &m.key));
        let first = data.members.first().map(|m| m.key.to_string()).unwrap_or_default();
        let detail = "objects were removed while a peer's offer was in flight; it offers again";
        let error = Error::busy(format!("{detail} key={first}"));
        return Err(ReturnedGroup::new(error, data));
    }
    // Most keys that are put are new, and then no existing object has to be replaced.
    let meets_existing =
        !existing.is_empty() || data.members.iter().any(|m| core.index.contains(m.fingerprint));
    if meets_existing && is_present(core, kind, &data.members, generation) {
        free_members(core, &data.members);
        core.counters.puts_present += if fetched { 0 } else { objects };
        return Ok(Published::without_frames(PutOutcome::AlreadyPresent));
    }
    let first_changed = || changed_member(shared, core, &data.members, &existing, generation);
    if let Some(key) = meets_existing.then(first_changed).flatten() {
        let detail = "an object was put, removed or is being written; retry the put";
        let error = Error::busy(format!("{detail} key={key}"));
        if !fetched {
            shared.count_busy(core, data.members.iter().map(|m| &m.key));
        }
        return Err(ReturnedGroup::new(error, data));
    }
    if let Some(error) = open_group.and_then(|id| commit_error(core, id)) {
        shared.count_busy(core, data.members.iter().map(|m| &m.key));
        return Err(ReturnedGroup::new(error, data));
    }
    let writes = core.ssd.as_ref().is_some_and(|s| s.health.writes());
    if core.dram.write_buffer_only && !writes {
        // No tier is left to keep the group.
        return Ok(refuse(core, &data.members));
    }
    if let PutKind::Attached(base) = kind {
        let attached =
            AttachedGroup { base: *base, generation, at, members: into_members(data), existing };
        if core.is_base_present(name_of(shared.fingerprint(base, generation))) {
            return attach(shared, core, attached, origin);
        }
        if origin == PutOrigin::Put {
            return wait_for_base(shared, core, attached);
        }
        // Attached groups from peers do not wait: without their base they are not stored.
        free_members(core, &attached.members);
        core.counters.puts_refused += if fetched { 0 } else { objects };
        return Ok(Published::without_frames(PutOutcome::Refused));
    }
    match check_quota(shared, core, &data.members, origin, None) {
        Ok(None) => {}
        Ok(Some(refused)) => return Ok(refused),
        Err(error) => return Err(ReturnedGroup::new(error, data)),
    }
    // Reserved before any change, so that a refusal leaves the state as it was.
    if !core.reserve_index_entries(objects) {
        return Ok(refuse(core, &data.members));
    }
    if !core.reserve_frame_number() {
        if !fetched {
            shared.count_busy(core, data.members.iter().map(|m| &m.key));
        }
        return Err(ReturnedGroup::new(too_many_frames(), data));
    }
    let replaced = match meets_existing {
        true => remove_replaced(shared, core, &data.members, generation),
        false => Vec::new(),
    };
    let bytes = data.object_bytes();
    Arc::make_mut(&mut data).sequence = core.next_sequence();
    let (frame, queued) = match insert_frame(core, &data, at, origin) {
        Ok(inserted) => inserted,
        Err(()) => return Err(ReturnedGroup::new(too_many_frames(), data)),
    };
    let mut frames = Vec::from_iter(queued.then_some(frame));
    if meets_existing && let Some(ssd) = core.ssd.as_mut() {
        // What it replaces may be durable, so admission must not keep it off SSD.
        ssd.queue.push_frames(frames.iter().copied());
        ssd.replaced.note(frame, &replaced);
    }
    count_put(core, origin, data.namespace, (objects, bytes));
    follow_hints(shared, core, &data.members);
    if core.pending_groups.has_attached() {
        let keys: Vec<_> = data.members.iter().map(|m| m.key).collect();
        publish_waiting(shared, core, &keys, generation, &mut frames);
    }
    Ok(Published { outcome: PutOutcome::Stored, frames })
}

/// Publish the attached groups that waited for these objects of their base.
fn publish_waiting(
    shared: &Shared,
    core: &mut Core,
    keys: &[ObjectKey],
    generation: Generation,
    frames: &mut Vec<FrameRef>,
) {
    core.drop_expired_groups(shared.now());
    for attached in core.pending_groups.take_attached(keys) {
        // The objects that were present at its admission may have changed while it waited.
        if changed_member(shared, core, &attached.members, &attached.existing, generation).is_some()
        {
            free_members(core, &attached.members);
            core.counters.groups_dropped += 1;
            continue;
        }
        match attach(shared, core, attached, PutOrigin::Put) {
            Ok(published) => frames.extend(published.frames),
            Err(returned) => {
                returned.free(core);
                core.counters.groups_dropped += 1;
            }
        }
    }
}

/// The reason why an admitted open group cannot be committed: it was aborted since, or objects of
/// it were removed during the commit. Removed objects must not reappear with the group.
fn commit_error(core: &Core, id: u64) -> Option<Error> {
    match core.pending_groups.get(id) {
        None => Some(crate::write::open_group::not_open()),
        Some(open) if open.lost_members => Some(Error::busy(format!(
            "an object of the group was removed key={}",
            open.required[0]
        ))),
        Some(_) => None,
    }
}

/// Keep attached objects until their base is visible.
fn wait_for_base(
    shared: &Shared,
    core: &mut Core,
    attached: AttachedGroup,
) -> Result<Published, ReturnedGroup> {
    if core.pending_groups.contains_attached(&attached.base, &attached.members) {
        free_members(core, &attached.members);
        return Ok(Published::without_frames(PutOutcome::Waiting));
    }
    let bytes = attached.members.iter().map(|m| m.extent.padded_bytes()).sum();
    let room = core.pending_groups.check_page(&attached.base);
    if let Err(error) = room.and_then(|()| core.check_pending_capacity(shared.now(), None, bytes)) {
        shared.count_busy(core, attached.members.iter().map(|m| &m.key));
        return Err(ReturnedGroup { error, members: attached.members.into_vec() });
    }
    core.pending_groups.add_attached(attached, shared.group_deadline());
    Ok(Published::without_frames(PutOutcome::Waiting))
}

/// Make attached objects visible; their base is present.
fn attach(
    shared: &Shared,
    core: &mut Core,
    attached: AttachedGroup,
    origin: PutOrigin,
) -> Result<Published, ReturnedGroup> {
    let AttachedGroup { base, generation, at, members, .. } = attached;
    let objects = members.len() as u64;
    let name = name_of(shared.fingerprint(&base, generation));
    match check_quota(shared, core, &members, origin, Some(&base)) {
        Ok(None) => {}
        Ok(Some(refused)) => return Ok(refused),
        Err(error) => return Err(ReturnedGroup { error, members: members.into_vec() }),
    }
    // Each object takes an entry and a link. The evictions may remove the base.
    let has_entries = core.reserve_index_entries(2 * objects);
    let has_number = core.reserve_frame_number();
    if !has_entries || !core.is_base_present(name) {
        return Ok(refuse(core, &members));
    }
    if !has_number {
        if origin != PutOrigin::Fetched {
            shared.count_busy(core, members.iter().map(|m| &m.key));
        }
        return Err(ReturnedGroup { error: too_many_frames(), members: members.into_vec() });
    }
    let replaced = remove_replaced(shared, core, &members, generation);
    let bytes: u64 = members.iter().map(|m| m.extent.bytes).sum();
    let data = FrameData {
        namespace: base.namespace(),
        generation,
        sequence: core.next_sequence(),
        group_kind: GroupKind::Attached,
        base_name: shared.group_name(&base, generation),
        base: Some(Box::new(base)),
        depth: at.depth,
        members,
    };
    let data = Arc::new(data);
    let (frame, queued) = match insert_frame(core, &data, at, origin) {
        Ok(inserted) => inserted,
        Err(()) => return Err(ReturnedGroup::new(too_many_frames(), data)),
    };
    let frames = Vec::from_iter(queued.then_some(frame));
    if let Some(ssd) = core.ssd.as_mut() {
        ssd.replaced.note(frame, &replaced);
    }
    for m in &data.members {
        let linked = core.index.insert_link(m.fingerprint, name);
        debug_assert!(linked.is_ok(), "{linked:?}");
    }
    count_put(core, origin, base.namespace(), (objects, bytes));
    follow_hints(shared, core, &data.members);
    supersede(shared, core, &data.members, generation);
    Ok(Published { outcome: PutOutcome::Stored, frames })
}

/// Hints for objects that are stored now. A hint that let objects leave was wrong if they are put
/// again.
fn follow_hints(shared: &Shared, core: &mut Core, members: &[FrameMember]) {
    shared.hints.requested(members.iter().map(|m| m.fingerprint), || shared.now());
    pin::begin_early_leases(shared, core, members.iter().map(|m| (m.key, m.fingerprint)));
}

/// If these objects are a state that supersedes another one, let that one leave DRAM first.
fn supersede(shared: &Shared, core: &mut Core, state: &[FrameMember], generation: Generation) {
    let Some(page) = state.first().and_then(|m| shared.superseded.put(&m.key)) else { return };
    for member in state {
        let before = shared.fingerprint(&member.key.on_page(page), generation);
        let frame = core.index.find(before).find(|e| e.attached).and_then(|e| e.frame);
        frame.into_iter().for_each(|frame| core.demote_state(FrameId(frame)));
    }
}

fn count_put(
    core: &mut Core,
    origin: PutOrigin,
    namespace: NamespaceId,
    (objects, bytes): (u64, u64),
) {
    match origin {
        PutOrigin::Fetched => core.counters.promoted += 1,
        PutOrigin::Put | PutOrigin::Offered(_) => {
            core.counters.puts_stored += objects;
            core.counters.bytes_put += bytes;
            let counts = core.namespaces.counts(namespace);
            counts.into_iter().for_each(|counts| counts.count_put(objects, bytes));
        }
    }
}

fn too_many_frames() -> Error {
    Error::busy(
        "no free frame number: too many groups are in DRAM; retry later, or raise index.max_objects",
    )
}

fn free_members(core: &mut Core, members: &[FrameMember]) {
    members.iter().for_each(|m| core.dram.space.free(m.extent));
}

fn refuse(core: &mut Core, members: &[FrameMember]) -> Published {
    free_members(core, members);
    if let Some(first) = members.first() {
        let fingerprints = members.iter().map(|m| m.fingerprint);
        count_refused_put(core, first.key.namespace(), fingerprints, false);
    }
    Published::without_frames(PutOutcome::Refused)
}

/// Count objects of a namespace whose put is refused, `by_limit` because of its limits; returns the
/// outcome.
pub(crate) fn count_refused_put(
    core: &mut Core,
    namespace: NamespaceId,
    fingerprints: impl Iterator<Item = u128>,
    by_limit: bool,
) -> PutOutcome {
    let mut refused_objects = 0;
    for fingerprint in fingerprints {
        core.departed.note(fingerprint, Departure::NotTaken);
        refused_objects += 1;
    }
    core.counters.puts_refused += refused_objects;
    core.flushes.add(namespace, &FlushReport::refused(refused_objects));
    if let Some(tenant) = core.tenants.get_mut(namespace).filter(|_| by_limit) {
        tenant.puts_refused += refused_objects;
    }
    PutOutcome::Refused
}

/// Make room within the limits of the members' namespace. If they exceed these, their memory is
/// free and the outcome is returned.
fn check_quota(
    shared: &Shared,
    core: &mut Core,
    members: &[FrameMember],
    origin: PutOrigin,
    base: Option<&ObjectKey>,
) -> Result<Option<Published>, Error> {
    let Some(first) = members.first() else { return Ok(None) };
    let (namespace, is_written) = (first.key.namespace(), core.ssd.is_some());
    let base = base.and_then(|base| admit::frame_of(shared, core, base));
    let lengths = members.iter().map(|m| m.extent.bytes);
    match core.make_quota_room(namespace, lengths, is_written, base) {
        QuotaRoom::Fits => Ok(None),
        QuotaRoom::Busy => {
            if origin != PutOrigin::Fetched {
                shared.count_busy(core, members.iter().map(|m| &m.key));
            }
            Err(no_own_room(namespace))
        }
        QuotaRoom::Exceeded => {
            free_members(core, members);
            if origin != PutOrigin::Fetched {
                count_refused_put(core, namespace, members.iter().map(|m| m.fingerprint), true);
            }
            Ok(Some(Published::without_frames(PutOutcome::Refused)))
        }
    }
}

/// Whether DRAM holds this group, visible to all readers: a frame with exactly its members, or for
/// a single object any frame that has it.
fn is_present(
    core: &Core,
    kind: PutKind<'_>,
    members: &[FrameMember],
    generation: Generation,
) -> bool {
    let Some(first) = members.first() else { return false };
    let Some((frame, _)) = core.find_memory(&first.key, first.fingerprint, generation) else {
        return false;
    };
    let visible = core
        .index
        .find(first.fingerprint)
        .any(|e| e.frame == Some(frame.id.0) && core.is_visible(&e));
    let Some(data) = core.dram.frames.get(frame.id).map(|f| &f.data).filter(|_| visible) else {
        return false;
    };
    let holds = |n: &FrameMember| data.members.iter().any(|m| m.key == n.key);
    let same = data.members.len() == members.len() && members.iter().all(holds);
    match kind {
        PutKind::Single => true,
        PutKind::Base => same && !data.is_attached(),
        PutKind::Attached(_) => same && data.is_attached(),
    }
}

/// The first object that is no longer at the location that admission found (`existing`; absent if
/// `existing` has no location), or whose frame waits for its write to SSD. Such a frame must not be
/// replaced: it may be written again after damage, and an earlier flush has reported it as durable.
/// An object that disappeared may have been removed, and must not reappear with the group.
fn changed_member(
    shared: &Shared,
    core: &Core,
    members: &[FrameMember],
    existing: &[Option<Location>],
    generation: Generation,
) -> Option<ObjectKey> {
    let is_unchanged = |(i, m): (usize, &FrameMember)| {
        let existing = existing.get(i).copied().flatten();
        let frame = core.find_memory(&m.key, m.fingerprint, generation).map(|(frame, _)| frame);
        match (existing, frame) {
            (Some(Location::Frame(admitted)), Some(frame)) => {
                admitted == frame
                    && core
                        .dram
                        .frames
                        .get(frame.id)
                        .is_some_and(|f| f.state == FrameState::Evictable)
            }
            (Some(Location::Ssd(admitted)), None) => {
                core.find_ssd(m.fingerprint).iter().any(|e| e.ssd == Some(admitted))
            }
            (None, None) => {
                shared.config.constant_fingerprint() || core.find_ssd(m.fingerprint).is_empty()
            }
            (Some(Location::Frame(_)), None) | (Some(Location::Ssd(_)) | None, Some(_)) => false,
        }
    };
    members.iter().enumerate().find(|m| !is_unchanged(*m)).map(|(_, m)| m.key)
}

/// Remove from the index the objects that the group replaces, with all objects of their frames and
/// records. They are single objects, and attached objects whose base is absent. Returns the
/// segments that have them.
fn remove_replaced(
    shared: &Shared,
    core: &mut Core,
    members: &[FrameMember],
    generation: Generation,
) -> Vec<SegmentId> {
    let mut segments = Vec::new();
    for m in members {
        let places = core.index.find(m.fingerprint).filter_map(|e| e.ssd);
        segments.extend(places.map(|location| SegmentId(location.segment)));
        if let Some((frame, _)) = core.find_memory(&m.key, m.fingerprint, generation) {
            core.drop_frame(frame.id, true, Departure::Removed);
        }
        if shared.config.constant_fingerprint() {
            continue;
        }
        let on_ssd = |e: &Entry| e.frame.is_none();
        while let Some(entry) = core.remove_entry(m.fingerprint, on_ssd, Departure::Removed) {
            core.emit_removed(&m.key, &entry);
            // A single object's record has no other members. Those of an attached object are only
            // known from its record header.
            if entry.attached {
                core.hide_record(&entry);
            }
        }
    }
    segments.sort_unstable();
    segments.dedup();
    segments
}

/// Make a frame visible. Returns it, and whether it must be queued for SSD. Fails if no frame
/// number is free.
fn insert_frame(
    core: &mut Core,
    data: &Arc<FrameData>,
    at: Recency,
    origin: PutOrigin,
) -> std::result::Result<(FrameRef, bool), ()> {
    let ssd_writes = core.ssd.as_ref().is_some_and(|s| s.health.writes());
    let tenants = &mut core.tenants;
    let frame =
        core.dram.frames.insert(data.clone(), FrameState::Unwritten, at, tenants).ok_or(())?;
    index_frame(core, frame.id, data);
    if origin == PutOrigin::Put
        && let Some(remote) = core.remote.as_mut()
    {
        core.counters.remote_skipped += remote.push_frame(frame, data.members.len() as u64);
    }
    if let Some(ssd) = core.ssd.as_mut().filter(|_| ssd_writes) {
        ssd.queue.note_unqueued(frame);
        return Ok((frame, true));
    }
    if core.ssd.is_some() && origin != PutOrigin::Fetched {
        core.count_lost(data.namespace, data.members.len());
    }
    core.end_write(frame);
    Ok((frame, false))
}

/// Insert a frame's objects into the index, in which the caller has reserved space.
fn index_frame(core: &mut Core, id: FrameId, data: &FrameData) {
    let tick = (core.now_tick() % u64::from(TICK_MODULUS)) as u32;
    for m in &data.members {
        let entry = Entry {
            fingerprint: m.fingerprint,
            length: m.extent.bytes as u32,
            ssd: None,
            frame: Some(id.0),
            tick,
            attached: data.is_attached(),
        };
        let inserted = core.index.insert(&entry);
        debug_assert!(inserted.is_ok(), "{inserted:?}");
        core.events.stored(Tier::Memory, &m.key, true);
    }
}
