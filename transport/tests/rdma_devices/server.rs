//! A server of bytes: it pushes and pulls from and to one memory, as requests ask.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::system::{SystemClock, SystemEntropy};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::pull::{PullItem, encode};
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_transport::capability::Capabilities;
use pagelith_transport::handshake::ClientAuth;
use pagelith_transport::limits::LinkLimits;
use pagelith_transport::link::{Link, LinkEvent, Push};
use pagelith_transport::rdma::host::RdmaHost;
use pagelith_transport::rights::Rights;
use pagelith_transport::socket::{AdmissionResult, ListenConfig, Listener, SocketLink, wait};

use crate::memory::{Memory, scattered, total};

/// Work of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: RequestKind,
    pub bytes: u32,
    /// Pieces of the server's memory.
    pub pieces: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Get,
    Put,
    /// A get whose outcome is never sent once it is cancelled.
    GetWithoutOutcome,
}

impl Request {
    pub fn frame(&self, op: u64) -> Frame {
        let mut body = vec![self.kind as u8];
        body.extend(self.bytes.to_le_bytes());
        body.extend(self.pieces.to_le_bytes());
        Frame::new(FrameKind::Request, OpId(op), body)
    }

    fn of(body: &[u8]) -> Request {
        let number = |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"));
        let kind = match body[0] {
            0 => RequestKind::Get,
            1 => RequestKind::Put,
            _ => RequestKind::GetWithoutOutcome,
        };
        Request { kind, bytes: number(1), pieces: number(5) }
    }
}

/// A server with its links.
pub struct Server {
    listener: Listener,
    links: Vec<SocketLink>,
    memory: Memory,
    /// Operations that get no outcome.
    silent: Vec<OpId>,
    /// Events, for the test.
    pub seen: Seen,
}

/// Counts of events at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub requests: u64,
    /// Pushes and exposures that came back, whole or not.
    pub returned: u64,
    pub ended: u64,
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

impl Server {
    pub fn new(host: &Arc<RdmaHost>, memory: Memory) -> Server {
        let listen = ListenConfig {
            address: "tcp:127.0.0.1:0".parse().expect("an address"),
            admission: ClientAuth::Connection(Rights::all()),
            allow_remote: false,
        };
        let (offer, entropy) = (Capabilities::of_this_build([5; 16]), Arc::new(SystemEntropy));
        let listener = Listener::new(&listen, offer, entropy, clock(), LinkLimits::default());
        let listener = listener.expect("loopback").with_rdma(host.clone());
        let (links, silent, seen) = (Vec::new(), Vec::new(), Seen::default());
        Server { listener, links, memory, silent, seen }
    }

    pub fn address(&self) -> String {
        self.listener.address().to_string()
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Whether no link is left.
    pub fn is_idle(&self) -> bool {
        self.links.is_empty()
    }

    /// Wait for events for at most this time, and answer them.
    pub fn step(&mut self, timeout: Duration) {
        let links: Vec<&SocketLink> = self.links.iter().collect();
        wait(Some(&self.listener), &links, &[], timeout);
        let mut arrivals = Vec::new();
        self.listener.poll(&mut arrivals);
        for arrival in arrivals {
            match arrival {
                AdmissionResult::Link(link) => self.links.push(*link),
                AdmissionResult::Refused { why, .. } => println!("refused: {why}"),
            }
        }
        for mut link in std::mem::take(&mut self.links) {
            let mut events = Vec::new();
            link.poll(&mut events);
            let is_open = events.into_iter().all(|event| self.answer(&mut link, event));
            if is_open {
                self.links.push(link);
            }
        }
    }

    /// Answer an event. Returns whether the link is open.
    fn answer(&mut self, link: &mut SocketLink, event: LinkEvent) -> bool {
        match event {
            LinkEvent::Frame(frame) if frame.kind == FrameKind::Cancel => link.retract(frame.op),
            LinkEvent::Frame(frame) => {
                self.seen.requests += 1;
                self.begin(link, frame.op, Request::of(&frame.body));
            }
            LinkEvent::Pushed { op, .. }
            | LinkEvent::Received { op, .. }
            | LinkEvent::Retracted { op, .. } => {
                self.seen.returned += 1;
                if !self.silent.contains(&op) {
                    let _ = link.send(Frame::new(FrameKind::Outcome, op, b"done".to_vec()));
                }
            }
            LinkEvent::ReceivedRef { .. } => panic!("no memory is shared"),
            LinkEvent::Ended(why) => {
                println!("a link of the server ended: {why}");
                self.seen.ended += 1;
                self.silent.clear();
                return false;
            }
        }
        true
    }

    fn begin(&mut self, link: &mut SocketLink, op: OpId, request: Request) {
        let ranges = scattered(self.memory.len(), request.pieces as usize);
        // Both sides have as many bytes: the last range is cut.
        let ranges = cut(ranges, request.bytes as usize);
        let parts = self.memory.parts(&ranges);
        match request.kind {
            RequestKind::Put => {
                link.expose(op, 0, 0, parts).expect("room");
                let pull = encode(&[PullItem::new(0, 0, u64::from(request.bytes))]);
                link.send(Frame::new(FrameKind::Pull, op, pull)).expect("room");
            }
            kind => {
                if kind == RequestKind::GetWithoutOutcome {
                    self.silent.push(op);
                }
                let push = Push { op, item: 0, offset: 0, parts, token: op.0, allow_ref: false };
                link.push(push).expect("room");
            }
        }
    }
}

/// The first ranges with this many bytes together.
pub fn cut(ranges: Vec<std::ops::Range<usize>>, bytes: usize) -> Vec<std::ops::Range<usize>> {
    assert!(total(&ranges) >= bytes, "room for the bytes");
    let mut left = bytes;
    let cut = ranges.into_iter().map(|range| {
        let length = range.len().min(left);
        left -= length;
        range.start..range.start + length
    });
    cut.filter(|range| !range.is_empty()).collect()
}

/// A server on a thread of its own, until it is dropped.
pub struct ServerThread {
    pub address: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// A server whose memory has this pattern.
    pub fn start(host: Arc<RdmaHost>, content: &[u8]) -> ServerThread {
        let memory = Memory::new(content.len(), &host);
        memory.fill(content);
        let mut server = Server::new(&host, memory);
        let (address, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                server.step(Duration::from_millis(20));
            }
        });
        ServerThread { address, stop, thread: Some(thread) }
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server failed");
        }
    }
}
