//! The sending half of a byte-stream link: a bounded queue of frames and pushes, cut into frames and written as the
//! stream takes them. Control frames are copied into one run of bytes; bulk bytes are written from where they lie.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::shown::{self, Stretch};
use pagelith_layouts::wire::{Frame, FrameHead, Kind, Side};

use crate::auth::FrameMac;
use crate::closed::Closed;
use crate::limits::Limits;
use crate::link::{Counts, Event, Push, Room};
use crate::sending::Sending;
use crate::shown::{Pieces, Regions};
use crate::stream::{Moved, Stream};

/// Bytes of control frames that are written together.
pub(crate) const STAGE_BYTES: usize = 64 << 10;
/// Most stretches of memory in one system call.
const STRETCHES_MAX: usize = 64;
/// Bytes after which a poll goes on to other things.
const TURN_BYTES: u64 = 8 << 20;
/// Most stretches in one frame that says what was taken: well below what every reader takes.
const TAKEN_MAX: usize = 512;
/// So many stretches that were taken wait to be said, and a server reads no more of who showed them.
const TAKEN_WAITING_MAX: usize = 4096;
/// Most pings, pongs and goodbyes that wait.
const URGENT_MAX: usize = 16;

enum Queued {
    Frame(Frame),
    Push(Sending),
    /// To be shown where it lies.
    Show(Push, Pieces),
}

/// What a writer goes by: its side, and what was agreed.
pub(crate) struct Writing {
    pub side: Side,
    pub version: u16,
    pub control_bytes_max: u32,
    pub data_bytes_max: u32,
    pub mac: Option<FrameMac>,
}

pub(crate) struct Outbound {
    writing: Writing,
    limits: Limits,
    queue: VecDeque<Queued>,
    /// In front of the queue, between two frames.
    urgent: VecDeque<Frame>,
    /// What the peer was shown and has not taken yet; `None` while that is still in the queue.
    shown: BTreeMap<Stretch, Option<Push>>,
    /// What was taken of what the peer showed, to be said.
    taken: Vec<Stretch>,
    /// Nothing is staged but what was taken: nobody waits for that.
    quiet: bool,
    /// Whole frames and the head of a data frame, written up to `at`.
    staged: Vec<u8>,
    at: usize,
    /// Bytes that the data frame whose head was staged last still needs, of the push in front.
    body_left: u64,
    frames: usize,
    frame_bytes: usize,
    /// Pushes that are not handed back.
    pushes: usize,
    /// Bytes that the stream took so far.
    written: u64,
}

impl Outbound {
    /// `first` goes out in front of everything: what is left of the handshake.
    pub fn new(writing: Writing, limits: Limits, first: Vec<u8>) -> Outbound {
        Outbound {
            writing,
            limits,
            queue: VecDeque::new(),
            urgent: VecDeque::new(),
            shown: BTreeMap::new(),
            taken: Vec::new(),
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

    pub fn room(&self, exposures: usize, operations: usize) -> Room {
        Room {
            frames: self.limits.frames_max.saturating_sub(self.frames),
            frame_bytes: self.limits.frame_bytes_max.saturating_sub(self.frame_bytes),
            pushes: self.limits.pushes_max.saturating_sub(self.pushes),
            exposures,
            operations,
        }
    }

    /// Whether what waits is so much that a peer is to read some of it before it says more: half of what may wait, so that the
    /// outcomes of what it has asked for already find room.
    pub fn is_stopped_up(&self) -> bool {
        2 * self.frames >= self.limits.frames_max
            || 2 * self.frame_bytes >= self.limits.frame_bytes_max
            || self.taken.len() >= TAKEN_WAITING_MAX
    }

    /// Stretches that were taken and not said yet.
    pub fn unsaid(&self) -> usize {
        self.taken.len()
    }

    /// Bytes that the stream took so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether there is anything to be written.
    pub fn is_busy(&self) -> bool {
        self.at < self.staged.len()
            || self.body_left > 0
            || !self.queue.is_empty()
            || !self.urgent.is_empty()
            || !self.taken.is_empty()
    }

    pub fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let room = self.room(0, 0);
        let kind = frame.kind;
        let ours = kind.is_sent_by(self.writing.side) && !kind.is_greeting();
        let users = ours && matches!(kind, Kind::Request | Kind::Pull | Kind::Outcome | Kind::Cancel);
        let fits = frame.body.len() <= self.writing.control_bytes_max as usize
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

    /// Put a ping, pong or goodbye in front; false if too many wait.
    pub fn send_urgent(&mut self, frame: Frame) -> bool {
        let room = self.urgent.len() < URGENT_MAX;
        if room {
            self.urgent.push_back(frame);
        }
        room
    }

    /// Queue a push; it is shown if it lies in `regions`.
    pub fn push(&mut self, push: Push, regions: &Regions) -> Result<(), Push> {
        let len: u64 = push.parts.iter().map(|part| part.len() as u64).sum();
        let named = push.op.0 != 0 && push.offset.checked_add(len).is_some();
        if len == 0 || !named || self.pushes >= self.limits.pushes_max {
            return Err(push);
        }
        self.pushes += 1;
        let may_show = push.may_show && !self.shown.contains_key(&stretch_of(&push));
        let pieces = if may_show { regions.pieces(&push.parts) } else { None };
        if let Some(pieces) = pieces {
            self.shown.insert(stretch_of(&push), None);
            self.queue.push_back(Queued::Show(push, pieces));
            return Ok(());
        }
        self.queue.push_back(Queued::Push(Sending::new(push, len)));
        Ok(())
    }

    /// Say that this was taken.
    pub fn took(&mut self, stretch: Stretch) {
        self.taken.push(stretch);
    }

    /// The peer has taken these.
    pub fn taken(&mut self, stretches: &[Stretch], events: &mut Vec<Event>, counts: &mut Counts) {
        for stretch in stretches {
            let Some(push) = self.shown.get_mut(stretch).and_then(Option::take) else { continue };
            self.shown.remove(stretch);
            self.pushes -= 1;
            counts.bytes_out += push.parts.iter().map(|part| part.len() as u64).sum::<u64>();
            events.push(over(push, true));
        }
    }

    /// Hand back the pushes of `op`, or all. A frame that is half out is finished from a copy, so that the stream stays
    /// whole and the memory is free at once.
    pub fn retract(&mut self, op: Option<OpId>, events: &mut Vec<Event>) {
        let given_up = |sending: &Sending| op.is_none_or(|op| sending.push.op == op);
        if self.body_left > 0
            && let Some(Queued::Push(front)) = self.queue.front()
            && given_up(front)
        {
            self.staged.drain(..std::mem::take(&mut self.at));
            let rest = front.rest(self.body_left, usize::MAX);
            rest.iter().for_each(|bytes| self.staged.extend_from_slice(bytes));
            self.body_left = 0;
        }
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                Queued::Push(sending) if given_up(&sending) => {
                    self.pushes -= 1;
                    events.push(over(sending.push, false));
                }
                Queued::Show(push, _) if op.is_none_or(|op| push.op == op) => {
                    self.pushes -= 1;
                    events.push(over(push, false));
                }
                other => self.queue.push_back(other),
            }
        }
        let given_up = |stretch: &Stretch| op.is_none_or(|op| stretch.0 == op);
        // Those that were still in the queue are back already.
        let gone: Vec<Stretch> = self.shown.keys().copied().filter(given_up).collect();
        for push in gone.iter().filter_map(|stretch| self.shown.remove(stretch)?) {
            self.pushes -= 1;
            events.push(over(push, false));
        }
    }

    /// Write as far as it goes now.
    pub fn pump(
        &mut self,
        stream: &mut dyn Stream,
        events: &mut Vec<Event>,
        counts: &mut Counts,
    ) -> Result<(), Closed> {
        let mut total = 0;
        while total < TURN_BYTES {
            if self.at == self.staged.len() && self.body_left == 0 {
                self.stage(counts);
                if self.staged.is_empty() {
                    return Ok(());
                }
            }
            counts.calls += 1;
            match self.write(stream) {
                Moved::Bytes(n) => {
                    total += n as u64;
                    self.written += n as u64;
                    self.advance(n, events, counts);
                }
                Moved::Blocked => return Ok(()),
                Moved::Ended => return Err(Closed::Ended),
                Moved::Failed { operation, errno } => return Err(Closed::System { operation, errno }),
            }
        }
        Ok(())
    }

    /// One call of the stream.
    fn write(&mut self, stream: &mut dyn Stream) -> Moved {
        let staged = &self.staged[self.at..];
        let mut stretches = Vec::new();
        if !staged.is_empty() {
            stretches.push(IoSlice::new(staged));
        }
        if self.body_left > 0
            && let Some(Queued::Push(front)) = self.queue.front()
        {
            let bulk = front.rest(self.body_left, STRETCHES_MAX);
            stretches.extend(bulk.into_iter().map(IoSlice::new));
        }
        if self.quiet { stream.write_quietly(&stretches) } else { stream.write(&stretches) }
    }

    /// So many bytes were written.
    fn advance(&mut self, bytes: usize, events: &mut Vec<Event>, counts: &mut Counts) {
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
                events.push(over(whole.push, true));
            }
        }
    }

    /// Make the next bytes to be written: control frames, up to and with the head of a data frame.
    fn stage(&mut self, counts: &mut Counts) {
        self.staged.clear();
        self.at = 0;
        self.quiet = self.urgent.is_empty() && self.queue.is_empty();
        while let Some(frame) = self.urgent.pop_front() {
            self.writing.control(&frame, &mut self.staged);
        }
        while !self.taken.is_empty() {
            let now: Vec<Stretch> = self.taken.drain(..self.taken.len().min(TAKEN_MAX)).collect();
            let frame = Frame::new(Kind::Taken, OpId(0), shown::encode_taken(&now));
            self.writing.control(&frame, &mut self.staged);
        }
        while self.staged.len() < STAGE_BYTES {
            match self.queue.front_mut() {
                None => return,
                Some(Queued::Show(..)) => {
                    let Some(Queued::Show(push, pieces)) = self.queue.pop_front() else { return };
                    let body = shown::encode(push.item, push.offset, &pieces);
                    self.writing.control(&Frame::new(Kind::Shown, push.op, body), &mut self.staged);
                    self.shown.insert(stretch_of(&push), Some(push));
                }
                Some(Queued::Push(front)) => {
                    let most = u64::from(self.writing.data_bytes_max);
                    let bytes = (front.len - front.framed).min(most) as u32;
                    let offset = front.push.offset + front.framed;
                    self.writing.data(&front.push, offset, bytes, &mut self.staged);
                    front.framed += u64::from(bytes);
                    self.body_left = bytes.into();
                    return;
                }
                Some(Queued::Frame(_)) => {
                    let Some(Queued::Frame(frame)) = self.queue.pop_front() else { return };
                    self.frames -= 1;
                    self.frame_bytes -= frame.body.len();
                    counts.frames_out += 1;
                    self.writing.control(&frame, &mut self.staged);
                }
            }
        }
    }
}

impl Writing {
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

/// How a push is named.
fn stretch_of(push: &Push) -> Stretch {
    (push.op, push.item, push.offset)
}

fn over(push: Push, sent: bool) -> Event {
    let Push { op, token, parts, .. } = push;
    Event::Pushed { op, token, sent, parts }
}
