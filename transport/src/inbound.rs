//! The receiving half of a byte-stream link: bytes become frames, and bulk bytes land where they were exposed.
//!
//! A head is read, and only then is it known where its body goes; so while anything is exposed no byte is read beyond
//! the next head, or few where the peer shows memory, and bulk bytes go from the stream straight to their place. Otherwise as much is
//! read as fits.

use std::borrow::Cow;
use std::io::IoSliceMut;

use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts, Mac};
use pagelith_layouts::wire::shown::{self, Stretch};
use pagelith_layouts::wire::{Frame, FrameHead, Kind, Side};

use crate::auth::FrameMac;
use crate::closed::Closed;
use crate::landing::{Landing, Name};
use crate::link::{Counts, Event};
use crate::shown::Regions;
use crate::stream::{Moved, Stream};

/// Bytes that are read ahead, of control frames and of what is thrown away.
pub(crate) const AHEAD_BYTES: usize = 64 << 10;
/// The same while memory is exposed, where the peer shows most of what would land there: bytes that were sent instead are copied once more.
const FEW_BYTES: usize = 2 << 10;
/// Bytes after which a poll goes on to other things.
const TURN_BYTES: u64 = 8 << 20;
/// The same of control frames, which are held until the link's user has looked at them.
pub(crate) const TURN_CONTROL_BYTES: usize = 1 << 20;

enum State {
    /// Waiting for a head.
    Head,
    /// Collecting a control body.
    Control { head: [u8; FrameHead::BYTES], facts: HeadFacts, mac: Mac, body: Vec<u8> },
    /// Landing an item's bytes, so many more.
    Land { name: Name, left: u64 },
    /// Throwing so many bytes away.
    Drain { left: u64 },
}

/// What a reader goes by: the peer's side, and what was agreed.
pub(crate) struct Reading {
    pub from: Side,
    pub version: u16,
    pub control_bytes_max: u32,
    pub data_bytes_max: u32,
    pub mac: Option<FrameMac>,
}

/// Where what arrives goes.
pub(crate) struct Sink<'a> {
    pub landing: &'a mut Landing,
    /// For the link's user.
    pub events: &'a mut Vec<Event>,
    /// For the link itself: pings, pongs and goodbyes.
    pub own: &'a mut Vec<Frame>,
    pub regions: &'a Regions,
    /// Stretches that the peer has taken, of what it was shown.
    pub taken: &'a mut Vec<Stretch>,
    /// Stretches that were shown and are not looked at any more.
    pub looked: &'a mut Vec<Stretch>,
    pub counts: &'a mut Counts,
}

pub(crate) struct Inbound {
    reading: Reading,
    state: State,
    /// Read ahead: `ahead[start..end]`.
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes of control frames in this poll.
    control: usize,
}

impl Inbound {
    pub fn new(reading: Reading) -> Inbound {
        let ahead = vec![0; AHEAD_BYTES].into_boxed_slice();
        Inbound { reading, state: State::Head, ahead, start: 0, end: 0, control: 0 }
    }

    /// Read as far as it goes now. Returns how many bytes came.
    pub fn pump(&mut self, stream: &mut dyn Stream, sink: &mut Sink<'_>) -> Result<u64, Closed> {
        let mut total = 0;
        self.control = 0;
        loop {
            self.parse(sink)?;
            if total >= TURN_BYTES || self.control >= TURN_CONTROL_BYTES {
                return Ok(total);
            }
            sink.counts.calls += 1;
            match self.read(stream, sink) {
                (Moved::Bytes(n), asked) => {
                    total += n as u64;
                    // Fewer than asked for: there is no more now.
                    if n < asked {
                        self.parse(sink)?;
                        return Ok(total);
                    }
                }
                (Moved::Blocked, _) => return Ok(total),
                (Moved::Ended, _) => return Err(Closed::Ended),
                (Moved::Failed { operation, errno }, _) => return Err(Closed::System { operation, errno }),
            }
        }
    }

    /// Bytes for `op` have no place any more.
    pub fn forget(&mut self, op: OpId) {
        if let State::Land { name, left } = self.state
            && name.0 == op
        {
            self.state = State::Drain { left };
        }
    }

    /// One call of the stream; what it moved, and how much was asked for.
    fn read(&mut self, stream: &mut dyn Stream, sink: &mut Sink<'_>) -> (Moved, usize) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let have = self.end - self.start;
        let missing = match &self.state {
            State::Head => FrameHead::BYTES - have,
            State::Control { facts, body, .. } => facts.body_bytes as usize - body.len() - have,
            State::Drain { left } => usize::try_from(*left).unwrap_or(usize::MAX).min(AHEAD_BYTES),
            State::Land { .. } => 0,
        };
        let next_head = if matches!(self.state, State::Head) { 0 } else { FrameHead::BYTES };
        // What is shown comes as small frames, one close behind the other.
        let few = if sink.regions.theirs.is_empty() { 0 } else { FEW_BYTES };
        let wanted = if sink.landing.is_empty() { AHEAD_BYTES } else { few.max(missing + next_head) };
        if self.start > 0 && self.end + wanted > self.ahead.len() {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, have);
        }
        let until = self.ahead.len().min(self.end.saturating_add(wanted));
        let ahead = &mut self.ahead[self.end..until];
        let State::Land { name, left } = &mut self.state else {
            let asked = ahead.len();
            let moved = stream.read(&mut [IoSliceMut::new(ahead)]);
            if let Moved::Bytes(n) = moved {
                self.end += n;
            }
            return (moved, asked);
        };
        let mut places = sink.landing.stretches(*name, *left);
        let straight: usize = places.iter().map(|place| place.len()).sum();
        let mut asked = straight;
        // What comes behind the item's bytes; only if these are asked for to their end.
        if straight as u64 == *left {
            asked += ahead.len();
            places.push(IoSliceMut::new(ahead));
        }
        let moved = stream.read(&mut places);
        if let Moved::Bytes(n) = moved {
            let landed = n.min(straight);
            *left -= landed as u64;
            self.end += n - landed;
            sink.counts.bytes_in += landed as u64;
            let name = *name;
            sink.landing.advance(name, landed);
        }
        (moved, asked)
    }

    /// Take what was read ahead, as far as it goes.
    fn parse(&mut self, sink: &mut Sink<'_>) -> Result<(), Closed> {
        loop {
            let ahead = &self.ahead[self.start..self.end];
            let taken = match &mut self.state {
                State::Head => {
                    let Some(head) = ahead.first_chunk().copied() else { return Ok(()) };
                    self.state = self.reading.begin(head, sink)?;
                    FrameHead::BYTES
                }
                State::Control { head, facts, mac, body } => {
                    let missing = facts.body_bytes as usize - body.len();
                    let now = missing.min(ahead.len());
                    let whole = match body.is_empty() && now == missing {
                        true => Cow::Borrowed(&ahead[..now]),
                        false => {
                            body.reserve(missing.min(AHEAD_BYTES));
                            body.extend_from_slice(&ahead[..now]);
                            if now < missing {
                                (self.start, self.end) = (0, 0);
                                return Ok(());
                            }
                            Cow::Owned(std::mem::take(body))
                        }
                    };
                    self.control += FrameHead::BYTES + facts.body_bytes as usize;
                    self.reading.deliver(head, facts, mac, whole, sink)?;
                    self.state = State::Head;
                    now
                }
                State::Land { name, left } => {
                    let now = ahead.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    sink.landing.copy(*name, &ahead[..now]);
                    sink.counts.bytes_in += now as u64;
                    *left -= now as u64;
                    if *left > 0 {
                        (self.start, self.end) = (0, 0);
                        return Ok(());
                    }
                    sink.events.extend(sink.landing.finish(*name));
                    self.state = State::Head;
                    now
                }
                State::Drain { left } => {
                    let now = ahead.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    sink.counts.bytes_late += now as u64;
                    *left -= now as u64;
                    if *left > 0 {
                        (self.start, self.end) = (0, 0);
                        return Ok(());
                    }
                    self.state = State::Head;
                    now
                }
            };
            self.start += taken;
        }
    }
}

impl Sink<'_> {
    /// The peer shows bytes: who has memory exposed for them is told where they lie.
    fn show(&mut self, op: OpId, body: &[u8]) -> Result<(), Closed> {
        let said = shown::decode(body)?;
        let stretch = (op, said.item, said.offset);
        let found = self.regions.shown(stretch, said.pieces.iter());
        let found = found.ok_or_else(|| Closed::broken("shown", "nothing that was handed over"))?;
        let length = u32::try_from(said.length).map_err(|_| Closed::broken("shown", said.length))?;
        let Some(name) = self.landing.begin(op, said.item, said.offset, length)? else {
            self.counts.bytes_late += said.length;
            self.looked.push(stretch);
            return Ok(());
        };
        self.counts.bytes_in += said.length;
        let (_, item, offset) = stretch;
        let unused = if name == stretch { self.landing.unused(name, said.length) } else { None };
        if let Some(parts) = unused {
            self.events.push(Event::Shown { op, item, offset, parts, shown: found });
            return Ok(());
        }
        // A piece of what is exposed: it lands as if it had been sent.
        self.landing.fill(name, said.length, |from, to| found.copy_out(from, to));
        self.events.extend(self.landing.finish(name));
        self.looked.push(stretch);
        Ok(())
    }
}

impl Reading {
    /// What to do with the body behind a head.
    fn begin(&mut self, bytes: [u8; FrameHead::BYTES], sink: &mut Sink<'_>) -> Result<State, Closed> {
        let (facts, mac) = head::decode(&bytes, Some(self.version))?;
        if facts.kind.is_greeting() || !facts.kind.is_sent_by(self.from) {
            return Err(Closed::broken("kind", format_args!("{:?}", facts.kind)));
        }
        let data = facts.kind == Kind::Data;
        let most = if data { self.data_bytes_max } else { self.control_bytes_max };
        if facts.body_bytes > most {
            return Err(Closed::broken("body_bytes", facts.body_bytes));
        }
        if !data {
            return Ok(State::Control { head: bytes, facts, mac, body: Vec::new() });
        }
        self.check_mac(&bytes, &[], &mac)?;
        let left = u64::from(facts.body_bytes);
        Ok(match sink.landing.begin(facts.op, facts.item, facts.offset, facts.body_bytes)? {
            Some(name) => State::Land { name, left },
            None => State::Drain { left },
        })
    }

    fn check_mac(&mut self, head: &[u8; FrameHead::BYTES], body: &[u8], mac: &Mac) -> Result<(), Closed> {
        match &mut self.mac {
            Some(macs) => macs.check(head, body, mac),
            None if *mac == [0; 16] => Ok(()),
            None => Err(Closed::broken("mac", "not zero")),
        }
    }

    fn deliver(
        &mut self,
        head: &[u8; FrameHead::BYTES],
        facts: &HeadFacts,
        mac: &Mac,
        body: Cow<'_, [u8]>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Closed> {
        facts.check_body(&body)?;
        self.check_mac(head, &body, mac)?;
        let frame = |body: Cow<'_, [u8]>| Frame::new(facts.kind, facts.op, body.into_owned());
        match facts.kind {
            Kind::Ping | Kind::Pong | Kind::Bye => sink.own.push(frame(body)),
            Kind::Shown => sink.show(facts.op, &body)?,
            Kind::Taken if !sink.regions.own.is_empty() => {
                sink.taken.extend(shown::decode_taken(&body)?);
            }
            Kind::Taken => return Err(Closed::broken("kind", "nothing is shown")),
            _ => {
                sink.counts.frames_in += 1;
                sink.events.push(Event::Frame(frame(body)));
            }
        }
        Ok(())
    }
}
