//! Batches of gets and of puts. What a link that ended took with it is asked once more: of gets by [`RemoteGet`], of puts here. Whoever calls
//! drives one to its end, a [`Session`](super::Session) several.

use std::ops::Range;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::acked::Instance;
use super::direct::{Copied, Direct};
use super::put::RemotePut;
use super::{STORE, nudge, tries};
use crate::batch::{Get, PutGroup};
use crate::outcome::{GetDone, GetOutcome, MissCause, PutDone};
use crate::remote::batch::{Asked, Heard, Manner, Missed, RemoteGet};
use crate::remote::desk::Desk;
use crate::remote::used::Use;

/// An object that is asked for, and which of its bytes.
type Asking = (ObjectKey, Option<Range<u64>>);

/// A batch of gets on its way.
pub(super) struct Gets {
    /// What each object was asked for by.
    asked: Vec<Asking>,
    get: RemoteGet,
    /// Those that are copied out of the store's memory, until they are.
    direct: Option<Direct>,
    /// Those that were, and are to be asked for.
    changed: Vec<usize>,
    manner: Manner,
    has_asked: bool,
}

impl Gets {
    pub fn begin(desk: &mut Desk, gets: Vec<Get>, manner: Manner) -> Gets {
        let direct = Direct::look(desk, &gets);
        let is_direct = |at: usize| direct.as_ref().is_some_and(|direct| direct.has(at));
        let asked: Vec<Asking> = gets.iter().map(|get| (get.key, get.range.clone())).collect();
        let begun = |get: Get| {
            let Get { destination, .. } = get;
            let outcome = Ok(GetOutcome::Miss(MissCause::Late));
            GetDone { outcome, destination, length: 0, proof: None }
        };
        let done = gets.into_iter().map(begun).collect();
        let missed: Vec<Missed> =
            (0..asked.len()).filter(|at| !is_direct(*at)).map(|at| missed(&asked, at)).collect();
        if !missed.is_empty() {
            nudge(desk);
        }
        let get = RemoteGet::begin(desk, done, missed, manner, Asked::Store, None);
        Gets { asked, get, direct, changed: Vec::new(), manner, has_asked: false }
    }

    /// Whether there is something to be copied, for which nothing is waited.
    pub fn has_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Whether that is what it goes on with.
    pub fn is_to_copy(&self) -> bool {
        self.has_asked && self.has_direct()
    }

    /// Go on as far as it goes now; true once every object has its outcome. The first time it asks for what is not copied from here, and
    /// no more: the store is at it meanwhile.
    pub fn advance(&mut self, desk: &mut Desk, now: Mono, heard: &mut Heard) -> bool {
        if !std::mem::replace(&mut self.has_asked, true) && self.has_direct() {
            self.get.advance_heard(desk, now, heard);
            return false;
        }
        if let Some(direct) = self.direct.take() {
            self.copy(direct, desk, now);
        }
        while self.get.advance_heard(desk, now, heard) {
            if self.changed.is_empty() {
                return true;
            }
            let changed = std::mem::take(&mut self.changed);
            self.get.ask_again(desk, changed.into_iter().map(|at| missed(&self.asked, at)).collect());
        }
        false
    }

    fn copy(&mut self, direct: Direct, desk: &mut Desk, now: Mono) {
        let asked = &self.asked;
        let Copied { hits, bytes, lost } = direct.copy(desk, self.get.done_mut(), |at| asked[at].0);
        self.changed = lost;
        let keys = hits.into_iter().map(|at| asked[at].0).collect();
        if let Some(caller) = desk.lines.stands_mut(STORE) {
            caller.note_used((self.manner.terms(now, 0), Use::Got(bytes), keys), now);
        }
    }

    /// The outcomes, and the memory.
    pub fn finish(self) -> Vec<GetDone> {
        self.get.finish()
    }
}

fn missed(asked: &[Asking], at: usize) -> Missed {
    let (key, range) = &asked[at];
    Missed { at, key: *key, range: range.clone() }
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
