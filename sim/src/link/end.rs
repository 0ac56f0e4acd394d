//! One end of the simulated connection: the link interface over packets.

mod one_sided;
mod sending;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::Runtime;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole, VERSION_MAX};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkCapacity, LinkCounters, LinkEvent, LinkParams, Push};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rights::Rights;
use pagelith_transport::shown::{LinkRegions, ShmRef};

use super::exposed::ExposedMemory;
use super::net::SimNet;
use super::owed_outcomes::OwedOutcomes;
use super::planted_bug::{ArrivedSums, PlantedBug};
use super::rdma::{RdmaClient, RdmaServer, Target};
use super::sharing::{SharingState, ref_bytes};
use super::wire::Packet;

/// Longest control body in bytes.
const CONTROL_BYTES_MAX: u32 = 1 << 20;

/// One end of a simulated connection.
pub struct SimLink {
    side: LinkRole,
    net: SimNet,
    runtime: Arc<dyn Runtime>,
    limits: LinkLimits,
    params: LinkParams,
    counts: LinkCounters,
    exposed: ExposedMemory,
    ready: Vec<LinkEvent>,
    /// Items leave in this order: frames after earlier pushes, a push when its memory is read.
    outbox: VecDeque<Queued>,
    /// Operations that this end gave up or finished.
    finished: BTreeSet<OpId>,
    plant: PlantedBug,
    /// The operation of the last request.
    newest: OpId,
    arrived_sums: ArrivedSums,
    sharing: SharingState,
    owed: OwedOutcomes,
    /// One-sided transfers, at the end that has the role.
    rdma_client: Option<RdmaClient>,
    rdma_server: Option<RdmaServer>,
    /// Packets that arrived and were not handled.
    inbox: VecDeque<Packet>,
    open: bool,
    /// Why the link ends, while its queue pair goes down.
    ending: Option<LinkError>,
}

enum Queued {
    Frame(Frame),
    Push(Mono, Push),
    Taken(ItemRange),
    Targets(OpId, Vec<Target>),
}

impl SimLink {
    pub(super) fn new(
        side: LinkRole,
        net: SimNet,
        runtime: Arc<dyn Runtime>,
        limits: LinkLimits,
    ) -> SimLink {
        let params = LinkParams {
            side,
            peer: format!("simulated {:?}", side.other()),
            peer_instance: [0x51; 16],
            version: VERSION_MAX,
            features: Feature::of_this_build(),
            missing: Vec::new(),
            alignment: 4096,
            control_bytes_max: CONTROL_BYTES_MAX,
            operations_max: u32::MAX,
            object_bytes_max: OBJECT_BYTES_MAX,
            key_name: None,
            rights: Rights::all(),
        };
        let (counts, exposed, ready, outbox, finished, inbox) = Default::default();
        let (plant, newest, arrived_sums) = (PlantedBug::None, OpId(0), ArrivedSums::default());
        SimLink {
            side,
            net,
            runtime,
            limits,
            params,
            counts,
            exposed,
            ready,
            outbox,
            finished,
            plant,
            newest,
            arrived_sums,
            sharing: SharingState::default(),
            owed: OwedOutcomes::default(),
            rdma_client: None,
            rdma_server: None,
            inbox,
            open: true,
            ending: None,
        }
    }

    /// This end without support for `feature`, as an older build.
    #[must_use]
    pub fn without(mut self, feature: Feature) -> SimLink {
        self.params.features &= !feature.bit();
        self
    }

    /// This end with a planted bug.
    #[must_use]
    pub fn with(mut self, plant: PlantedBug) -> SimLink {
        self.plant = plant;
        self.plant_in_rdma(plant);
        self
    }

    /// This end on the same host as the other, with the regions that each side has handed over.
    #[must_use]
    pub fn sharing(mut self, regions: LinkRegions) -> SimLink {
        self.sharing.regions = regions;
        self
    }

    fn end(&mut self, why: LinkError, goodbye: bool, events: &mut Vec<LinkEvent>) {
        self.open = false;
        self.net.wire().close(self.side, goodbye);
        self.hold_reachable();
        self.exposed.retract(None, events);
        self.return_unsent(None, events);
        self.sharing.give_up(&mut self.net.wire(), self.side, None, events);
        self.ending = Some(why);
        self.go_on_ending(events);
    }

    fn receive(&mut self, packet: Packet, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        match packet {
            Packet::Frame(mut frame) => {
                self.net.wire().net_stats.late += u64::from(self.finished.contains(&frame.op));
                self.counts.frames_in += 1;
                match self.plant {
                    PlantedBug::StaleOutcome
                        if frame.kind == FrameKind::Outcome
                            && self.finished.contains(&frame.op) =>
                    {
                        frame.op = self.newest;
                    }
                    PlantedBug::Unverified => frame = self.arrived_sums.replace_checksums(frame),
                    _ => {}
                }
                if frame.kind == FrameKind::Request {
                    self.sharing.passes(&mut self.net.wire(), &frame);
                }
                if self.side == LinkRole::Server {
                    self.owed.arrived(&frame, self.net.wire().clock.now());
                }
                let outcome = (frame.kind == FrameKind::Outcome).then_some(frame.op);
                events.push(LinkEvent::Frame(frame));
                if let (Some(op), Some(rdma)) = (outcome, &mut self.rdma_client) {
                    rdma.outcome(op, events);
                }
            }
            Packet::Data { op, item, offset, bytes } => {
                let written = self.exposed.write(op, item, offset, &bytes);
                self.received(written, bytes.len() as u64, events);
            }
            Packet::Placed { op, item, offset, len, notice: _ } => {
                let placed = self.exposed.placed(op, item, offset, len);
                self.received(placed, len, events);
            }
            Packet::Targets(op, targets) => {
                self.rdma_server.iter_mut().for_each(|rdma| rdma.add_targets(op, targets.clone()));
            }
            Packet::ShmRef { range, pieces } if self.rdma_server.is_some() => {
                self.fetch(range, &pieces)?;
            }
            Packet::ShmRef { range, pieces } => {
                let shown = self.sharing.arrived(range, pieces);
                self.shown(shown.ok_or(LinkError::Disconnected)?, events);
            }
            Packet::Taken(range) => {
                events.extend(self.sharing.taken(&mut self.net.wire(), self.side, range));
            }
            Packet::End { goodbye: true } => return Err(LinkError::Goodbye),
            Packet::End { goodbye: false } => return Err(LinkError::Disconnected),
        }
        Ok(())
    }

    /// Bytes arrived: in an exposed range, which may be complete, or in none.
    fn received(
        &mut self,
        range: Option<Option<LinkEvent>>,
        bytes: u64,
        events: &mut Vec<LinkEvent>,
    ) {
        let Some(whole) = range else {
            self.counts.bytes_late += bytes;
            self.net.wire().net_stats.late += 1;
            return;
        };
        self.counts.bytes_in += bytes;
        if let (PlantedBug::Unverified, Some(LinkEvent::Received { op, item, parts, .. })) =
            (self.plant, &whole)
        {
            self.arrived_sums.note(*op, *item, parts);
        }
        events.extend(whole);
    }

    /// The other end passes bytes by reference, to exposed memory if possible.
    fn shown(&mut self, shown: ShmRef, events: &mut Vec<LinkEvent>) {
        let (range, length) = (shown.range(), shown.length());
        let (op, item, offset) = range;
        if let Some(parts) = self.exposed.unused(range, length) {
            self.counts.bytes_in += length;
            self.sharing.note_read(&mut self.net.wire(), self.side, &shown);
            if self.plant == PlantedBug::Unverified {
                self.arrived_sums.note_bytes(op, item, &ref_bytes(&shown));
            }
            events.push(LinkEvent::ReceivedRef { op, item, offset, parts, shown });
            return;
        }
        if let Some(whole) = self.exposed.write(op, item, offset, &ref_bytes(&shown)) {
            // A part of an exposed range: it arrives like sent bytes.
            self.counts.bytes_in += length;
            events.extend(whole);
        } else {
            self.counts.bytes_late += length;
            self.net.wire().net_stats.late += 1;
        }
        self.outbox.push_back(Queued::Taken(range));
    }

    fn poll_once(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        self.poll_one_sided(events)?;
        self.send_due(events);
        self.post_notice();
        let (arrived, silent, cut) = {
            let mut wire = self.net.wire();
            wire.net_stats.unowed += self.owed.overdue(wire.clock.now());
            (wire.receive(self.side), wire.silent(), wire.is_cut())
        };
        self.inbox.extend(arrived);
        while let Some(packet) = self.next_packet() {
            self.receive(packet, events)?;
        }
        if cut {
            return Err(LinkError::Disconnected);
        }
        match silent {
            Some(time) => Err(LinkError::PeerTimeout {
                silent_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            }),
            None => Ok(()),
        }
    }
}

impl Link for SimLink {
    fn params(&self) -> &LinkParams {
        &self.params
    }

    fn counts(&self) -> LinkCounters {
        self.counts
    }

    fn capacity(&self) -> LinkCapacity {
        let of = |most: usize| if self.open { most } else { 0 };
        LinkCapacity {
            frames: of(self.limits.frames_max),
            frame_bytes: of(self.limits.frame_bytes_max),
            pushes: of(self.limits.pushes_max),
            exposures: of(self.limits.exposures_max.saturating_sub(self.exposures())),
            operations: of(if self.side == LinkRole::Client { u32::MAX as usize } else { 0 }),
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let kind = frame.kind;
        let users = matches!(
            kind,
            FrameKind::Request | FrameKind::Pull | FrameKind::Outcome | FrameKind::Cancel
        );
        let fits = frame.body.len() <= CONTROL_BYTES_MAX as usize
            && frame.body.is_empty() == kind.is_bare()
            && frame.op.0 != 0;
        if !self.open || !users || !fits || !kind.is_sent_by(self.side) {
            return Err(frame);
        }
        if frame.kind == FrameKind::Request {
            self.newest = frame.op;
            self.queue_targets(frame.op);
        }
        self.queue(Queued::Frame(frame));
        Ok(())
    }

    fn sends_by_ref(&self, parts: &[Part]) -> bool {
        self.sharing.regions.pieces(parts).is_some()
    }

    fn region_offset(&self, parts: &[Part]) -> Option<(u32, u64)> {
        match self.sharing.regions.pieces(parts)?.as_slice() {
            [piece] => Some((piece.region, piece.at)),
            _ => None,
        }
    }

    fn peer_ref(&self, range: ItemRange, (region, at): (u32, u64), length: u64) -> Option<ShmRef> {
        self.sharing.arrived(range, std::iter::once(ShownPiece::new(region, at, length)).collect())
    }

    fn release_ref(&mut self, shown: ShmRef) {
        self.queue(Queued::Taken(shown.range()));
    }

    /// Copies the bytes into packets now or when the hold ends; a later poll returns the memory.
    fn push(&mut self, push: Push) -> Result<(), Push> {
        let len: u64 = push.parts.iter().map(|part| part.len() as u64).sum();
        if !self.open || len == 0 || push.op.0 == 0 || push.offset.checked_add(len).is_none() {
            return Err(push);
        }
        let (now, hold) = {
            let mut wire = self.net.wire();
            (wire.clock.now(), wire.hold())
        };
        if self.plant == PlantedBug::EarlyPushCompletion {
            let (op, token, parts) = (push.op, push.token, Vec::new());
            self.ready.push(LinkEvent::Pushed { op, token, sent: true, parts });
        }
        self.queue(Queued::Push(now.after(hold), push));
        Ok(())
    }

    fn expose(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        parts: Vec<Part>,
    ) -> Result<(), Vec<Part>> {
        if self.capacity().exposures == 0 {
            return Err(parts);
        }
        self.exposed.expose((op, item, offset), parts)
    }

    fn retract(&mut self, op: OpId) {
        self.finished.insert(op);
        match self.plant {
            PlantedBug::WriteAfterRetract => {
                let events = self.exposed.names(op).map(|(op, item, offset)| {
                    let parts = Vec::new();
                    LinkEvent::Retracted { op, item, offset, parts }
                });
                self.ready.extend(events);
            }
            _ => {
                self.retract_one_sided(op);
                self.exposed.retract(Some(op), &mut self.ready);
            }
        }
        let mut ready = std::mem::take(&mut self.ready);
        self.return_unsent(Some(op), &mut ready);
        self.sharing.give_up(&mut self.net.wire(), self.side, Some(op), &mut ready);
        self.ready = ready;
    }

    fn poll(&mut self, events: &mut Vec<LinkEvent>) {
        let had = events.len();
        events.append(&mut self.ready);
        if self.open
            && let Err(why) = self.poll_once(events)
        {
            self.end(why, false, events);
        } else {
            self.go_on_ending(events);
        }
        self.note_handed_back(&events[had..]);
    }

    fn wait(&mut self, events: &mut Vec<LinkEvent>, timeout: Duration) {
        let had = events.len();
        let clock = self.net.wire().clock.clone();
        let until = clock.now().after(timeout);
        loop {
            let (signal, seen) = {
                let signal = self.net.wire().signal(self.side);
                let seen = signal.value();
                (signal, seen)
            };
            self.poll(events);
            let now = clock.now();
            if events.len() > had || self.is_closed() || now >= until {
                return;
            }
            let due = self.due(now).map_or(until.since(now), |due| due.min(until.since(now)));
            self.runtime.pause(&signal, seen, due);
        }
    }

    fn close(&mut self) {
        if self.open {
            let mut events = std::mem::take(&mut self.ready);
            self.end(LinkError::ClosedLocally, true, &mut events);
            self.ready = events;
        }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.wait_until_down();
        let mut wire = self.net.wire();
        wire.reference_check.forget_all(self.side);
        wire.close(self.side, false);
    }
}
