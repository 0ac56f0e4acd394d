//! Outcomes on their way to the client.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, Kind};

use super::Server;
use super::op_outcome::OpOutcome;
use crate::api::error::Error;

/// Longest outcome in bytes, also of a peer that reads longer ones.
pub(crate) const OUTCOME_BYTES_MAX: usize = 4 << 20;

impl Server {
    pub(crate) fn respond(&mut self, id: OpId, outcome: OpOutcome) {
        let most = (self.link.facts().control_bytes_max as usize).min(OUTCOME_BYTES_MAX);
        let mut body = outcome.encode();
        if body.len() > most {
            let bytes = body.len();
            let detail = format!("the outcome is longer than the peer reads bytes={bytes} max={most}");
            body = OpOutcome::failed(outcome.verb, Error::invalid(detail)).encode();
        }
        self.outbox.push_back(Frame::new(Kind::Outcome, id, body));
    }

    /// The outcome of this operation is the link's; how much of what it has is not sent yet.
    fn note_unsent(&mut self, sent: Option<OpId>) {
        if self.closed.is_some() {
            return;
        }
        let unsent = self.outcome_capacity.saturating_sub(self.link.room().frame_bytes);
        self.load.record_sent(&self.ctx.session.io.shared.served, sent, unsent as u64);
    }

    /// Outcomes go to the client now, and not once this thread comes to wait.
    pub(crate) fn send_outcomes(&mut self) {
        let any = !self.outbox.is_empty();
        let mut sent = None;
        while let Some(frame) = self.outbox.pop_front() {
            let id = frame.op;
            if let Err(frame) = self.link.send(frame) {
                self.outbox.push_front(frame);
                break;
            }
            self.note_unsent(sent.replace(id));
        }
        if any {
            self.link.send_on();
        }
        self.note_unsent(sent);
    }
}
