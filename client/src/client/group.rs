//! Groups over a link: one call begins a group, later calls put its objects and commit it.

use std::time::Duration;

use pagelith_io::buffer::BorrowScope;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::outcome::GroupState;
use pagelith_layouts::wire::request::RequestBody;

use super::lease_connection::LeaseLink;
use super::put::RemotePut;
use super::{BUSY_RETRY, Client, STORE};
use crate::api::borrowed::{self, BorrowedGroup};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CompletedPut, PutOutcome};
use crate::api::request::{Options, PutGroup, PutSlice};
use crate::rpc::remote_get::no_link;

/// An open base group of one page in a store of another process. Created by
/// [`Client::begin_group`]. Several threads may use it, one after the other. It belongs to the link
/// on which it was begun, which is kept alive as long as the group. When that link ends, the store
/// drops its objects, unless another client has joined the group, and each call fails as
/// `Unavailable`.
pub struct Group {
    attached: Client,
    name: u64,
    required: Vec<ObjectKey>,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.attached.group_leases.release();
    }
}

impl Client {
    /// As `Store::begin_group`, for the life of the link.
    ///
    /// # Errors
    /// As there; `Busy` also if the open groups of this client require too many objects;
    /// `Unavailable` if the store cannot be reached; `Incompatible` if it is of a version without
    /// open groups.
    pub fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Group> {
        if required.is_empty() {
            return Err(Error::invalid("a group requires no object"));
        }
        let call = self.call_options(&options);
        let name = self.group_leases.acquire(call.deadline, |link| {
            let name = link.next_name();
            let reply = link.request_number(
                &*self.clock,
                &RequestBody::Begin(name, List::of(required)),
                call,
            );
            reply.map(|_| name)
        })?;
        Ok(Group { attached: self.clone(), name, required: required.to_vec() })
    }
}

impl Group {
    /// The required objects, in the order in which they were passed.
    pub fn required(&self) -> &[ObjectKey] {
        &self.required
    }

    /// As `pagelith::Group::put`.
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<BorrowedGroup<'_>> =
            objects.chunks(1).map(|object| (None, object)).collect();
        let options = Options { request: Some(self.attached.request(&options)), ..options };
        let clock = &*self.attached.clock;
        let deadline = clock.now().after(options.timeout.unwrap_or(self.attached.timeout));
        let attempt = |groups: &[BorrowedGroup<'_>], options| {
            BorrowScope::scope(|lender| {
                let done = self.put_once(borrowed::borrow_groups(lender, groups), options);
                borrowed::outcomes_of_groups(groups, done)
            })
        };
        borrowed::retry_while_busy(
            groups.as_slice(),
            options,
            || deadline.since(clock.now()),
            attempt,
            |left| self.wait(left),
        )
    }

    fn put_once(&self, groups: Vec<PutGroup>, options: Options) -> Vec<CompletedPut> {
        let call = self.attached.call_options(&options);
        // No retry over another link: the group does not exist there.
        let mut put = RemotePut::new(groups, &[], call).for_open_group(self.name);
        let locked = self.attached.group_leases.with_link(call.deadline, |link| {
            put.build_offers(&link.connections);
            self.attached
                .drive(&mut link.connections, |connections, now| put.advance(connections, now));
        });
        self.attached.unflushed().note(put.take_acknowledgements());
        let mut done = put.finish();
        if let Err(error) = locked {
            done.iter_mut().for_each(|done| done.outcome = Err(error.clone()));
        }
        done
    }

    /// The required objects that are neither put nor in the store.
    ///
    /// # Errors
    /// `Unavailable` if the group is no longer open or the store cannot be reached.
    pub fn missing(&self, options: Options) -> Result<Vec<ObjectKey>> {
        let call = self.attached.call_options(&options);
        let ask = RequestBody::Missing(self.name);
        let bits = self.attached.group_leases.with_link(call.deadline, |link| {
            link.request_bits(&*self.attached.clock, &ask, call)
        })??;
        if bits.len() != self.required.len() {
            return Err(no_link());
        }
        Ok(self
            .required
            .iter()
            .zip(bits)
            .filter(|(_, missing)| *missing)
            .map(|(key, _)| *key)
            .collect())
    }

    /// As `pagelith::Group::commit`.
    pub fn commit(&self, options: Options) -> Result<PutOutcome> {
        let clock = &*self.attached.clock;
        let start = clock.now();
        let timeout = options.timeout.unwrap_or(self.attached.timeout);
        let retry_until = start.after(options.wait.map_or(timeout, |wait| wait.min(timeout)));
        loop {
            let left = start.after(timeout).since(clock.now());
            let call = self.attached.call_options(&Options { timeout: Some(left), ..options });
            let commit = |link: &mut LeaseLink| {
                link.request_number_of(clock, &RequestBody::Commit(self.name), call)
            };
            let reply = self.attached.group_leases.with_link(call.deadline, commit).flatten();
            let left = retry_until.since(clock.now());
            match reply {
                Err(error) if error.kind == ErrorKind::Busy && !left.is_zero() => self.wait(left),
                reply => {
                    let (state, by) = reply?;
                    let outcome = decode_group_state(state)?;
                    // A flush covers no open group, so what covered the puts does not cover this.
                    if matches!(outcome, PutOutcome::Stored | PutOutcome::AlreadyPresent) {
                        self.attached.unflushed().note([by]);
                    }
                    return Ok(outcome);
                }
            }
        }
    }

    /// Abort the group: all objects that were put are dropped, also those of clients that joined
    /// it.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached: then the group ends with its link or at its
    /// deadline.
    pub fn abort(&self) -> Result<()> {
        let call = self.attached.group_leases.default_options();
        let abort = |link: &mut LeaseLink| {
            link.request_number(&*self.attached.clock, &RequestBody::Abort(self.name), call)
        };
        self.attached.group_leases.with_link(call.deadline, abort)??;
        Ok(())
    }

    fn wait(&self, left: Duration) {
        let (now, left) = (self.attached.clock.now(), left.min(BUSY_RETRY));
        // If another thread uses the link, this waits for it as long.
        let _ = self
            .attached
            .group_leases
            .with_link(now.after(left), |link| link.connections.wait_for_peer(STORE, now, left));
    }
}

/// The outcome of a commit.
fn decode_group_state(value: u64) -> Result<PutOutcome> {
    match GroupState::ALL.into_iter().find(|state| *state as u64 == value).ok_or_else(no_link)? {
        GroupState::Stored => Ok(PutOutcome::Stored),
        GroupState::AlreadyPresent => Ok(PutOutcome::AlreadyPresent),
        GroupState::Waiting => Ok(PutOutcome::Waiting),
        GroupState::Refused => Ok(PutOutcome::Refused),
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("required", &self.required).finish_non_exhaustive()
    }
}
