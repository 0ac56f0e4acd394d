//! Files of the disk in the hands of another process of the machine, to be read: what is in them is whatever their owner wrote, at any
//! time. No lock, and no crash of the owner's, keeps anybody from reading; a read that meets a write sees all of it or none.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::disk::{Completion, Disk, DiskFacts, FileId, Op, Queue};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_io::runtime::Runtime;
use pagelith_io::signal::Signal;
use pagelith_layouts::align::is_aligned;
use pagelith_layouts::names::SEGMENTS;
use pagelith_transport::shown::FilePlace;

use super::SimDisk;
use super::plan::fault;
use super::process::{lock, simulated};
use super::state::dir_name;
use super::transfer::PARTS_MAX;
use crate::clock::SimClock;
use crate::entropy::SplitMix64;

/// One read of so many is late.
const LATE_ONE_IN: u64 = 2;

/// The files that a store's segments lie in, one a directory, as who was handed them has them.
#[derive(Clone)]
pub struct Handed {
    disk: SimDisk,
    runtime: Arc<dyn Runtime>,
    /// How late a read may be, by chance.
    late_max: Duration,
    seeds: Arc<Mutex<SplitMix64>>,
    /// Reads that are given up are written still ([`crate::link::Plant::ReadOn`]).
    reads_on: bool,
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handed({:?})", self.disk)
    }
}

impl Handed {
    /// Files of `disk`. While reads are waited for, the tasks of `runtime` go on; some are late by up to `late_max`.
    pub fn new(disk: &SimDisk, runtime: &Arc<dyn Runtime>, late_max: Duration, seed: u64) -> Handed {
        let seeds = Arc::new(Mutex::new(SplitMix64::new(seed)));
        Handed { disk: disk.clone(), runtime: runtime.clone(), late_max, seeds, reads_on: false }
    }

    /// With a bug: reads are said to have failed half-way, and are written behind that.
    #[must_use]
    pub fn reading_on(self) -> Handed {
        Handed { reads_on: true, ..self }
    }

    /// What lies at a place now.
    pub(crate) fn peek(&self, place: FilePlace) -> Option<Vec<u8>> {
        self.disk.peek(place.file, SEGMENTS, place.at, usize::try_from(place.length).ok()?)
    }

    fn refused(op: FaultOp) -> IoFault {
        fault(FaultKind::Invalid, op, "", 0, "files of another process are read-only")
    }
}

impl Disk for Handed {
    fn facts(&self) -> DiskFacts {
        simulated()
    }

    fn dirs(&self) -> usize {
        lock(&self.disk.0).dirs
    }

    fn dir_name(&self, dir: usize) -> String {
        dir_name(dir)
    }

    fn list(&self, _: usize) -> Result<Vec<(String, u64)>, IoFault> {
        Err(Handed::refused(FaultOp::List))
    }

    fn create(&self, _: usize, _: &str, _: u64) -> Result<FileId, IoFault> {
        Err(Handed::refused(FaultOp::Create))
    }

    fn open(&self, _: usize, _: &str) -> Result<(FileId, u64), IoFault> {
        Err(Handed::refused(FaultOp::Open))
    }

    fn remove(&self, _: usize, _: &str) -> Result<(), IoFault> {
        Err(Handed::refused(FaultOp::Remove))
    }

    fn check_names(&self) -> Result<(), IoFault> {
        Ok(())
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        let clock = lock(&self.disk.0).clock.clone();
        let seed = self.seeds.lock().unwrap_or_else(PoisonError::into_inner).next_u64();
        let (rng, flights) = (SplitMix64::new(seed), VecDeque::new());
        Ok(Box::new(Reading { files: self.clone(), clock, depth, rng, flights }))
    }
}

struct Flight {
    token: u64,
    op: Op,
    ready_at: Mono,
    /// It was said to be over.
    is_said: bool,
}

struct Reading {
    files: Handed,
    clock: SimClock,
    depth: usize,
    rng: SplitMix64,
    flights: VecDeque<Flight>,
}

impl Reading {
    fn read(&self, op: &mut Op) -> Result<(), IoFault> {
        let bytes = op.bytes();
        let Op::Read { file, offset, parts } = op else { return Err(Handed::refused(FaultOp::Write)) };
        let placed = |part: &pagelith_io::buffer::Part| {
            is_aligned(part.addr() as u64) && is_aligned(part.len() as u64) && part.is_exclusive()
        };
        if !is_aligned(*offset) || bytes == 0 || parts.len() > PARTS_MAX || !parts.iter().all(placed) {
            return Err(fault(
                FaultKind::Invalid,
                FaultOp::Read,
                "",
                *offset,
                "offset, length or memory not aligned, or memory not exclusive",
            ));
        }
        let (dir, mut from) = (file.0 as usize, *offset);
        for part in parts {
            let Some(found) = self.files.disk.peek(dir, SEGMENTS, from, part.len()) else {
                return Err(fault(FaultKind::Short, FaultOp::Read, "", from, "beyond the end of the file"));
            };
            part.bytes_mut().unwrap_or_default().copy_from_slice(&found);
            from += found.len() as u64;
        }
        Ok(())
    }
}

impl Queue for Reading {
    fn room(&self) -> usize {
        self.depth.saturating_sub(self.flights.len())
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.room() == 0 {
            return Err(op);
        }
        let latency = lock(&self.files.disk.0).latency;
        let most = u64::try_from(self.files.late_max.as_nanos()).unwrap_or(u64::MAX);
        let is_late = self.rng.one_in(LATE_ONE_IN);
        let late = Duration::from_nanos(if is_late && most > 0 { self.rng.below(most) } else { 0 });
        let ready_at = self.clock.now().after(latency.saturating_add(late));
        self.flights.push_back(Flight { token, op, ready_at, is_said: false });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let now = self.clock.now();
        for mut flight in std::mem::take(&mut self.flights) {
            if self.files.reads_on && !flight.is_said {
                flight.is_said = true;
                let result = Err(fault(FaultKind::Device, FaultOp::Read, "", 0, "planted"));
                let (file, offset) = (FileId(0), 0);
                let op = Op::Read { file, offset, parts: Vec::new() };
                done.push(Completion { token: flight.token, result, op });
            }
            if now < flight.ready_at {
                self.flights.push_back(flight);
                continue;
            }
            let Flight { token, mut op, is_said, .. } = flight;
            let result = self.read(&mut op);
            if !is_said {
                done.push(Completion { token, result, op });
            }
        }
    }

    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        let (had, until) = (done.len(), self.clock.now().after(timeout));
        let never = Signal::default();
        loop {
            self.poll(done);
            let now = self.clock.now();
            let next = self.flights.iter().map(|flight| flight.ready_at).min();
            let Some(next) = next.filter(|_| done.len() == had && now < until) else { return };
            // At least a moment, so that whoever is to go on does.
            let pause = next.min(until).since(now).max(Duration::from_nanos(1));
            self.files.runtime.pause(&never, never.value(), pause);
        }
    }
}
