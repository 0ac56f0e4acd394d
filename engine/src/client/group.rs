//! Groups over a link that are begun in one call, and put and committed in others.

use std::sync::Weak;
use std::time::Duration;

use pagelith_io::buffer::Lender;
use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::outcome::GroupState;
use pagelith_layouts::wire::request::Ask;

use super::lease_connection::{Keeper, Kept};
use super::put::RemotePut;
use super::{Attached, BUSY_STEP, STORE};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{PutDone, PutOutcome};
use crate::api::request::{Options, PutGroup, PutSlice};
use crate::rpc::remote_get::no_link;
use crate::store::pooled;
use crate::store::pooled::LentGroup;

/// A base group of one page in another process's store, begun and not yet committed. Made by [`Attached::begin_group`]; may be
/// used from several threads, one after the other. It is of the link that it was begun on: when that ends the store drops what
/// was put of it, unless somebody else joined it, and each call here says `Unavailable`.
pub struct Group<'a> {
    attached: &'a Attached,
    begun: Arc<Begun>,
}

/// Names a group that a client began, to that client alone: [`Attached::open_group`]. Its link is looked after as long as somebody
/// has this, but for the client itself.
#[derive(Clone)]
pub struct GroupId(Arc<Begun>);

/// A group, as it is known here.
struct Begun {
    keeper: Weak<Keeper>,
    name: u64,
    required: Vec<ObjectKey>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.keeper.upgrade().inspect(|keeper| keeper.let_go());
    }
}

impl Attached {
    /// As [`crate::Store::begin_group`], for as long as the link lasts.
    ///
    /// # Errors
    /// As there; `Busy` also if the open groups of this client require too many objects; `Unavailable` if the store cannot be
    /// reached; `Incompatible` if it is of a time before this.
    pub fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Group<'_>> {
        if required.is_empty() {
            return Err(Error::invalid("a group requires no object"));
        }
        let manner = self.manner(&options);
        let name = self.groups.take(manner.deadline, |kept| {
            let name = kept.name();
            let begun = kept.number(&*self.clock, &Ask::Begin(name, List::of(required)), manner);
            begun.map(|_| name)
        })?;
        let begun = Begun { keeper: Arc::downgrade(&self.groups), name, required: required.to_vec() };
        Ok(Group { attached: self, begun: Arc::new(begun) })
    }

    /// A group that was begun here, as for its first caller; `None` of another client's. Whether it is open still is found out by what
    /// is asked of it.
    pub fn open_group(&self, id: &GroupId) -> Option<Group<'_>> {
        let own = std::ptr::eq(id.0.keeper.as_ptr(), Arc::as_ptr(&self.groups));
        own.then(|| Group { attached: self, begun: id.0.clone() })
    }
}

impl Group<'_> {
    /// The group's name, for [`Attached::open_group`].
    pub fn id(&self) -> GroupId {
        GroupId(self.begun.clone())
    }

    /// The objects that it consists of, as they were given here.
    pub fn required(&self) -> &[ObjectKey] {
        &self.begun.required
    }

    /// As [`crate::Group::put`].
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        let groups: Vec<LentGroup<'_>> = objects.chunks(1).map(|object| (None, object)).collect();
        let options = Options { request: Some(self.attached.request(&options)), ..options };
        let clock = &*self.attached.clock;
        let deadline = clock.now().after(options.timeout.unwrap_or(self.attached.timeout));
        let once = |groups: &[LentGroup<'_>], options| {
            Lender::scope(|lender| {
                let done = self.put_once(pooled::lend_groups(lender, groups), options);
                pooled::outcomes_of_groups(groups, done)
            })
        };
        pooled::while_busy(
            groups.as_slice(),
            options,
            || deadline.since(clock.now()),
            once,
            |left| self.rest(left),
        )
    }

    fn put_once(&self, groups: Vec<PutGroup>, options: Options) -> Vec<PutDone> {
        let manner = self.attached.manner(&options);
        // Another link knows no group of this name: it is not tried there.
        let mut put = RemotePut::new(groups, &[], manner).into_open(self.begun.name);
        let driven = self.attached.groups.with(manner.deadline, |kept| {
            put.offer(&kept.desk);
            self.attached.drive(&mut kept.desk, |desk, now| put.advance(desk, now));
        });
        self.attached.acked().note(put.acked());
        let mut done = put.finish();
        if let Err(error) = driven {
            done.iter_mut().for_each(|done| done.outcome = Err(error.clone()));
        }
        done
    }

    /// The required objects that are neither put nor in the store.
    ///
    /// # Errors
    /// `Unavailable` if the group is open no more, or the store cannot be reached.
    pub fn missing(&self, options: Options) -> Result<Vec<ObjectKey>> {
        let manner = self.attached.manner(&options);
        let ask = Ask::Missing(self.begun.name);
        let bits = self
            .attached
            .groups
            .with(manner.deadline, |kept| kept.bits(&*self.attached.clock, &ask, manner))??;
        if bits.len() != self.begun.required.len() {
            return Err(no_link());
        }
        Ok(self
            .begun
            .required
            .iter()
            .zip(bits)
            .filter(|(_, missing)| *missing)
            .map(|(key, _)| *key)
            .collect())
    }

    /// As [`crate::Group::commit`].
    pub fn commit(&self, options: Options) -> Result<PutOutcome> {
        let clock = &*self.attached.clock;
        let start = clock.now();
        let time = options.timeout.unwrap_or(self.attached.timeout);
        let room = start.after(options.wait.map_or(time, |wait| wait.min(time)));
        loop {
            let left = start.after(time).since(clock.now());
            let manner = self.attached.manner(&Options { timeout: Some(left), ..options });
            let commit = |kept: &mut Kept| kept.number(clock, &Ask::Commit(self.begun.name), manner);
            let told = self.attached.groups.with(manner.deadline, commit).flatten();
            let left = room.since(clock.now());
            match told {
                Err(error) if error.kind == ErrorKind::Busy && !left.is_zero() => self.rest(left),
                told => return state(told?.0),
            }
        }
    }

    /// Give the group up: what was put of it is dropped, also what others put who joined it.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be reached: then the group goes with its link, or at its deadline.
    pub fn abort(self) -> Result<()> {
        let manner = self.attached.groups.manner();
        let abort =
            |kept: &mut Kept| kept.number(&*self.attached.clock, &Ask::Abort(self.begun.name), manner);
        self.attached.groups.with(manner.deadline, abort)??;
        Ok(())
    }

    fn rest(&self, left: Duration) {
        let (now, left) = (self.attached.clock.now(), left.min(BUSY_STEP));
        // Who has the link meanwhile is waited for as long.
        let _ = self.attached.groups.with(now.after(left), |kept| kept.desk.rest(STORE, now, left));
    }
}

/// What a commit came to.
fn state(said: u64) -> Result<PutOutcome> {
    match GroupState::ALL.into_iter().find(|state| *state as u64 == said).ok_or_else(no_link)? {
        GroupState::Stored => Ok(PutOutcome::Stored),
        GroupState::AlreadyPresent => Ok(PutOutcome::AlreadyPresent),
        GroupState::Waiting => Ok(PutOutcome::Waiting),
        GroupState::Refused => Ok(PutOutcome::Refused),
    }
}

impl std::fmt::Debug for GroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("GroupId").field(&self.0.name).finish()
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("required", &self.begun.required).finish_non_exhaustive()
    }
}
