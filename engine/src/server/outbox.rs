//! Queues outcomes and sends them to the client.

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};

use super::Server;
use super::op_outcome::OpOutcome;
use crate::api::error::Error;

/// Maximum length of an outcome in bytes, even if the peer accepts longer ones.
pub(crate) const OUTCOME_BYTES_MAX: usize = 4 << 20;

impl Server {
    pub(crate) fn respond(&mut self, id: OpId, outcome: OpOutcome) {
        let most = (self.link.params().control_bytes_max as usize).min(OUTCOME_BYTES_MAX);
        let mut body = outcome.encode();
        if body.len() > most {
            let bytes = body.len();
            let detail = format!(
                "outcome is longer than the peer accepts, request fewer items bytes={bytes} max={most}"
            );
            body = OpOutcome::failed(outcome.verb, Error::invalid(detail)).encode();
        }
        self.outbox.push_back(Frame::new(FrameKind::Outcome, id, body));
    }

    /// Records that the outcome of `sent` is in the link's queue, and how many bytes of outcomes
    /// the link has not written.
    fn note_unsent(&mut self, sent: Option<OpId>) {
        if self.closed.is_some() {
            return;
        }
        let unsent = self.outcome_capacity.saturating_sub(self.link.capacity().frame_bytes);
        self.load.record_sent(&self.ctx.session.io.shared.bytes.served, sent, unsent as u64);
    }

    /// Sends queued outcomes now instead of when this thread waits next.
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
            self.link.flush_queue();
        }
        self.note_unsent(sent);
    }
}
