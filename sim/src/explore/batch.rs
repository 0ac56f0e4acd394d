//! A batch of gets or puts in flight.

use pagelith::{OpenGroupId, Ticket};
use pagelith_io::clock::Mono;

use super::memory::Target;
use super::objects::ObjectId;

/// A get of one object.
pub(super) struct PendingGet {
    pub oid: ObjectId,
    /// First byte of the range.
    pub from: usize,
    /// Bytes of the range.
    pub len: usize,
    /// The object's length, if the range is the whole object.
    pub whole: Option<usize>,
    pub target: Target,
}

/// A put of one group.
pub(super) struct PendingPut {
    pub no: u32,
    pub base: Option<ObjectId>,
    pub members: Vec<ObjectId>,
    /// The put may be refused by its form.
    pub odd: bool,
    /// The open group that is being committed.
    pub open: Option<OpenGroupId>,
}

/// The gets or puts of a batch.
pub(super) enum BatchWork {
    Get { gets: Vec<PendingGet>, page: bool },
    Put(Vec<PendingPut>),
}

/// A batch in flight.
pub(super) struct Batch {
    pub session: usize,
    pub ticket: Ticket,
    pub start: u32,
    pub begun: Mono,
    /// Other batches were in flight at the same time on sessions that only this thread polls, or it
    /// was not polled for long: it may have waited for their resources past its deadline.
    pub may_be_late: bool,
    pub work: BatchWork,
}
