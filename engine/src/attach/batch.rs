//! Batches of gets and of puts, and what a link that ended took with it of them asked once more: whoever calls drives one to its
//! end, a [`Session`](super::Session) several.

use std::ops::Range;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::acked::Instance;
use super::put::RemotePut;
use super::{is_unavailable, nudge, tries};
use crate::batch::{Get, PutGroup};
use crate::outcome::{GetDone, GetOutcome, MissCause, PutDone};
use crate::remote::batch::{Asked, Heard, Manner, Missed, RemoteGet};
use crate::remote::desk::Desk;
use crate::together::Together;

/// An object that is asked for, and which of its bytes.
type Asking = (ObjectKey, Option<Range<u64>>);

/// A batch of gets on its way.
pub(super) struct Gets {
    /// What each object was asked for by.
    asked: Vec<Asking>,
    get: RemoteGet,
    deadline: Mono,
    /// How often it may be asked still, this time among them.
    tries: usize,
}

impl Gets {
    pub fn begin(desk: &mut Desk, gets: Vec<Get>, manner: Manner) -> Gets {
        nudge(desk);
        let asked: Vec<Asking> = gets.iter().map(|get| (get.key, get.range.clone())).collect();
        let begun = |get: Get| {
            let Get { destination, .. } = get;
            let (outcome, with) = (Ok(GetOutcome::Miss(MissCause::Late)), Together::default());
            GetDone { outcome, destination, length: 0, checksums: Default::default(), with, lies: None }
        };
        let done = gets.into_iter().map(begun).collect();
        let missed = |(at, (key, range)): (usize, &Asking)| Missed { at, key: *key, range: range.clone() };
        let missed = asked.iter().enumerate().map(missed).collect();
        let get = RemoteGet::begin(desk, done, missed, manner, Asked::Store, None);
        Gets { asked, get, deadline: manner.deadline, tries: tries(desk) }
    }

    /// Go on as far as it goes now; true once every object has its outcome.
    pub fn advance(&mut self, desk: &mut Desk, now: Mono, heard: &mut Heard) -> bool {
        while self.get.advance_heard(desk, now, heard) {
            self.tries -= 1;
            if self.tries == 0 || now >= self.deadline {
                return true;
            }
            self.get.ask_again(desk, lost(&self.asked, self.get.done()));
        }
        false
    }

    /// The outcomes, and the memory.
    pub fn finish(self) -> Vec<GetDone> {
        self.get.finish()
    }
}

/// Those of a batch that have an outcome that another try may better.
fn lost(asked: &[Asking], done: &[GetDone]) -> Vec<Missed> {
    let lost = |(at, ((key, range), done)): (usize, (&Asking, &GetDone))| {
        is_unavailable(&done.outcome).then(|| Missed { at, key: *key, range: range.clone() })
    };
    asked.iter().zip(done).enumerate().filter_map(lost).collect()
}

/// A batch of puts on its way.
pub(super) struct Puts {
    put: RemotePut,
    deadline: Mono,
    tries: usize,
}

impl Puts {
    /// Put groups, or parts of groups that consist of the objects `required` if there are any.
    pub fn begin(desk: &mut Desk, groups: Vec<PutGroup>, required: &[ObjectKey], manner: Manner) -> Puts {
        nudge(desk);
        let mut put = RemotePut::new(groups, required, manner);
        put.offer(desk);
        Puts { put, deadline: manner.deadline, tries: tries(desk) }
    }

    /// Go on as far as it goes now; true once every object has its outcome.
    pub fn advance(&mut self, desk: &mut Desk, now: Mono, heard: &mut Heard) -> bool {
        while self.put.advance_heard(desk, now, heard) {
            self.tries -= 1;
            if self.tries == 0 || now >= self.deadline {
                return true;
            }
            self.put.offer(desk);
        }
        false
    }

    /// Who acknowledged something since this was last asked.
    pub fn acked(&mut self) -> Vec<Instance> {
        self.put.acked()
    }

    /// The outcomes, and the memory.
    pub fn finish(self) -> Vec<PutDone> {
        self.put.finish()
    }
}
