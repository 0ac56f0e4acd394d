//! The receiving half of a byte-stream link: parses frames, and reads bulk bytes into exposed
//! memory.
//!
//! Only a frame's head tells the destination of its body. So while any range is exposed, a read
//! ends at the next head, and the stream writes bulk bytes straight into exposed memory. If the
//! peer passes bulk bytes by reference, a read may exceed the next head by
//! [`READ_AHEAD_SHARED_BYTES`]. While no range is exposed, a read fills the whole read-ahead
//! buffer.
//!
//! If the link has an RDMA data plane, bytes may land in exposed memory without the stream. Parsing
//! stops at the placed frame that takes their place, until they have landed. So events keep the
//! order of the frames.

use std::borrow::Cow;
use std::io::IoSliceMut;

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts, Mac};
use pagelith_layouts::wire::placement::PlacedBody;
use pagelith_layouts::wire::shm_ref;
use pagelith_layouts::wire::{Frame, FrameHead, FrameKind, LinkRole};

use crate::auth::FrameMac;
use crate::exposures::ExposureKey;
use crate::frame_sink::FrameSink;
use crate::link::LinkEvent;
use crate::link_error::LinkError;
use crate::stream::{Stream, StreamResult};

/// Size of the read-ahead buffer, for control frames and for discarded bytes.
pub(crate) const READ_AHEAD_BYTES: usize = 64 << 10;
/// Read-ahead while memory is exposed and the peer passes most bulk bytes by reference. Bulk bytes
/// that the peer sends instead may land in this buffer, and are then copied once more.
const READ_AHEAD_SHARED_BYTES: usize = 2 << 10;
/// Read-ahead while the link waits until bytes have landed.
const READ_AHEAD_STOPPED_BYTES: usize = 4 << 10;
/// Maximum bytes read in one poll, plus one read.
const POLL_BYTES_MAX: u64 = 8 << 20;
/// The same for control frames, which the link holds until its user polls them.
pub(crate) const POLL_CONTROL_BYTES_MAX: usize = 1 << 20;

enum ReadState {
    /// Waiting for a head.
    Head,
    /// Collecting a control body.
    Control { head: [u8; FrameHead::BYTES], facts: HeadFacts, mac: Mac, body: Vec<u8> },
    /// Reading `left` more bytes into an exposed range.
    Data { key: ExposureKey, left: u64 },
    /// Discarding `left` more bytes.
    Discard { left: u64 },
    /// Waiting until these bytes have landed.
    Placed { facts: HeadFacts, placed: PlacedBody },
}

/// Checks and dispatches frames: the peer's role, and the negotiated limits.
pub(crate) struct FrameReader {
    pub from: LinkRole,
    pub version: u16,
    pub control_bytes_max: u32,
    pub data_bytes_max: u32,
    pub mac: Option<FrameMac>,
}

pub(crate) struct Inbound {
    reader: FrameReader,
    state: ReadState,
    /// The read-ahead buffer; its unparsed bytes are `ahead[start..end]`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of control frames in this poll.
    control: usize,
    /// The stream has ended; what was read of it may not be parsed yet.
    has_ended: bool,
}

impl Inbound {
    pub fn new(reader: FrameReader) -> Inbound {
        let ahead = vec![0; READ_AHEAD_BYTES].into_boxed_slice();
        Inbound {
            reader,
            state: ReadState::Head,
            ahead,
            start: 0,
            end: 0,
            control: 0,
            has_ended: false,
        }
    }

    /// Read as much as possible now. Returns the number of bytes read.
    pub fn pump(
        &mut self,
        stream: &mut dyn Stream,
        sink: &mut FrameSink<'_>,
    ) -> Result<u64, LinkError> {
        let mut total = 0;
        self.control = 0;
        loop {
            self.parse(sink)?;
            if self.is_stopped() {
                return Ok(total + self.read_ahead(stream, sink)?);
            }
            if total >= POLL_BYTES_MAX || self.control >= POLL_CONTROL_BYTES_MAX {
                return Ok(total);
            }
            sink.counts.calls += 1;
            match self.read(stream, sink) {
                (StreamResult::Bytes(n), asked) => {
                    total += n as u64;
                    // A short read: the stream has no more bytes now.
                    if n < asked {
                        self.parse(sink)?;
                        return Ok(total);
                    }
                }
                (StreamResult::Blocked, _) => return Ok(total),
                (StreamResult::Ended, _) => return Err(LinkError::Disconnected),
                (StreamResult::Failed { operation, errno }, _) => {
                    return Err(LinkError::SystemCall { operation, errno });
                }
            }
        }
    }

    /// Whether nothing is parsed until bytes have landed that the peer's device writes.
    fn is_stopped(&self) -> bool {
        matches!(self.state, ReadState::Placed { .. })
    }

    /// Whether bytes are read if there are any.
    pub fn wants_read(&self) -> bool {
        let has_room = self.end - self.start < READ_AHEAD_STOPPED_BYTES;
        !self.is_stopped() || has_room && !self.has_ended
    }

    /// Whether the stream has ended, although what was read of it is not parsed.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Read a little while nothing is parsed, so that the end of the stream is noticed.
    fn read_ahead(
        &mut self,
        stream: &mut dyn Stream,
        sink: &mut FrameSink<'_>,
    ) -> Result<u64, LinkError> {
        if !self.wants_read() {
            return Ok(0);
        }
        self.ahead.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let room = &mut self.ahead[self.end..READ_AHEAD_STOPPED_BYTES];
        sink.counts.calls += 1;
        match stream.read(&mut [IoSliceMut::new(room)]) {
            StreamResult::Bytes(n) => {
                self.end += n;
                Ok(n as u64)
            }
            StreamResult::Blocked => Ok(0),
            StreamResult::Ended => {
                self.has_ended = true;
                Ok(0)
            }
            StreamResult::Failed { operation, errno } => {
                Err(LinkError::SystemCall { operation, errno })
            }
        }
    }

    /// Discard the rest of a data frame of `op`, whose exposed memory was retracted.
    pub fn discard(&mut self, op: OpId) {
        if let ReadState::Data { key, left } = self.state
            && key.0 == op
        {
            self.state = ReadState::Discard { left };
        }
    }

    /// One read of the stream; its result, and the number of bytes requested.
    fn read(&mut self, stream: &mut dyn Stream, sink: &mut FrameSink<'_>) -> (StreamResult, usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let have = self.end - self.start;
        let missing = match &self.state {
            ReadState::Head => FrameHead::BYTES - have,
            ReadState::Control { facts, body, .. } => facts.body_bytes as usize - body.len() - have,
            ReadState::Discard { left } => {
                usize::try_from(*left).unwrap_or(usize::MAX).min(READ_AHEAD_BYTES)
            }
            ReadState::Data { .. } | ReadState::Placed { .. } => 0,
        };
        let next_head = if matches!(self.state, ReadState::Head) { 0 } else { FrameHead::BYTES };
        // References and placed frames are small, and arrive in quick succession.
        let are_sent = sink.regions.theirs.is_empty() && sink.data.is_none();
        let few = if are_sent { 0 } else { READ_AHEAD_SHARED_BYTES };
        let wanted =
            if sink.exposures.is_empty() { READ_AHEAD_BYTES } else { few.max(missing + next_head) };
        if self.start > 0 && self.end + wanted > self.ahead.len() {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, have);
        }
        let until = self.ahead.len().min(self.end.saturating_add(wanted));
        let ahead = &mut self.ahead[self.end..until];
        let ReadState::Data { key, left } = &mut self.state else {
            let asked = ahead.len();
            let moved = stream.read(&mut [IoSliceMut::new(ahead)]);
            if let StreamResult::Bytes(n) = moved {
                self.end += n;
            }
            return (moved, asked);
        };
        let mut slices = sink.exposures.next_slices(*key, *left);
        let direct: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut asked = direct;
        // The read-ahead buffer follows only if the slices reach the end of the frame's body.
        if direct as u64 == *left {
            asked += ahead.len();
            slices.push(IoSliceMut::new(ahead));
        }
        let moved = stream.read(&mut slices);
        if let StreamResult::Bytes(n) = moved {
            let landed = n.min(direct);
            *left -= landed as u64;
            self.end += n - landed;
            sink.counts.bytes_in += landed as u64;
            let key = *key;
            sink.exposures.advance(key, landed);
        }
        (moved, asked)
    }

    /// Parse the bytes in the read-ahead buffer.
    fn parse(&mut self, sink: &mut FrameSink<'_>) -> Result<(), LinkError> {
        loop {
            let ahead = &self.ahead[self.start..self.end];
            let taken = match &mut self.state {
                ReadState::Head => {
                    let Some(head) = ahead.first_chunk().copied() else { return Ok(()) };
                    self.state = self.reader.begin(head, sink)?;
                    FrameHead::BYTES
                }
                ReadState::Control { head, facts, mac, body } => {
                    let missing = facts.body_bytes as usize - body.len();
                    let now = missing.min(ahead.len());
                    let whole = match body.is_empty() && now == missing {
                        true => Cow::Borrowed(&ahead[..now]),
                        false => {
                            body.reserve(missing.min(READ_AHEAD_BYTES));
                            body.extend_from_slice(&ahead[..now]);
                            if now < missing {
                                (self.start, self.end) = (0, 0);
                                return Ok(());
                            }
                            Cow::Owned(std::mem::take(body))
                        }
                    };
                    self.control += FrameHead::BYTES + facts.body_bytes as usize;
                    let next = self.reader.deliver(head, facts, mac, whole, sink)?;
                    self.state = next;
                    now
                }
                ReadState::Data { key, left } => {
                    let now = ahead.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    sink.exposures.copy(*key, &ahead[..now]);
                    sink.counts.bytes_in += now as u64;
                    *left -= now as u64;
                    if *left > 0 {
                        (self.start, self.end) = (0, 0);
                        return Ok(());
                    }
                    sink.events.extend(sink.exposures.take_complete(*key));
                    self.state = ReadState::Head;
                    now
                }
                ReadState::Discard { left } => {
                    let now = ahead.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    sink.counts.bytes_late += now as u64;
                    *left -= now as u64;
                    if *left > 0 {
                        (self.start, self.end) = (0, 0);
                        return Ok(());
                    }
                    self.state = ReadState::Head;
                    now
                }
                ReadState::Placed { facts, placed } => {
                    if !sink.receive_placed(facts, placed)? {
                        return Ok(());
                    }
                    self.state = ReadState::Head;
                    0
                }
            };
            self.start += taken;
        }
    }
}

impl FrameReader {
    /// The state that handles the body after this head.
    fn begin(
        &mut self,
        bytes: [u8; FrameHead::BYTES],
        sink: &mut FrameSink<'_>,
    ) -> Result<ReadState, LinkError> {
        let (facts, mac) = head::decode(&bytes, Some(self.version))?;
        if facts.kind.is_greeting() || !facts.kind.is_sent_by(self.from) {
            return Err(LinkError::bad_field("kind", format_args!("{:?}", facts.kind)));
        }
        let data = facts.kind == FrameKind::Data;
        let most = if data { self.data_bytes_max } else { self.control_bytes_max };
        if facts.body_bytes > most {
            return Err(LinkError::bad_field("body_bytes", facts.body_bytes));
        }
        if !data {
            return Ok(ReadState::Control { head: bytes, facts, mac, body: Vec::new() });
        }
        self.check_mac(&bytes, &[], &mac)?;
        let left = u64::from(facts.body_bytes);
        Ok(match sink.exposures.locate(facts.op, facts.item, facts.offset, facts.body_bytes)? {
            Some(key) => ReadState::Data { key, left },
            None => ReadState::Discard { left },
        })
    }

    fn check_mac(
        &mut self,
        head: &[u8; FrameHead::BYTES],
        body: &[u8],
        mac: &Mac,
    ) -> Result<(), LinkError> {
        match &mut self.mac {
            Some(macs) => macs.check(head, body, mac),
            None if *mac == [0; 16] => Ok(()),
            None => Err(LinkError::violation("a frame has a MAC, and the link has no key")),
        }
    }

    fn deliver(
        &mut self,
        head: &[u8; FrameHead::BYTES],
        facts: &HeadFacts,
        mac: &Mac,
        body: Cow<'_, [u8]>,
        sink: &mut FrameSink<'_>,
    ) -> Result<ReadState, LinkError> {
        facts.check_body(&body)?;
        self.check_mac(head, &body, mac)?;
        let frame = |body: Cow<'_, [u8]>| Frame::new(facts.kind, facts.op, body.into_owned());
        match facts.kind {
            FrameKind::Ping | FrameKind::Pong | FrameKind::Bye => sink.own.push(frame(body)),
            FrameKind::Shown => sink.receive_ref(facts.op, &body)?,
            FrameKind::Taken if !sink.regions.own.is_empty() || sink.data.is_some() => {
                sink.released.extend(shm_ref::decode_released(&body)?);
            }
            FrameKind::Taken => {
                return Err(LinkError::violation("a reference was released that was not passed"));
            }
            FrameKind::Rails => return Err(LinkError::violation("rails are agreed already")),
            FrameKind::Regions | FrameKind::Targets | FrameKind::Noticed => {
                sink.receive_for_server(facts, &body)?;
            }
            FrameKind::Placed => {
                let placed = PlacedBody::decode(&body)?;
                return Ok(ReadState::Placed { facts: *facts, placed });
            }
            _ => {
                match facts.kind {
                    FrameKind::Outcome => sink.end_remote_access(facts.op),
                    FrameKind::Request => sink.check_number(facts.op)?,
                    _ => {}
                }
                sink.counts.frames_in += 1;
                sink.events.push(LinkEvent::Frame(frame(body)));
            }
        }
        Ok(ReadState::Head)
    }
}
