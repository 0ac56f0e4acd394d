//! A link over a stream of bytes: the two halves, the memory that bytes land in, and the heartbeat.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::shm::{CatalogView, Claim, Steady};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shown::{ShownPiece, Stretch};
use pagelith_layouts::wire::{Frame, Kind, Side};

use crate::capability::Offer;
use crate::closed::Closed;
use crate::handshake::Agreed;
use crate::heartbeat::Heartbeat;
use crate::inbound::{Inbound, Reading, Sink};
use crate::landing::Landing;
use crate::limits::Limits;
use crate::link::{Counts, Event, Facts, Link, Push, Room};
use crate::outbound::{Outbound, Writing};
use crate::places::Place;
use crate::shown::{Regions, Shown};
use crate::stream::Stream;

/// One end of a connection over `S`.
pub struct Conn<S> {
    /// `None` once the link is closed: the stream goes at once.
    stream: Option<S>,
    inbound: Inbound,
    outbound: Outbound,
    landing: Landing,
    regions: Regions,
    facts: Facts,
    limits: Limits,
    counts: Counts,
    /// What happened outside of `poll`.
    happened: Vec<Event>,
    /// Requests without an outcome.
    operations: u32,
    heartbeat: Heartbeat,
    /// At a server that has only so many: free again when this is gone.
    _place: Option<Place>,
    /// Bytes that the stream had taken when the peer was heard last.
    written: u64,
}

impl<S: Stream> Conn<S> {
    /// A link over a stream whose handshake is done; `first` are bytes of it that are not sent yet.
    pub(crate) fn new(
        stream: S,
        side: Side,
        peer: String,
        own: &Offer,
        agreed: Agreed,
        first: Vec<u8>,
        (clock, limits): (Arc<dyn Clock>, Limits),
    ) -> Conn<S> {
        let Agreed { common, rights, key_name, macs, place } = agreed;
        let (sends, reads) = macs.unzip();
        let reading = Reading {
            from: side.other(),
            version: common.version,
            control_bytes_max: own.control_bytes_max,
            data_bytes_max: own.data_bytes_max,
            mac: reads,
        };
        let writing = Writing {
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
            inbound: Inbound::new(reading),
            outbound: Outbound::new(writing, limits, first),
            landing: Landing::new(limits.exposures_max),
            facts,
            limits,
            counts: Counts::default(),
            happened: Vec::new(),
            operations: 0,
            heartbeat: Heartbeat::new(clock),
            _place: place,
            written: 0,
        }
    }

    /// The stream; `None` once the link is closed. For whoever waits for several links at once.
    pub fn stream(&self) -> Option<&S> {
        self.stream.as_ref()
    }

    /// Whether it waits for the stream to take bytes.
    pub fn wants_write(&self) -> bool {
        self.stream.is_some() && self.outbound.is_busy()
    }

    /// How long until [`Link::poll`] must be called though nothing arrived.
    pub fn due(&self) -> Duration {
        self.heartbeat.due(self.heartbeat.clock.now(), &self.limits)
    }

    /// Requests that this side may still send.
    fn operations_left(&self) -> usize {
        match self.facts.side {
            Side::Client => self.facts.operations_max.saturating_sub(self.operations) as usize,
            Side::Server => 0,
        }
    }

    /// Whether nothing of a client is read for now: it has not read what it was told, and what it asks for would add to that. It is
    /// dead if it takes none of it for as long as if it were silent.
    fn is_stopped_up(&self) -> bool {
        self.facts.side == Side::Server && self.outbound.is_stopped_up()
    }

    /// Move bytes both ways once.
    fn turn(&mut self, events: &mut Vec<Event>) -> Result<(), Closed> {
        let stopped = self.is_stopped_up();
        let Some(stream) = self.stream.as_mut() else { return Ok(()) };
        let now = self.heartbeat.clock.now();
        let wrote = self.outbound.pump(stream, events, &mut self.counts);
        let (mut own, mut taken, mut looked) = (Vec::new(), Vec::new(), Vec::new());
        let had = events.len();
        let mut sink = Sink {
            landing: &mut self.landing,
            events: &mut *events,
            own: &mut own,
            regions: &self.regions,
            taken: &mut taken,
            looked: &mut looked,
            counts: &mut self.counts,
        };
        let read = if stopped { Ok(0) } else { self.inbound.pump(stream, &mut sink) };
        self.outbound.taken(&taken, events, &mut self.counts);
        looked.into_iter().for_each(|stretch| self.outbound.took(stretch));
        self.operations = in_flight(self.operations, &events[had..]);
        if self.facts.side == Side::Server && self.operations > self.facts.operations_max {
            return Err(Closed::broken("op", "more in flight than agreed"));
        }
        // What arrived before the stream ended has arrived, whichever direction showed the end.
        let goodbye = own.iter().any(|frame| frame.kind == Kind::Bye);
        if goodbye {
            return Err(Closed::Bye);
        }
        let takes = stopped && self.outbound.written() > self.written;
        self.written = self.outbound.written();
        if read? > 0 || takes {
            self.heartbeat.heard(now);
        }
        if self.outbound.unsaid() > self.limits.exposures_max {
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

    /// Hand everything back and let the stream go.
    fn end(&mut self, why: Closed, events: &mut Vec<Event>) {
        self.stream = None;
        self.landing.retract(None, events);
        self.outbound.retract(None, events);
        events.push(Event::Closed(why));
    }
}

/// How many operations are in flight once these events have happened.
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
            Some(_) => self.outbound.room(self.landing.room(), self.operations_left()),
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

    fn stays(&self, parts: &[Part]) -> bool {
        self.regions.stay(parts)
    }

    fn steady(&self) -> Option<Steady> {
        self.regions.steady.as_ref()?.begin()
    }

    fn claim(&self, number: u64) -> Option<Claim> {
        Some(self.regions.steady.as_ref()?.claim(number))
    }

    fn view(&self, stretch: Stretch, (region, at): (u32, u64), length: u64) -> Option<Shown> {
        self.regions.shown(stretch, std::iter::once(ShownPiece::new(region, at, length)))
    }

    fn catalog(&self) -> Option<&Arc<CatalogView>> {
        self.regions.catalog.as_ref()
    }

    fn is_there(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_there)
    }

    fn push(&mut self, push: Push) -> Result<(), Push> {
        if self.stream.is_none() {
            return Err(push);
        }
        self.outbound.push(push, &self.regions)
    }

    fn expose(&mut self, op: OpId, item: u32, offset: u64, parts: Vec<Part>) -> Result<(), Vec<Part>> {
        if self.stream.is_none() {
            return Err(parts);
        }
        self.landing.expose((op, item, offset), parts)
    }

    fn nudge(&mut self) -> bool {
        self.stream.as_mut().is_some_and(Stream::nudge)
    }

    fn send_on(&mut self) {
        if let Some(stream) = self.stream.as_mut() {
            // What is wrong with the stream is found again, and said, by the next poll.
            let _ = self.outbound.pump(stream, &mut self.happened, &mut self.counts);
        }
    }

    fn took(&mut self, shown: Shown) {
        self.outbound.took(shown.stretch());
    }

    fn retract(&mut self, op: OpId) {
        self.landing.retract(Some(op), &mut self.happened);
        self.inbound.forget(op);
        self.outbound.retract(Some(op), &mut self.happened);
    }

    fn poll(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.happened);
        if let Err(why) = self.turn(events) {
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
            let (now, write, stopped) =
                (self.heartbeat.clock.now(), self.wants_write(), self.is_stopped_up());
            if now >= until {
                return;
            }
            let Some(stream) = self.stream.as_mut() else { return };
            let most = until.since(now).min(self.heartbeat.due(now, &self.limits));
            let ready = match stopped {
                true => stream.ready_to_write(most),
                false => stream.ready(write, most),
            };
            // By a clock that stands still, some of the time is all of it.
            if !ready && self.heartbeat.clock.now() == now {
                self.poll(events);
                return;
            }
        }
    }

    fn close(&mut self) {
        let Some(stream) = self.stream.as_mut() else { return };
        let mut events = std::mem::take(&mut self.happened);
        self.outbound.send_urgent(Frame::bare(Kind::Bye, OpId(0)));
        // If it cannot be told at once, the end of the connection tells it.
        let _ = self.outbound.pump(stream, &mut events, &mut self.counts);
        self.end(Closed::Here, &mut events);
        self.happened = events;
    }
}
