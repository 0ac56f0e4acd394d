//! The link interface: one end of a connection between a client and a store.
//!
//! Invariants that every implementation (TCP, shared memory, simulated) keeps:
//! - A [`Part`] moved into [`Link::push`] or [`Link::expose`] belongs to the link until an
//!   [`LinkEvent`] hands it back. Nothing else touches that memory in between. The link, its peer
//!   and its device never touch it afterwards.
//! - If both ends have RDMA, a device of the peer may write to exposed memory on its own. Then
//!   retracted memory comes back only after the peer has confirmed the end of the operation, or
//!   after this end has taken its queue pairs down, which closes the link.
//! - Each part is handed back exactly once, in [`LinkEvent::Pushed`], [`LinkEvent::Received`],
//!   [`LinkEvent::ReceivedRef`] or [`LinkEvent::Retracted`]. A link that closes hands all parts
//!   back before [`LinkEvent::Ended`], its last event. Memory that a device does not release is
//!   leaked; its event then has no parts.
//! - Bytes are written only to memory exposed for exactly their operation, item and offset: each
//!   byte once, in order, and only up to the exposed length. Bytes that match no exposed range are
//!   read, discarded and counted. RDMA is the exception: writes over several rails have no order. A
//!   correct server keeps to the targets of the operation, but a faulty one can write anywhere in a
//!   region that the client registered for its peers, until the client has taken its queue pairs
//!   down (`docs/security.md`).
//! - If both ends share memory ([`LinkRegions`](crate::shown::LinkRegions)), a push from that
//!   memory is passed by reference and not sent. Its parts come back after the peer has released
//!   the reference. The receiver gets its exposed memory back unwritten, and copies into it. After
//!   [`Link::retract`] the peer may still read the memory of a push for a while; it detects a
//!   change by the checksums.
//! - Frames arrive whole, in the order they were sent, and authenticated if the link has a key.
//!   [`LinkEvent::Frame`] and [`LinkEvent::Received`] come in the order of arrival, so bytes sent
//!   before an outcome have arrived before that outcome.
//! - Operations in flight <= [`LinkParams::operations_max`]. The client's end hands back a request
//!   that would exceed it; the server's end closes the link.
//! - Only [`Link::wait`] blocks. Queues are bounded, and a call hands back what does not fit.
//!   A peer that is silent for the configured time is taken for dead, and the link closes.
//! - Received bytes are not verified: the owner of the exposed memory checks its checksums before
//!   it uses them.

use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::ItemRange;
use pagelith_layouts::wire::{Frame, LinkRole};

use crate::link_error::LinkError;
use crate::rights::Rights;
use crate::shown::ShmRef;

/// The parameters negotiated in the handshake, and the identity of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkParams {
    /// The role of this end.
    pub side: LinkRole,
    /// The peer's address, for messages.
    pub peer: String,
    /// Identifies the peer's process: a restarted store has another instance.
    pub peer_instance: [u8; 16],
    /// Protocol version.
    pub version: u16,
    /// Features that both ends have, one bit each (`wire::greeting::Feature`).
    pub features: u64,
    /// Names of the features that this end offers and the peer lacks.
    pub missing: Vec<&'static str>,
    /// Alignment in bytes of memory that is transferred without another copy: the larger of both
    /// ends'.
    pub alignment: u32,
    /// Maximum length in bytes of a control body that may be sent.
    pub control_bytes_max: u32,
    /// Maximum operations in flight: requests without an outcome.
    pub operations_max: u32,
    /// Maximum length in bytes of an object that both ends can hold.
    pub object_bytes_max: u64,
    /// Name of the key that the peer proved to have; `None` if the connection itself identifies
    /// the peer.
    pub key_name: Option<String>,
    /// The peer's rights at this end. A client does not know its server's and has all of them here.
    pub rights: Rights,
}

/// Free capacity of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCapacity {
    /// Control frames.
    pub frames: usize,
    /// Bytes of their bodies.
    pub frame_bytes: usize,
    /// Pushes.
    pub pushes: usize,
    /// Exposed ranges.
    pub exposures: usize,
    /// Requests, until outcomes arrive; always 0 at a server's end.
    pub operations: usize,
}

/// Bytes to send, and their destination. Lengths add up to at least 1 byte.
#[derive(Debug)]
pub struct Push {
    /// The operation.
    pub op: OpId,
    /// The item's number in its request.
    pub item: u32,
    /// Offset in bytes of the first byte in the requested range of the item.
    pub offset: u64,
    /// The bytes, in order.
    pub parts: Vec<Part>,
    /// The caller's identifier of the push, returned in [`LinkEvent::Pushed`].
    pub token: u64,
    /// Whether the push may be passed by reference if the link shares its memory; otherwise its
    /// bytes are sent.
    pub allow_ref: bool,
}

/// An event on a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// A control frame arrived: whole, and authenticated if the link has a key. Its body is not
    /// decoded. The link handles greetings, pings and goodbyes itself.
    Frame(Frame),
    /// All bytes of an exposed range arrived. The link and the peer no longer touch the memory.
    Received {
        /// The operation.
        op: OpId,
        /// The item's number.
        item: u32,
        /// Offset in bytes of the range in the item.
        offset: u64,
        /// The exposed memory.
        parts: Vec<Part>,
    },
    /// A reference to all bytes of an exposed range arrived. The bytes are in the peer's memory,
    /// and the exposed memory is unwritten. The receiver copies them at once and hands the
    /// reference to [`Link::release_ref`].
    ReceivedRef {
        /// The operation.
        op: OpId,
        /// The item's number.
        item: u32,
        /// Offset in bytes of the range in the item.
        offset: u64,
        /// The exposed memory.
        parts: Vec<Part>,
        /// The reference to the bytes.
        shown: ShmRef,
    },
    /// A push has ended.
    Pushed {
        /// The push's operation.
        op: OpId,
        /// The caller's identifier of the push.
        token: u64,
        /// Whether all bytes were sent, or the peer released the reference to them. Only the peer
        /// can confirm that they arrived.
        sent: bool,
        /// The pushed memory.
        parts: Vec<Part>,
    },
    /// An exposed range was retracted before all of it arrived. The memory has unspecified content.
    /// There are no parts if a device did not release them.
    Retracted {
        /// The operation.
        op: OpId,
        /// The item's number.
        item: u32,
        /// Offset in bytes of the range in the item.
        offset: u64,
        /// The exposed memory.
        parts: Vec<Part>,
    },
    /// The link is closed and has handed back all memory. No event follows.
    Ended(LinkError),
}

/// Counters of a link since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Control frames received.
    pub frames_in: u64,
    /// Control frames sent.
    pub frames_out: u64,
    /// Bulk bytes received, by copy or by reference.
    pub bytes_in: u64,
    /// Bulk bytes sent, or passed by reference and released.
    pub bytes_out: u64,
    /// Bulk bytes that matched no exposed range and were discarded.
    pub bytes_late: u64,
    /// System calls that moved bytes.
    pub calls: u64,
    /// Bulk bytes received or sent by RDMA, which `bytes_in` and `bytes_out` contain too.
    pub bytes_by_rdma: u64,
    /// Times that queue pairs were taken down because a device might access memory of the link.
    pub pairs_down: u64,
}

/// One end of a connection. Used by one thread at a time. Dropping it closes the connection and
/// drops all memory that was not handed back.
pub trait Link: Send {
    /// The negotiated parameters.
    fn params(&self) -> &LinkParams;

    /// The counters.
    fn counts(&self) -> LinkCounters;

    /// The free capacity; all zero once the link is closed.
    fn capacity(&self) -> LinkCapacity;

    /// Queue a control frame. Handed back if there is no room for it, if this end does not send its
    /// kind, if its body exceeds [`LinkParams::control_bytes_max`], and if it is a request while
    /// [`LinkParams::operations_max`] operations are in flight.
    fn send(&mut self, frame: Frame) -> Result<(), Frame>;

    /// Whether a push of these parts would be passed by reference.
    fn sends_by_ref(&self, parts: &[Part]) -> bool;

    /// The number of this end's region that contains all of these bytes, and their offset in it.
    /// `None` if they are in several pieces, or outside of the regions.
    fn region_offset(&self, _parts: &[Part]) -> Option<(u32, u64)> {
        None
    }

    /// A reference to bytes in a region of the peer; `None` if it has handed over no such memory.
    fn peer_ref(
        &self,
        _range: ItemRange,
        _region_offset: (u32, u64),
        _length: u64,
    ) -> Option<ShmRef> {
        None
    }

    /// Queue bytes of an item, after everything queued before. Handed back if there is no room, or
    /// if the push has no byte.
    fn push(&mut self, push: Push) -> Result<(), Push>;

    /// Receive bytes of an item into `parts`, in order, from `offset` of the requested range. An
    /// item may have several exposed ranges; each completes by itself. Handed back if there is no
    /// room, if a part is shared, if there is no byte, and if one of the bytes is exposed already.
    fn expose(
        &mut self,
        op: OpId,
        item: u32,
        offset: u64,
        parts: Vec<Part>,
    ) -> Result<(), Vec<Part>>;

    /// Announce that this end will send within some ten microseconds. On links where waking a peer
    /// takes long, this wakes a sleeping peer now, at the cost that waking it later would have. On
    /// other links nothing happens.
    fn wake_peer(&mut self) {}

    /// Write as much of the queue as the stream takes now, so that the peer has it while the caller
    /// prepares the rest of a response. Resulting events come with the next [`Link::poll`].
    fn flush_queue(&mut self) {}

    /// Release a reference: the bytes were copied, and this end no longer reads them.
    fn release_ref(&mut self, shown: ShmRef);

    /// Retract the memory of an operation: the next poll returns each of its exposed ranges in
    /// [`LinkEvent::Retracted`] and each of its pushes in [`LinkEvent::Pushed`], except those that
    /// a device still accesses. They come when it no longer does, or with the end of the link,
    /// which is closed after
    /// [`LinkLimits::revoke_timeout`](crate::limits::LinkLimits::revoke_timeout). Bytes that still
    /// arrive for the operation are discarded.
    fn retract(&mut self, op: OpId);

    /// Move as many bytes as possible now, and append the events to `events`. Never waits.
    fn poll(&mut self, events: &mut Vec<LinkEvent>);

    /// As `poll`, but wait until an event occurred, the link is closed, or `timeout` passed.
    fn wait(&mut self, events: &mut Vec<LinkEvent>, timeout: Duration);

    /// Close. The next poll hands back all memory, or a later one if a device still accesses it.
    /// The peer gets a goodbye if it can be sent at once.
    fn close(&mut self);
}
