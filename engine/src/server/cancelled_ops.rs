//! Cancelled operations that still run: they count within the bounds of the client until they have
//! ended.

use pagelith_layouts::ids::OpId;
use pagelith_mutants::{self as mutant, Mutant};

use super::durable::DurableOp;
use super::{Op, Server};
use crate::api::outcome::Ticket;

/// The cancelled operations of a link that still run, with the bytes counted for each.
#[derive(Default)]
pub(super) struct CancelledOps {
    /// Removals and flushes, which run to their end.
    durable: Vec<(DurableOp, u64)>,
    /// Batches of the session, which end at their deadline at the latest. Their results belong to no
    /// operation: the client may use the number again.
    batches: Vec<(Vec<Ticket>, u64)>,
}

impl CancelledOps {
    pub fn len(&self) -> usize {
        self.durable.len() + self.batches.len()
    }

    pub fn clear(&mut self) {
        self.durable.clear();
        self.batches.clear();
    }

    /// End the removals and flushes that are done; returns their bytes.
    fn end_durable(&mut self) -> u64 {
        let ended = self.durable.extract_if(.., |(durable, _)| durable.is_done());
        ended.map(|(_, bytes)| bytes).sum()
    }

    /// A batch of a cancelled operation ended; returns the operation's bytes if it was the last.
    fn end_batch(&mut self, ticket: Ticket) -> u64 {
        let of_ticket = |(tickets, _): &(Vec<Ticket>, _)| tickets.contains(&ticket);
        let Some(at) = self.batches.iter().position(of_ticket) else { return 0 };
        let (tickets, bytes) = &mut self.batches[at];
        tickets.retain(|other| *other != ticket);
        if !tickets.is_empty() {
            return 0;
        }
        let bytes = *bytes;
        self.batches.swap_remove(at);
        bytes
    }
}

impl Server {
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
                self.cancelled.durable.push((durable, self.load.detach_cancelled(id)));
            }
            _ if !tickets.is_empty() => {
                self.cancelled.batches.push((tickets, self.load.detach_cancelled(id)));
            }
            _ => {}
        }
        self.respond(id, outcome);
    }

    /// Release what counts for cancelled removals and flushes that have ended.
    pub(super) fn release_cancelled(&mut self) {
        let bytes = self.cancelled.end_durable();
        self.load.release_cancelled(&self.ctx.session.io.shared.bytes.served, bytes);
    }

    /// A batch of no operation in progress ended: release what counts for its cancelled one.
    pub(super) fn cancelled_batch_ended(&mut self, ticket: Ticket) {
        let bytes = self.cancelled.end_batch(ticket);
        self.load.release_cancelled(&self.ctx.session.io.shared.bytes.served, bytes);
    }
}
