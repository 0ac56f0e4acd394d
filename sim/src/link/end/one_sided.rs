//! One-sided transfers at an end of a simulated link.

use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole};
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::link_error::LinkError;

use super::{Queued, SimLink};
use crate::link::planted_bug::PlantedBug;
use crate::link::rdma::{Finished, GIVEN_UP_MAX, Placement, RdmaClient, RdmaServer, Segment};
use crate::link::sharing::{concat_bytes, part_pieces};
use crate::link::wire::{PACKET_BYTES, Packet};

/// Longest wait of a drop for its queue pair.
const DROP_MAX: Duration = Duration::from_secs(1);

impl SimLink {
    /// This end with RDMA; memory of less than `least` bytes gets no target.
    pub(in crate::link) fn with_rdma(mut self, least: u64) -> SimLink {
        let bases = self.net.wire().with_fabric(|fabric, _| fabric.bases());
        match self.side {
            LinkRole::Client => self.rdma_client = Some(RdmaClient::new(least)),
            LinkRole::Server => self.rdma_server = bases.map(RdmaServer::new),
        }
        self
    }

    pub(super) fn plant_in_rdma(&mut self, plant: PlantedBug) {
        if let Some(client) = &mut self.rdma_client {
            client.has_one_receive = plant == PlantedBug::TooFewReceives;
        }
        if let Some(server) = &mut self.rdma_server {
            server.has_wrong_base = plant == PlantedBug::WrongRegionBase;
            server.has_early_notice = plant == PlantedBug::NoticeBeforeData;
        }
    }

    fn now(&self) -> Mono {
        self.net.wire().clock.now()
    }

    pub(super) fn is_closed(&self) -> bool {
        !self.open && self.ending.is_none()
    }

    /// Number of ranges that this end has.
    pub(super) fn exposures(&self) -> usize {
        self.exposed.len() + self.rdma_client.as_ref().map_or(0, RdmaClient::held)
    }

    /// The targets of a request go before it.
    pub(super) fn queue_targets(&mut self, op: OpId) {
        let Some(client) = &mut self.rdma_client else { return };
        let exposed = &self.exposed;
        let targets = self.net.wire().with_fabric(|fabric, _| client.targets(fabric, exposed, op));
        if let Some(targets) = targets.filter(|targets| !targets.is_empty()) {
            self.queue(Queued::Targets(op, targets));
        }
    }

    /// A frame leaves: earlier WRITEs are followed by a notice.
    pub(super) fn frame_leaves(&mut self, frame: &Frame) {
        self.post_notice();
        if let Some(server) = self.rdma_server.as_mut().filter(|_| frame.kind == FrameKind::Outcome)
        {
            server.forget(frame.op);
        }
    }

    pub(super) fn post_notice(&mut self) {
        if let Some(server) = &mut self.rdma_server {
            self.net.wire().with_fabric(|fabric, now| server.post_notice(fabric, now));
        }
    }

    /// A push whose turn it is leaves one-sided. Returned if it travels on the stream; an error if
    /// it waits for room.
    pub(super) fn push_one_sided(&mut self, push: Push) -> Result<Option<Push>, Push> {
        if self.rdma_client.is_some() {
            return Ok(self.refer(push));
        }
        let Some(server) = &mut self.rdma_server else { return Ok(Some(push)) };
        let mut wire = self.net.wire();
        let mut left = Some(push);
        let placement =
            wire.with_fabric(|fabric, now| left.take().map(|push| server.place(fabric, now, push)));
        let (op, item, segments, notice) = match placement.flatten() {
            None => return Ok(left),
            Some(Placement::Stream(push)) => return Ok(Some(push)),
            Some(Placement::Full(push)) => return Err(push),
            Some(Placement::Placed(op, item, segments, notice)) => (op, item, segments, notice),
        };
        for segment in segments {
            match segment {
                Segment::Stream(mut offset, bytes) => {
                    for bytes in bytes.chunks(PACKET_BYTES) {
                        let packet = Packet::Data { op, item, offset, bytes: bytes.to_vec() };
                        wire.send(LinkRole::Server, packet);
                        offset += bytes.len() as u64;
                    }
                }
                Segment::Placed(offset, len) => {
                    let packet = Packet::Placed { op, item, offset, len, notice };
                    wire.send(LinkRole::Server, packet);
                }
            }
        }
        Ok(None)
    }

    /// The client's push from registered memory becomes a reference, which the server reads.
    fn refer(&mut self, push: Push) -> Option<Push> {
        let mut wire = self.net.wire();
        let region_offset =
            |addr, len| wire.fabric.as_ref().and_then(|fabric| fabric.region_offset(addr, len));
        let Some(pieces) = part_pieces(&push.parts, region_offset).filter(|_| push.allow_ref)
        else {
            return Some(push);
        };
        self.sharing.show(&mut wire, LinkRole::Client, push, pieces);
        None
    }

    /// The server reads bytes that the client refers to into exposed memory.
    pub(super) fn fetch(
        &mut self,
        range: ItemRange,
        pieces: &[ShownPiece],
    ) -> Result<(), LinkError> {
        let length = pieces.iter().map(|piece| piece.length).sum();
        let Some(parts) = self.exposed.unused(range, length) else {
            self.counts.bytes_late += length;
            self.net.wire().net_stats.late += 1;
            self.outbox.push_back(Queued::Taken(range));
            return Ok(());
        };
        let Some(server) = &mut self.rdma_server else { return Ok(()) };
        let read = self
            .net
            .wire()
            .with_fabric(|fabric, now| server.read(fabric, now, range, pieces, parts));
        read.flatten().ok_or(LinkError::Disconnected)
    }

    /// Handle the completions of the devices.
    pub(super) fn poll_one_sided(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        if let Some(client) = &mut self.rdma_client {
            let due = self.net.wire().with_fabric(|fabric, now| {
                client.poll_notices(fabric);
                client.due(now)
            });
            if due.flatten().is_some_and(|due| due.is_zero()) {
                let silent_ms = GIVEN_UP_MAX.as_millis() as u64;
                return Err(LinkError::PeerTimeout { silent_ms });
            }
        }
        self.take_completions(events);
        let has_failed = self.net.wire().with_fabric(|fabric, _| fabric.has_failed());
        match has_failed.is_some_and(|failed| failed && self.rdma_server.is_some()) {
            true => Err(LinkError::Disconnected),
            false => Ok(()),
        }
    }

    fn take_completions(&mut self, events: &mut Vec<LinkEvent>) {
        let Some(server) = &mut self.rdma_server else { return };
        let completions = self.net.wire().with_fabric(|fabric, _| fabric.take_completions());
        for completion in completions.into_iter().flatten() {
            match server.completed(completion) {
                None => {}
                Some(Finished::Pushed(event)) => {
                    if let LinkEvent::Pushed { sent: true, parts, .. } = &event {
                        let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
                        self.counts.bytes_out += bytes;
                    }
                    events.push(event);
                }
                Some(Finished::Fetched(range, is_received, parts)) => {
                    let (op, item, offset) = range;
                    let bytes = concat_bytes(&parts);
                    self.outbox.push_back(Queued::Taken(range));
                    if !is_received {
                        events.push(LinkEvent::Retracted { op, item, offset, parts });
                        continue;
                    }
                    self.counts.bytes_in += bytes.len() as u64;
                    self.net.wire().ref_read(LinkRole::Server, range, &bytes);
                    events.push(LinkEvent::Received { op, item, offset, parts });
                }
            }
        }
    }

    /// The next packet, unless it waits for a notice.
    pub(super) fn next_packet(&mut self) -> Option<Packet> {
        if let (Some(Packet::Placed { notice, .. }), Some(client)) =
            (self.inbox.front(), &self.rdma_client)
            && !client.has_polled(*notice)
        {
            return None;
        }
        self.inbox.pop_front()
    }

    /// Events hand memory of the client back: nothing may land in it from now on.
    pub(super) fn note_handed_back(&self, events: &[LinkEvent]) {
        if self.rdma_client.is_none() {
            return;
        }
        let mut wire = self.net.wire();
        for event in events {
            if let LinkEvent::Received { parts, .. } | LinkEvent::Retracted { parts, .. } = event {
                wire.with_fabric(|fabric, _| {
                    parts.iter().for_each(|part| fabric.hand_back(part.addr() as u64));
                });
            }
        }
    }

    /// Memory of the operation that a device may still use stays with the link.
    pub(super) fn retract_one_sided(&mut self, op: OpId) {
        if let Some(server) = &mut self.rdma_server {
            server.retract(op);
            server.forget(op);
        }
        let Some(client) = &mut self.rdma_client else { return };
        if self.plant != PlantedBug::BackAtRetract {
            let exposed = &mut self.exposed;
            let wire = &mut self.net.wire();
            wire.with_fabric(|fabric, now| client.retract(fabric, exposed, op, now));
        }
    }

    /// The link ends: memory that a device may still use stays with it until its queue pair is
    /// down.
    pub(super) fn hold_reachable(&mut self) {
        let Some(client) = &mut self.rdma_client else { return };
        let exposed = &mut self.exposed;
        if self.plant != PlantedBug::BackAtStreamEnd {
            let wire = &mut self.net.wire();
            wire.with_fabric(|fabric, now| client.retract_all(fabric, exposed, now));
        }
    }

    /// Takes the queue pair down and, once it is, hands back its memory, and ends the link.
    pub(super) fn go_on_ending(&mut self, events: &mut Vec<LinkEvent>) {
        let Some(why) = self.ending.clone() else { return };
        let (side, plant) = (self.side, self.plant);
        let waits_for = match plant {
            PlantedBug::BackAtServerFlush => LinkRole::Server,
            _ => side,
        };
        let holds = self.holds();
        let is_down = self.net.wire().with_fabric(|fabric, now| {
            if waits_for == side || fabric.is_down(waits_for) || !holds {
                fabric.stats.forced += u64::from(fabric.take_down(side, now) && holds);
            }
            fabric.is_down(waits_for)
        });
        if holds && is_down == Some(false) && plant != PlantedBug::BackAtStreamEnd {
            return;
        }
        self.take_completions(events);
        if let Some(client) = &mut self.rdma_client {
            client.give_back(events);
        }
        self.ending = None;
        events.push(LinkEvent::Ended(why));
    }

    /// Whether a device may still use memory of this end.
    fn holds(&self) -> bool {
        self.rdma_client.as_ref().is_some_and(|client| client.held() > 0)
            || self.rdma_server.as_ref().is_some_and(RdmaServer::is_busy)
    }

    /// Time until this end has something to do. While it ends, only its queue pair counts.
    pub(super) fn due(&self, now: Mono) -> Option<Duration> {
        if !self.open {
            return self.net.wire().device_due();
        }
        let retract = self.rdma_client.as_ref().and_then(|client| client.due(now));
        let arrives = self.net.wire().due(self.side);
        // A push may wait for a completion, which comes from a device.
        let is_busy = self.rdma_server.as_ref().is_some_and(RdmaServer::is_busy);
        let leaves = self.next_send(now).filter(|_| !is_busy);
        arrives.into_iter().chain(leaves).chain(retract).min()
    }

    /// Before the end is dropped: no device uses its memory any more.
    pub(super) fn wait_until_down(&mut self) {
        self.close();
        let until = self.now().after(DROP_MAX);
        let mut events = Vec::new();
        while self.ending.is_some() && self.now() < until {
            let signal = self.net.wire().signal(self.side);
            let due = self.due(self.now()).unwrap_or(DROP_MAX);
            self.runtime.pause(&signal, signal.value(), due.min(until.since(self.now())));
            self.poll(&mut events);
        }
        if self.ending.is_some()
            && let Some(client) = &mut self.rdma_client
        {
            // Its queue pair is up: the memory is lost with it.
            let leaked = client.leak();
            self.net.wire().with_fabric(|fabric, _| fabric.stats.leaked += leaked);
        }
    }
}
