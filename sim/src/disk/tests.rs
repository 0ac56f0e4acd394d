//! Tests of the simulated disk, one module for each group of its promises.

mod crash_hooks;
mod durability;
mod faults;
mod rules;
mod schedule;
mod strikes;

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Completion, Disk, FileId, Op, Queue};
use pagelith_io::fault::FaultKind;

use super::{SimDisk, SimProcess};
use crate::clock::SimClock;

/// Long enough for any operation, in simulated time.
const LONG: Duration = Duration::from_secs(1);

/// A process with one file open and one queue.
struct Fixture {
    disk: SimDisk,
    clock: SimClock,
    process: Arc<SimProcess>,
    queue: Box<dyn Queue>,
    file: FileId,
}

impl Fixture {
    /// A fresh disk with the file `f` of 16 blocks, created by change 1.
    fn new(seed: u64) -> Fixture {
        let clock = SimClock::new();
        let disk = SimDisk::new(clock.clone(), 1, seed);
        let process = disk.connect();
        let file = process.create(0, "f", 16 * 4096).expect("an empty disk");
        let queue = process.queue(32).expect("a live process");
        Fixture { disk, clock, process, queue, file }
    }

    /// The same machine with a new process, after the old processes ended.
    fn reopen(self) -> Fixture {
        let Fixture { disk, clock, process, queue, .. } = self;
        drop((process, queue));
        let process = disk.connect();
        let (file, _) = process.open(0, "f").expect("the file and its lock");
        let queue = process.queue(32).expect("a live process");
        Fixture { disk, clock, process, queue, file }
    }

    fn submit(&mut self, token: u64, op: Op) {
        self.queue.submit(token, op).expect("room in the queue");
    }

    fn finish(&mut self) -> Vec<Completion> {
        drain(self.queue.as_mut())
    }

    /// Submits one operation and returns its outcome.
    fn run(&mut self, op: Op) -> Result<(), FaultKind> {
        self.submit(0, op);
        let done = self.finish().pop().expect("one completion");
        done.result.map_err(|f| f.kind)
    }

    /// Writes `count` blocks of `byte` from block `first`, and waits for the completion.
    fn write(&mut self, first: u64, count: usize, byte: u8) {
        self.run(write(self.file, first, count, byte)).expect("a write");
    }

    fn sync(&mut self) {
        self.run(Op::Sync { file: self.file }).expect("a sync");
    }

    /// The byte that fills a block; panics if the block has several.
    fn block(&self, block: u64) -> u8 {
        let bytes = self.disk.peek(0, "f", block * 4096, 4096).expect("a block of the file");
        assert_eq!(bytes, vec![bytes[0]; 4096], "a torn block block={block}");
        bytes[0]
    }
}

/// Waits until nothing is in flight.
fn drain(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        let before = done.len();
        queue.wait(&mut done, LONG);
        assert!(done.len() > before, "an operation is stuck in_flight={}", queue.in_flight());
    }
    done
}

/// A part of `count` blocks filled with `byte`.
fn part(count: usize, byte: u8) -> Part {
    let mut buf = AlignedBuf::new(count * 4096).expect("memory");
    buf.fill(byte);
    buf.into_part()
}

fn write(file: FileId, first: u64, count: usize, byte: u8) -> Op {
    Op::Write { file, offset: first * 4096, parts: vec![part(count, byte)] }
}

fn read(file: FileId, first: u64, count: usize) -> Op {
    Op::Read { file, offset: first * 4096, parts: vec![part(count, 0xEE)] }
}
