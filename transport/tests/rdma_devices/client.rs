//! A client's end: gets and puts of one item, whole or ended in the middle.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::capability::Capabilities;
use pagelith_transport::dial::{Dial, DialProgress, SocketDial};
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::rdma::host::RdmaHost;
use pagelith_transport::rdma::rdma_use::RdmaUse;

use crate::memory::{BACK, Memory, total};
use crate::server::{Request, RequestKind, clock};

/// Nothing takes that long, also in an emulated machine.
const LONG: Duration = Duration::from_secs(60);

pub struct Client {
    pub link: Box<dyn Link>,
    ops: u64,
    /// Events that no wait has looked at.
    events: VecDeque<LinkEvent>,
}

/// How an operation's memory came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Returned {
    /// All bytes arrived.
    Whole,
    /// It was retracted.
    Retracted,
}

impl Client {
    pub fn connect(address: &str, host: &Arc<RdmaHost>) -> Client {
        Client::try_connect(address, host).expect("a link")
    }

    pub fn connect_without_rdma(address: &str) -> Client {
        Client::dial(address, RdmaUse::Off).expect("a link")
    }

    pub fn try_connect(address: &str, host: &Arc<RdmaHost>) -> Result<Client, LinkError> {
        Client::dial(address, RdmaUse::Demanded(host.clone()))
    }

    fn dial(address: &str, rdma: RdmaUse) -> Result<Client, LinkError> {
        let offer = Capabilities::of_this_build([6; 16]);
        let address = address.parse().expect("an address");
        let mut dial = SocketDial::new(address, None, offer, clock());
        dial.rdma = rdma;
        let mut dialing = dial.begin()?;
        loop {
            match dialing.wait(Duration::from_millis(100)) {
                DialProgress::Waiting(waiting) => dialing = waiting,
                DialProgress::Ready(link) => {
                    return Ok(Client { link, ops: 0, events: VecDeque::new() });
                }
                DialProgress::Failed(why) => return Err(why),
            }
        }
    }

    /// Send the request for an item whose bytes go to these ranges. Returns the operation.
    pub fn begin_get(&mut self, to: &Memory, ranges: &[Range<usize>], request: Request) -> u64 {
        self.ops += 1;
        let op = self.ops;
        if self.link.expose(OpId(op), 0, 0, to.parts(ranges)).is_err() {
            let (room, mut events) = (self.link.capacity(), Vec::new());
            self.link.poll(&mut events);
            panic!("no room for op={op} {room:?} {:?} {events:?}", self.events);
        }
        self.link.send(request.frame(op)).expect("room");
        op
    }

    /// Get all bytes.
    pub fn get(&mut self, to: &Memory, ranges: &[Range<usize>], pieces: u32) {
        if let Err(why) = self.try_get(to, ranges, pieces) {
            panic!("the link ended: {why}");
        }
    }

    /// Get all bytes, or return why the link ended.
    pub fn try_get(
        &mut self,
        to: &Memory,
        ranges: &[Range<usize>],
        pieces: u32,
    ) -> Result<(), LinkError> {
        let bytes = total(ranges) as u32;
        let op = self.begin_get(to, ranges, Request { kind: RequestKind::Get, bytes, pieces });
        if self.until_returned(op) != Returned::Whole {
            return Err(self.until_ended());
        }
        self.until_outcome(op);
        Ok(())
    }

    /// Put all bytes.
    pub fn put(&mut self, from: &Memory, ranges: &[Range<usize>], pieces: u32) {
        if let Err(why) = self.try_put(from, ranges, pieces) {
            panic!("the link ended: {why}");
        }
    }

    /// Put all bytes, or return why the link ended.
    pub fn try_put(
        &mut self,
        from: &Memory,
        ranges: &[Range<usize>],
        pieces: u32,
    ) -> Result<(), LinkError> {
        let op = self.begin_put(from, ranges, pieces)?;
        let (mut is_sent, mut has_outcome) = (false, false);
        self.try_until("the put's end", |event| {
            is_sent |= matches!(event, LinkEvent::Pushed { sent: true, .. });
            has_outcome |= is_outcome(event, op);
            is_sent && has_outcome
        })
    }

    /// Send the request of a put, and its bytes once the server pulls them.
    fn begin_put(
        &mut self,
        from: &Memory,
        ranges: &[Range<usize>],
        pieces: u32,
    ) -> Result<u64, LinkError> {
        self.ops += 1;
        let (op, bytes) = (self.ops, total(ranges) as u32);
        let request = Request { kind: RequestKind::Put, bytes, pieces };
        self.link.send(request.frame(op)).expect("room");
        self.try_until(
            "a pull",
            |event| matches!(event, LinkEvent::Frame(frame) if frame.kind == FrameKind::Pull),
        )?;
        let (parts, op_id) = (from.parts(ranges), OpId(op));
        let push = Push { op: op_id, item: 0, offset: 0, parts, token: op, allow_ref: true };
        self.link.push(push).expect("room");
        Ok(op)
    }

    /// Poll until a byte of the memory has arrived. False if the link ended before.
    pub fn until_byte(&mut self, memory: &Memory, offset: usize) -> bool {
        let end = Instant::now() + LONG;
        while memory.byte(offset) == BACK {
            let mut events = Vec::new();
            self.link.poll(&mut events);
            self.events.extend(events);
            if matches!(self.events.back(), Some(LinkEvent::Ended(_))) {
                return false;
            }
            assert!(Instant::now() < end, "no byte arrived");
            std::thread::yield_now();
        }
        true
    }

    pub fn cancel(&mut self, op: u64) {
        let _ = self.link.send(Frame::bare(FrameKind::Cancel, OpId(op)));
        self.link.retract(OpId(op));
    }

    /// Wait for the memory of a get.
    pub fn until_returned(&mut self, op: u64) -> Returned {
        let mut returned = None;
        self.until("the memory", |event| {
            match event {
                LinkEvent::Received { op: of, .. } if of.0 == op => {
                    returned = Some(Returned::Whole);
                }
                LinkEvent::Retracted { op: of, .. } if of.0 == op => {
                    returned = Some(Returned::Retracted);
                }
                _ => {}
            }
            returned.is_some()
        });
        returned.expect("returned")
    }

    pub fn until_outcome(&mut self, op: u64) {
        self.until("the outcome", |event| is_outcome(event, op));
    }

    /// Wait for the outcome of a cancelled operation. Returns the error if the link ended instead.
    pub fn until_outcome_or_end(&mut self, op: u64) -> Option<LinkError> {
        loop {
            match self.next("the outcome or the end of the link") {
                LinkEvent::Ended(why) => return Some(why),
                event if is_outcome(&event, op) => return None,
                _ => {}
            }
        }
    }

    /// Wait for the end of the link, with which all memory comes back.
    pub fn until_ended(&mut self) -> LinkError {
        loop {
            if let LinkEvent::Ended(why) = self.next("the end of the link") {
                return why;
            }
        }
    }

    /// Take events until one is found.
    fn until(&mut self, what: &str, found: impl FnMut(&LinkEvent) -> bool) {
        let ended = self.try_until(what, found);
        assert!(ended.is_ok(), "{ended:?} before {what}");
    }

    /// Take events until one is found, or return why the link ended.
    fn try_until(
        &mut self,
        what: &str,
        mut found: impl FnMut(&LinkEvent) -> bool,
    ) -> Result<(), LinkError> {
        loop {
            let event = self.next(what);
            if found(&event) {
                return Ok(());
            }
            if let LinkEvent::Ended(why) = event {
                return Err(why);
            }
        }
    }

    fn next(&mut self, what: &str) -> LinkEvent {
        let end = Instant::now() + LONG;
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            assert!(Instant::now() < end, "no sign of {what}");
            let mut events = Vec::new();
            self.link.wait(&mut events, Duration::from_millis(100));
            self.events.extend(events);
        }
    }
}

fn is_outcome(event: &LinkEvent, op: u64) -> bool {
    matches!(event, LinkEvent::Frame(frame) if frame.kind == FrameKind::Outcome && frame.op.0 == op)
}
