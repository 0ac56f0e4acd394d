//! Base groups that are put in several calls, from several threads, and become visible at commit.
//!
//! Objects of an open group are in the arena and have no index entry, until the group is committed
//! or its deadline passes ([`crate::state::pending_groups`]). A cache controller that writes a
//! page's pools in separate calls begins the same group in each of them: beginning an open group
//! joins it. [`crate::Store::put_parts`] does all of it in one call.

use std::sync::Arc;

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::Extent;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CompletedPut, PutOutcome};
use crate::api::request::{Options, PutSlice};
use crate::memory::frames::FrameMember;
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;
use crate::state::frame_access::UnpublishedExtent;
use crate::state::group_memory;
use crate::state::pending_groups::MemberState;
use crate::state::put_spec::{ObjectSize, PutKind};
use crate::state::reserve::FilledReservation;
use crate::state::session_io::recency;
use crate::state::shared::Shared;
use crate::write::put;

/// Identifies an open group in a [`crate::Session`] of its store. In a session of another store it
/// would identify another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpenGroupId(pub(crate) u64);

/// An open group, as a caller or a connection that joined it holds it.
#[derive(Clone)]
pub(crate) struct JoinedGroup {
    id: OpenGroupId,
    required: Arc<[ObjectKey]>,
}

/// The error for a group that is not open any more.
pub(crate) fn not_open() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "group is not open: its deadline has passed, or its namespace was cleared",
    )
}

/// Begin the group of these objects, or join it. With `over_link` the caller is a connection, which
/// leaves the group when it ends; other callers never leave it.
pub(crate) fn join(
    shared: &Shared,
    required: &[ObjectKey],
    options: &Options,
    over_link: bool,
) -> Result<JoinedGroup> {
    shared.check_open()?;
    let Some(first) = required.first() else {
        return Err(Error::invalid("a group requires no object"));
    };
    put::check_keys(shared, PutKind::Base, required)?;
    for key in required {
        put::check_object(shared, &ObjectSize { key: *key, length: None, in_arena: false }, first)?;
    }
    let at = recency(shared, options);
    let deadline = shared.group_deadline();
    let mut core = shared.lock();
    core.drop_expired_groups(shared.now());
    let generation = core.generation(first.namespace());
    check_other_groups(shared, &core, required, generation)?;
    let (id, required) = core.pending_groups.join(required, generation, at, deadline, over_link)?;
    Ok(JoinedGroup { id: OpenGroupId(id), required })
}

/// An error if DRAM has one of these objects in another group. Objects that are only on SSD are
/// compared at commit.
fn check_other_groups(
    shared: &Shared,
    core: &Core,
    required: &[ObjectKey],
    generation: Generation,
) -> Result<()> {
    for key in required {
        let fingerprint = shared.fingerprint(key, generation);
        let Some((frame, _)) = core.find_memory(key, fingerprint, generation) else { continue };
        let Some(data) = core.dram.frames.get(frame.id).map(|f| &f.data) else { continue };
        let has: Vec<ObjectKey> = data.members.iter().map(|m| m.key).collect();
        let same = has.len() == required.len() && has.iter().all(|k| required.contains(k));
        if (has.len() > 1 && !same) || data.is_attached() {
            return Err(crate::state::put_spec::group_conflict(key, &has, required.iter()));
        }
    }
    Ok(())
}

impl JoinedGroup {
    /// The objects of the group, in the order in which they are stored on SSD.
    pub fn required(&self) -> &[ObjectKey] {
        &self.required
    }

    /// The group's identifier.
    pub fn id(&self) -> OpenGroupId {
        self.id
    }

    /// See [`crate::Group::try_put`].
    pub fn put(&self, shared: &Shared, object: &PutSlice<'_>) -> Result<PutOutcome> {
        shared.check_open()?;
        let length: u64 = object.pieces.iter().map(|p| p.len() as u64).sum();
        let reserved = match self.reserve(shared, &object.key, length, None)? {
            ReserveOutcome::Present => return Ok(PutOutcome::AlreadyPresent),
            ReserveOutcome::Reserved(reserved) => reserved,
        };
        let checksums = UnpublishedExtent::new(reserved.extent).fill(&shared.memory, object.pieces);
        let Some(checksums) = checksums else {
            let mut core = shared.lock();
            core.dram.space.free(reserved.extent);
            self.release_member(&mut core, reserved.at);
            return Err(Error::new(ErrorKind::Internal, "extent and object differ in length"));
        };
        let member = FrameMember { key: object.key, checksums, ..reserved.into_member() };
        self.add_filled(shared, member)
    }

    /// As [`JoinedGroup::put`], for bytes that are already in the arena.
    pub fn put_filled(
        &self,
        shared: &Shared,
        key: &ObjectKey,
        filled: FilledReservation,
    ) -> Result<PutOutcome> {
        shared.check_open()?;
        let reserved = match self.reserve(shared, key, filled.length(), filled.extent())? {
            ReserveOutcome::Present => return Ok(PutOutcome::AlreadyPresent),
            ReserveOutcome::Reserved(reserved) => reserved,
        };
        let Some(member) = filled.into_member(*key, reserved.fingerprint) else {
            self.release_member(&mut shared.lock(), reserved.at);
            return Err(Error::new(ErrorKind::Internal, "received bytes are still being written"));
        };
        self.add_filled(shared, member)
    }

    fn add_filled(&self, shared: &Shared, member: FrameMember) -> Result<PutOutcome> {
        let (mut core, key) = (shared.lock(), member.key);
        if self.fill_member(&mut core, member) {
            Ok(PutOutcome::Waiting)
        } else if is_present(shared, &core, &key) {
            Ok(PutOutcome::AlreadyPresent)
        } else {
            Err(not_open())
        }
    }

    /// See [`crate::Group::missing`].
    pub fn missing(&self, shared: &Shared) -> Vec<ObjectKey> {
        let core = shared.lock();
        let open = core.pending_groups.get(self.id.0);
        let absent = |(i, key): (usize, &ObjectKey)| {
            let put = open.is_some_and(|g| g.is_put(i));
            (!put && !is_present(shared, &core, key)).then_some(*key)
        };
        self.required.iter().enumerate().filter_map(absent).collect()
    }

    /// As [`JoinedGroup::missing`], for callers that do not know whether another one has ended the
    /// group: then objects that are missing cannot be put any more.
    pub fn missing_if_open(&self, shared: &Shared) -> Result<Vec<ObjectKey>> {
        // In this order: a group that is committed meanwhile lacks nothing.
        let is_open = self.is_open(shared);
        let missing = self.missing(shared);
        if is_open || missing.is_empty() { Ok(missing) } else { Err(not_open()) }
    }

    /// The outcome of a commit, from the outcomes of its members.
    pub fn commit_outcome(&self, shared: &Shared, done: Vec<CompletedPut>) -> Result<PutOutcome> {
        let outcome = crate::api::borrowed::outcome_of_group(done.into_iter().map(|d| d.outcome));
        let may_be_committed = outcome
            .as_ref()
            .is_none_or(|o| o.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable));
        match outcome {
            // Another caller that joined the group has committed it.
            _ if may_be_committed && !self.is_open(shared) && self.missing(shared).is_empty() => {
                Ok(PutOutcome::AlreadyPresent)
            }
            None => Err(not_open()),
            Some(outcome) => outcome,
        }
    }

    /// Abort the group.
    pub fn abort(&self, shared: &Shared) {
        shared.lock().close_group(self.id.0);
    }

    /// Whether the group is still open: neither committed, aborted nor past its deadline.
    pub fn is_open(&self, shared: &Shared) -> bool {
        shared.lock().pending_groups.get(self.id.0).is_some()
    }

    /// Reserve the object's entry of the group, and memory for the object unless `filled_extent`
    /// has its bytes.
    fn reserve(
        &self,
        shared: &Shared,
        key: &ObjectKey,
        length: u64,
        filled_extent: Option<Extent>,
    ) -> Result<ReserveOutcome> {
        let Some(at) = self.required.iter().position(|k| k == key) else {
            return Err(Error::invalid(format!("the group does not require the object key={key}")));
        };
        let size = ObjectSize { key: *key, length: Some(length), in_arena: false };
        put::check_object(shared, &size, key)?;
        let mut core = shared.lock();
        let present = present_length(shared, &core, key);
        let open = core.pending_groups.get(self.id.0);
        let member = open.and_then(|open| open.members.get(at)).and_then(MemberState::length);
        let known = member.or(present);
        if let Some(known) = known.filter(|known| *known != length) {
            let detail = format!(
                "key is present with another length key={key} present={known} given={length}"
            );
            return Err(Error::invalid(detail));
        }
        let Some(open) = open else {
            return known.map(|_| ReserveOutcome::Present).ok_or_else(not_open);
        };
        if known.is_some() {
            core.counters.puts_present += 1;
            return Ok(ReserveOutcome::Present);
        }
        let mut lengths = open.lengths();
        lengths.push(length);
        let generation = open.generation;
        put::check_bytes(shared, key, &lengths)?;
        let padded = pagelith_layouts::align::align_up(length);
        core.expire_due(|| shared.now());
        let room = core.check_pending_capacity(shared.now(), Some(self.id.0), padded);
        let extent = room.and_then(|()| {
            filled_extent
                .or_else(|| group_memory::reserve_extent(&mut core, length))
                .or_else(|| {
                    core.expire(shared.now());
                    group_memory::reserve_extent(&mut core, length)
                })
                .ok_or_else(|| group_memory::no_room(length))
        });
        let extent = extent.inspect_err(|_| shared.count_busy(&mut core, std::iter::once(key)))?;
        let fingerprint = shared.fingerprint(key, generation);
        let member_state =
            core.pending_groups.get_mut(self.id.0).and_then(|g| g.members.get_mut(at));
        match member_state {
            Some(member_state) => *member_state = MemberState::Filling(length),
            // Eviction for this object may have dropped the group.
            None => {
                if filled_extent.is_none() {
                    core.dram.space.free(extent);
                }
                return Err(not_open());
            }
        }
        drop(core);
        shared.signals.flusher.raise();
        Ok(ReserveOutcome::Reserved(MemberReservation { at, fingerprint, extent, key: *key }))
    }

    /// Release a reserved entry that will not be filled.
    fn release_member(&self, core: &mut Core, at: usize) {
        let member_state =
            core.pending_groups.get_mut(self.id.0).and_then(|g| g.members.get_mut(at));
        if let Some(member_state @ MemberState::Filling(_)) = member_state {
            *member_state = MemberState::Empty;
        }
    }

    /// Put a filled object into its reserved entry. If the group is not open any more, free its
    /// memory and return false.
    fn fill_member(&self, core: &mut Core, member: FrameMember) -> bool {
        let bytes = member.extent.padded_bytes();
        let open = core.pending_groups.get_mut(self.id.0);
        let member_state = open.and_then(|g| {
            let at = g.required.iter().position(|k| *k == member.key)?;
            g.members.get_mut(at)
        });
        match member_state {
            Some(member_state @ MemberState::Filling(_)) => {
                *member_state = MemberState::Filled(member);
                core.pending_groups.add_bytes(bytes, 0);
                true
            }
            Some(_) | None => {
                core.dram.space.free(member.extent);
                false
            }
        }
    }
}

/// Whether the store has an object, as far as the index can tell.
fn is_present(shared: &Shared, core: &Core, key: &ObjectKey) -> bool {
    present_length(shared, core, key).is_some()
}

/// The length of an object that the store has, as far as the index can tell.
fn present_length(shared: &Shared, core: &Core, key: &ObjectKey) -> Option<u64> {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if shared.config.constant_fingerprint() {
        // The index cannot tell; DRAM can.
        let (frame, member) = core.find_memory(key, fingerprint, generation)?;
        return Some(core.dram.frames.get(frame.id)?.data.members[member].extent.bytes);
    }
    let entry = core.index.find(fingerprint).find(|e| core.is_visible(e))?;
    Some(entry.length.into())
}

enum ReserveOutcome {
    Present,
    Reserved(MemberReservation),
}

/// Reserved memory for an object of an open group, and its number there.
struct MemberReservation {
    at: usize,
    key: ObjectKey,
    fingerprint: u128,
    extent: Extent,
}

impl MemberReservation {
    fn into_member(self) -> FrameMember {
        let MemberReservation { key, fingerprint, extent, .. } = self;
        FrameMember { key, fingerprint, extent, checksums: Default::default() }
    }
}
