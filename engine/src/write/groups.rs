//! Base groups that are put in several calls, from several threads, and become visible at commit.
//!
//! Objects of an open group are in the arena and have no index entry, until the group is committed
//! or its deadline passes ([`crate::state::pending_groups`]). A cache controller that writes a
//! page's pools in separate calls begins the same group in each of them: beginning an open group
//! joins it. [`parts`] does all of it in one call.

pub(crate) mod parts;

use std::sync::Arc;
use std::time::Duration;

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::Extent;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{Done, PutDone, PutOutcome};
use crate::api::request::{Options, PutSlice};
use crate::memory::frames::FrameMember;
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;
use crate::state::frame_access::Unpublished;
use crate::state::pending_groups::MemberPlace;
use crate::state::put_types;
use crate::state::put_types::{ObjectSize, PutKind};
use crate::state::reserve::FilledReservation;
use crate::state::session_io::recency;
use crate::state::shared::Shared;
use crate::store::embedded::Store;
use crate::write::put;

/// Identifies an open group in a [`crate::Session`] of its store. In a session of another store it
/// would identify another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u64);

/// A base group of one page that was begun and is not committed yet. Created by
/// [`Store::begin_group`]; may be used by several threads at once. Dropping it leaves the group
/// open until its deadline, for other callers that joined it.
pub struct Group<'a> {
    store: &'a Store,
    joined: JoinedGroup,
}

/// An open group, as a caller or a connection that joined it holds it.
#[derive(Clone)]
pub(crate) struct JoinedGroup {
    id: GroupId,
    required: Arc<[ObjectKey]>,
}

/// The error for a group that is not open any more.
pub(crate) fn not_open() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "group is not open: its deadline is over, or its namespace was cleared",
    )
}

/// See [`Store::begin_group`].
pub(crate) fn begin<'a>(store: &'a Store, required: &[ObjectKey], options: Options) -> Result<Group<'a>> {
    join(&store.shared, required, &options, false).map(|joined| Group { store, joined })
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
    let Some(first) = required.first() else { return Err(Error::invalid("a group requires no object")) };
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
    Ok(JoinedGroup { id: GroupId(id), required })
}

/// See [`Store::open_group`].
pub(crate) fn open(store: &Store, id: GroupId) -> Option<Group<'_>> {
    let required = store.shared.lock().pending_groups.get(id.0)?.required.clone();
    Some(Group { store, joined: JoinedGroup { id, required } })
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
        let Some(data) = core.frames.get(frame.id).map(|f| &f.data) else { continue };
        let has: Vec<ObjectKey> = data.members.iter().map(|m| m.key).collect();
        let same = has.len() == required.len() && has.iter().all(|k| required.contains(k));
        if (has.len() > 1 && !same) || data.is_attached() {
            return Err(crate::state::put_types::group_conflict(key, &has, required.iter()));
        }
    }
    Ok(())
}

impl Group<'_> {
    /// The group's identifier, for [`crate::Session::submit_commit`].
    pub fn id(&self) -> GroupId {
        self.joined.id
    }

    /// The objects of the group, in the order in which they are stored on SSD: the order given by
    /// the call that began it.
    pub fn required(&self) -> &[ObjectKey] {
        &self.joined.required
    }

    /// Put objects of the group, in any order; one outcome for each. On success the outcome is
    /// `Waiting`: the bytes are in the store, and become visible when the group is committed. An
    /// object that the store already has, in this group or by itself, is `AlreadyPresent`, and its
    /// bytes are not read; if it is evicted before the commit, it is missing again. If the arena or
    /// the limit on open groups is full, the call waits until the timeout, then returns `Busy`.
    ///
    /// # Errors
    /// `Invalid` for an object that the group does not require, that has no bytes, that has another
    /// length than the object present, or that is too large by itself or with the others;
    /// `Unavailable` if the group is not open any more.
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let deadline = self.store.shared.arena_wait_deadline(&options);
        let put = |object| self.store.shared.while_busy(deadline, || self.try_put(object));
        objects.iter().map(put).collect()
    }

    /// As [`Group::put`] for one object, without waiting: a full arena is `Busy` at once.
    pub fn try_put(&self, object: &PutSlice<'_>) -> Result<PutOutcome> {
        self.joined.put(&self.store.shared, object)
    }

    /// The required objects that are neither put nor in the store.
    pub fn missing(&self) -> Vec<ObjectKey> {
        self.joined.missing(&self.store.shared)
    }

    /// Make the whole group visible at once. `Stored` if this call made it visible,
    /// `AlreadyPresent` if it was visible before, `Waiting` if objects are missing (see
    /// [`Group::missing`]): then it stays open, and more objects may be put. Objects that the store
    /// has by themselves count as put.
    ///
    /// # Errors
    /// `Invalid` if the group is too large, or one of its objects is in another group; `Busy` if
    /// the store had no room in time (the group stays open); `Unavailable` if the group was not
    /// open any more.
    pub fn commit(&self, options: Options) -> Result<PutOutcome> {
        let shared = &self.store.shared;
        let deadline = shared.deadline(options.timeout);
        let room = shared.arena_wait_deadline(&options);
        // Each attempt has the remaining time.
        let left = || Some(deadline.since(shared.now()));
        shared.while_busy(room, || self.commit_once(Options { timeout: left(), ..options }))
    }

    fn commit_once(&self, options: Options) -> Result<PutOutcome> {
        let outcomes = self.store.with_session(options.timeout, |session| {
            let ticket = session.submit_commit(self.joined.id, options);
            loop {
                if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                    break done;
                }
            }
        })?;
        let Done::Put(done) = outcomes else {
            return Err(Error::new(ErrorKind::Internal, "commit returned no put outcomes"));
        };
        self.joined.commit_outcome(&self.store.shared, done)
    }

    /// Abort the group: its objects are dropped, including those of other callers that joined it.
    pub fn abort(self) {
        self.joined.abort(&self.store.shared);
    }
}

impl JoinedGroup {
    /// The group's identifier.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// See [`Group::try_put`].
    pub fn put(&self, shared: &Shared, object: &PutSlice<'_>) -> Result<PutOutcome> {
        shared.check_open()?;
        let length: u64 = object.pieces.iter().map(|p| p.len() as u64).sum();
        let place = match self.reserve(shared, &object.key, length, None)? {
            ReservedPlace::Present => return Ok(PutOutcome::AlreadyPresent),
            ReservedPlace::Reserved(place) => place,
        };
        let checksums = Unpublished::new(place.extent).fill(&shared.memory, object.pieces);
        let Some(checksums) = checksums else {
            let mut core = shared.lock();
            core.space.free(place.extent);
            self.release_place(&mut core, place.at);
            return Err(Error::new(ErrorKind::Internal, "extent and object differ in length"));
        };
        let member = FrameMember { key: object.key, checksums, ..place.into_member() };
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
        let place = match self.reserve(shared, key, filled.length(), filled.extent())? {
            ReservedPlace::Present => return Ok(PutOutcome::AlreadyPresent),
            ReservedPlace::Reserved(place) => place,
        };
        let Some(member) = filled.into_member(*key, place.fingerprint) else {
            self.release_place(&mut shared.lock(), place.at);
            return Err(Error::new(ErrorKind::Internal, "received bytes are still being written"));
        };
        self.add_filled(shared, member)
    }

    fn add_filled(&self, shared: &Shared, member: FrameMember) -> Result<PutOutcome> {
        let (mut core, key) = (shared.lock(), member.key);
        if self.fill_place(&mut core, member) {
            Ok(PutOutcome::Waiting)
        } else if is_present(shared, &core, &key) {
            Ok(PutOutcome::AlreadyPresent)
        } else {
            Err(not_open())
        }
    }

    /// See [`Group::missing`].
    pub fn missing(&self, shared: &Shared) -> Vec<ObjectKey> {
        let core = shared.lock();
        let open = core.pending_groups.get(self.id.0);
        let absent = |(i, key): (usize, &ObjectKey)| {
            let put = open.is_some_and(|g| g.is_put(i));
            (!put && !is_present(shared, &core, key)).then_some(*key)
        };
        self.required.iter().enumerate().filter_map(absent).collect()
    }

    /// The outcome of a commit, from the outcomes of its members.
    pub fn commit_outcome(&self, shared: &Shared, done: Vec<PutDone>) -> Result<PutOutcome> {
        let outcome = crate::api::borrowed::outcome_of_group(done.into_iter().map(|d| d.outcome));
        let may_be_committed =
            outcome.as_ref().is_none_or(|o| o.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable));
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

    /// Reserve the object's place in the group, and memory for the object unless `filled_extent`
    /// has its bytes.
    fn reserve(
        &self,
        shared: &Shared,
        key: &ObjectKey,
        length: u64,
        filled_extent: Option<Extent>,
    ) -> Result<ReservedPlace> {
        let Some(at) = self.required.iter().position(|k| k == key) else {
            return Err(Error::invalid(format!("the group does not require the object key={key}")));
        };
        let size = ObjectSize { key: *key, length: Some(length), in_arena: false };
        put::check_object(shared, &size, key)?;
        let mut core = shared.lock();
        let present = is_present(shared, &core, key);
        let Some(open) = core.pending_groups.get(self.id.0) else {
            return if present { Ok(ReservedPlace::Present) } else { Err(not_open()) };
        };
        let known = open.places.get(at).and_then(MemberPlace::length);
        if let Some(known) = known.filter(|known| *known != length) {
            let detail =
                format!("key is present with another length key={key} present={known} given={length}");
            return Err(Error::invalid(detail));
        }
        if known.is_some() || present {
            core.counters.puts_present += 1;
            return Ok(ReservedPlace::Present);
        }
        let mut lengths = open.lengths();
        lengths.push(length);
        let generation = open.generation;
        put::check_bytes(shared, key, &lengths)?;
        let padded = pagelith_layouts::align::align_up(length);
        let room = core.check_pending_capacity(shared.now(), Some(self.id.0), padded);
        let extent = room.and_then(|()| {
            filled_extent
                .or_else(|| put_types::reserve_extent(&mut core, length))
                .or_else(|| {
                    put_types::expire(shared, &mut core);
                    put_types::reserve_extent(&mut core, length)
                })
                .ok_or_else(|| Error::busy(format!("arena is full of pages in use bytes={length}")))
        });
        let extent = extent.inspect_err(|_| core.count_busy(std::iter::once(key), shared.now()))?;
        let fingerprint = shared.fingerprint(key, generation);
        let place = core.pending_groups.get_mut(self.id.0).and_then(|g| g.places.get_mut(at));
        match place {
            Some(place) => *place = MemberPlace::Filling(length),
            // Eviction for this object may have dropped the group.
            None => {
                if filled_extent.is_none() {
                    core.space.free(extent);
                }
                return Err(not_open());
            }
        }
        drop(core);
        shared.flusher_signal.raise();
        Ok(ReservedPlace::Reserved(MemberReservation { at, fingerprint, extent, key: *key }))
    }

    /// Release a reserved place that will not be filled.
    fn release_place(&self, core: &mut Core, at: usize) {
        let place = core.pending_groups.get_mut(self.id.0).and_then(|g| g.places.get_mut(at));
        if let Some(place @ MemberPlace::Filling(_)) = place {
            *place = MemberPlace::Empty;
        }
    }

    /// Put a filled object into its reserved place. If the group is not open any more, free its
    /// memory and return false.
    fn fill_place(&self, core: &mut Core, member: FrameMember) -> bool {
        let bytes = member.extent.padded_bytes();
        let open = core.pending_groups.get_mut(self.id.0);
        let place = open.and_then(|g| {
            let at = g.required.iter().position(|k| *k == member.key)?;
            g.places.get_mut(at)
        });
        match place {
            Some(place @ MemberPlace::Filling(_)) => {
                *place = MemberPlace::Filled(member);
                core.pending_groups.add_bytes(bytes, 0);
                true
            }
            Some(_) | None => {
                core.space.free(member.extent);
                false
            }
        }
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("id", &self.joined.id)
            .field("required", &self.joined.required)
            .finish_non_exhaustive()
    }
}

/// Whether the store has an object, as far as the index can tell.
fn is_present(shared: &Shared, core: &Core, key: &ObjectKey) -> bool {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if shared.config.constant_fingerprint() {
        // The index cannot tell; DRAM can.
        return core.find_memory(key, fingerprint, generation).is_some();
    }
    core.index.find(fingerprint).any(|e| core.is_visible(&e))
}

enum ReservedPlace {
    Present,
    Reserved(MemberReservation),
}

/// Reserved memory and place for an object of an open group.
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
