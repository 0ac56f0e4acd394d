//! A process's handle on a simulated disk, and its queues.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::disk::{Completion, Disk, DiskFacts, FileId, IoBackend, Op, Queue};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_layouts::align::ALIGN;

use super::plan::fault;
use super::state::State;
use super::table::dir_name;
use super::transfer::PARTS_MAX;

/// Simulated time that a poll takes, so that a loop that only polls still sees its operations
/// complete.
const POLL_COST: Duration = Duration::from_micros(1);

/// Locks the state, also after a test's panic: the panic is the finding, and the state is
/// consistent.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process's lease on the disk. The process and its queues share it, like an open file
/// description, so file locks live until the last of them is dropped.
struct ProcessLease {
    state: Arc<Mutex<State>>,
    process: u64,
}

impl Drop for ProcessLease {
    fn drop(&mut self) {
        lock(&self.state).remove_process(self.process);
    }
}

/// The disk of one simulated process: the one a store is opened with. Dropping it and its queues,
/// or killing it, releases its locks.
pub struct SimProcess(Arc<ProcessLease>);

impl SimProcess {
    pub(crate) fn new(state: Arc<Mutex<State>>) -> SimProcess {
        let process = {
            let mut locked = lock(&state);
            let process = locked.tick();
            locked.alive.insert(process);
            process
        };
        SimProcess(Arc::new(ProcessLease { state, process }))
    }

    /// `kill -9` of this process alone; the machine and other processes keep running. Each of its
    /// writes in flight executes or not, decided by the disk's seed; all its operations end with
    /// [`FaultKind::Device`].
    pub fn kill(&self) {
        let mut state = lock(&self.0.state);
        let mut rng = state.rng.clone();
        state.kill(self.0.process, &mut rng);
        state.rng = rng;
    }
}

/// Facts of every simulated disk.
pub(super) fn simulated() -> DiskFacts {
    DiskFacts {
        backend: IoBackend::Simulated,
        direct: true,
        // The strictest that the interface allows, so that code that passes here passes on every
        // backend.
        memory_align: ALIGN as usize,
        offset_align: ALIGN as usize,
        parts_max: PARTS_MAX,
        reason: "simulated".to_string(),
    }
}

impl fmt::Debug for SimProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimProcess(process={})", self.0.process)
    }
}

impl Disk for SimProcess {
    fn facts(&self) -> DiskFacts {
        simulated()
    }

    fn dirs(&self) -> usize {
        lock(&self.0.state).dirs
    }

    fn dir_name(&self, dir: usize) -> String {
        dir_name(dir)
    }

    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        lock(&self.0.state).list(self.0.process, dir)
    }

    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault> {
        lock(&self.0.state).create(self.0.process, (dir, name.to_string()), len)
    }

    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault> {
        lock(&self.0.state).open(self.0.process, (dir, name.to_string()))
    }

    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault> {
        lock(&self.0.state).remove(self.0.process, (dir, name.to_string()))
    }

    fn check_names(&self) -> Result<(), IoFault> {
        lock(&self.0.state).check_names(self.0.process)
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        let mut state = lock(&self.0.state);
        state.require_alive(self.0.process, FaultOp::Queue, "")?;
        if depth == 0 {
            return Err(fault(FaultKind::Invalid, FaultOp::Queue, "", 0, "a queue of depth 0"));
        }
        if let Some(kind) = state.pending.draw(FaultOp::Queue) {
            return Err(fault(kind, FaultOp::Queue, "", 0, "injected"));
        }
        let id = state.tick();
        Ok(Box::new(SimQueue { lease: self.0.clone(), id, depth }))
    }
}

struct SimQueue {
    lease: Arc<ProcessLease>,
    id: u64,
    depth: usize,
}

impl Queue for SimQueue {
    fn room(&self) -> usize {
        self.depth.saturating_sub(self.in_flight())
    }

    fn in_flight(&self) -> usize {
        lock(&self.lease.state).count(self.id)
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.room() == 0 {
            return Err(op);
        }
        let taken = lock(&self.lease.state).submit(self.lease.process, self.id, token, op);
        if let Err(overlap) = taken {
            drop(overlap.op);
            panic!("{}", overlap.message);
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut state = lock(&self.lease.state);
        state.clock.advance(POLL_COST);
        state.collect(self.id, done);
    }

    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        let before = done.len();
        let mut state = lock(&self.lease.state);
        let deadline = state.clock.now().after(timeout);
        loop {
            state.collect(self.id, done);
            let now = state.clock.now();
            if done.len() > before || state.count(self.id) == 0 || now >= deadline {
                return;
            }
            let next = state.next_due(self.id).unwrap_or(deadline).min(deadline);
            assert!(next < Mono(u64::MAX), "wait without timeout for operations that a test holds");
            state.clock.advance_to(next);
        }
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let forgotten = lock(&self.lease.state).forget(self.id);
        drop(forgotten);
    }
}
