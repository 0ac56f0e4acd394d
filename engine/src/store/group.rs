//! A base group that a caller puts in several calls.

use std::time::Duration;

use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CompletedBatch, PutOutcome};
use crate::api::request::{Options, PutSlice};
use crate::store::session_pool::SessionPool;
use crate::write::open_group::{JoinedGroup, OpenGroupId, join};

/// A base group of one page that was begun and is not committed yet. Created by
/// [`crate::Store::begin_group`]; may be used by several threads at once, and fails as `Closed`
/// after a close. Dropping it leaves the group open until its deadline, for other callers that
/// joined it.
pub struct Group {
    pool: Arc<SessionPool>,
    joined: JoinedGroup,
}

/// See [`crate::Store::begin_group`].
pub(crate) fn begin(
    pool: &Arc<SessionPool>,
    required: &[ObjectKey],
    options: Options,
) -> Result<Group> {
    let joined = join(&pool.shared, required, &options, false)?;
    Ok(Group { pool: pool.clone(), joined })
}

impl Group {
    /// The group's identifier, for [`crate::Session::submit_commit`].
    pub fn id(&self) -> OpenGroupId {
        self.joined.id()
    }

    /// The objects of the group, in the order in which they are stored on SSD: the order given by
    /// the call that began it.
    pub fn required(&self) -> &[ObjectKey] {
        self.joined.required()
    }

    /// Put objects of the group, in any order; one outcome for each. On success the outcome is
    /// `Waiting`: the bytes are in the store, and become visible when the group is committed. An
    /// object that the store already has, in this group or as a single object, is `AlreadyPresent`,
    /// and its bytes are not read; if it is evicted before the commit, it is missing again. If the
    /// arena or the limit on open groups is full, the call waits until the timeout, then returns
    /// `Busy`.
    ///
    /// # Errors
    /// `Invalid` for an object that the group does not require, that has no bytes, that has another
    /// length than the object present, or that is too large by itself or with the others;
    /// `Unavailable` if the group is not open any more.
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let deadline = self.pool.shared.arena_wait_deadline(&options);
        let put = |object| self.pool.shared.retry_while_busy(deadline, || self.try_put(object));
        objects.iter().map(put).collect()
    }

    /// As [`Group::put`] for one object, without waiting: a full arena is `Busy` at once.
    pub fn try_put(&self, object: &PutSlice<'_>) -> Result<PutOutcome> {
        self.joined.put(&self.pool.shared, object)
    }

    /// The required objects that are neither put nor in the store.
    pub fn missing(&self) -> Vec<ObjectKey> {
        self.joined.missing(&self.pool.shared)
    }

    /// As [`Group::missing`]; `Unavailable` if the group has ended and objects are missing.
    pub(crate) fn missing_if_open(&self) -> Result<Vec<ObjectKey>> {
        self.joined.missing_if_open(&self.pool.shared)
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
        let shared = &self.pool.shared;
        let deadline = shared.deadline(options.timeout);
        let room = shared.arena_wait_deadline(&options);
        // Each attempt has the remaining time.
        let left = || Some(deadline.since(shared.now()));
        shared.retry_while_busy(room, || self.commit_once(options.timeout(left())))
    }

    fn commit_once(&self, options: Options) -> Result<PutOutcome> {
        let outcomes = self.pool.with_session(options.timeout, |session| {
            let ticket = session.submit_commit(self.joined.id(), options);
            loop {
                if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                    break done;
                }
            }
        })?;
        let CompletedBatch::Put(done) = outcomes else {
            return Err(Error::new(ErrorKind::Internal, "commit returned no put outcomes"));
        };
        self.joined.commit_outcome(&self.pool.shared, done)
    }

    /// Abort the group: its objects are dropped, including those of other callers that joined it.
    pub fn abort(&self) {
        self.joined.abort(&self.pool.shared);
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group")
            .field("id", &self.id())
            .field("required", &self.required())
            .finish_non_exhaustive()
    }
}
