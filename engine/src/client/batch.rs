//! Batches of gets and of puts. What a link that ended took with it is asked once more: of gets by [`RemoteGet`], of puts here. Whoever calls
//! drives one to its end, a [`Session`](super::Session) several.

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::instances::Instance;
use super::put::RemotePut;
use super::{nudge, tries};
use crate::api::outcome::{GetDone, GetOutcome, MissCause, PutDone};
use crate::api::request::{Get, PutGroup};
use crate::rpc::connections::Desk;
use crate::rpc::remote_get::{Asked, Heard, Manner, Missed, RemoteGet};

/// Begin a batch of gets.
pub(crate) fn begin_get(desk: &mut Desk, gets: Vec<Get>, manner: Manner) -> RemoteGet {
    nudge(desk);
    let asked = |(at, get): (usize, &Get)| Missed { at, key: get.key, range: get.range.clone() };
    let missed = gets.iter().enumerate().map(asked).collect();
    let begun = |get: Get| {
        let outcome = Ok(GetOutcome::Miss(MissCause::Late));
        GetDone { outcome, destination: get.destination, length: 0, proof: None }
    };
    let done = gets.into_iter().map(begun).collect();
    RemoteGet::begin(desk, done, missed, manner, Asked::Store, None)
}

/// A batch of puts on its way.
pub(crate) struct Puts {
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
