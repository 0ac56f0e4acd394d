//! Advances the operations of a link: their order, and how much one poll does.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::request::Verb;
use pagelith_mutants::{self as mutant, Mutant};

use super::op_outcome::OpOutcome;
use super::{Op, Server};
use crate::api::error::Error;
use crate::api::outcome::{CompletedBatch, Ticket};

impl Server {
    /// Passes completions of the session to their operations; returns whether any was available.
    pub(crate) fn collect_completions(&mut self) -> bool {
        let mut any = false;
        while let Some((ticket, done)) = self.ctx.session.poll() {
            any = true;
            self.complete(ticket, done);
        }
        any
    }

    /// Advances the operations in the order of their numbers; returns whether one ended. Each
    /// outcome is sent before the next operation advances. At most one put is copied per call,
    /// which bounds how long other requests of the client wait.
    pub(crate) fn advance(&mut self) -> bool {
        let ended = self.cancelled.extract_if(.., |(durable, _)| durable.is_done());
        let bytes = ended.map(|(_, bytes)| bytes).sum();
        self.load.release_cancelled(&self.ctx.session.io.shared.bytes.served, bytes);
        let ids: Vec<OpId> = self.ops.keys().copied().collect();
        let (mut any, mut copied) = (false, false);
        for id in &ids {
            let is_put = matches!(self.ops.get(id), Some(Op::Put(_)));
            if is_put && copied {
                continue;
            }
            let mut outcome = self.advance_one(*id);
            if is_put && outcome.is_none() && self.ctx.session.has_finished() {
                copied = true;
                self.collect_completions();
                outcome = self.advance_one(*id);
            }
            let Some(outcome) = outcome else { continue };
            any = true;
            if let Some(Op::Get(get)) = self.ops.remove(id) {
                self.ctx.pending_pushes.op_answered(*id, get.deadline());
            }
            self.respond(*id, outcome);
            if Some(id) != ids.last() {
                self.send_outcomes();
            }
        }
        any | copied
    }

    fn advance_one(&mut self, id: OpId) -> Option<OpOutcome> {
        match self.ops.get_mut(&id)? {
            Op::Get(get) => get.advance(&mut self.ctx, &mut *self.link, id),
            Op::Put(put) => put.advance(&mut self.ctx, &mut *self.link, id),
            Op::Durable(durable) => durable.advance(&self.ctx.session.io.shared, &self.process),
            Op::Commit(commit) => commit.advance(),
            Op::Exists(exists) => exists.advance(),
        }
    }

    /// Cancel an operation. Its memory is handed back, and its outcome is sent at once.
    pub(super) fn cancel(&mut self, id: OpId) {
        let op = self.ops.remove(&id);
        self.link.retract(id);
        // An operation that was answered before has its outcome in the queue.
        let Some(op) = op.filter(|_| !mutant::on(Mutant::CancelledWithoutOutcome)) else { return };
        let outcome = op.cancelled_outcome();
        let of_op = self.ctx.batches.extract_if(|_, of| *of == id);
        let tickets: Vec<Ticket> = of_op.map(|(ticket, _)| ticket).collect();
        match op {
            Op::Durable(durable) => {
                self.cancelled.push((durable, self.load.detach_cancelled(id)));
            }
            _ if !tickets.is_empty() => {
                self.cancelled_batches.add(tickets, self.load.detach_cancelled(id));
            }
            _ => {}
        }
        self.respond(id, outcome);
    }

    fn complete(&mut self, ticket: Ticket, done: CompletedBatch) {
        let Some(id) = self.ctx.batches.remove(&ticket) else {
            // Dropping the completion frees its memory.
            let bytes = self.cancelled_batches.end(ticket);
            let served = &self.ctx.session.io.shared.bytes.served;
            return self.load.release_cancelled(served, bytes);
        };
        match (self.ops.get_mut(&id), done) {
            (Some(Op::Get(get)), CompletedBatch::Get(done)) => get.done(id, ticket, done),
            (Some(Op::Put(put)), CompletedBatch::Put(done)) => {
                put.done(self.ctx.shared(), ticket, done)
            }
            (Some(Op::Commit(commit)), CompletedBatch::Put(done)) => {
                commit.done(self.ctx.shared(), done)
            }
            (Some(Op::Exists(exists)), CompletedBatch::Exists(found)) => exists.done(found),
            // The operation has ended.
            _ => {}
        }
    }
}

impl Op {
    /// The outcome of a cancelled operation.
    pub(crate) fn cancelled_outcome(&self) -> OpOutcome {
        let verb = match self {
            Op::Get(_) => Verb::Get,
            Op::Put(put) => put.verb,
            Op::Durable(durable) => durable.verb,
            Op::Commit(_) => Verb::Commit,
            Op::Exists(exists) => exists.verb,
        };
        let detail = "operation was cancelled by its client; repeat it if its result is needed";
        OpOutcome::failed(verb, Error::busy(detail))
    }
}
