//! The sending half of a byte-stream link: a bounded queue of control frames and pushes.
//!
//! Control frames, and the heads of data frames, are copied into one buffer (`staged`). Bulk bytes
//! are written from the pushed memory without a copy.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::shm_ref::{self, ItemRange, Released, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameHead, FrameKind, LinkRole};

use crate::auth::FrameMac;
use crate::limits::{LinkLimits, WRITTEN_BYTES_MAX};
use crate::link::{LinkCapacity, LinkCounters, LinkEvent, Push};
use crate::link_error::LinkError;
use crate::push_cursor::PushCursor;
use crate::shown::LinkRegions;
use crate::stream::{Stream, StreamResult};

/// Maximum iovecs in one system call.
const IOVECS_MAX: usize = 64;
/// Maximum bytes written in one poll, plus one write.
const POLL_BYTES_MAX: u64 = 8 << 20;
/// Maximum ranges in one `Taken` frame: well below the limit of every reader.
const RELEASES_PER_FRAME_MAX: usize = 512;
/// Queued releases at which a server stops reading from its client.
const RELEASES_QUEUED_MAX: usize = 4096;
/// Maximum queued pings, pongs and goodbyes.
const URGENT_MAX: usize = 16;

enum Queued {
    Frame(Frame),
    Push(PushCursor),
    /// A push that is passed by reference, and the location of its bytes.
    Reference(Push, Vec<ShownPiece>),
}

/// Encodes frames: this end's role, and the negotiated limits.
pub(crate) struct FrameWriter {
    pub side: LinkRole,
    pub version: u16,
    pub control_bytes_max: u32,
    pub data_bytes_max: u32,
    pub mac: Option<FrameMac>,
}

pub(crate) struct Outbound {
    writer: FrameWriter,
    limits: LinkLimits,
    queue: VecDeque<Queued>,
    /// Frames that are sent before the queue, between two other frames.
    urgent: VecDeque<Frame>,
    /// Pushes passed by reference and not released by the peer; `None` while still in the queue.
    references: BTreeMap<ItemRange, Option<Push>>,
    /// Ranges of the peer that this end has released, not yet sent in a `Taken` frame.
    releases: Vec<ItemRange>,
    /// Only `Taken` frames are staged: they need not wake the peer.
    quiet: bool,
    /// Whole frames and the head of a data frame. `staged[..at]` is written.
    staged: Vec<u8>,
    at: usize,
    /// Unwritten bytes of the data frame whose head was staged last, out of the first push.
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
            releases: Vec::new(),
            quiet: false,
            staged: first,
            at: 0,
            body_left: 0,
            frames: 0,
            frame_bytes: 0,
            pushes: 0,
            written: 0,
        }
    }

    pub fn room(&self, exposures: usize, operations: usize) -> LinkCapacity {
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
        self.at < self.staged.len()
            || self.body_left > 0
            || !self.queue.is_empty()
            || !self.urgent.is_empty()
            || !self.releases.is_empty()
    }

    pub fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let room = self.room(0, 0);
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
        if !users || !fits || room.frames == 0 || room.frame_bytes < frame.body.len() {
            return Err(frame);
        }
        self.frames += 1;
        self.frame_bytes += frame.body.len();
        self.queue.push_back(Queued::Frame(frame));
        Ok(())
    }

    /// Queue a ping, pong or goodbye before all other frames; false if too many are queued.
    pub fn send_urgent(&mut self, frame: Frame) -> bool {
        let room = self.urgent.len() < URGENT_MAX;
        if room {
            self.urgent.push_back(frame);
        }
        room
    }

    /// Queue a push. It is passed by reference if all of it is in `regions`.
    pub fn push(&mut self, push: Push, regions: &LinkRegions) -> Result<(), Push> {
        let len: u64 = push.parts.iter().map(|part| part.len() as u64).sum();
        let named = push.op.0 != 0 && push.offset.checked_add(len).is_some();
        if len == 0 || !named || self.pushes >= self.limits.pushes_max {
            return Err(push);
        }
        self.pushes += 1;
        let by_ref = push.allow_ref && !self.references.contains_key(&item_range_of(&push));
        let pieces = if by_ref { regions.pieces(&push.parts) } else { None };
        if let Some(pieces) = pieces {
            self.references.insert(item_range_of(&push), None);
            self.queue.push_back(Queued::Reference(push, pieces));
            return Ok(());
        }
        self.queue.push_back(Queued::Push(PushCursor::new(push, len)));
        Ok(())
    }

    /// Queue the release of a range that the peer passed by reference.
    pub fn queue_release(&mut self, stretch: ItemRange) {
        self.releases.push(stretch);
    }

    /// Hand back the pushes that the peer has released.
    pub fn complete_refs(
        &mut self,
        stretches: &[ItemRange],
        events: &mut Vec<LinkEvent>,
        counts: &mut LinkCounters,
    ) {
        for stretch in stretches {
            let Some(push) = self.references.get_mut(stretch).and_then(Option::take) else {
                continue;
            };
            self.references.remove(stretch);
            self.pushes -= 1;
            counts.bytes_out += push.parts.iter().map(|part| part.len() as u64).sum::<u64>();
            events.push(pushed(push, true));
        }
    }

    /// Hand back the pushes of `op`, or of all operations. A partly written frame is completed from
    /// a copy, so that the stream keeps its framing and the memory is free at once.
    pub fn retract(&mut self, op: Option<OpId>, events: &mut Vec<LinkEvent>) {
        let is_retracted = |cursor: &PushCursor| op.is_none_or(|op| cursor.push.op == op);
        if self.body_left > 0
            && let Some(Queued::Push(front)) = self.queue.front()
            && is_retracted(front)
        {
            self.staged.drain(..std::mem::take(&mut self.at));
            let rest = front.next_slices(self.body_left, usize::MAX);
            rest.iter().for_each(|bytes| self.staged.extend_from_slice(bytes));
            self.body_left = 0;
        }
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                Queued::Push(cursor) if is_retracted(&cursor) => {
                    self.pushes -= 1;
                    events.push(pushed(cursor.push, false));
                }
                Queued::Reference(push, _) if op.is_none_or(|op| push.op == op) => {
                    self.pushes -= 1;
                    events.push(pushed(push, false));
                }
                other => self.queue.push_back(other),
            }
        }
        let is_retracted = |stretch: &ItemRange| op.is_none_or(|op| stretch.0 == op);
        // Pushes that were still in the queue are handed back already.
        let retracted: Vec<ItemRange> =
            self.references.keys().copied().filter(is_retracted).collect();
        for push in retracted.iter().filter_map(|stretch| self.references.remove(stretch)?) {
            self.pushes -= 1;
            events.push(pushed(push, false));
        }
    }

    /// Write as much as possible now.
    pub fn pump(
        &mut self,
        stream: &mut dyn Stream,
        events: &mut Vec<LinkEvent>,
        counts: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        let mut total = 0;
        while total < POLL_BYTES_MAX {
            if self.at == self.staged.len() && self.body_left == 0 {
                self.stage(counts);
                if self.staged.is_empty() {
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
        let staged = &self.staged[self.at..];
        let mut slices = Vec::new();
        if !staged.is_empty() {
            slices.push(IoSlice::new(staged));
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
        let staged = bytes.min(self.staged.len() - self.at);
        self.at += staged;
        let bulk = bytes - staged;
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
                self.pushes -= 1;
                events.push(pushed(whole.push, true));
            }
        }
    }

    /// Stage the next bytes to write: control frames, up to and including the head of a data frame.
    fn stage(&mut self, counts: &mut LinkCounters) {
        self.staged.clear();
        self.at = 0;
        self.quiet = self.urgent.is_empty() && self.queue.is_empty();
        while let Some(frame) = self.urgent.pop_front() {
            self.writer.control(&frame, &mut self.staged);
        }
        while !self.releases.is_empty() {
            let count = self.releases.len().min(RELEASES_PER_FRAME_MAX);
            let released = |range| Released { range, unread: false };
            let now: Vec<Released> = self.releases.drain(..count).map(released).collect();
            let frame = Frame::new(FrameKind::Taken, OpId(0), shm_ref::encode_released(&now));
            self.writer.control(&frame, &mut self.staged);
        }
        while self.staged.len() < WRITTEN_BYTES_MAX {
            match self.queue.front_mut() {
                None => return,
                Some(Queued::Reference(..)) => {
                    let Some(Queued::Reference(push, pieces)) = self.queue.pop_front() else {
                        return;
                    };
                    let body = shm_ref::encode(push.item, push.offset, &pieces);
                    self.writer
                        .control(&Frame::new(FrameKind::Shown, push.op, body), &mut self.staged);
                    self.references.insert(item_range_of(&push), Some(push));
                }
                Some(Queued::Push(front)) => {
                    let most = u64::from(self.writer.data_bytes_max);
                    let bytes = (front.len - front.framed).min(most) as u32;
                    let offset = front.push.offset + front.framed;
                    self.writer.data(&front.push, offset, bytes, &mut self.staged);
                    front.framed += u64::from(bytes);
                    self.body_left = bytes.into();
                    return;
                }
                Some(Queued::Frame(_)) => {
                    let Some(Queued::Frame(frame)) = self.queue.pop_front() else { return };
                    self.frames -= 1;
                    self.frame_bytes -= frame.body.len();
                    counts.frames_out += 1;
                    self.writer.control(&frame, &mut self.staged);
                }
            }
        }
    }
}

impl FrameWriter {
    fn control(&mut self, frame: &Frame, out: &mut Vec<u8>) {
        let facts = HeadFacts::control(self.version, frame.kind, frame.op, &frame.body);
        out.extend_from_slice(&self.head(&facts, &frame.body));
        out.extend_from_slice(&frame.body);
    }

    fn data(&mut self, push: &Push, offset: u64, bytes: u32, out: &mut Vec<u8>) {
        let facts = HeadFacts::data(self.version, push.op, push.item, offset, bytes);
        out.extend_from_slice(&self.head(&facts, &[]));
    }

    fn head(&mut self, facts: &HeadFacts, body: &[u8]) -> [u8; FrameHead::BYTES] {
        let bare = head::encode(facts, [0; 16]);
        match &mut self.mac {
            Some(macs) => head::encode(facts, macs.next(&bare, body)),
            None => bare,
        }
    }
}

/// The range that a push fills.
fn item_range_of(push: &Push) -> ItemRange {
    (push.op, push.item, push.offset)
}

fn pushed(push: Push, sent: bool) -> LinkEvent {
    let Push { op, token, parts, .. } = push;
    LinkEvent::Pushed { op, token, sent, parts }
}
