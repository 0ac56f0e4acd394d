//! One end of the simulated connection: the link seam over packets.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::runtime::Runtime;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::{Frame, Kind, Side, VERSION_MAX};
use pagelith_transport::closed::Closed;
use pagelith_transport::limits::Limits;
use pagelith_transport::link::{Counts, Event, Facts, Link, Push, Room};
use pagelith_transport::rights::Rights;
use pagelith_transport::shown::Shown;

use super::landing::Landing;
use super::wire::Packet;
use super::{PACKET_BYTES, SimNet};

/// Longest control body in bytes.
const CONTROL_BYTES_MAX: u32 = 1 << 20;

/// One end of a simulated connection.
pub struct SimLink {
    side: Side,
    net: SimNet,
    runtime: Arc<dyn Runtime>,
    limits: Limits,
    facts: Facts,
    counts: Counts,
    landing: Landing,
    happened: Vec<Event>,
    open: bool,
}

impl SimLink {
    pub(super) fn new(side: Side, net: SimNet, runtime: Arc<dyn Runtime>, limits: Limits) -> SimLink {
        let facts = Facts {
            side,
            peer: format!("simulated {:?}", side.other()),
            peer_instance: [0x51; 16],
            version: VERSION_MAX,
            features: Feature::ALL.iter().fold(0, |all, feature| all | feature.bit()),
            missing: Vec::new(),
            alignment: 4096,
            control_bytes_max: CONTROL_BYTES_MAX,
            operations_max: u32::MAX,
            object_bytes_max: OBJECT_BYTES_MAX,
            key_name: None,
            rights: Rights::all(),
        };
        let (counts, landing, happened) = Default::default();
        SimLink { side, net, runtime, limits, facts, counts, landing, happened, open: true }
    }

    fn end(&mut self, why: Closed, goodbye: bool, events: &mut Vec<Event>) {
        self.open = false;
        self.net.wire().close(self.side, goodbye);
        self.landing.retract(None, events);
        events.push(Event::Closed(why));
    }

    fn take(&mut self, packet: Packet, events: &mut Vec<Event>) -> Result<(), Closed> {
        match packet {
            Packet::Frame(frame) => {
                self.counts.frames_in += 1;
                events.push(Event::Frame(frame));
            }
            Packet::Data { op, item, offset, bytes } => match self.landing.land(op, item, offset, &bytes) {
                Some(whole) => {
                    self.counts.bytes_in += bytes.len() as u64;
                    events.extend(whole);
                }
                None => self.counts.bytes_late += bytes.len() as u64,
            },
            Packet::End { goodbye: true } => return Err(Closed::Bye),
            Packet::End { goodbye: false } => return Err(Closed::Ended),
        }
        Ok(())
    }

    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), Closed> {
        let (arrived, silent, cut) = {
            let mut wire = self.net.wire();
            (wire.receive(self.side), wire.silent(), wire.is_cut())
        };
        for packet in arrived {
            self.take(packet, events)?;
        }
        if cut {
            return Err(Closed::Ended);
        }
        match silent {
            Some(time) => {
                Err(Closed::Silent { silent_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) })
            }
            None => Ok(()),
        }
    }
}

impl Link for SimLink {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn room(&self) -> Room {
        let of = |most: usize| if self.open { most } else { 0 };
        Room {
            frames: of(self.limits.frames_max),
            frame_bytes: of(self.limits.frame_bytes_max),
            pushes: of(self.limits.pushes_max),
            exposures: of(self.limits.exposures_max.saturating_sub(self.landing.len())),
            operations: of(if self.side == Side::Client { u32::MAX as usize } else { 0 }),
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let kind = frame.kind;
        let users = matches!(kind, Kind::Request | Kind::Pull | Kind::Outcome | Kind::Cancel);
        let fits = frame.body.len() <= CONTROL_BYTES_MAX as usize
            && frame.body.is_empty() == kind.is_bare()
            && frame.op.0 != 0;
        if !self.open || !users || !fits || !kind.is_sent_by(self.side) {
            return Err(frame);
        }
        self.counts.frames_out += 1;
        self.net.wire().send(self.side, Packet::Frame(frame));
        Ok(())
    }

    fn shows(&self, _: &[Part]) -> bool {
        false
    }

    /// Nothing is shown here.
    fn took(&mut self, _: Shown) {}

    /// The bytes are copied into packets at once; the memory comes back with the next poll.
    fn push(&mut self, push: Push) -> Result<(), Push> {
        let len: u64 = push.parts.iter().map(|part| part.len() as u64).sum();
        if !self.open || len == 0 || push.op.0 == 0 || push.offset.checked_add(len).is_none() {
            return Err(push);
        }
        let Push { op, item, mut offset, parts, token, may_show: _ } = push;
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.bytes().iter().copied()).collect();
        for bytes in bytes.chunks(PACKET_BYTES) {
            let packet = Packet::Data { op, item, offset, bytes: bytes.to_vec() };
            self.net.wire().send(self.side, packet);
            offset += bytes.len() as u64;
        }
        self.counts.bytes_out += len;
        self.happened.push(Event::Pushed { op, token, sent: true, parts });
        Ok(())
    }

    fn expose(&mut self, op: OpId, item: u32, offset: u64, parts: Vec<Part>) -> Result<(), Vec<Part>> {
        if self.room().exposures == 0 {
            return Err(parts);
        }
        self.landing.expose((op, item, offset), parts)
    }

    fn retract(&mut self, op: OpId) {
        self.landing.retract(Some(op), &mut self.happened);
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.happened);
        if self.open
            && let Err(why) = self.turn(events)
        {
            self.end(why, false, events);
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration) {
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
            if events.len() > had || !self.open || now >= until {
                return;
            }
            let left = until.since(now);
            let due = self.net.wire().due(self.side).map_or(left, |due| due.min(left));
            self.runtime.pause(&signal, seen, due);
        }
    }

    fn close(&mut self) {
        if self.open {
            let mut events = std::mem::take(&mut self.happened);
            self.end(Closed::Here, true, &mut events);
            self.happened = events;
        }
    }
}

impl Drop for SimLink {
    fn drop(&mut self) {
        self.net.wire().close(self.side, false);
    }
}
