//! A hostile peer that writes any bytes into the memory of its link, and sends references to any
//! offset in any region. The link at the other end continues or ends, and writes only exposed
//! memory.
//!
//! The input is a list of steps: a byte that selects the step, followed by its operands. The fuzz
//! target `rings` uses this file too.

use std::io::{IoSlice, IoSliceMut, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Clock;
use pagelith_io::shm::{PAIR_MEMORY_BYTES, RING_BYTES, SharedMemory, SharedRegion};
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::shm_ref::{self, ShownPiece};
use pagelith_layouts::wire::{FrameKind, LinkRole, VERSION_MAX};
use pagelith_transport::address::Address;
use pagelith_transport::capability::Capabilities;
use pagelith_transport::handshake::{ClientAuth, Handshake};
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent};
use pagelith_transport::link_error::LinkError;
use pagelith_transport::pending::PendingHandshake;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener, SocketLink};
use pagelith_transport::stream::{Stream, StreamResult};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Offset of a ring's bytes.
const BYTES_AT: u64 = 4096;
/// Bytes of the region that the peer hands over.
const REGION_BYTES: usize = 4 * 4096;
/// Bytes of an exposed range, and of the guard on each side of it.
const RANGE_BYTES: usize = 3000;
const GUARD_BYTES: usize = 548;
/// Operations with exposed ranges.
const OPS: u64 = 4;
/// Maximum polls until the link is closed.
const LAST_POLLS: usize = 100_000;

/// The listener under test.
pub struct Host {
    listener: Listener,
    greeting: Vec<u8>,
    path: std::path::PathBuf,
}

/// The events of a run.
#[derive(Debug, Default)]
pub struct Met {
    /// References that were received and copied.
    pub shown: u32,
    /// Ranges that were received completely.
    pub landed: u32,
    /// Why the link ended.
    pub closed: Option<LinkError>,
}

/// Records the bytes written to it.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<u8>>>);

impl Stream for Recorder {
    fn read(&mut self, _: &mut [IoSliceMut<'_>]) -> StreamResult {
        StreamResult::Blocked
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().for_each(|part| kept.extend_from_slice(part));
        StreamResult::Bytes(parts.iter().map(|part| part.len()).sum())
    }

    fn ready(&mut self, _: bool, _: Duration) -> bool {
        true
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

impl Host {
    /// Listens at `path`.
    pub fn new(path: &Path) -> Host {
        let address = Address::Unix(path.to_owned());
        let admission = ClientAuth::Connection(Rights::all());
        let listen = ListenConfig { address, admission, allow_remote: false };
        let offer = Capabilities::of_this_build([1; 16]);
        let listener =
            Listener::new(&listen, offer, Arc::new(SystemEntropy), clock(), LinkLimits::default());
        let sent = Recorder::default();
        let offer = Capabilities::of_this_build([2; 16]);
        let handshake = Handshake::client(offer, None, &SystemEntropy);
        let outside = (clock(), LinkLimits::default());
        drop(
            PendingHandshake::new(
                sent.clone(),
                "server".into(),
                LinkRole::Client,
                offer,
                handshake,
                outside,
            )
            .poll(),
        );
        let greeting = sent.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Host { listener: listener.expect("listens"), greeting, path: path.to_owned() }
    }

    /// A connected peer, its ring memory, and the link to it.
    fn meet(&mut self) -> (UnixStream, OwnedFd, Box<SocketLink>) {
        let peer = UnixStream::connect(&self.path).expect("connected");
        (&peer).write_all(&self.greeting).expect("greeted");
        let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
        let region = SharedRegion::new(REGION_BYTES).expect("memory");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [memory.as_fd(), region.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&peer, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::empty())
            .expect("handed over");
        let mut arrivals = Vec::new();
        while arrivals.is_empty() {
            self.listener.wait(&mut arrivals, Duration::from_secs(5));
        }
        let Some(AdmissionResult::Link(link)) = arrivals.pop() else {
            panic!("a valid greeting is admitted")
        };
        (peer, rustix::io::dup(&memory).expect("another descriptor"), link)
    }

    /// Run the steps of the input.
    pub fn run(&mut self, data: &[u8]) -> Met {
        let (peer, memory, mut link) = self.meet();
        let (memory, mut met, mut guards) =
            (std::fs::File::from(memory), Met::default(), Vec::new());
        for op in 1..=OPS {
            for item in 0..2 {
                expose(&mut link, op, item, &mut guards);
            }
        }
        let (mut rest, mut written) = (data, 0u64);
        while let Some((what, operands)) = rest.split_first() {
            rest = operands;
            let mut take = |most: usize| {
                let (taken, left) = rest.split_at(most.min(rest.len()));
                rest = left;
                taken.to_vec()
            };
            let mut number =
                |bytes| take(bytes).iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
            match what % 8 {
                // Raw bytes, appended to the ring.
                0 => send(&memory, &mut written, &take(usize::from(*what) + 1)),
                // A data frame, or a reference: region, offset and length near the borders or
                // random.
                1 | 2 => {
                    let (op, item, offset) =
                        (OpId(number(1) % (OPS + 1)), number(1) as u32 % 3, number(2));
                    let offset = if (what / 8).is_multiple_of(2) { 0 } else { offset };
                    let facts = HeadFacts::data(VERSION_MAX, op, item, offset, RANGE_BYTES as u32);
                    let body = vec![*what; RANGE_BYTES];
                    send(
                        &memory,
                        &mut written,
                        &[&head::encode(&facts, [0; 16])[..], &body].concat(),
                    );
                }
                3..=5 => {
                    let (op, item) = (OpId(number(1) % (OPS + 1)), number(1) as u32 % 3);
                    let pieces: Vec<ShownPiece> =
                        (0..1 + number(1) % 3).map(|_| piece(&mut number)).collect();
                    let body = shm_ref::encode(
                        item,
                        if (what / 8).is_multiple_of(4) { number(2) } else { 0 },
                        &pieces,
                    );
                    let facts = HeadFacts::control(VERSION_MAX, FrameKind::Shown, op, &body);
                    send(
                        &memory,
                        &mut written,
                        &[&head::encode(&facts, [0; 16])[..], &body].concat(),
                    );
                }
                // A counter, or random bytes at a random offset.
                6 => {
                    let at = [0, 128, 256, 384][usize::from(what / 8 % 4)];
                    let near = if what / 32 == 0 { u64::MAX } else { 2 * RING_BYTES as u64 };
                    write_at(&memory, at, &(number(8) % near).to_ne_bytes());
                }
                _ => {
                    let at = number(3) % (PAIR_MEMORY_BYTES as u64 - 64);
                    write_at(&memory, at, &take(32));
                }
            }
            // A put's reference to its bytes.
            let region_offset = (u32::from(*what) % 3, written.wrapping_mul(u64::from(*what)));
            if let Some(shown) = link.peer_ref((OpId(1), 0, 0), region_offset, u64::from(*what) + 1)
            {
                shown.copy_out(0, &mut vec![0; usize::from(*what) + 1]);
            }
            poll(&mut link, &mut met);
        }
        drop(peer);
        for polls in 0.. {
            assert!(polls < LAST_POLLS, "the link outlives its peer");
            if met.closed.is_some() {
                break;
            }
            poll(&mut link, &mut met);
        }
        let clean = |guard: &Part| guard.bytes().iter().all(|byte| *byte == 0);
        assert!(guards.iter().all(clean), "bytes outside of an exposed range were written");
        met
    }
}

/// Expose a range in the middle of a buffer, and keep the guards around it.
fn expose(link: &mut SocketLink, op: u64, item: u32, guards: &mut Vec<Part>) {
    let whole = AlignedBuf::new(RANGE_BYTES + 2 * GUARD_BYTES).expect("memory").into_part();
    let (before, rest) = whole.split(GUARD_BYTES);
    let (range, after) = rest.split(RANGE_BYTES);
    guards.extend([before, after]);
    link.expose(OpId(op), item, 0, vec![range]).expect("room");
}

fn piece(number: &mut impl FnMut(usize) -> u64) -> ShownPiece {
    let how = number(1);
    let region = if how.is_multiple_of(8) { number(4) as u32 } else { 0 };
    let at = match how / 8 % 4 {
        0 => number(8),
        1 => REGION_BYTES as u64 - RANGE_BYTES as u64 + number(1) % 2,
        _ => number(1),
    };
    let length = if (how / 32).is_multiple_of(4) { number(8) } else { RANGE_BYTES as u64 };
    ShownPiece::new(region, at, length)
}

fn poll(link: &mut SocketLink, met: &mut Met) {
    let mut events = Vec::new();
    link.poll(&mut events);
    for event in events {
        match event {
            LinkEvent::ReceivedRef { parts, shown, .. } => {
                let bytes: usize = parts.iter().map(Part::len).sum();
                assert_eq!(shown.length(), bytes as u64, "a reference covers the exposed range");
                shown.copy_out(0, &mut vec![0; bytes]);
                met.shown += 1;
                link.release_ref(shown);
            }
            LinkEvent::Received { .. } => met.landed += 1,
            LinkEvent::Ended(why) => met.closed = Some(why),
            LinkEvent::Frame(_) | LinkEvent::Pushed { .. } | LinkEvent::Retracted { .. } => {}
        }
    }
}

fn write_at(memory: &std::fs::File, at: u64, bytes: &[u8]) {
    memory.write_all_at(bytes, at).expect("written");
}

/// Append bytes to the peer's ring, and publish them.
fn send(memory: &std::fs::File, written: &mut u64, bytes: &[u8]) {
    for bytes in bytes.chunks(4096) {
        let at = *written % RING_BYTES as u64;
        let most = bytes.len().min(RING_BYTES - at as usize);
        write_at(memory, BYTES_AT + at, &bytes[..most]);
        write_at(memory, BYTES_AT, &bytes[most..]);
        *written += bytes.len() as u64;
    }
    write_at(memory, 0, &written.to_ne_bytes());
}
