//! A client's end of a link: operations under way, their deadlines, their memory.
//!
//! Invariants:
//! - Memory that is lent to an operation comes back with its reply, and nothing touches it afterwards: an operation whose
//!   time is up is retracted from the link before it is replied to.
//! - Every operation is replied to once, whatever becomes of the peer.
//! - Events are looked at in the order in which they came. Once a get is done the others wait until it was replied to: who has
//!   several under way begins the next before the bytes of the others are copied.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::put::PutDraft;
use pagelith_layouts::wire::request::{self, Ask, GetItem, Terms};
use pagelith_layouts::wire::shown::Stretch;
use pagelith_layouts::wire::{Frame, Kind, List, outcome, pull};
use pagelith_transport::closed::Closed;
use pagelith_transport::link::{Event, Link};
use pagelith_transport::shown::Shown;

use super::call::{Call, Lend, Reply, Wanted};
use crate::api::error::{Error, ErrorKind, Result};

/// Operations on one link.
pub(crate) struct Caller {
    pub(crate) link: Box<dyn Link>,
    pub(crate) calls: BTreeMap<OpId, Call>,
    /// What came and was not looked at yet.
    arrived: VecDeque<Event>,
    /// A get is done that was not replied to.
    is_done: bool,
    last: u64,
    closed: Option<Closed>,
    /// The peer has answered something.
    answered: bool,
    /// What is asked is a store's, of its peer.
    of_store: bool,
}

impl Caller {
    pub fn new(link: Box<dyn Link>) -> Caller {
        let (calls, arrived) = (BTreeMap::new(), VecDeque::new());
        let (last, closed) = (0, None);
        let (is_done, answered, of_store) = (false, false, false);
        Caller { link, calls, arrived, is_done, last, closed, answered, of_store }
    }

    /// The same of a store that has the other side for a peer.
    pub fn of_store(self) -> Caller {
        Caller { of_store: true, ..self }
    }

    /// Why the link ended, once it has: what is asked from then on fails at once.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_ref()
    }

    /// Whether the peer has answered something over this link.
    pub fn has_answered(&self) -> bool {
        self.answered
    }

    /// Which process the peer is.
    pub fn peer_instance(&self) -> [u8; 16] {
        self.link.facts().peer_instance
    }

    /// Whether both sides have a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.link.facts().features & feature.bit() != 0
    }

    /// Where the peer can look at these bytes, if it can.
    pub fn place(&self, parts: &[Part]) -> Option<(u32, u64)> {
        self.link.place(parts)
    }

    /// Bytes that the peer says lie in a region of its own, if it has handed over such memory.
    pub fn view(&self, (region, at): (u32, u64), length: u64) -> Option<Shown> {
        let nowhere: Stretch = (OpId(0), 0, 0);
        self.link.view(nowhere, (region, at), length)
    }

    /// Longest request in bytes.
    pub fn request_bytes_max(&self) -> usize {
        self.link.facts().control_bytes_max as usize
    }

    /// Operations under way.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether the peer owes an answer, also to what nobody waits for any more: with that the link has more room.
    pub fn is_owed(&self) -> bool {
        let in_flight =
            || (self.link.facts().operations_max as usize).saturating_sub(self.link.room().operations);
        self.calls() > 0 || self.closed.is_none() && in_flight() > 0
    }

    /// Something is about to be asked that takes a while to be put into words.
    pub fn nudge(&mut self) {
        self.link.nudge();
    }

    /// Move what is asked towards the peer, and look at nothing that it says.
    pub fn send_on(&mut self) {
        self.link.send_on();
    }

    /// The time of all operations is up.
    pub fn hurry(&mut self, now: Mono) {
        self.calls.values_mut().for_each(|call| call.deadline = call.deadline.min(now));
    }

    /// Ask which of these are there.
    pub fn exists(&mut self, token: u64, keys: &[ObjectKey], terms: Terms, deadline: Mono) -> Result<()> {
        self.ask(terms, &Ask::Exists(List::of(keys)), Call::exists(token, deadline, keys.len()))
    }

    /// Ask for the bytes of these. They are handed back if the link has no room for so many now.
    pub fn get(
        &mut self,
        token: u64,
        wanted: Vec<Wanted>,
        terms: Terms,
        deadline: Mono,
    ) -> std::result::Result<(), (Error, Vec<Wanted>)> {
        let items: Vec<GetItem> = wanted.iter().map(Wanted::item).collect();
        let room = self.link.room();
        if room.exposures < wanted.len() || room.frames == 0 {
            return Err((self.no_room(), wanted));
        }
        let body = request::encode(self.said(terms), &Ask::Get(List::of(&items)));
        let is_long =
            body.len() > self.link.facts().control_bytes_max as usize || body.len() > room.frame_bytes;
        if is_long || !self.may_ask(body.len()) {
            return Err((self.no_room(), wanted));
        }
        let (op, asked) = (self.next_op(), body.len());
        if self.link.send(Frame::new(Kind::Request, op, body)).is_err() {
            return Err((self.no_room(), wanted));
        }
        // The peer looks for them while their memory is made ready: what it says is looked at behind that.
        self.link.send_on();
        let mut call = Call { asked, ..Call::get(token, deadline, items.iter().copied()) };
        for (i, w) in wanted.into_iter().enumerate() {
            if let Err(parts) = self.link.expose(op, i as u32, 0, w.parts) {
                call.take_back(i as u32, parts, false);
            }
        }
        self.calls.insert(op, call);
        Ok(())
    }

    /// Offer objects; `lend` gives the bytes of those that the peer wants.
    pub fn put(
        &mut self,
        token: u64,
        draft: &PutDraft,
        lend: Lend,
        terms: Terms,
        deadline: Mono,
    ) -> Result<()> {
        let puts = draft.puts().map_err(|e| Error::invalid(e.to_string()))?;
        let keys = puts.objects().map(|object| (object.key, object.length)).collect();
        self.ask(terms, &Ask::Put(puts), Call::put(token, deadline, keys, lend))
    }

    /// Ask what has one answer: a number, a report, a text.
    pub fn tell(&mut self, token: u64, ask: &Ask<'_>, terms: Terms, deadline: Mono) -> Result<()> {
        let body = request::encode(self.said(terms), ask);
        self.send(body, Call::told(token, deadline, ask.verb()))
    }

    fn ask(&mut self, terms: Terms, ask: &Ask<'_>, call: Call) -> Result<()> {
        let body = request::encode(self.said(terms), ask);
        match self.may_ask(body.len()) {
            true => self.send(body, call),
            false => Err(self.no_room()),
        }
    }

    /// Send a request, however much the peer was asked before.
    fn send(&mut self, body: Vec<u8>, call: Call) -> Result<()> {
        let (op, asked) = (self.next_op(), body.len());
        if self.link.send(Frame::new(Kind::Request, op, body)).is_err() {
            return Err(self.no_room());
        }
        self.calls.insert(op, Call { asked, ..call });
        Ok(())
    }

    /// As the peer is told.
    fn said(&self, terms: Terms) -> Terms {
        Terms { of_store: self.of_store && self.has(Feature::Peers), ..terms }
    }

    fn next_op(&mut self) -> OpId {
        self.last += 1;
        OpId(self.last)
    }

    fn no_room(&self) -> Error {
        match &self.closed {
            Some(why) => Error::new(ErrorKind::Unavailable, format!("no link to the peer: {why}")),
            None => Error::busy("too much is asked of the peer at once"),
        }
    }

    /// Go on as far as it goes now; what has ended.
    pub fn poll(&mut self, now: Mono, replies: &mut Vec<(u64, Reply)>) {
        let mut events = Vec::new();
        self.link.poll(&mut events);
        self.take(events);
        self.go_on(now, replies);
    }

    /// As `poll`, but wait until something happens, at most `timeout`.
    pub fn wait(&mut self, now: Mono, timeout: Duration, replies: &mut Vec<(u64, Reply)>) {
        let mut events = Vec::new();
        let due = self.calls.values().filter(|call| !call.over).map(|call| call.deadline.since(now)).min();
        let timeout = timeout.min(due.unwrap_or(timeout));
        match self.arrived.is_empty() {
            true => self.link.wait(&mut events, timeout),
            false => self.link.poll(&mut events),
        }
        self.take(events);
        self.go_on(now, replies);
    }

    fn go_on(&mut self, now: Mono, replies: &mut Vec<(u64, Reply)>) {
        let late: Vec<OpId> =
            self.calls.iter().filter(|(_, c)| !c.over && now >= c.deadline).map(|(id, _)| *id).collect();
        let given_up = !late.is_empty();
        late.into_iter().for_each(|op| self.cancel(op));
        for call in self.calls.values_mut() {
            while let Some(push) = call.next_push() {
                if let Err(push) = self.link.push(push) {
                    call.push_later(push);
                    break;
                }
            }
        }
        match given_up {
            // What was retracted comes back at the next look.
            true => {
                let mut events = Vec::new();
                self.link.poll(&mut events);
                self.take(events);
            }
            false => self.link.send_on(),
        }
        let done: Vec<OpId> =
            self.calls.iter().filter(|(_, call)| call.is_done()).map(|(id, _)| *id).collect();
        let over = done.into_iter().filter_map(|op| self.calls.remove(&op)).map(Call::reply);
        replies.extend(over);
        self.is_done = false;
    }

    /// Its time is up.
    fn cancel(&mut self, op: OpId) {
        // If the peer cannot be told, it finds out by its own deadline.
        let _ = self.link.send(Frame::bare(Kind::Cancel, op));
        self.give_up(op);
    }

    /// Nothing more is waited for but the memory.
    fn give_up(&mut self, op: OpId) {
        if let Some(call) = self.calls.get_mut(&op) {
            call.over = true;
            call.forget_unsent();
        }
        self.link.retract(op);
    }

    fn take(&mut self, events: Vec<Event>) {
        self.arrived.extend(events);
        while !self.is_done
            && let Some(event) = self.arrived.pop_front()
        {
            if let Err(error) = self.event(event) {
                self.broken(&error);
            }
        }
    }

    fn broken(&mut self, error: &FormatError) {
        tracing::warn!(peer = %self.link.facts().peer, %error, "a peer broke the protocol");
        self.link.close();
        let mut events: Vec<Event> = self.arrived.drain(..).collect();
        self.link.poll(&mut events);
        for event in events {
            // Memory that comes back, and the end.
            let _ = self.event(event);
        }
    }

    fn event(&mut self, event: Event) -> std::result::Result<(), FormatError> {
        match event {
            Event::Frame(frame) => self.frame(&frame)?,
            Event::Landed { op, item, parts, .. } => {
                if let Some(call) = self.calls.get_mut(&op) {
                    call.take_back(item, parts, true);
                }
            }
            Event::Shown { op, item, parts, shown, .. } => {
                if let Some(call) = self.calls.get_mut(&op) {
                    call.take_shown(item, parts, &shown);
                }
                self.link.took(shown);
            }
            Event::Retracted { op, item, parts, .. } => {
                if let Some(call) = self.calls.get_mut(&op) {
                    call.take_back(item, parts, false);
                }
            }
            Event::Pushed { op, parts, .. } => {
                drop(parts);
                self.calls.get_mut(&op).into_iter().for_each(Call::pushed);
            }
            Event::Closed(why) => {
                let error = Error::new(ErrorKind::Unavailable, format!("the link to the peer ended: {why}"));
                for call in self.calls.values_mut().filter(|call| !call.over) {
                    call.fail(&error);
                    call.forget_unsent();
                }
                self.closed.get_or_insert(why);
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) -> std::result::Result<(), FormatError> {
        // What was given up may be answered still.
        let Some(call) = self.calls.get_mut(&frame.op).filter(|call| !call.over) else { return Ok(()) };
        match frame.kind {
            Kind::Pull => {
                let wanted = pull::decode(&frame.body)?;
                call.pull(frame.op, wanted.iter())?;
            }
            Kind::Outcome => {
                let (verb, answer) = outcome::decode(&frame.body)?;
                self.answered = true;
                call.answer(verb, &answer)?;
                self.is_done |= call.is_got();
                self.give_up(frame.op);
            }
            _ => {}
        }
        Ok(())
    }
}
