//! A link over a byte stream: its sending and receiving halves, exposed memory and the heartbeat.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole};

use crate::capability::Capabilities;
use crate::exposures::Exposures;
use crate::handshake::HandshakeOutcome;
use crate::heartbeat::Heartbeat;
use crate::inbound::{FrameReader, FrameSink, Inbound};
use crate::limits::LinkLimits;
use crate::link::{Link, LinkCapacity, LinkCounters, LinkEvent, LinkParams, Push};
use crate::link_error::LinkError;
use crate::link_permits::LinkPermit;
use crate::outbound::{FrameWriter, Outbound};
use crate::shown::{LinkRegions, ShmRef};
use crate::stream::Stream;

/// One end of a connection over `S`.
pub struct Conn<S> {
    /// `None` once the link is closed: closing drops the stream at once.
    stream: Option<S>,
    inbound: Inbound,
    outbound: Outbound,
    exposures: Exposures,
    regions: LinkRegions,
    facts: LinkParams,
    limits: LinkLimits,
    counts: LinkCounters,
    /// Events that occurred outside of `poll`.
    queued_events: Vec<LinkEvent>,
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
        side: LinkRole,
        peer: String,
        own: &Capabilities,
        agreed: HandshakeOutcome,
        first: Vec<u8>,
        (clock, limits): (Arc<dyn Clock>, LinkLimits),
    ) -> Conn<S> {
        let HandshakeOutcome { common, rights, key_name, macs, permit } = agreed;
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
        let facts = LinkParams {
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
            counts: LinkCounters::default(),
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
            LinkRole::Client => self.facts.operations_max.saturating_sub(self.operations) as usize,
            LinkRole::Server => 0,
        }
    }

    /// Whether this server pauses reading from its client. The client does not read its responses,
    /// and more requests would add to them. If the stream takes no byte for
    /// [`LinkLimits::dead_after`], the client is taken for dead, as if it were silent.
    fn is_congested(&self) -> bool {
        self.facts.side == LinkRole::Server && self.outbound.is_congested()
    }

    /// Move bytes both ways once.
    fn step(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        let paused = self.is_congested();
        let Some(stream) = self.stream.as_mut() else { return Ok(()) };
        let now = self.heartbeat.clock.now();
        let wrote = self.outbound.pump(stream, events, &mut self.counts);
        let (mut own, mut released, mut to_release) = (Vec::new(), Vec::new(), Vec::new());
        let had = events.len();
        let mut sink = FrameSink {
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
        if self.facts.side == LinkRole::Server && self.operations > self.facts.operations_max {
            return Err(LinkError::broken("op", "more in flight than agreed"));
        }
        // Frames that arrived before the end of the stream count, whichever direction reported the
        // end.
        let goodbye = own.iter().any(|frame| frame.kind == FrameKind::Bye);
        if goodbye {
            return Err(LinkError::Goodbye);
        }
        let made_progress = paused && self.outbound.written() > self.written;
        self.written = self.outbound.written();
        if read? > 0 || made_progress {
            self.heartbeat.heard(now);
        }
        if self.outbound.queued_releases() > self.limits.exposures_max {
            return Err(LinkError::broken("shown", "more than is taken"));
        }
        wrote?;
        for ping in own.into_iter().filter(|frame| frame.kind == FrameKind::Ping) {
            if !self.outbound.send_urgent(Frame::bare(FrameKind::Pong, ping.op)) {
                return Err(LinkError::broken("kind", "too many pings"));
            }
        }
        if let Some(ping) = self.heartbeat.beat(now, &self.limits)? {
            self.outbound.send_urgent(ping);
        }
        self.outbound.pump(stream, events, &mut self.counts)
    }

    /// Drop the stream and hand back all memory.
    fn end(&mut self, why: LinkError, events: &mut Vec<LinkEvent>) {
        self.stream = None;
        self.exposures.retract(None, events);
        self.outbound.retract(None, events);
        events.push(LinkEvent::Ended(why));
    }
}

/// Operations in flight after these events.
fn in_flight(before: u32, events: &[LinkEvent]) -> u32 {
    events.iter().fold(before, |count, event| match event {
        LinkEvent::Frame(frame) if frame.kind == FrameKind::Request => count.saturating_add(1),
        LinkEvent::Frame(frame) if frame.kind == FrameKind::Outcome => count.saturating_sub(1),
        _ => count,
    })
}

impl<S: Stream> Link for Conn<S> {
    fn facts(&self) -> &LinkParams {
        &self.facts
    }

    fn counts(&self) -> LinkCounters {
        self.counts
    }

    fn room(&self) -> LinkCapacity {
        match self.stream {
            Some(_) => self.outbound.room(self.exposures.room(), self.operations_left()),
            None => {
                LinkCapacity { frames: 0, frame_bytes: 0, pushes: 0, exposures: 0, operations: 0 }
            }
        }
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let kind = frame.kind;
        if self.stream.is_none() || (kind == FrameKind::Request && self.operations_left() == 0) {
            return Err(frame);
        }
        self.outbound.send(frame)?;
        match kind {
            FrameKind::Request => self.operations += 1,
            FrameKind::Outcome => self.operations = self.operations.saturating_sub(1),
            _ => {}
        }
        Ok(())
    }

    fn sends_by_ref(&self, parts: &[Part]) -> bool {
        self.regions.pieces(parts).is_some()
    }

    fn region_offset(&self, parts: &[Part]) -> Option<(u32, u64)> {
        match self.regions.pieces(parts)?.as_slice() {
            [piece] => Some((piece.region, piece.at)),
            _ => None,
        }
    }

    fn peer_ref(
        &self,
        stretch: ItemRange,
        (region, at): (u32, u64),
        length: u64,
    ) -> Option<ShmRef> {
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

    fn wake_peer(&mut self) {
        self.stream.iter_mut().for_each(Stream::wake_peer);
    }

    fn flush_queue(&mut self) {
        if let Some(stream) = self.stream.as_mut() {
            // The next poll finds and reports the same failure of the stream.
            let _ = self.outbound.pump(stream, &mut self.queued_events, &mut self.counts);
        }
    }

    fn release_ref(&mut self, shown: ShmRef) {
        self.outbound.queue_release(shown.stretch());
    }

    fn retract(&mut self, op: OpId) {
        self.exposures.retract(Some(op), &mut self.queued_events);
        self.inbound.discard(op);
        self.outbound.retract(Some(op), &mut self.queued_events);
    }

    fn poll(&mut self, events: &mut Vec<LinkEvent>) {
        events.append(&mut self.queued_events);
        if let Err(why) = self.step(events) {
            self.end(why, events);
        }
    }

    fn wait(&mut self, events: &mut Vec<LinkEvent>, timeout: Duration) {
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
        self.outbound.send_urgent(Frame::bare(FrameKind::Bye, OpId(0)));
        // If the goodbye cannot be sent at once, the peer sees the end of the connection.
        let _ = self.outbound.pump(stream, &mut events, &mut self.counts);
        self.end(LinkError::ClosedLocally, &mut events);
        self.queued_events = events;
    }
}
