//! A link over a byte stream: its sending and receiving halves, exposed memory and the heartbeat.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shown::{ItemRange, ShownPiece};
use pagelith_layouts::wire::{Frame, Kind, Side};

use crate::capability::Offer;
use crate::closed::Closed;
use crate::exposures::Exposures;
use crate::handshake::Agreed;
use crate::heartbeat::Heartbeat;
use crate::inbound::{FrameReader, Inbound, Sink};
use crate::limits::Limits;
use crate::link::{Counts, Event, Facts, Link, Push, Room};
use crate::link_permits::LinkPermit;
use crate::outbound::{FrameWriter, Outbound};
use crate::shown::{LinkRegions, Shown};
use crate::stream::Stream;

/// One end of a connection over `S`.
pub struct Conn<S> {
    /// `None` once the link is closed: closing drops the stream at once.
    stream: Option<S>,
    inbound: Inbound,
    outbound: Outbound,
    exposures: Exposures,
    regions: LinkRegions,
    facts: Facts,
    limits: Limits,
    counts: Counts,
    /// Events that occurred outside of `poll`.
    queued_events: Vec<Event>,
    /// Requests without an outcome.
    operations: u32,
    heartbeat: Heartbeat,
    /// Held at a server that bounds its links.
    _permit: Option<LinkPermit>,
    /// [`Outbound::written`] after the last step.
    written: u64,
}

impl<S: Stream> Conn<S> {
    /// A link over a stream whose handshake is done; `first` holds its bytes that are not sent yet.
    pub(crate) fn new(
        stream: S,
        side: Side,
        peer: String,
        own: &Offer,
        agreed: Agreed,
        first: Vec<u8>,
        (clock, limits): (Arc<dyn Clock>, Limits),
    ) -> Conn<S> {
        let Agreed { common, rights, key_name, macs, permit } = agreed;
        let (sends, reads) = macs.unzip();
        let reader = FrameReader {
            from: side.other(),
            version: common.version,
            control_bytes_max: own.control_bytes_max,
            data_bytes_max: own.data_bytes_max,
            mac: reads,
        };
        let writer = FrameWriter {
            side,
            version: common.version,
            control_bytes_max: common.control_bytes_max,
            data_bytes_max: common.data_bytes_max,
            mac: sends,
        };
        let facts = Facts {
            side,
            peer,
            peer_instance: common.peer_instance,
            version: common.version,
            features: common.features,
            missing: common.missing,
            alignment: common.alignment,
            control_bytes_max: common.control_bytes_max,
            operations_max: common.operations_max,
            object_bytes_max: common.object_bytes_max,
            key_name,
            rights,
        };
        let regions = stream.regions();
        Conn {
            regions,
            stream: Some(stream),
            inbound: Inbound::new(reader),
            outbound: Outbound::new(writer, limits, first),
            exposures: Exposures::new(limits.exposures_max),
            facts,
            limits,
            counts: Counts::default(),
            queued_events: Vec::new(),
            operations: 0,
            heartbeat: Heartbeat::new(clock),
            _permit: permit,
            written: 0,
        }
    }

    /// The stream, for callers that wait for several links at once; `None` once the link is closed.
    pub fn stream(&self) -> Option<&S> {
        self.stream.as_ref()
    }

    /// Whether the link waits until its stream can be written.
    pub fn wants_write(&self) -> bool {
        self.stream.is_some() && self.outbound.is_busy()
    }

    /// Time until [`Link::poll`] must be called even if nothing arrives.
    pub fn due(&self) -> Duration {
        self.heartbeat.due(self.heartbeat.clock.now(), &self.limits)
    }

    /// Requests that this end may still send.
    fn operations_left(&self) -> usize {
        match self.facts.side {
            Side::Client => self.facts.operations_max.saturating_sub(self.operations) as usize,
            Side::Server => 0,
        }
    }

    /// Whether this server pauses reading from its client. The client does not read its responses,
    /// and more requests would add to them. If the stream takes no byte for [`Limits::dead_after`],
    /// the client is taken for dead, as if it were silent.
    fn is_congested(&self) -> bool {
        self.facts.side == Side::Server && self.outbound.is_congested()
    }

    /// Move bytes both ways once.
    fn step(&mut self, events: &mut Vec<Event>) -> Result<(), Closed> {
        let paused = self.is_congested();
        let Some(stream) = self.stream.as_mut() else { return Ok(()) };
        let now = self.heartbeat.clock.now();
        let wrote = self.outbound.pump(stream, events, &mut self.counts);
        let (mut own, mut released, mut to_release) = (Vec::new(), Vec::new(), Vec::new());
        let had = events.len();
        let mut sink = Sink {
            exposures: &mut self.exposures,
            events: &mut *events,
            own: &mut own,
            regions: &self.regions,
            released: &mut released,
            to_release: &mut to_release,
            counts: &mut self.counts,
        };
        let read = if paused { Ok(0) } else { self.inbound.pump(stream, &mut sink) };
        self.outbound.complete_refs(&released, events, &mut self.counts);
        to_release.into_iter().for_each(|stretch| self.outbound.queue_release(stretch));
        self.operations = in_flight(self.operations, &events[had..]);
        if self.facts.side == Side::Server && self.operations > self.facts.operations_max {
            return Err(Closed::broken("op", "more in flight than agreed"));
        }
        // Frames that arrived before the end of the stream count, whichever direction reported the
        // end.
        let goodbye = own.iter().any(|frame| frame.kind == Kind::Bye);
        if goodbye {
            return Err(Closed::Bye);
        }
        let made_progress = paused && self.outbound.written() > self.written;
        self.written = self.outbound.written();
        if read? > 0 || made_progress {
            self.heartbeat.heard(now);
        }
        if self.outbound.queued_releases() > self.limits.exposures_max {
            return Err(Closed::broken("shown", "more than is taken"));
        }
        wrote?;
        for ping in own.into_iter().filter(|frame| frame.kind == Kind::Ping) {
            if !self.outbound.send_urgent(Frame::bare(Kind::Pong, ping.op)) {
                return Err(Closed::broken("kind", "too many pings"));
            }
        }
        if let Some(ping) = self.heartbeat.beat(now, &self.limits)? {
            self.outbound.send_urgent(ping);
        }
        self.outbound.pump(stream, events, &mut self.counts)
    }

    /// Drop the stream and hand back all memory.
    fn end(&mut self, why: Closed, events: &mut Vec<Event>) {
        self.stream = None;
        self.exposures.retract(None, events);
        self.outbound.retract(None, events);
        events.push(Event::Closed(why));
    }
}

/// Operations in flight after these events.
fn in_flight(before: u32, events: &[Event]) -> u32 {
    events.iter().fold(before, |count, event| match event {
        Event::Frame(frame) if frame.kind == Kind::Request => count.saturating_add(1),
        Event::Frame(frame) if frame.kind == Kind::Outcome => count.saturating_sub(1),
        _ => count,
    })
}

impl<S: Stream> Link for Conn<S> {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn room(&self) -> Room {
        match self.stream {
            Some(_) => self.outbound.room(self.exposures.room(), self.operations_left()),
            None => Room { frames: 0, frame_bytes: 0, pushes: 0, exposures: 0, operations: 0 },
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let kind = frame.kind;
        if self.stream.is_none() || (kind == Kind::Request && self.operations_left() == 0) {
            return Err(frame);
        }
        self.outbound.send(frame)?;
        match kind {
            Kind::Request => self.operations += 1,
            Kind::Outcome => self.operations = self.operations.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    fn shows(&self, parts: &[Part]) -> bool {
        self.regions.pieces(parts).is_some()
    }

    fn place(&self, parts: &[Part]) -> Option<(u32, u64)> {
        match self.regions.pieces(parts)?.as_slice() {
            [piece] => Some((piece.region, piece.at)),
            _ => None,
        }
    }

    fn view(&self, stretch: ItemRange, (region, at): (u32, u64), length: u64) -> Option<Shown> {
        self.regions.shown(stretch, std::iter::once(ShownPiece::new(region, at, length)))
    }

    fn push(&mut self, push: Push) -> Result<(), Push> {
        if self.stream.is_none() {
            return Err(push);
        }
        self.outbound.push(push, &self.regions)
    }

    fn expose(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        parts: Vec<Part>,
    ) -> Result<(), Vec<Part>> {
        if self.stream.is_none() {
            return Err(parts);
        }
        self.exposures.expose((op, item, offset), parts)
    }

    fn nudge(&mut self) {
        self.stream.iter_mut().for_each(Stream::nudge);
    }

    fn send_on(&mut self) {
        if let Some(stream) = self.stream.as_mut() {
            // The next poll finds and reports the same failure of the stream.
            let _ = self.outbound.pump(stream, &mut self.queued_events, &mut self.counts);
        }
    }

    fn took(&mut self, shown: Shown) {
        self.outbound.queue_release(shown.stretch());
    }

    fn retract(&mut self, op: OpId) {
        self.exposures.retract(Some(op), &mut self.queued_events);
        self.inbound.discard(op);
        self.outbound.retract(Some(op), &mut self.queued_events);
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.queued_events);
        if let Err(why) = self.step(events) {
            self.end(why, events);
        }
    }

    fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration) {
        let had = events.len();
        let until = self.heartbeat.clock.now().after(timeout);
        loop {
            self.poll(events);
            if events.len() != had {
                return;
            }
            let (now, write, paused) =
                (self.heartbeat.clock.now(), self.wants_write(), self.is_congested());
            if now >= until {
                return;
            }
            let Some(stream) = self.stream.as_mut() else { return };
            let most = until.since(now).min(self.heartbeat.due(now, &self.limits));
            let ready = match paused {
                true => stream.ready_to_write(most),
                false => stream.ready(write, most),
            };
            // A simulated clock does not advance during the wait: the timeout counts as passed.
            if !ready && self.heartbeat.clock.now() == now {
                self.poll(events);
                return;
            }
        }
    }

    fn close(&mut self) {
        let Some(stream) = self.stream.as_mut() else { return };
        let mut events = std::mem::take(&mut self.queued_events);
        self.outbound.send_urgent(Frame::bare(Kind::Bye, OpId(0)));
        // If the goodbye cannot be sent at once, the peer sees the end of the connection.
        let _ = self.outbound.pump(stream, &mut events, &mut self.counts);
        self.end(Closed::Here, &mut events);
        self.queued_events = events;
    }
}
