//! A pipe with a kernel that reads what it was sent for as long as the test likes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_layouts::wire::Side;
use pagelith_transport::conn::Conn;
use pagelith_transport::handshake::{Admission, Handshake};
use pagelith_transport::limits::Limits;
use pagelith_transport::link::{Event, Link};
use pagelith_transport::pending::Pending;
use pagelith_transport::rights::Rights;
use pagelith_transport::stream::{Moved, Stream, ZeroCopy};

use crate::common::*;

/// Fewer bytes are copied.
pub const MIN: usize = 50;

/// What the kernel knows.
#[derive(Default)]
pub struct Kernel {
    /// Memory that it reads, by the send's number.
    pub reads: BTreeMap<u32, Vec<Range<usize>>>,
    pub sends: u32,
    completions: VecDeque<(u32, u32)>,
    pub finished: bool,
    pub aborted: bool,
    /// What it reads at an abort is over with it: nothing is in a device's hands.
    pub idle_device: bool,
}

impl Kernel {
    /// These sends are over, if they were made.
    pub fn complete(&mut self, first: u32, last: u32) {
        if last < self.sends {
            (first..=last).for_each(|number| drop(self.reads.remove(&number)));
            self.completions.push_back((first, last));
        }
    }

    pub fn complete_all(&mut self) {
        let open: Vec<u32> = self.reads.keys().copied().collect();
        open.into_iter().for_each(|number| self.complete(number, number));
    }

    fn is_read(&self, part: &Part) -> bool {
        let (from, to) = (part.addr(), part.addr() + part.len());
        self.reads.values().flatten().any(|read| read.start < to && from < read.end)
    }
}

pub struct KernelPipe {
    pipe: Pipe,
    kernel: Arc<Mutex<Kernel>>,
}

pub fn look(kernel: &Mutex<Kernel>) -> MutexGuard<'_, Kernel> {
    // A link that is dropped while a test fails looks too.
    kernel.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream for KernelPipe {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> Moved {
        self.pipe.read(parts)
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> Moved {
        self.pipe.write(parts)
    }

    fn ready(&mut self, write: bool, timeout: Duration) -> bool {
        !look(&self.kernel).completions.is_empty() || self.pipe.ready(write, timeout)
    }

    fn zero_copy(&mut self) -> Option<&mut dyn ZeroCopy> {
        Some(self)
    }
}

impl ZeroCopy for KernelPipe {
    fn pays(&mut self, bytes: usize) -> bool {
        bytes >= MIN
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> (Moved, bool) {
        let moved = self.pipe.write(parts);
        if let Moved::Bytes(n) = moved {
            let mut kernel = look(&self.kernel);
            let (mut left, mut read) = (n, Vec::new());
            for part in parts {
                let len = part.len().min(left);
                left -= len;
                let from = part.as_ptr() as usize;
                read.push(from..from + len);
            }
            let number = kernel.sends;
            kernel.reads.insert(number, read);
            kernel.sends += 1;
        }
        (moved, true)
    }

    fn completion(&mut self) -> Option<(u32, u32)> {
        look(&self.kernel).completions.pop_front()
    }

    fn finish(&mut self) {
        look(&self.kernel).finished = true;
    }

    fn abort(&mut self) {
        let mut kernel = look(&self.kernel);
        kernel.aborted = true;
        if kernel.idle_device {
            kernel.complete_all();
        }
    }

    fn wait(&mut self, _: Duration) {}
}

/// A client whose kernel the test is, and its server.
pub struct Watched {
    pub client: Conn<KernelPipe>,
    pub server: PipeLink,
    pub kernel: Arc<Mutex<Kernel>>,
    pub clock: Arc<HandClock>,
    /// What the client writes.
    pub way: Arc<Mutex<Way>>,
    /// Everything that came back to the client.
    pub events: Vec<Event>,
}

pub fn watched(step: usize) -> Watched {
    let (pipe, b) = pipe(step);
    let (way, kernel, clock) = (pipe.writes.clone(), Arc::default(), Arc::new(HandClock::default()));
    let a = KernelPipe { pipe, kernel: Arc::clone(&kernel) };
    let outside = || (clock.clone() as Arc<dyn Clock>, Limits::default());
    let client = Handshake::client(offer(), None, &*entropy());
    let server = Handshake::server(offer(), Admission::Connection(Rights::all()), &*entropy());
    let client = Pending::new(a, "server".into(), Side::Client, offer(), client, outside());
    let server = Pending::new(b, "client".into(), Side::Server, offer(), server, outside());
    let (client, server) = meet(client, server);
    let (client, server) = (client.expect("a link"), server.expect("a link"));
    Watched { client, server, kernel, clock, way, events: Vec::new() }
}

impl Watched {
    /// Poll the client; memory that comes back must not be read.
    pub fn poll(&mut self) {
        let had = self.events.len();
        self.client.poll(&mut self.events);
        let kernel = look(&self.kernel);
        for event in &self.events[had..] {
            if let Event::Pushed { op, token, parts, .. } = event {
                let read = parts.iter().any(|part| kernel.is_read(part));
                assert!(!read, "memory is handed back that the kernel reads op={} token={token}", op.0);
            }
        }
        assert!(!self.is_closed() || kernel.reads.is_empty(), "closed, and memory is read");
    }

    pub fn is_closed(&self) -> bool {
        matches!(self.events.last(), Some(Event::Closed(_)))
    }

    /// What was told since it was asked last.
    pub fn told(&mut self) -> Vec<String> {
        told(&std::mem::take(&mut self.events))
    }

    pub fn complete(&mut self, first: u32, last: u32) {
        look(&self.kernel).complete(first, last);
        self.poll();
    }
}
