//! A link over a byte stream: its sending and receiving halves, exposed memory and the heartbeat.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{ItemRange, Released, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole};

use crate::capability::Capabilities;
use crate::exposures::Exposures;
use crate::frame_sink::FrameSink;
use crate::frame_writer::FrameWriter;
use crate::handshake_outcome::HandshakeOutcome;
use crate::heartbeat::Heartbeat;
use crate::inbound::{FrameReader, Inbound};
use crate::limits::LinkLimits;
use crate::link::{Link, LinkCapacity, LinkCounters, LinkEvent, LinkParams, Push};
use crate::link_devices::{LinkDevices, Polled};
use crate::link_error::LinkError;
use crate::link_permits::LinkPermit;
use crate::outbound::Outbound;
use crate::poll::wait_for_any;
use crate::rdma::{DataPlane, ReadDone};
use crate::shown::{LinkRegions, ShmRef};
use crate::stream::{Awaited, Stream};

/// One end of a connection over `S`.
pub struct Conn<S> {
    /// `None` once the link is closed: closing drops the stream at once.
    stream: Option<S>,
    inbound: Inbound,
    outbound: Outbound,
    exposures: Exposures,
    regions: LinkRegions,
    params: LinkParams,
    limits: LinkLimits,
    counts: LinkCounters,
    /// Events that occurred outside of `poll`.
    queued_events: Vec<LinkEvent>,
    /// Requests without an outcome.
    operations: u32,
    /// The RDMA devices of this end, if both ends have RDMA.
    devices: LinkDevices,
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
        let params = LinkParams {
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
            params,
            limits,
            counts: LinkCounters::default(),
            queued_events: Vec::new(),
            operations: 0,
            devices: LinkDevices::new(None, limits.revoke_timeout),
            heartbeat: Heartbeat::new(clock),
            _permit: permit,
            written: 0,
        }
    }

    /// The same, with a data plane.
    pub(crate) fn with_data_plane(mut self, data: Option<DataPlane>) -> Conn<S> {
        self.devices = LinkDevices::new(data, self.limits.revoke_timeout);
        self
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
        let now = self.heartbeat.clock.now();
        let devices = self.devices.due(now);
        match self.devices.is_ending() {
            true => devices.unwrap_or_default(),
            false => {
                let due = self.heartbeat.due(now, &self.limits);
                devices.map_or(due, |devices| devices.min(due))
            }
        }
    }

    /// Events to wait for besides those of the stream.
    pub(crate) fn wakes(&self) -> Vec<BorrowedFd<'_>> {
        self.devices.wakes()
    }

    /// Make [`Conn::wakes`] readable at the next completion. True if there is one already.
    pub(crate) fn arm_wakes(&self) -> bool {
        self.devices.arm()
    }

    /// Directions for which the stream must be ready.
    pub(crate) fn awaited(&self) -> Awaited {
        let read = self.inbound.wants_read() && !self.is_congested();
        Awaited { read, write: self.wants_write() }
    }

    /// Requests that this end may still send.
    fn operations_left(&self) -> usize {
        match self.params.side {
            LinkRole::Client => self.params.operations_max.saturating_sub(self.operations) as usize,
            LinkRole::Server => 0,
        }
    }

    /// Whether this server pauses reading from its client. The client does not read its responses,
    /// and more requests would add to them. If the stream takes no byte for
    /// [`LinkLimits::dead_after`], the client is taken for dead, as if it were silent. A push that
    /// waits for its device may need what the client reports, so the server reads then.
    fn is_congested(&self) -> bool {
        self.params.side == LinkRole::Server
            && self.outbound.is_congested()
            && !self.outbound.is_blocked()
    }

    /// Move bytes both ways once.
    fn step(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        let now = self.heartbeat.clock.now();
        let moved = self.poll_devices(events);
        let paused = self.is_congested();
        let Some(stream) = self.stream.as_mut() else { return Ok(()) };
        let had = events.len();
        let plane = self.devices.server();
        let wrote = self.outbound.pump(stream, plane, events, &mut self.counts);
        let (mut own, mut released, mut to_release) = (Vec::new(), Vec::new(), Vec::new());
        let mut sink = FrameSink {
            exposures: &mut self.exposures,
            events: &mut *events,
            own: &mut own,
            regions: &self.regions,
            released: &mut released,
            to_release: &mut to_release,
            data: self.devices.plane(),
            counts: &mut self.counts,
        };
        let read = if paused { Ok(0) } else { self.inbound.pump(stream, &mut sink) };
        let by_rdma = self.devices.has_plane();
        self.outbound.complete_refs(&released, by_rdma, events, &mut self.counts);
        to_release.into_iter().for_each(|range| self.outbound.queue_release(range));
        self.operations = in_flight(self.operations, &events[had..]);
        let max = self.params.operations_max;
        if self.params.side == LinkRole::Server && self.operations > max {
            return Err(LinkError::violation(format_args!(
                "more operations are in flight than agreed max={max}"
            )));
        }
        // Frames that arrived before the end of the stream count, whichever direction reported the
        // end.
        let goodbye = own.iter().any(|frame| frame.kind == FrameKind::Bye);
        if goodbye {
            return Err(LinkError::Goodbye);
        }
        moved?;
        self.devices.check_retracted(now)?;
        // Its last bytes are read when those before them have landed, if they ever do.
        if self.inbound.has_ended() {
            self.devices.note_stream_ended(now);
        }
        let made_progress = paused && self.outbound.written() > self.written;
        self.written = self.outbound.written();
        if read? > 0 || made_progress {
            self.heartbeat.heard(now);
        }
        let max = self.limits.exposures_max;
        if self.outbound.queued_releases() > max {
            return Err(LinkError::violation(format_args!(
                "more references are unreleased than agreed max={max}"
            )));
        }
        wrote?;
        for ping in own.into_iter().filter(|frame| frame.kind == FrameKind::Ping) {
            if !self.outbound.send_urgent(Frame::bare(FrameKind::Pong, ping.op)) {
                return Err(LinkError::violation("more pings than answers fit in the send buffer"));
            }
        }
        if let Some(ping) = self.heartbeat.beat(now, &self.limits)? {
            self.outbound.send_urgent(ping);
        }
        let plane = self.devices.server();
        self.outbound.pump(stream, plane, events, &mut self.counts)
    }

    fn wait_for_stream(&mut self, most: Duration) -> bool {
        let (write, paused) = (self.wants_write(), self.is_congested());
        let Some(stream) = self.stream.as_mut() else { return true };
        match paused {
            true => stream.ready_to_write(most),
            false => stream.ready(write, most),
        }
    }

    /// Handle the completions of the devices.
    fn poll_devices(&mut self, events: &mut Vec<LinkEvent>) -> Result<(), LinkError> {
        let Polled { report, completed } = self.devices.poll()?;
        self.outbound.send_own(report.into_iter().collect());
        self.outbound.complete_writes(&completed.writes, events, &mut self.counts);
        self.end_reads(completed.reads, events);
        Ok(())
    }

    /// Hand over the bytes that were read from the client's memory.
    fn end_reads(&mut self, reads: Vec<ReadDone>, events: &mut Vec<LinkEvent>) {
        for ReadDone { key, range, bytes } in reads {
            self.counts.bytes_in += bytes;
            self.counts.bytes_by_rdma += bytes;
            events.extend(self.exposures.end_read(key));
            self.outbound.queue_release(Released { range, unread: false });
        }
    }

    /// Wait for the stream and for the devices.
    fn wait_for_all(&mut self, most: Duration) -> bool {
        // A completion before this is found by it, and one after it wakes.
        if self.devices.arm() {
            return true;
        }
        let (awaited, others) = (self.awaited(), self.devices.wakes());
        match self.stream.as_mut() {
            Some(stream) => stream.ready_with(awaited, &others, most),
            None => wait_for_any(others.iter().map(|fd| (*fd, Awaited::READ)), most),
        }
    }

    /// Drop the stream, and hand back all memory once no device accesses it.
    fn end(&mut self, why: LinkError, events: &mut Vec<LinkEvent>) {
        self.stream = None;
        if let Some(why) = self.devices.end(why) {
            self.hand_back(false, why, events);
        }
    }

    /// Hand back all memory. If the devices did not release it (`are_leaked`), it is leaked.
    fn hand_back(&mut self, are_leaked: bool, why: LinkError, events: &mut Vec<LinkEvent>) {
        self.exposures.retract_all(are_leaked, events);
        self.outbound.retract_all(are_leaked, events);
        events.push(LinkEvent::Ended(why));
    }
}

impl<S> Drop for Conn<S> {
    /// Wait for the devices, so that nothing writes to the memory that is dropped with the link.
    fn drop(&mut self) {
        if !self.devices.release() {
            tracing::error!(
                peer = self.params.peer,
                "memory of a link is leaked: a device uses it; restart this process"
            );
            let mut events = Vec::new();
            self.exposures.retract_all(true, &mut events);
            self.outbound.retract_all(true, &mut events);
        }
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
    fn params(&self) -> &LinkParams {
        &self.params
    }

    fn counts(&self) -> LinkCounters {
        self.counts
    }

    fn capacity(&self) -> LinkCapacity {
        match self.stream {
            Some(_) => self.outbound.capacity(self.exposures.room(), self.operations_left()),
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
        if kind == FrameKind::Request
            && self.outbound.takes(&frame)
            && let Some(client) = self.devices.client()
        {
            self.outbound.send_own(client.frames_of_request(frame.op));
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

    fn peer_ref(&self, range: ItemRange, (region, at): (u32, u64), length: u64) -> Option<ShmRef> {
        self.regions.shown(range, std::iter::once(ShownPiece::new(region, at, length)))
    }

    fn push(&mut self, push: Push) -> Result<(), Push> {
        if self.stream.is_none() {
            return Err(push);
        }
        let Some(client) = self.devices.client() else {
            return self.outbound.push(push, |parts| self.regions.pieces(parts));
        };
        let shown = if push.allow_ref { client.shown(&push.parts) } else { None };
        self.outbound.send_own(client.take_frames());
        self.outbound.push(push, |_| shown)
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
        let key = (op, item, offset);
        let Some(client) = self.devices.client() else {
            return self.exposures.expose(key, parts);
        };
        let targets = client.targets_of(op, item, offset, &parts);
        self.exposures.expose(key, parts)?;
        if !targets.is_empty() {
            client.add_targets(op, targets);
            self.exposures.note_target(key);
        }
        Ok(())
    }

    fn wake_peer(&mut self) {
        self.stream.iter_mut().for_each(Stream::wake_peer);
    }

    fn flush_queue(&mut self) {
        if let Some(stream) = self.stream.as_mut() {
            // The next poll finds and reports the same failure of the stream.
            let plane = self.devices.server();
            let _ = self.outbound.pump(stream, plane, &mut self.queued_events, &mut self.counts);
        }
    }

    fn release_ref(&mut self, shown: ShmRef) {
        self.outbound.queue_release(Released { range: shown.range(), unread: false });
    }

    fn retract(&mut self, op: OpId) {
        let mut events = std::mem::take(&mut self.queued_events);
        let ended = self.devices.retract(op);
        let is_live = self.devices.is_live(op);
        self.exposures.retract(op, is_live, &mut events);
        self.end_reads(ended, &mut events);
        self.inbound.discard(op);
        self.outbound.retract(Some(op), &mut events);
        self.queued_events = events;
        // Memory that a device may access comes back later, or the link ends.
        if self.exposures.holds(op) || self.outbound.is_writing(op) {
            let now = self.heartbeat.clock.now();
            self.devices.note_retracted(op, now);
        }
    }

    fn poll(&mut self, events: &mut Vec<LinkEvent>) {
        events.append(&mut self.queued_events);
        if let Some((why, are_leaked)) = self.devices.ended() {
            self.counts.pairs_down += 1;
            self.hand_back(are_leaked, why, events);
        }
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
            let now = self.heartbeat.clock.now();
            if now >= until || self.stream.is_none() && !self.devices.is_ending() {
                return;
            }
            let most = until.since(now).min(self.due());
            let ready = match self.devices.has_plane() || self.devices.is_ending() {
                true => self.wait_for_all(most),
                false => self.wait_for_stream(most),
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
        let plane = self.devices.server();
        let _ = self.outbound.pump(stream, plane, &mut events, &mut self.counts);
        self.end(LinkError::ClosedLocally, &mut events);
        self.queued_events = events;
    }
}
