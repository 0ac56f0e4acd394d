//! State shared by all handles of a simulated disk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::disk::{FileId, Op};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};

use super::fault_injector::FaultInjector;
use super::fault_rates::DiskFault;
use super::ignored_syncs::IgnoredSyncs;
use super::plan::{LoggedOp, PlannedFailures};
use super::snapshot::DiskSnapshot;
use super::table::{FileNo, FileTable};
use crate::clock::SimClock;
use crate::entropy::SplitMix64;

/// Operations kept in the log; older ones are dropped, so that a long run stays small.
pub(crate) const LOG_MAX: usize = 65_536;

/// Initial time from submission to completion of an operation: that of a busy NVMe drive.
pub(crate) const LATENCY_DEFAULT: Duration = Duration::from_micros(100);

/// An open file: its lock, and the process that holds it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: FileNo,
    pub(crate) process: u64,
}

/// An operation that was submitted and not yet returned.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) process: u64,
    pub(crate) queue: u64,
    pub(crate) token: u64,
    pub(crate) op: Op,
    /// The file; `None` if the operation was refused at submission.
    pub(crate) file: Option<FileNo>,
    /// The moment of submission: decides what a sync covers, and identifies the operation in
    /// flight.
    pub(crate) submitted: u64,
    /// When it executes.
    pub(crate) ready_at: Mono,
    /// The write it executed: the file it landed in, and its sequence number.
    pub(crate) wrote: Option<(FileNo, u64)>,
    /// The result, once executed or refused.
    pub(crate) outcome: Option<Result<(), IoFault>>,
}

/// A rule that holds completions back.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) op: FaultOp,
    pub(crate) name: Option<String>,
}

/// The shared state. Locked for one call; never while foreign code (a part's guard) runs.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) clock: SimClock,
    pub(crate) dirs: usize,
    pub(crate) files: FileTable,
    pub(crate) open: BTreeMap<FileId, OpenFile>,
    /// Processes that may use the disk.
    pub(crate) alive: BTreeSet<u64>,
    /// Ordered by `submitted`.
    pub(crate) in_flight: Vec<InFlight>,
    /// Orders submissions, executions and returns; also numbers processes, queues, operations and
    /// writes.
    pub(crate) moment: u64,
    pub(crate) next_file: u32,
    pub(crate) rng: SplitMix64,
    /// Source of the completion order; `None` is submission order.
    pub(crate) order: Option<SplitMix64>,
    pub(crate) latency: Duration,
    pub(crate) holds: Vec<Hold>,
    pub(crate) pending: PlannedFailures,
    /// Random faults.
    pub(crate) strikes: FaultInjector,
    pub(crate) capacity: u64,
    /// Changes executed: writes, syncs, creates and removes.
    pub(crate) changes: u64,
    /// The value of `changes` at which the disk stops.
    pub(crate) stop_at: Option<u64>,
    pub(crate) log: VecDeque<LoggedOp>,
    /// Hash of everything ever logged.
    pub(crate) trace: u64,
    /// Syncs that make nothing durable.
    pub(crate) ignored_syncs: IgnoredSyncs,
    /// Copies of the disk after each change, if a test keeps them.
    pub(crate) points: Option<Vec<DiskSnapshot>>,
}

impl State {
    /// An empty disk.
    pub(crate) fn new(clock: SimClock, dirs: usize, seed: u64) -> State {
        State {
            clock,
            dirs,
            files: FileTable::default(),
            open: BTreeMap::new(),
            alive: BTreeSet::new(),
            in_flight: Vec::new(),
            moment: 0,
            next_file: 0,
            rng: SplitMix64::new(seed),
            order: None,
            latency: LATENCY_DEFAULT,
            holds: Vec::new(),
            pending: PlannedFailures::default(),
            strikes: FaultInjector::default(),
            capacity: u64::MAX,
            changes: 0,
            stop_at: None,
            log: VecDeque::new(),
            trace: 0,
            ignored_syncs: IgnoredSyncs::default(),
            points: None,
        }
    }

    /// The next moment: greater than all before, never 0.
    pub(crate) fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Whether the test's stop point is reached.
    pub(crate) fn stopped(&self) -> bool {
        self.stop_at.is_some_and(|at| self.changes >= at)
    }

    /// Makes all files record previous block contents, if a fault may need them.
    pub(crate) fn track_previous(&mut self) {
        let on = self.strikes.needs_previous();
        self.files.files_mut().for_each(|f| f.track_previous(on));
    }

    /// Counts and logs an executed operation.
    pub(crate) fn record(
        &mut self,
        kind: FaultOp,
        file: Arc<str>,
        offset: u64,
        len: u64,
        (fault, struck): (Option<FaultKind>, Option<DiskFault>),
    ) {
        let changed = changes(kind);
        self.changes += u64::from(changed);
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        let verdict = fault.map_or(0, |f| 1 + f as u64) << 8 | struck.map_or(0, |s| 1 + s as u64);
        for word in [kind as u64, hash_of(&file), offset, len, verdict, self.clock.now().0] {
            self.trace = mix_hash(self.trace, word);
        }
        self.log.push_back(LoggedOp { n: self.changes, kind, file, offset, len, fault, struck });
        if changed {
            self.keep_point();
        }
    }
}

/// One step of the trace hash: SplitMix64's mixing of the XOR.
fn mix_hash(hash: u64, word: u64) -> u64 {
    SplitMix64::new(hash ^ word).next_u64()
}

fn hash_of(path: &str) -> u64 {
    path.bytes().fold(0, |hash, byte| mix_hash(hash, u64::from(byte)))
}

/// Whether operations of this kind may change what a reboot finds, hence count as crash points.
fn changes(kind: FaultOp) -> bool {
    matches!(kind, FaultOp::Write | FaultOp::Sync | FaultOp::Create | FaultOp::Remove)
}
