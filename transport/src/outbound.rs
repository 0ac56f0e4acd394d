//! The sending half of a byte-stream link: a bounded queue of control frames and pushes.
//!
//! Control frames, and the heads of data frames, are copied into one buffer (`copied`). Bulk bytes
//! are written from the pushed memory without a copy.
//!
//! If the link has an RDMA data plane, bytes that have a target at the client are not written to
//! the stream: a device writes them, and a placed frame takes the place of their data frame.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use pagelith_io::buffer::Part;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::shm_ref::{self, ItemRange, Released, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind};

use crate::frame_writer::FrameWriter;
use crate::limits::{LinkLimits, RELEASES_QUEUED_MAX, URGENT_MAX, WRITTEN_BYTES_MAX};
use crate::link::{LinkCapacity, LinkCounters, LinkEvent, Push};
use crate::link_error::LinkError;
use crate::push_cursor::{PushCursor, item_range_of, pushed};
use crate::rdma::{Placement, STRIPE_BYTES, ServerPlane, WrittenBytes};
use crate::stream::{Stream, StreamResult};

/// Maximum iovecs in one system call.
const IOVECS_MAX: usize = 64;
/// Maximum bytes written in one poll, plus one write.
const POLL_BYTES_MAX: u64 = 8 << 20;
/// Maximum ranges in one `Taken` frame: well below the limit of every reader.
const RELEASES_PER_FRAME_MAX: usize = 512;

enum Queued {
    Frame(Frame),
    /// A frame of the link's own, which counts for no limit.
    Own(Frame),
    Push(PushCursor),
    /// A push that is passed by reference, and the location of its bytes.
    Reference(Push, Vec<ShownPiece>),
}

pub(crate) struct Outbound {
    writer: FrameWriter,
    limits: LinkLimits,
    queue: VecDeque<Queued>,
    /// Frames that are sent before the queue, between two other frames.
    urgent: VecDeque<Frame>,
    /// Pushes passed by reference and not released by the peer; `None` while still in the queue.
    references: BTreeMap<ItemRange, Option<Push>>,
    /// Pushes whose last bytes are being written by a device.
    writing: BTreeMap<u64, PushCursor>,
    last_push: u64,
    /// The first push waits: for its device, or for the client's report of polled notices.
    is_blocked: bool,
    /// Ranges of the peer that this end has released, not yet sent in a `Taken` frame.
    releases: Vec<Released>,
    /// Only `Taken` frames are copied: they need not wake the peer.
    quiet: bool,
    /// Whole frames and the head of a data frame. `copied[..at]` is written.
    copied: Vec<u8>,
    at: usize,
    /// Unwritten bytes of the data frame whose head was copied last, out of the first push.
    body_left: u64,
    frames: usize,
    frame_bytes: usize,
    /// Pushes that are not handed back.
    pushes: usize,
    /// Bytes that the stream has taken so far.
    written: u64,
}

impl Outbound {
    /// `first` is sent before everything else: the unsent bytes of the handshake.
    pub fn new(writer: FrameWriter, limits: LinkLimits, first: Vec<u8>) -> Outbound {
        Outbound {
            writer,
            limits,
            queue: VecDeque::new(),
            urgent: VecDeque::new(),
            references: BTreeMap::new(),
            writing: BTreeMap::new(),
            last_push: 0,
            is_blocked: false,
            releases: Vec::new(),
            quiet: false,
            copied: first,
            at: 0,
            body_left: 0,
            frames: 0,
            frame_bytes: 0,
            pushes: 0,
            written: 0,
        }
    }

    pub fn capacity(&self, exposures: usize, operations: usize) -> LinkCapacity {
        LinkCapacity {
            frames: self.limits.frames_max.saturating_sub(self.frames),
            frame_bytes: self.limits.frame_bytes_max.saturating_sub(self.frame_bytes),
            pushes: self.limits.pushes_max.saturating_sub(self.pushes),
            exposures,
            operations,
        }
    }

    /// Whether so much is queued that the peer must read some of it before it sends more. The limit
    /// is half of the capacity, so that the outcomes of requests in flight find room.
    pub fn is_congested(&self) -> bool {
        2 * self.frames >= self.limits.frames_max
            || 2 * self.frame_bytes >= self.limits.frame_bytes_max
            || self.releases.len() >= RELEASES_QUEUED_MAX
    }

    /// Whether the first push waits for its device, or for the client's report of polled notices.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether a device reads pushes of an operation of which nothing is left to send.
    pub fn is_writing(&self, op: OpId) -> bool {
        self.writing.values().any(|cursor| cursor.push.op == op)
    }

    /// Releases that are not sent yet.
    pub fn queued_releases(&self) -> usize {
        self.releases.len()
    }

    /// Bytes that the stream has taken so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether there are bytes to write.
    pub fn is_busy(&self) -> bool {
        self.at < self.copied.len()
            || self.body_left > 0
            || !self.queue.is_empty() && !self.is_blocked
            || !self.urgent.is_empty()
            || !self.releases.is_empty()
    }

    /// Whether [`Outbound::send`] takes a frame.
    pub fn takes(&self, frame: &Frame) -> bool {
        let room = self.capacity(0, 0);
        let kind = frame.kind;
        let ours = kind.is_sent_by(self.writer.side) && !kind.is_greeting();
        let users = ours
            && matches!(
                kind,
                FrameKind::Request | FrameKind::Pull | FrameKind::Outcome | FrameKind::Cancel
            );
        let fits = frame.body.len() <= self.writer.control_bytes_max as usize
            && frame.body.is_empty() == kind.is_bare()
            && frame.op.0 != 0;
        users && fits && room.frames > 0 && room.frame_bytes >= frame.body.len()
    }

    pub fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        if !self.takes(&frame) {
            return Err(frame);
        }
        self.frames += 1;
        self.frame_bytes += frame.body.len();
        self.queue.push_back(Queued::Frame(frame));
        Ok(())
    }

    /// Queue frames of the link's own, which are no answer to the peer's.
    pub fn send_own(&mut self, frames: Vec<Frame>) {
        self.queue.extend(frames.into_iter().map(Queued::Own));
    }

    /// Queue a ping, pong or goodbye before all other frames; false if too many are queued.
    pub fn send_urgent(&mut self, frame: Frame) -> bool {
        let room = self.urgent.len() < URGENT_MAX;
        if room {
            self.urgent.push_back(frame);
        }
        room
    }

    /// Queue a push. It is passed by reference if `find` finds where all of it is.
    pub fn push(
        &mut self,
        push: Push,
        find: impl FnOnce(&[Part]) -> Option<Vec<ShownPiece>>,
    ) -> Result<(), Push> {
        let len: u64 = push.parts.iter().map(|part| part.len() as u64).sum();
        let named = push.op.0 != 0 && push.offset.checked_add(len).is_some();
        if len == 0 || !named || self.pushes >= self.limits.pushes_max {
            return Err(push);
        }
        self.pushes += 1;
        let by_ref = push.allow_ref && !self.references.contains_key(&item_range_of(&push));
        let pieces = if by_ref { find(&push.parts) } else { None };
        if let Some(pieces) = pieces {
            self.references.insert(item_range_of(&push), None);
            self.queue.push_back(Queued::Reference(push, pieces));
            return Ok(());
        }
        self.queue_bytes(push, len);
        Ok(())
    }

    /// Queue a push whose bytes are sent.
    fn queue_bytes(&mut self, push: Push, len: u64) {
        self.last_push += 1;
        self.queue.push_back(Queued::Push(PushCursor::new(self.last_push, push, len)));
    }

    /// Queue the release of a range that the peer passed by reference.
    pub fn queue_release(&mut self, released: Released) {
        self.releases.push(released);
    }

    /// Hand back the pushes that the peer has released, and send the bytes of those that it has not
    /// read. `by_rdma` tells how it reads.
    pub fn complete_refs(
        &mut self,
        released: &[Released],
        by_rdma: bool,
        events: &mut Vec<LinkEvent>,
        counts: &mut LinkCounters,
    ) {
        for Released { range, unread } in released {
            let Some(push) = self.references.get_mut(range).and_then(Option::take) else {
                continue;
            };
            self.references.remove(range);
            if *unread {
                let len = push.parts.iter().map(|part| part.len() as u64).sum();
                self.queue_bytes(push, len);
                continue;
            }
            self.pushes -= 1;
            let bytes = push.parts.iter().map(|part| part.len() as u64).sum::<u64>();
            counts.bytes_out += bytes;
            counts.bytes_by_rdma += if by_rdma { bytes } else { 0 };
            events.push(pushed(push, true));
        }
    }

    /// Hand back the pushes that a device has written.
    pub fn complete_writes(
        &mut self,
        written: &[WrittenBytes],
        events: &mut Vec<LinkEvent>,
        counts: &mut LinkCounters,
    ) {
        for WrittenBytes { push: id, bytes, .. } in written {
            counts.bytes_out += bytes;
            counts.bytes_by_rdma += bytes;
            if let Some(Queued::Push(front)) = self.queue.front_mut()
                && front.id == *id
            {
                front.writing -= bytes;
                continue;
            }
            let Some(cursor) = self.writing.get_mut(id) else { continue };
            cursor.writing -= bytes;
            if cursor.writing == 0
                && let Some(cursor) = self.writing.remove(id)
            {
                self.end_push(cursor, events);
            }
        }
    }

    /// A push of which nothing is left to send: hand it back, or wait for its device.
    fn end_push(&mut self, cursor: PushCursor, events: &mut Vec<LinkEvent>) {
        if cursor.writing > 0 {
            self.writing.insert(cursor.id, cursor);
            return;
        }
        self.pushes -= 1;
        events.push(pushed(cursor.push, !cursor.is_retracted));
    }

    /// Hand back all pushes. If `are_leaked`, those that a device may read are leaked, and handed
    /// back without memory.
    pub fn retract_all(&mut self, are_leaked: bool, events: &mut Vec<LinkEvent>) {
        self.retract(None, events);
        for mut cursor in std::mem::take(&mut self.writing).into_values() {
            self.pushes -= 1;
            if are_leaked {
                std::mem::forget(std::mem::take(&mut cursor.push.parts));
            }
            events.push(pushed(cursor.push, false));
        }
    }

    /// Hand back the pushes of `op`, or of all operations, but for those that a device reads. A
    /// partly written frame is completed from a copy, so that the stream keeps its framing and the
    /// memory is free at once.
    pub fn retract(&mut self, op: Option<OpId>, events: &mut Vec<LinkEvent>) {
        let is_retracted = |cursor: &PushCursor| op.is_none_or(|op| cursor.push.op == op);
        if self.body_left > 0
            && let Some(Queued::Push(front)) = self.queue.front()
            && is_retracted(front)
        {
            self.copied.drain(..std::mem::take(&mut self.at));
            let rest = front.next_slices(self.body_left, usize::MAX);
            rest.iter().for_each(|bytes| self.copied.extend_from_slice(bytes));
            self.body_left = 0;
        }
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                Queued::Push(mut cursor) if is_retracted(&cursor) => {
                    cursor.is_retracted = true;
                    self.end_push(cursor, events);
                }
                Queued::Reference(push, _) if op.is_none_or(|op| push.op == op) => {
                    self.pushes -= 1;
                    events.push(pushed(push, false));
                }
                other => self.queue.push_back(other),
            }
        }
        // What comes first now may not have to wait.
        self.is_blocked = false;
        let writing = self.writing.values_mut().filter(|cursor| is_retracted(cursor));
        writing.for_each(|cursor| cursor.is_retracted = true);
        let is_retracted = |range: &ItemRange| op.is_none_or(|op| range.0 == op);
        // Pushes that were still in the queue are handed back already.
        let ranges: Vec<_> = self.references.keys().copied().filter(is_retracted).collect();
        for push in ranges.iter().filter_map(|range| self.references.remove(range)?) {
            self.pushes -= 1;
            events.push(pushed(push, false));
        }
    }

    /// Write as much as possible now.
    pub fn pump(
        &mut self,
        stream: &mut dyn Stream,
        mut plane: Option<&mut ServerPlane>,
        events: &mut Vec<LinkEvent>,
        counts: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        let mut total = 0;
        while total < POLL_BYTES_MAX {
            if self.at == self.copied.len() && self.body_left == 0 {
                self.encode(plane.as_deref_mut(), events, counts)?;
                if self.copied.is_empty() {
                    return Ok(());
                }
            }
            counts.calls += 1;
            match self.write(stream) {
                StreamResult::Bytes(n) => {
                    total += n as u64;
                    self.written += n as u64;
                    self.advance(n, events, counts);
                }
                StreamResult::Blocked => return Ok(()),
                StreamResult::Ended => return Err(LinkError::Disconnected),
                StreamResult::Failed { operation, errno } => {
                    return Err(LinkError::SystemCall { operation, errno });
                }
            }
        }
        Ok(())
    }

    /// One write to the stream.
    fn write(&mut self, stream: &mut dyn Stream) -> StreamResult {
        let copied = &self.copied[self.at..];
        let mut slices = Vec::new();
        if !copied.is_empty() {
            slices.push(IoSlice::new(copied));
        }
        if self.body_left > 0
            && let Some(Queued::Push(front)) = self.queue.front()
        {
            let bulk = front.next_slices(self.body_left, IOVECS_MAX);
            slices.extend(bulk.into_iter().map(IoSlice::new));
        }
        if self.quiet { stream.write_without_wake(&slices) } else { stream.write(&slices) }
    }

    /// Record that `bytes` bytes were written.
    fn advance(&mut self, bytes: usize, events: &mut Vec<LinkEvent>, counts: &mut LinkCounters) {
        let copied = bytes.min(self.copied.len() - self.at);
        self.at += copied;
        let bulk = bytes - copied;
        if bulk == 0 {
            return;
        }
        counts.bytes_out += bulk as u64;
        self.body_left -= bulk as u64;
        if let Some(Queued::Push(front)) = self.queue.front_mut() {
            front.advance(bulk);
            if self.body_left == 0
                && front.framed == front.len
                && let Some(Queued::Push(whole)) = self.queue.pop_front()
            {
                self.end_push(whole, events);
            }
        }
    }

    /// Encode the next bytes: control frames, up to and including the head of a data frame.
    fn encode(
        &mut self,
        mut plane: Option<&mut ServerPlane>,
        events: &mut Vec<LinkEvent>,
        counts: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        self.copied.clear();
        (self.at, self.quiet) = (0, self.urgent.is_empty() && self.queue.is_empty());
        while let Some(frame) = self.urgent.pop_front() {
            self.writer.control(&frame, &mut self.copied);
        }
        while !self.releases.is_empty() {
            let count = self.releases.len().min(RELEASES_PER_FRAME_MAX);
            let now: Vec<Released> = self.releases.drain(..count).collect();
            let frame = Frame::new(FrameKind::Taken, OpId(0), shm_ref::encode_released(&now));
            self.writer.control(&frame, &mut self.copied);
        }
        self.is_blocked = false;
        while self.copied.len() < WRITTEN_BYTES_MAX {
            let more = match self.queue.front() {
                None => false,
                Some(Queued::Push(_)) => self.encode_push(plane.as_deref_mut(), events)?,
                Some(_) => {
                    self.encode_frame(plane.as_deref_mut(), counts);
                    true
                }
            };
            if !more {
                break;
            }
        }
        plane.map_or(Ok(()), ServerPlane::post_notices)
    }

    /// Encode the frame that is first in the queue.
    fn encode_frame(&mut self, plane: Option<&mut ServerPlane>, counts: &mut LinkCounters) {
        match self.queue.pop_front() {
            Some(Queued::Reference(push, pieces)) => {
                let body = shm_ref::encode(push.item, push.offset, &pieces);
                self.writer.control(&Frame::new(FrameKind::Shown, push.op, body), &mut self.copied);
                self.references.insert(item_range_of(&push), Some(push));
            }
            Some(Queued::Frame(frame)) => {
                self.frames -= 1;
                self.frame_bytes -= frame.body.len();
                counts.frames_out += 1;
                self.writer.control(&frame, &mut self.copied);
                if frame.kind == FrameKind::Outcome {
                    plane.into_iter().for_each(|plane| plane.note_outcome(frame.op));
                }
            }
            Some(Queued::Own(frame)) => self.writer.control(&frame, &mut self.copied),
            Some(Queued::Push(_)) | None => {}
        }
    }

    /// Encode the head of the next bytes of the push that is first in the queue, or let a device
    /// write them. False if nothing can be copied after them.
    fn encode_push(
        &mut self,
        plane: Option<&mut ServerPlane>,
        events: &mut Vec<LinkEvent>,
    ) -> Result<bool, LinkError> {
        let Some(Queued::Push(front)) = self.queue.front_mut() else { return Ok(false) };
        let (left, offset) = (front.len - front.framed, front.push.offset + front.framed);
        let mut most = u64::from(self.writer.data_bytes_max).min(left);
        if let Some(plane) = plane {
            let bytes = front.next_slices(left.min(STRIPE_BYTES), usize::MAX);
            let placed = plane.place(&front.push, front.id, offset, &bytes);
            if placed.is_err() {
                // Requests may be posted in part: the memory waits for the end of the link.
                front.writing += left;
            }
            match placed? {
                Placement::OnStream(length) => most = most.min(length),
                Placement::Blocked => {
                    self.is_blocked = true;
                    return Ok(false);
                }
                Placement::Placed(body) => {
                    self.writer.placed(&front.push, offset, &body.encode(), &mut self.copied);
                    front.note_placed(body.length);
                    if front.framed == front.len
                        && let Some(Queued::Push(whole)) = self.queue.pop_front()
                    {
                        self.end_push(whole, events);
                    }
                    return Ok(true);
                }
            }
        }
        // At most `data_bytes_max`, which has 32 bits.
        self.writer.data(&front.push, offset, most as u32, &mut self.copied);
        front.framed += most;
        self.body_left = most;
        Ok(false)
    }
}
