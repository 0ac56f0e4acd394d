//! Base groups that are put in several calls, from several threads, and become visible at their commit.
//!
//! What is put of such a group lies in the arena, in no index entry, until the group is committed or its
//! deadline is over ([`waiting`]). A cache controller that writes a page's pools in separate calls begins the
//! same group in each of them: who begins a group that is open already joins it. [`parts`] does all of that in one
//! call.

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
use crate::state::pending_groups::Place;
use crate::state::reserve::Arrived;
use crate::state::shared::Shared;
use crate::store::session::recency;
use crate::store::store::Store;
use crate::write::put;
use crate::write::put::{Kind, Size};

/// Names an open group to a [`crate::Session`] of its store; another store's would commit a group of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u64);

/// A base group of one page, begun and not yet committed. Made by [`Store::begin_group`]; may be used from
/// several threads at once. Dropping it leaves the group open, for others that joined it, until its deadline.
pub struct Group<'a> {
    store: &'a Store,
    joined: Joined,
}

/// An open group, as somebody has it who joined it.
#[derive(Clone)]
pub(crate) struct Joined {
    id: GroupId,
    required: Arc<[ObjectKey]>,
}

/// The error for a group that is open no more.
pub(crate) fn gone() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "group is not open: its deadline is over, or its namespace was cleared",
    )
}

/// See [`Store::begin_group`].
pub(crate) fn begin<'a>(store: &'a Store, required: &[ObjectKey], options: Options) -> Result<Group<'a>> {
    join(&store.shared, required, &options, false).map(|joined| Group { store, joined })
}

/// Begin the group of these objects, or join it; for a connection, which leaves it when it ends, or for good.
pub(crate) fn join(
    shared: &Shared,
    required: &[ObjectKey],
    options: &Options,
    over_link: bool,
) -> Result<Joined> {
    shared.check_open()?;
    let Some(first) = required.first() else { return Err(Error::invalid("a group requires no object")) };
    put::check_keys(shared, Kind::Base, required)?;
    for key in required {
        put::check_object(shared, &Size { key: *key, length: None, in_arena: false }, first)?;
    }
    let at = recency(shared, options);
    let deadline = shared.group_deadline();
    let mut core = shared.lock();
    core.drop_expired_groups(shared.now());
    let generation = core.generation(first.namespace());
    check_visible(shared, &core, required, generation)?;
    let (id, required) = core.waiting.join(required, generation, at, deadline, over_link)?;
    Ok(Joined { id: GroupId(id), required })
}

/// See [`Store::open_group`].
pub(crate) fn open(store: &Store, id: GroupId) -> Option<Group<'_>> {
    let required = store.shared.lock().waiting.get(id.0)?.required.clone();
    Some(Group { store, joined: Joined { id, required } })
}

/// An error if DRAM has one of these objects in a group of others. What is only on SSD is compared at commit.
fn check_visible(shared: &Shared, core: &Core, required: &[ObjectKey], generation: Generation) -> Result<()> {
    for key in required {
        let fingerprint = shared.fingerprint(key, generation);
        let Some((frame, _)) = core.find_memory(key, fingerprint, generation) else { continue };
        let Some(data) = core.frames.get(frame.id).map(|f| &f.data) else { continue };
        let has: Vec<ObjectKey> = data.members.iter().map(|m| m.key).collect();
        let same = has.len() == required.len() && has.iter().all(|k| required.contains(k));
        if (has.len() > 1 && !same) || data.is_attached() {
            return Err(put::admit::group_conflict(key, &has, required.iter()));
        }
    }
    Ok(())
}

impl Group<'_> {
    /// The group's name, for [`crate::Session::submit_commit`].
    pub fn id(&self) -> GroupId {
        self.joined.id
    }

    /// The objects that it consists of, in the order in which they will lie on SSD: that of whoever began it.
    pub fn required(&self) -> &[ObjectKey] {
        &self.joined.required
    }

    /// Put objects of the group, in any order; one outcome each. `Waiting` is the good one: the bytes are in the
    /// store and are visible once the group is committed. What the store has already, in this group or by
    /// itself, is `AlreadyPresent`, and these bytes are not read; should it leave before the commit, it is missing
    /// again. A full arena, or too much that waits, is waited out until the timeout, then `Busy`.
    ///
    /// # Errors
    /// `Invalid` for an object that the group does not require, without bytes, with another length than what
    /// was put, or too large by itself or with the others; `Unavailable` if the group is open no more.
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let deadline = self.store.shared.room_deadline(&options);
        let put = |object| self.store.shared.while_busy(deadline, || self.try_put(object));
        objects.iter().map(put).collect()
    }

    /// As [`Group::put`] of one object, without waiting: a full arena is `Busy` at once.
    pub fn try_put(&self, object: &PutSlice<'_>) -> Result<PutOutcome> {
        self.joined.put(&self.store.shared, object)
    }

    /// The required objects that are neither put nor in the store.
    pub fn missing(&self) -> Vec<ObjectKey> {
        self.joined.missing(&self.store.shared)
    }

    /// Make the group visible, all of it at once. `Stored` if it is now, `AlreadyPresent` if it was, `Waiting`
    /// if objects are missing (see [`Group::missing`]): it stays open, and more may be put. What the store has
    /// by itself of it counts as put.
    ///
    /// # Errors
    /// `Invalid` if the group is too large, or one of its objects is in another group; `Busy` if the store had
    /// no room in time (it stays open); `Unavailable` if it was open no more.
    pub fn commit(&self, options: Options) -> Result<PutOutcome> {
        let shared = &self.store.shared;
        let deadline = shared.deadline(options.timeout);
        let room = shared.room_deadline(&options);
        // Each try has the time that is left, not all of it again.
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
        let Done::Put(done) = outcomes else { return Err(Error::new(ErrorKind::Internal, "not a put")) };
        self.joined.committed(&self.store.shared, done)
    }

    /// Give the group up: what was put of it is dropped, also what others put who joined it.
    pub fn abort(self) {
        self.joined.abort(&self.store.shared);
    }
}

impl Joined {
    /// The group's name.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// See [`Group::try_put`].
    pub fn put(&self, shared: &Shared, object: &PutSlice<'_>) -> Result<PutOutcome> {
        shared.check_open()?;
        let length: u64 = object.pieces.iter().map(|p| p.len() as u64).sum();
        let place = match self.reserve(shared, &object.key, length, None)? {
            Reserved::There => return Ok(PutOutcome::AlreadyPresent),
            Reserved::Place(place) => place,
        };
        let checksums = Unpublished::new(place.extent).fill(&shared.memory, object.pieces);
        let Some(checksums) = checksums else {
            let mut core = shared.lock();
            core.space.free(place.extent);
            self.give_up(&mut core, place.at);
            return Err(Error::new(ErrorKind::Internal, "extent and object have different lengths"));
        };
        let member = FrameMember { key: object.key, checksums, ..place.into_member() };
        self.filled(shared, member)
    }

    /// As [`Joined::put`], of bytes that are in the arena already.
    pub fn put_arrived(&self, shared: &Shared, key: &ObjectKey, arrived: Arrived) -> Result<PutOutcome> {
        shared.check_open()?;
        let place = match self.reserve(shared, key, arrived.length(), arrived.extent())? {
            Reserved::There => return Ok(PutOutcome::AlreadyPresent),
            Reserved::Place(place) => place,
        };
        let Some(member) = arrived.into_member(*key, place.fingerprint) else {
            self.give_up(&mut shared.lock(), place.at);
            return Err(Error::new(ErrorKind::Internal, "bytes that arrived are still written"));
        };
        self.filled(shared, member)
    }

    fn filled(&self, shared: &Shared, member: FrameMember) -> Result<PutOutcome> {
        let (mut core, key) = (shared.lock(), member.key);
        if self.set_filled(&mut core, member) {
            Ok(PutOutcome::Waiting)
        } else if is_here(shared, &core, &key) {
            Ok(PutOutcome::AlreadyPresent)
        } else {
            Err(gone())
        }
    }

    /// See [`Group::missing`].
    pub fn missing(&self, shared: &Shared) -> Vec<ObjectKey> {
        let core = shared.lock();
        let open = core.waiting.get(self.id.0);
        let absent = |(i, key): (usize, &ObjectKey)| {
            let put = open.is_some_and(|g| g.is_put(i));
            (!put && !is_here(shared, &core, key)).then_some(*key)
        };
        self.required.iter().enumerate().filter_map(absent).collect()
    }

    /// What a commit came to, from what became of its members.
    pub fn committed(&self, shared: &Shared, done: Vec<PutDone>) -> Result<PutOutcome> {
        let outcome = crate::store::pooled::outcome_of_group(done.into_iter().map(|d| d.outcome));
        let over =
            outcome.as_ref().is_none_or(|o| o.as_ref().is_err_and(|e| e.kind == ErrorKind::Unavailable));
        match outcome {
            // Somebody else who joined it has committed it.
            _ if over && !self.is_open(shared) && self.missing(shared).is_empty() => {
                Ok(PutOutcome::AlreadyPresent)
            }
            None => Err(gone()),
            Some(outcome) => outcome,
        }
    }

    /// Give it up.
    pub fn abort(&self, shared: &Shared) {
        shared.lock().close_group(self.id.0);
    }

    /// Whether it is neither committed nor over.
    pub fn is_open(&self, shared: &Shared) -> bool {
        shared.lock().waiting.get(self.id.0).is_some()
    }

    /// Find the object's place in the group, and memory for it, if it has none.
    fn reserve(
        &self,
        shared: &Shared,
        key: &ObjectKey,
        length: u64,
        placed: Option<Extent>,
    ) -> Result<Reserved> {
        let Some(at) = self.required.iter().position(|k| k == key) else {
            return Err(Error::invalid(format!("the group does not require the object key={key}")));
        };
        let size = Size { key: *key, length: Some(length), in_arena: false };
        put::check_object(shared, &size, key)?;
        let mut core = shared.lock();
        let here = is_here(shared, &core, key);
        let Some(open) = core.waiting.get(self.id.0) else {
            return if here { Ok(Reserved::There) } else { Err(gone()) };
        };
        let known = open.places.get(at).and_then(Place::length);
        if let Some(known) = known.filter(|known| *known != length) {
            let detail =
                format!("key is present with another length key={key} present={known} given={length}");
            return Err(Error::invalid(detail));
        }
        if known.is_some() || here {
            core.counters.puts_present += 1;
            return Ok(Reserved::There);
        }
        let mut lengths = open.lengths();
        lengths.push(length);
        let generation = open.generation;
        put::check_bytes(shared, key, &lengths)?;
        let padded = pagelith_layouts::align::align_up(length);
        let room = core.room_to_wait(shared.now(), Some(self.id.0), padded);
        let extent = room.and_then(|()| {
            placed
                .or_else(|| put::set_aside_one(&mut core, length))
                .or_else(|| {
                    put::expire(shared, &mut core);
                    put::set_aside_one(&mut core, length)
                })
                .ok_or_else(|| Error::busy(format!("arena is full of pages in use bytes={length}")))
        });
        let extent = extent.inspect_err(|_| core.count_busy(std::iter::once(key), shared.now()))?;
        let fingerprint = shared.fingerprint(key, generation);
        let place = core.waiting.get_mut(self.id.0).and_then(|g| g.places.get_mut(at));
        match place {
            Some(place) => *place = Place::Filling(length),
            // Making room may have dropped it.
            None => {
                if placed.is_none() {
                    core.space.free(extent);
                }
                return Err(gone());
            }
        }
        drop(core);
        shared.work.raise();
        Ok(Reserved::Place(Reservation { at, fingerprint, extent, key: *key }))
    }

    /// Nothing comes into a place after all.
    fn give_up(&self, core: &mut Core, at: usize) {
        let place = core.waiting.get_mut(self.id.0).and_then(|g| g.places.get_mut(at));
        if let Some(place @ Place::Filling(_)) = place {
            *place = Place::Empty;
        }
    }

    /// Put a filled object into the place that was reserved for it; false, and its memory given back, if the group
    /// is open no more.
    fn set_filled(&self, core: &mut Core, member: FrameMember) -> bool {
        let bytes = member.extent.padded_bytes();
        let open = core.waiting.get_mut(self.id.0);
        let place = open.and_then(|g| {
            let at = g.required.iter().position(|k| *k == member.key)?;
            g.places.get_mut(at)
        });
        match place {
            Some(place @ Place::Filling(_)) => {
                *place = Place::Filled(member);
                core.waiting.count(bytes, 0);
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
fn is_here(shared: &Shared, core: &Core, key: &ObjectKey) -> bool {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if shared.config.constant_fingerprint() {
        // The index cannot tell; DRAM can.
        return core.find_memory(key, fingerprint, generation).is_some();
    }
    core.index.find(fingerprint).any(|e| core.is_visible(&e))
}

enum Reserved {
    There,
    Place(Reservation),
}

/// Memory for an object of an open group.
struct Reservation {
    at: usize,
    key: ObjectKey,
    fingerprint: u128,
    extent: Extent,
}

impl Reservation {
    fn into_member(self) -> FrameMember {
        let Reservation { key, fingerprint, extent, .. } = self;
        FrameMember { key, fingerprint, extent, checksums: Default::default() }
    }
}
