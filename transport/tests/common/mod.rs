//! Two ends of a link in one thread, over a pipe in memory that moves a fixed number of bytes per
//! call. The test sets the time.

// Each test file is a separate program and uses only a part of this module.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::{Clock, Mono};
use pagelith_io::entropy::Entropy;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::{Frame, FrameKind, LinkRole};
use pagelith_transport::auth::{Key, KeyRing};
use pagelith_transport::capability::Capabilities;
use pagelith_transport::conn::Conn;
use pagelith_transport::handshake::{ClientAuth, Handshake};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::pending::{HandshakeProgress, PendingHandshake};
use pagelith_transport::rights::Rights;
use pagelith_transport::stream::{Stream, StreamResult};

/// A clock that only the test advances.
#[derive(Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Mono {
        Mono(self.0.load(Ordering::SeqCst))
    }
}

/// Deterministic entropy: bytes that count up.
pub struct CountingEntropy(pub AtomicU64);

impl Entropy for CountingEntropy {
    fn fill(&self, out: &mut [u8]) {
        for byte in out {
            *byte = self.0.fetch_add(1, Ordering::SeqCst) as u8;
        }
    }
}

/// One direction of a pipe.
#[derive(Default)]
pub struct PipeDirection {
    pub bytes: VecDeque<u8>,
    /// All bytes ever written.
    pub record: Vec<u8>,
    pub ended: bool,
    /// Maximum bytes in flight; 0 for no bound.
    pub most: usize,
    /// Number of the reader's next waits that return without bytes, each 1 ms later by `clock`.
    /// After the last of them the bytes in `later` arrive.
    pub early: u32,
    pub clock: Option<Arc<ManualClock>>,
    pub later: VecDeque<u8>,
}

/// An end of a pipe in memory.
pub struct Pipe {
    pub reads: Arc<Mutex<PipeDirection>>,
    pub writes: Arc<Mutex<PipeDirection>>,
    /// Maximum bytes per call.
    pub step: usize,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        lock(&self.writes).ended = true;
        lock(&self.reads).ended = true;
    }
}

pub fn lock(way: &Mutex<PipeDirection>) -> MutexGuard<'_, PipeDirection> {
    way.lock().expect("no panic")
}

impl Stream for Pipe {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> StreamResult {
        let mut way = lock(&self.reads);
        let mut moved = 0;
        for target in parts.iter_mut().flat_map(|part| part.iter_mut()).take(self.step) {
            let Some(byte) = way.bytes.pop_front() else { break };
            (*target, moved) = (byte, moved + 1);
        }
        match moved {
            0 if way.ended => StreamResult::Ended,
            0 => StreamResult::Blocked,
            n => StreamResult::Bytes(n),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        let mut way = lock(&self.writes);
        if way.ended {
            return StreamResult::Ended;
        }
        let room =
            if way.most == 0 { usize::MAX } else { way.most.saturating_sub(way.bytes.len()) };
        let bytes: Vec<u8> =
            parts.iter().flat_map(|part| part.iter().copied()).take(self.step.min(room)).collect();
        way.bytes.extend(&bytes);
        way.record.extend(&bytes);
        if bytes.is_empty() { StreamResult::Blocked } else { StreamResult::Bytes(bytes.len()) }
    }

    fn ready(&mut self, write: bool, _: Duration) -> bool {
        let mut way = lock(&self.reads);
        if way.early > 0 {
            way.early -= 1;
            way.clock.iter().for_each(|clock| clock.pass(Duration::from_millis(1)));
            if way.early == 0 {
                let later = std::mem::take(&mut way.later);
                way.bytes.extend(later);
            }
            return false;
        }
        write || !way.bytes.is_empty()
    }
}

/// The two ends of a pipe that moves at most `step` bytes per call.
pub fn pipe(step: usize) -> (Pipe, Pipe) {
    let (a, b): (Arc<Mutex<PipeDirection>>, Arc<Mutex<PipeDirection>>) = Default::default();
    (Pipe { reads: a.clone(), writes: b.clone(), step }, Pipe { reads: b, writes: a, step })
}

pub fn key(secret: u8) -> Key {
    Key::new("rank-0", &[secret; 32]).expect("a key")
}

pub fn entropy() -> Arc<CountingEntropy> {
    Arc::new(CountingEntropy(AtomicU64::new(1)))
}

pub fn keys(secret: u8) -> ClientAuth {
    ClientAuth::Keys(Arc::new(
        KeyRing::new([(key(secret), Rights::all())], &*entropy()).expect("a ring"),
    ))
}

/// As [`sharing`], without shared memory.
pub fn offer() -> Capabilities {
    sharing().without(Feature::SharedMemory)
}

/// The features of this build, with short frames.
pub fn sharing() -> Capabilities {
    Capabilities {
        data_bytes_max: 64 << 10,
        control_bytes_max: 64 << 10,
        ..Capabilities::of_this_build([5; 16])
    }
}

pub type PipeLink = Conn<Pipe>;

/// Both ends of an established link.
pub struct Pair {
    pub client: PipeLink,
    pub server: PipeLink,
    pub clock: Arc<ManualClock>,
    /// The bytes that the client writes, and those that the server writes.
    pub ways: (Arc<Mutex<PipeDirection>>, Arc<Mutex<PipeDirection>>),
}

/// Two ends of a pipe in their handshake.
pub fn pendings(
    step: usize,
    key: Option<Key>,
    admission: ClientAuth,
) -> (PendingHandshake<Pipe>, PendingHandshake<Pipe>, Arc<ManualClock>) {
    let (a, b) = pipe(step);
    let clock = Arc::new(ManualClock::default());
    let outside = || (clock.clone() as Arc<dyn Clock>, LinkLimits::default());
    // The features that existed when the conversation in `golden/session1` was recorded.
    let offer = offer()
        .without(Feature::Parts)
        .without(Feature::Shown)
        .without(Feature::Pins)
        .without(Feature::Begun)
        .without(Feature::Events)
        .without(Feature::Prefetch)
        .without(Feature::Views)
        .without(Feature::Members)
        .without(Feature::AsksAgain)
        .without(Feature::Peers)
        .without(Feature::Bases)
        .without(Feature::Holds)
        .without(Feature::Hints)
        .without(Feature::PrefillRate);
    let client = Handshake::client(offer, key, &*entropy());
    let server = Handshake::server(offer, admission, &*entropy());
    let client =
        PendingHandshake::new(a, "server".into(), LinkRole::Client, offer, client, outside());
    let server =
        PendingHandshake::new(b, "client".into(), LinkRole::Server, offer, server, outside());
    (client, server, clock)
}

/// An established link over a pipe, with or without a key.
pub fn pair(step: usize, keyed: bool) -> Pair {
    let admission = if keyed { keys(1) } else { ClientAuth::Connection(Rights::all()) };
    let (client, server, clock) = pendings(step, keyed.then(|| key(1)), admission);
    let ways = (client.stream().writes.clone(), server.stream().writes.clone());
    let (client, server) = meet(client, server);
    Pair { client: client.expect("a link"), server: server.expect("a link"), clock, ways }
}

type Met<S> = Result<Conn<S>, LinkError>;

/// Run two handshakes until both have ended.
pub fn meet<S: Stream, T: Stream>(
    client: PendingHandshake<S>,
    server: PendingHandshake<T>,
) -> (Met<S>, Met<T>) {
    let (mut client, mut server) =
        (HandshakeProgress::Waiting(client), HandshakeProgress::Waiting(server));
    for _ in 0..100_000 {
        client = go(client);
        server = go(server);
        if !matches!(client, HandshakeProgress::Waiting(_))
            && !matches!(server, HandshakeProgress::Waiting(_))
        {
            break;
        }
    }
    (met(client), met(server))
}

fn go<S: Stream>(progress: HandshakeProgress<S>) -> HandshakeProgress<S> {
    match progress {
        HandshakeProgress::Waiting(pending) => pending.poll(),
        over => over,
    }
}

fn met<S: Stream>(progress: HandshakeProgress<S>) -> Met<S> {
    match progress {
        HandshakeProgress::Ready(link) => Ok(*link),
        HandshakeProgress::Failed(why) => Err(why),
        HandshakeProgress::Waiting(_) => panic!("the handshake does not end"),
    }
}

/// Poll both ends until nothing moves.
pub fn settle(a: &mut dyn Link, b: &mut dyn Link) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
    settle_slowly(a, b, 4)
}

/// Poll both ends until no counter changed for `rounds` rounds. A single byte of a head changes
/// none.
pub fn settle_slowly(
    a: &mut dyn Link,
    b: &mut dyn Link,
    rounds: u32,
) -> (Vec<LinkEvent>, Vec<LinkEvent>) {
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    let mut quiet = 0;
    while quiet < rounds {
        let before = (a.counts(), b.counts(), at_a.len(), at_b.len());
        a.poll(&mut at_a);
        b.poll(&mut at_b);
        let moved = |c: pagelith_transport::link::LinkCounters| {
            (c.frames_in, c.frames_out, c.bytes_in, c.bytes_out, c.bytes_late)
        };
        let after = (a.counts(), b.counts(), at_a.len(), at_b.len());
        let same = (moved(before.0), moved(before.1), before.2, before.3)
            == (moved(after.0), moved(after.1), after.2, after.3);
        quiet = if same { quiet + 1 } else { 0 };
    }
    (at_a, at_b)
}

/// Pseudorandom bytes, different for each seed.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    });
    next.take(len).collect()
}

/// A scatter list over one buffer, in parts of these lengths, the rest in the last.
pub fn scatter(content: &[u8], lengths: &[usize]) -> Vec<Part> {
    let mut buffer = AlignedBuf::new(content.len().max(1)).expect("memory");
    buffer[..content.len()].copy_from_slice(content);
    let mut rest = buffer.into_part().split(content.len()).0;
    let mut parts = Vec::new();
    for len in lengths {
        let (part, tail) = rest.split(*len);
        parts.push(part);
        rest = tail;
    }
    parts.push(rest);
    parts
}

pub fn gathered(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.bytes().to_vec()).collect()
}

pub fn push(op: u64, item: u32, offset: u64, content: &[u8]) -> Push {
    let (parts, token) = (scatter(content, &[1, 3]), op * 100 + u64::from(item));
    Push { op: OpId(op), item, offset, parts, token, allow_ref: true }
}

pub fn request(op: u64, body: &[u8]) -> Frame {
    Frame::new(FrameKind::Request, OpId(op), body.to_vec())
}

pub fn outcome(op: u64, body: &[u8]) -> Frame {
    Frame::new(FrameKind::Outcome, OpId(op), body.to_vec())
}

/// Events as lines of text, without their memory.
pub fn event_lines(events: &[LinkEvent]) -> Vec<String> {
    let line = |event: &LinkEvent| match event {
        LinkEvent::Frame(frame) => format!("{:?} {} {}", frame.kind, frame.op.0, frame.body.len()),
        LinkEvent::Received { op, item, .. } => format!("landed {} {item}", op.0),
        LinkEvent::ReceivedRef { op, item, .. } => format!("shown {} {item}", op.0),
        LinkEvent::Pushed { token, sent, .. } => format!("pushed {token} {sent}"),
        LinkEvent::Retracted { op, item, .. } => format!("retracted {} {item}", op.0),
        LinkEvent::Ended(why) => format!("closed: {why}"),
    };
    events.iter().map(line).collect()
}

/// The memory that an event hands back for an item.
pub fn returned(events: &[LinkEvent], wanted: (u64, u32)) -> Option<Vec<u8>> {
    events.iter().find_map(|event| match event {
        LinkEvent::Received { op, item, parts, .. }
        | LinkEvent::ReceivedRef { op, item, parts, .. }
        | LinkEvent::Retracted { op, item, parts, .. }
            if (op.0, *item) == wanted =>
        {
            Some(gathered(parts))
        }
        _ => None,
    })
}
