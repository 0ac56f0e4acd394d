//! Queue of an end of a simulated link, in sending order.

use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::LinkRole;
use pagelith_transport::link::{LinkEvent, Push};

use super::{Queued, SimLink};
use crate::link::planted_bug::PlantedBug;
use crate::link::sharing::pushed_event;
use crate::link::wire::{PACKET_BYTES, Packet};

impl SimLink {
    /// Returns pushes of `op`, or all, that did not leave.
    pub(super) fn return_unsent(&mut self, op: Option<OpId>, events: &mut Vec<LinkEvent>) {
        for out in std::mem::take(&mut self.outbox) {
            match out {
                // Their completion was already reported.
                Queued::Push(..)
                    if self.plant == PlantedBug::EarlyPushCompletion && op.is_none() => {}
                out @ Queued::Push(..) if self.plant == PlantedBug::EarlyPushCompletion => {
                    self.outbox.push_back(out)
                }
                Queued::Push(_, push) if op.is_none_or(|op| op == push.op) => {
                    events.push(pushed_event(push, false));
                }
                out => self.outbox.push_back(out),
            }
        }
    }

    /// Queues an item after all others.
    pub(super) fn queue(&mut self, out: Queued) {
        self.outbox.push_back(out);
        let mut ready = std::mem::take(&mut self.ready);
        self.send_due(&mut ready);
        self.ready = ready;
    }

    /// Sends the items that may leave by now.
    pub(super) fn send_due(&mut self, events: &mut Vec<LinkEvent>) {
        let now = self.net.wire().clock.now();
        while let Some(out) = self.outbox.pop_front() {
            match out {
                Queued::Frame(frame) => {
                    self.frame_leaves(&frame);
                    self.counts.frames_out += 1;
                    self.sharing.passes(&mut self.net.wire(), &frame);
                    let mut wire = self.net.wire();
                    wire.net_stats.unowed +=
                        u64::from(self.side == LinkRole::Server && !self.owed.sent(&frame));
                    wire.send(self.side, Packet::Frame(frame));
                }
                Queued::Taken(range) => self.net.wire().send(self.side, Packet::Taken(range)),
                Queued::Targets(op, targets) => {
                    self.net.wire().send(self.side, Packet::Targets(op, targets));
                }
                Queued::Push(at, push) if at <= now => {
                    let push = match self.push_one_sided(push) {
                        Ok(None) => continue,
                        Ok(Some(push)) => push,
                        Err(push) => return self.outbox.push_front(Queued::Push(at, push)),
                    };
                    if let Some(pieces) = self
                        .sharing
                        .pieces(&push)
                        .filter(|_| self.plant != PlantedBug::EarlyPushCompletion)
                    {
                        self.sharing.show(&mut self.net.wire(), self.side, push, pieces);
                        continue;
                    }
                    let pushed = self.packets(push);
                    events.extend(
                        Some(pushed).filter(|_| self.plant != PlantedBug::EarlyPushCompletion),
                    );
                }
                out @ Queued::Push(..) => return self.outbox.push_front(out),
            }
        }
    }

    /// Copies the current bytes into packets.
    fn packets(&mut self, push: Push) -> LinkEvent {
        let Push { op, item, mut offset, parts, token, allow_ref: _ } = push;
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().iter().copied()).collect();
        for bytes in bytes.chunks(PACKET_BYTES) {
            let packet = Packet::Data { op, item, offset, bytes: bytes.to_vec() };
            self.net.wire().send(self.side, packet);
            offset += bytes.len() as u64;
        }
        self.counts.bytes_out += bytes.len() as u64;
        LinkEvent::Pushed { op, token, sent: true, parts }
    }

    /// Time until the next queued item leaves.
    pub(super) fn next_send(&self, now: Mono) -> Option<Duration> {
        match self.outbox.front()? {
            Queued::Frame(_) | Queued::Taken(_) | Queued::Targets(..) => Some(Duration::ZERO),
            Queued::Push(at, _) => Some(at.since(now)),
        }
    }
}
