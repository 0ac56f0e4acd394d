//! The client end of a link: its operations in flight, their deadlines and their memory.
//!
//! Invariants:
//! - An operation returns its memory with its response, and the link does not use that memory
//!   afterwards. An operation past its deadline is cancelled before it gets a
//!   response.
//! - Every operation gets exactly one response, whatever the peer does.
//! - Events are handled in order of arrival. Once a get is finished, later events wait until its
//!   response is returned. So a caller with several gets in flight sends the next one before the
//!   bytes of the others are copied.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{self, GetItem, RequestBody, RequestOptions};
use pagelith_layouts::wire::shm_ref::ItemRange;
use pagelith_layouts::wire::{Frame, FrameKind, List, outcome, pull};
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::shown::ShmRef;

use super::call::{ItemRequest, PayloadFn, PendingCall, Response};
use crate::api::error::{Error, ErrorKind, Result};

/// Operations on one link.
pub struct RpcClient {
    pub(crate) link: Box<dyn Link>,
    pub(crate) calls: BTreeMap<OpId, PendingCall>,
    /// Events that arrived and are not handled yet.
    events: VecDeque<LinkEvent>,
    /// A get is finished, and its response is not returned yet.
    get_done: bool,
    last_op: u64,
    closed: Option<LinkError>,
    /// The peer has sent an outcome over this link.
    answered: bool,
    /// This side is a store and the other side is its peer.
    is_store: bool,
}

impl RpcClient {
    pub fn new(link: Box<dyn Link>) -> RpcClient {
        let (calls, events) = (BTreeMap::new(), VecDeque::new());
        let (last_op, closed) = (0, None);
        let (get_done, answered, is_store) = (false, false, false);
        RpcClient { link, calls, events, get_done, last_op, closed, answered, is_store }
    }

    /// Marks the requests as those of a store to its peer.
    pub fn for_store(self) -> RpcClient {
        RpcClient { is_store: true, ..self }
    }

    /// Why the link ended, if it did. Later requests fail at once.
    pub fn closed(&self) -> Option<&LinkError> {
        self.closed.as_ref()
    }

    /// Whether the peer has sent an outcome over this link.
    pub fn has_answered(&self) -> bool {
        self.answered
    }

    /// Identifies the peer's process.
    pub fn peer_instance(&self) -> [u8; 16] {
        self.link.params().peer_instance
    }

    /// Whether both sides support a feature.
    pub fn has_feature(&self, feature: Feature) -> bool {
        self.link.params().features & feature.bit() != 0
    }

    /// Region and offset at which the peer can read these bytes, if it can.
    pub fn region_offset(&self, parts: &[Part]) -> Option<(u32, u64)> {
        self.link.region_offset(parts)
    }

    /// A reference to bytes in a region of the peer, if the peer has shared that region.
    pub fn peer_ref(&self, (region, at): (u32, u64), length: u64) -> Option<ShmRef> {
        let no_item: ItemRange = (OpId(0), 0, 0);
        self.link.peer_ref(no_item, (region, at), length)
    }

    /// Maximum length of a request in bytes.
    pub fn request_bytes_max(&self) -> usize {
        self.link.params().control_bytes_max as usize
    }

    /// Number of operations in flight.
    pub fn pending_calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether the peer owes an outcome, also for cancelled operations: each outcome frees capacity
    /// of the link.
    pub fn expects_response(&self) -> bool {
        let in_flight = || {
            (self.link.params().operations_max as usize)
                .saturating_sub(self.link.capacity().operations)
        };
        self.pending_calls() > 0 || self.closed.is_none() && in_flight() > 0
    }

    /// Wake the peer before a request that takes a while to encode.
    pub fn wake_peer(&mut self) {
        self.link.wake_peer();
    }

    /// Write queued requests to the link without handling events.
    pub fn flush_queue(&mut self) {
        self.link.flush_queue();
    }

    /// Let all operations reach their deadlines now.
    pub fn expire_calls(&mut self, now: Mono) {
        self.calls.values_mut().for_each(|call| call.deadline = call.deadline.min(now));
    }

    /// Ask the peer which of these objects it has.
    pub fn exists(
        &mut self,
        token: u64,
        keys: &[ObjectKey],
        options: RequestOptions,
        deadline: Mono,
    ) -> Result<()> {
        self.send_bounded(
            options,
            &RequestBody::Exists(List::of(keys)),
            PendingCall::exists(token, deadline, keys.len()),
        )
    }

    /// Request these objects. Returns the requests if the link has no capacity for them now.
    pub fn get(
        &mut self,
        token: u64,
        requests: Vec<ItemRequest>,
        options: RequestOptions,
        deadline: Mono,
    ) -> std::result::Result<(), (Error, Vec<ItemRequest>)> {
        let items: Vec<GetItem> = requests.iter().map(ItemRequest::wire_item).collect();
        let capacity = self.link.capacity();
        if capacity.exposures < requests.len() || capacity.frames == 0 {
            return Err((self.capacity_error(("objects", requests.len())), requests));
        }
        let body = request::encode(self.for_peer(options), &RequestBody::Get(List::of(&items)));
        if body.len() > self.link.params().control_bytes_max as usize
            || !self.has_capacity(body.len())
        {
            return Err((self.capacity_error(("request_bytes", body.len())), requests));
        }
        let (op, request_bytes) = (self.next_op(), body.len());
        let mut call = PendingCall {
            request_bytes,
            ..PendingCall::get(token, deadline, items.iter().copied())
        };
        // The memory is exposed before the request: the link announces to the peer, before the
        // request, which of it a device may write to.
        for (i, request) in requests.into_iter().enumerate() {
            if let Err(parts) = self.link.expose(op, i as u32, 0, request.parts) {
                call.return_memory(i as u32, parts, false);
            }
        }
        let sent = self.link.send(Frame::new(FrameKind::Request, op, body)).is_ok();
        if !sent {
            call.fail(&self.capacity_error(("request_bytes", request_bytes)));
        }
        self.calls.insert(op, call);
        match sent {
            true => self.link.flush_queue(),
            false => self.finish_call(op),
        }
        Ok(())
    }

    /// Offer objects; `payload` returns the bytes of those that the peer pulls.
    pub fn put(
        &mut self,
        token: u64,
        objects: &PutBuilder,
        payload: PayloadFn,
        options: RequestOptions,
        deadline: Mono,
    ) -> Result<()> {
        let puts = objects.puts().map_err(|e| Error::invalid(e.to_string()))?;
        let offered = puts.objects().map(|object| (object.key, object.length));
        self.send_bounded(
            options,
            &RequestBody::Put(puts),
            PendingCall::put(token, deadline, offered, payload),
        )
    }

    /// Send a request that has one reply: a number, a report, a text.
    pub fn send_control(
        &mut self,
        token: u64,
        request_body: &RequestBody<'_>,
        options: RequestOptions,
        deadline: Mono,
    ) -> Result<()> {
        let body = request::encode(self.for_peer(options), request_body);
        self.send(body, PendingCall::control(token, deadline, request_body.verb()))
    }

    fn send_bounded(
        &mut self,
        options: RequestOptions,
        request_body: &RequestBody<'_>,
        call: PendingCall,
    ) -> Result<()> {
        let body = request::encode(self.for_peer(options), request_body);
        match self.may_send(body.len()) {
            true => self.send(body, call),
            false => Err(self.capacity_error(("request_bytes", body.len()))),
        }
    }

    /// Send a request, regardless of the bytes of requests in flight.
    fn send(&mut self, body: Vec<u8>, call: PendingCall) -> Result<()> {
        let (op, request_bytes) = (self.next_op(), body.len());
        if self.link.send(Frame::new(FrameKind::Request, op, body)).is_err() {
            return Err(self.capacity_error(("request_bytes", request_bytes)));
        }
        self.calls.insert(op, PendingCall { request_bytes, ..call });
        Ok(())
    }

    /// The options with the origin of the request, a client or a store, and without those that the
    /// peer does not know.
    fn for_peer(&self, options: RequestOptions) -> RequestOptions {
        let knows_rate = self.has_feature(Feature::PrefillRate);
        RequestOptions {
            from_store: self.is_store && self.has_feature(Feature::Peers),
            prefill_tokens_per_s: if knows_rate { options.prefill_tokens_per_s } else { 0 },
            ..options
        }
    }

    fn next_op(&mut self) -> OpId {
        self.last_op += 1;
        OpId(self.last_op)
    }

    /// The error for a request that the link does not take.
    fn capacity_error(&self, (what, size): (&str, usize)) -> Error {
        let peer = &self.link.params().peer;
        match &self.closed {
            Some(why) => {
                let detail = format!("no link to the peer: {why} peer={peer}");
                Error::new(ErrorKind::Unavailable, detail)
            }
            None => Error::busy(format!(
                "the link to the peer has no room for the request; retry it when others have \
                 ended, or request less at once peer={peer} {what}={size}"
            )),
        }
    }

    /// Make progress without waiting; appends the responses of finished operations.
    pub fn poll(&mut self, now: Mono, responses: &mut Vec<(u64, Response)>) {
        let mut events = Vec::new();
        self.link.poll(&mut events);
        self.handle_events(events);
        self.advance(now, responses);
    }

    /// As `poll`, but wait until an event arrives, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration, responses: &mut Vec<(u64, Response)>) {
        let mut events = Vec::new();
        let due = self
            .calls
            .values()
            .filter(|call| !call.finished)
            .map(|call| call.deadline.since(now))
            .min();
        let timeout = timeout.min(due.unwrap_or(timeout));
        match self.events.is_empty() {
            true => self.link.wait(&mut events, timeout),
            false => self.link.poll(&mut events),
        }
        self.handle_events(events);
        self.advance(now, responses);
    }

    fn advance(&mut self, now: Mono, responses: &mut Vec<(u64, Response)>) {
        let late: Vec<OpId> = self
            .calls
            .iter()
            .filter(|(_, call)| !call.finished && now >= call.deadline)
            .map(|(id, _)| *id)
            .collect();
        let any_late = !late.is_empty();
        late.into_iter().for_each(|op| self.cancel(op));
        for call in self.calls.values_mut() {
            while let Some(push) = call.next_push() {
                if let Err(push) = self.link.push(push) {
                    call.requeue_push(push);
                    break;
                }
            }
        }
        match any_late {
            // Poll once more to receive the memory of cancelled operations.
            true => {
                let mut events = Vec::new();
                self.link.poll(&mut events);
                self.handle_events(events);
            }
            false => self.link.flush_queue(),
        }
        let done: Vec<OpId> =
            self.calls.iter().filter(|(_, call)| call.is_done()).map(|(id, _)| *id).collect();
        let finished = done
            .into_iter()
            .filter_map(|op| self.calls.remove(&op))
            .map(PendingCall::into_response);
        responses.extend(finished);
        self.get_done = false;
    }

    /// End an operation whose deadline has passed.
    fn cancel(&mut self, op: OpId) {
        // If the cancel frame cannot be sent, the peer applies its own deadline.
        let _ = self.link.send(Frame::bare(FrameKind::Cancel, op));
        self.finish_call(op);
    }

    /// The operation has its outcome, or is given up: only its memory is still missing.
    fn finish_call(&mut self, op: OpId) {
        if let Some(call) = self.calls.get_mut(&op) {
            call.finished = true;
            call.drop_unsent();
        }
        self.link.retract(op);
    }

    fn handle_events(&mut self, events: Vec<LinkEvent>) {
        self.events.extend(events);
        while !self.get_done
            && let Some(event) = self.events.pop_front()
        {
            if let Err(error) = self.handle_event(event) {
                self.close_after_violation(&error);
            }
        }
    }

    fn close_after_violation(&mut self, error: &FormatError) {
        tracing::warn!(peer = %self.link.params().peer, %error, "peer violated the protocol; link closed");
        self.link.close();
        let mut events: Vec<LinkEvent> = self.events.drain(..).collect();
        self.link.poll(&mut events);
        // Only returned memory and the end of the link matter now. An outcome that follows the
        // violation is not believed.
        for event in events.into_iter().filter(|event| !matches!(event, LinkEvent::Frame(_))) {
            let _ = self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: LinkEvent) -> std::result::Result<(), FormatError> {
        match event {
            LinkEvent::Frame(frame) => self.handle_frame(&frame)?,
            LinkEvent::Received { op, item, parts, .. } => {
                if let Some(call) = self.calls.get_mut(&op) {
                    call.return_memory(item, parts, true);
                }
            }
            LinkEvent::ReceivedRef { op, item, parts, shown, .. } => {
                if let Some(call) = self.calls.get_mut(&op) {
                    call.copy_from_ref(item, parts, &shown);
                }
                self.link.release_ref(shown);
            }
            LinkEvent::Retracted { op, item, parts, .. } => {
                if let Some(call) = self.calls.get_mut(&op) {
                    call.return_memory(item, parts, false);
                }
            }
            LinkEvent::Pushed { op, parts, .. } => {
                drop(parts);
                self.calls.get_mut(&op).into_iter().for_each(PendingCall::push_done);
            }
            LinkEvent::Ended(why) => {
                let peer = &self.link.params().peer;
                let detail = format!("the link to the peer ended: {why} peer={peer}");
                let error = Error::new(ErrorKind::Unavailable, detail);
                for call in self.calls.values_mut().filter(|call| !call.finished) {
                    call.fail(&error);
                    call.drop_unsent();
                }
                self.closed.get_or_insert(why);
            }
        }
        Ok(())
    }

    fn handle_frame(&mut self, frame: &Frame) -> std::result::Result<(), FormatError> {
        // Frames for finished operations are dropped.
        let Some(call) = self.calls.get_mut(&frame.op).filter(|call| !call.finished) else {
            return Ok(());
        };
        match frame.kind {
            FrameKind::Pull => {
                let pulls = pull::decode(&frame.body)?;
                call.handle_pull(frame.op, pulls.iter())?;
            }
            FrameKind::Outcome => {
                let (verb, answer) = outcome::decode(&frame.body)?;
                self.answered = true;
                call.handle_outcome(verb, &answer, &self.link.params().peer)?;
                self.get_done |= call.is_done_get();
                self.finish_call(frame.op);
            }
            _ => {}
        }
        Ok(())
    }
}
