//! The link seam: one end of a connection between a client and a store, whatever carries it.
//!
//! Invariants that every side (TCP, shared memory, RDMA, simulated) keeps:
//! - A [`Part`] moved into [`Link::push`] or [`Link::expose`] belongs to the link until an [`Event`] hands it back.
//!   Nothing else touches that memory in between, and the link, its peer and its device never touch it afterwards.
//! - Every part is handed back exactly once: in [`Event::Pushed`], [`Event::Landed`] or [`Event::Retracted`]. When a
//!   link closes, all are handed back before [`Event::Closed`], its last event.
//! - Bytes land only where they were exposed for exactly that operation, item and offset, once each, in order, and only
//!   up to the length exposed. What arrives for nothing exposed is read, thrown away and counted.
//! - Where the two share memory ([`Regions`](crate::shown::Regions)), what is pushed from there is shown and not sent: the
//!   parts come back when the peer has taken it, and who is shown it gets its memory back unwritten, to copy into. What is
//!   handed back because it was given up may be looked at a while longer: who looks finds it out by its checksums.
//! - Frames arrive whole, authentic where the link has a key, in the order they were sent; [`Event::Frame`] and
//!   [`Event::Landed`] come in the order of arrival, so that what was sent before an outcome has landed before it.
//! - No more operations are in flight than were agreed: a client's end hands back the request that is one too many, a
//!   server's end closes on it.
//! - Nothing waits but [`Link::wait`]. Queues are bounded, and what does not fit is handed back by the call itself.
//!   A peer that is silent for as long as was configured is taken for dead, and the link closes.
//! - What landed is not verified: whoever exposed the memory compares it with checksums before believing it.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::shm::{CatalogView, Claim, Steady};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shown::Stretch;
use pagelith_layouts::wire::{Frame, Side};

use crate::closed::Closed;
use crate::rights::Rights;
use crate::shown::Shown;

/// What was agreed when the link was made, and what is known of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Which end this is.
    pub side: Side,
    /// The peer's name for messages: its address.
    pub peer: String,
    /// Names the peer's process: a store that was started again is another one.
    pub peer_instance: [u8; 16],
    /// Protocol version.
    pub version: u16,
    /// Features that both have, a bit each (`wire::greeting::Feature`).
    pub features: u64,
    /// Features that this side would like and does not get, by name.
    pub missing: Vec<&'static str>,
    /// Alignment in bytes of memory that bytes move to and from without another copy, the larger of both sides'.
    pub alignment: u32,
    /// Longest control body in bytes that may be sent.
    pub control_bytes_max: u32,
    /// Most operations that may be in flight: requests that have no outcome yet.
    pub operations_max: u32,
    /// Longest object in bytes that both can hold.
    pub object_bytes_max: u64,
    /// The key that the peer proved to have, by name; `None` where it is known by the connection itself.
    pub key_name: Option<String>,
    /// What the peer may do here; on a client's side it is not known and says everything.
    pub rights: Rights,
}

/// How much more a link takes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Control frames.
    pub frames: usize,
    /// Bytes of their bodies.
    pub frame_bytes: usize,
    /// Pushes.
    pub pushes: usize,
    /// Stretches exposed.
    pub exposures: usize,
    /// Requests, until outcomes arrive; on a server's side none.
    pub operations: usize,
}

/// Bytes to be sent, and where they belong. Lengths add up to at least 1 byte.
#[derive(Debug)]
pub struct Push {
    /// The operation.
    pub op: OpId,
    /// The item's number in its request.
    pub item: u32,
    /// Where the first byte belongs, in bytes from the start of what was asked for.
    pub offset: u64,
    /// The bytes, in order.
    pub parts: Vec<Part>,
    /// What the caller names the push by; handed back in [`Event::Pushed`].
    pub token: u64,
    /// Whether it may be shown where the link shares the memory; else its bytes are sent.
    pub may_show: bool,
}

/// What happened on a link.
#[derive(Debug)]
pub enum Event {
    /// A control frame arrived: whole, and authentic where the link has a key. Its body is not decoded. Greetings,
    /// pings and goodbyes are the link's own affair and are not among them.
    Frame(Frame),
    /// Every byte of an exposed stretch arrived. Nothing can touch the memory any more.
    Landed {
        /// The operation.
        op: OpId,
        /// The item's number.
        item: u32,
        /// Where in the item the stretch begins, in bytes.
        offset: u64,
        /// The memory, as it was exposed.
        parts: Vec<Part>,
    },
    /// Every byte of an exposed stretch lies in memory of the peer, and none in what was exposed for it. It is to be copied at once, and
    /// handed to [`Link::took`].
    Shown {
        /// The operation.
        op: OpId,
        /// The item's number.
        item: u32,
        /// Where in the item the stretch begins, in bytes.
        offset: u64,
        /// The memory, as it was exposed.
        parts: Vec<Part>,
        /// Where the bytes lie.
        shown: Shown,
    },
    /// A push is over.
    Pushed {
        /// The push's operation.
        op: OpId,
        /// What the caller named it by.
        token: u64,
        /// Whether all of it went out, or was taken where it lies; that it arrived, only the peer can say.
        sent: bool,
        /// The memory, as it was pushed.
        parts: Vec<Part>,
    },
    /// An exposed stretch was given up before all of it arrived; what the memory holds is unspecified.
    Retracted {
        /// The operation.
        op: OpId,
        /// The item's number.
        item: u32,
        /// Where in the item the stretch begins, in bytes.
        offset: u64,
        /// The memory, as it was exposed.
        parts: Vec<Part>,
    },
    /// The link is closed, and everything was handed back. No event follows.
    Closed(Closed),
}

/// What a link has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Control frames that arrived.
    pub frames_in: u64,
    /// Control frames sent.
    pub frames_out: u64,
    /// Bulk bytes that landed, or were shown.
    pub bytes_in: u64,
    /// Bulk bytes sent, or taken where they lie.
    pub bytes_out: u64,
    /// Bulk bytes that arrived for nothing exposed, and were thrown away.
    pub bytes_late: u64,
    /// System calls that moved bytes.
    pub calls: u64,
}

/// One end of a connection. Used by one thread at a time. Dropping it closes it and drops what was
/// not handed back.
pub trait Link: Send {
    /// What was agreed.
    fn facts(&self) -> &Facts;

    /// What was counted.
    fn counts(&self) -> Counts;

    /// How much more the link takes now; all zero once it is closed.
    fn room(&self) -> Room;

    /// Queue a control frame. Handed back when there is no room for it, when it is one that this side does not send, when
    /// its body is longer than was agreed, and when it is a request and as many operations as were agreed are in flight.
    fn send(&mut self, frame: Frame) -> Result<(), Frame>;

    /// Whether a push of these would be shown, and not sent.
    fn shows(&self, parts: &[Part]) -> bool;

    /// The number of this side's region that all of these bytes lie in, and where in it they begin. `None` if they lie
    /// in several pieces, or elsewhere.
    fn place(&self, _parts: &[Part]) -> Option<(u32, u64)> {
        None
    }

    /// Whether all of these bytes lie in regions of this side's that stay at their addresses as long as they are there.
    fn stays(&self, _parts: &[Part]) -> bool {
        false
    }

    /// A client's word that what it shows from here on under the number of that is as it is now, until that is dropped. `None` where the
    /// peer does not take its word for it, and while it has given too many.
    fn steady(&self) -> Option<Steady> {
        None
    }

    /// The peer's word of this number, which is asked behind a copy of what was shown under it. `None` where this side does not take it.
    fn claim(&self, _number: u64) -> Option<Claim> {
        None
    }

    /// Bytes that the peer says lie in a region of its own; `None` if it has handed over no such memory.
    fn view(&self, _stretch: Stretch, _place: (u32, u64), _length: u64) -> Option<Shown> {
        None
    }

    /// What lies where in the first region that the peer has handed over, if it tells: who finds something there copies it without asking, and
    /// believes the copy if what was found holds behind it, and [`is_there`](Link::is_there) then.
    fn catalog(&self) -> Option<&Arc<CatalogView>> {
        None
    }

    /// Whether the peer has its end of the link, as far as this side's system knows now. Nothing that comes is looked at.
    fn is_there(&self) -> bool {
        true
    }

    /// Queue bytes of an item, behind everything queued before. Handed back when there is no room, or no byte.
    fn push(&mut self, push: Push) -> Result<(), Push>;

    /// Let bytes of an item land in `parts`, in order, from `offset` of what was asked for. An item may have several
    /// stretches exposed, each with an end of its own. Handed back when there is no room, when a part is shared, when
    /// there is no byte, and when one of the bytes is exposed already.
    fn expose(&mut self, op: OpId, item: u32, offset: u64, parts: Vec<Part>) -> Result<(), Vec<Part>>;

    /// Say that something will be sent within some ten microseconds. A peer that sleeps is woken now where that takes long and costs
    /// nothing but what waking it later would, and true is returned; on other links nothing happens.
    fn nudge(&mut self) -> bool {
        false
    }

    /// Move what is queued as far as it goes now, so that the peer has it while the rest of an answer is made. What happens
    /// meanwhile comes with the next [`Link::poll`].
    fn send_on(&mut self) {}

    /// What was shown was copied, and is not looked at any more.
    fn took(&mut self, shown: Shown);

    /// Give up an operation: each of its exposed stretches comes back in [`Event::Retracted`] and each of its pushes in
    /// [`Event::Pushed`], with the next poll. What still arrives for it is thrown away.
    fn retract(&mut self, op: OpId);

    /// Move bytes as far as they go now, and add what happened to `events`. Never waits.
    fn poll(&mut self, events: &mut Vec<Event>);

    /// As `poll`, but wait until something happened, the link is closed, or `timeout` passed.
    fn wait(&mut self, events: &mut Vec<Event>, timeout: Duration);

    /// Close: the next poll hands everything back; the peer is told if it can be told at once.
    fn close(&mut self);
}
