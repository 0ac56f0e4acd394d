//! What is under way on a link goes on: in which order, and how much of it in one turn.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::request::Verb;

use super::answer::Answered;
use super::{Op, Server};
use crate::api::error::Error;
use crate::api::outcome::{Done, Ticket};

impl Server {
    /// Hand on what the session has done; whether there was any.
    pub(crate) fn collect(&mut self) -> bool {
        let mut any = false;
        while let Some((ticket, done)) = self.world.session.poll() {
            any = true;
            self.done(ticket, done);
        }
        any
    }

    /// Let operations go on, in the order in which they were asked for; whether one is over. Who is answered hears of it before the next
    /// is looked at, and one put at most is copied in a turn: what else the client asks for meanwhile waits no longer than that takes.
    pub(crate) fn advance(&mut self) -> bool {
        let shared = &self.world.session.io.shared;
        self.leaving.retain_mut(|(asked, bytes)| match asked.is_over(shared) {
            true => {
                self.load.over(&shared.served, *bytes);
                false
            }
            false => true,
        });
        let ids: Vec<OpId> = self.ops.keys().copied().collect();
        let (mut any, mut copied) = (false, false);
        for id in &ids {
            let is_put = matches!(self.ops.get(id), Some(Op::Put(_)));
            if is_put && copied {
                continue;
            }
            let mut answered = self.advance_one(*id);
            if is_put && answered.is_none() && self.world.session.has_finished() {
                copied = true;
                self.collect();
                answered = self.advance_one(*id);
            }
            let Some(answered) = answered else { continue };
            any = true;
            if let Some(Op::Get(get)) = self.ops.remove(id) {
                self.world.pushed.answered(*id, get.deadline());
            }
            self.answer(*id, answered);
            if Some(id) != ids.last() {
                self.send();
            }
        }
        any | copied
    }

    fn advance_one(&mut self, id: OpId) -> Option<Answered> {
        match self.ops.get_mut(&id)? {
            Op::Get(get) => get.advance(&mut self.world, &mut *self.link, id),
            Op::Put(put) => put.advance(&mut self.world, &mut *self.link, id),
            Op::Asked(asked) => asked.advance(&self.world.session.io.shared, &self.process),
            Op::Commit(commit) => commit.advance(),
            Op::Look(look) => look.advance(),
        }
    }

    fn done(&mut self, ticket: Ticket, done: Done) {
        let Some(id) = self.world.batches.remove(&ticket) else { return };
        match (self.ops.get_mut(&id), done) {
            (Some(Op::Get(get)), Done::Get(done)) => get.done(id, ticket, done),
            (Some(Op::Put(put)), Done::Put(done)) => put.done(self.world.shared(), ticket, done),
            (Some(Op::Commit(commit)), Done::Put(done)) => commit.done(self.world.shared(), done),
            (Some(Op::Look(look)), Done::Exists(found)) => look.done(found),
            // It was cancelled, and its memory is free with this.
            _ => {}
        }
    }
}

impl Op {
    /// What is said of it once its client has given it up.
    pub(crate) fn cancelled(&self) -> Answered {
        let verb = match self {
            Op::Get(_) => Verb::Get,
            Op::Put(put) => put.verb,
            Op::Asked(asked) => asked.verb,
            Op::Commit(_) => Verb::Commit,
            Op::Look(look) => look.verb,
        };
        Answered::failed(verb, Error::busy("it was cancelled"))
    }
}
