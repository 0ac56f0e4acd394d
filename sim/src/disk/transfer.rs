//! Data operations: checks at submission, execution, and return.

use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::disk::{Completion, FileId, Op};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_layouts::align::is_aligned;

use super::execute::OpResult;
use super::fault_injector::StruckOp;
use super::plan::fault;
use super::state::{Hold, InFlight, State};
use super::table::FileNo;

/// Most parts of an operation: UIO_MAXIOV of Linux.
pub(crate) const PARTS_MAX: usize = 1024;

/// Most bytes of an operation: MAX_RW_COUNT of Linux, which cuts longer transfers short.
const BYTES_MAX: u64 = 0x7fff_f000;

/// An overlap of two operations in flight, which the interface forbids.
pub(crate) struct Overlap {
    /// Describes both operations, for the panic.
    pub(crate) message: String,
    /// The refused operation, to be dropped outside the lock.
    pub(crate) op: Op,
}

impl State {
    /// Accepts an operation of `queue`. An operation that breaks a rule completes with a fault,
    /// except for an overlap with another one in flight, which no disk defines and no store may
    /// submit.
    pub(crate) fn submit(
        &mut self,
        process: u64,
        queue: u64,
        token: u64,
        op: Op,
    ) -> Result<(), Overlap> {
        let checked = if self.alive.contains(&process) && !self.stopped() {
            self.check(process, &op)
        } else {
            Err(dead(&op))
        };
        let (file, outcome) = match checked {
            Ok(file) => (Some(file), None),
            Err(fault) => (None, Some(Err(fault))),
        };
        if let Some(other) = file.and_then(|file| self.overlapping(file, &op)) {
            let message = format!(
                "operations in flight overlap: {} and {} file={}",
                describe(token, &op),
                describe(other.token, &other.op),
                file.and_then(|file| self.files.get(file)).map_or("", |f| &f.path),
            );
            return Err(Overlap { message, op });
        }
        let latency = self.draw_latency();
        let late = file.map_or(Duration::ZERO, |file| self.draw_delay(file, &op, latency));
        let ready_at = self.clock.now().after(latency.saturating_add(late));
        let submitted = self.tick();
        self.in_flight.push(InFlight {
            process,
            queue,
            token,
            op,
            file,
            submitted,
            ready_at,
            wrote: None,
            outcome,
        });
        Ok(())
    }

    fn draw_latency(&mut self) -> Duration {
        match &mut self.order {
            None => self.latency,
            // Half to one and a half times the latency: enough for later operations to overtake
            // earlier ones.
            Some(rng) => {
                let ns = self.latency.as_nanos() as u64;
                Duration::from_nanos(ns / 2 + rng.below(ns + 1))
            }
        }
    }

    /// The additional time of the operation if a delay strikes it.
    fn draw_delay(&mut self, file: FileNo, op: &Op, latency: Duration) -> Duration {
        let State { files, strikes, clock, changes, .. } = self;
        let (kind, _, offset) = op_summary(op);
        let Some(named) = files.get(file) else { return Duration::ZERO };
        let Some(fault) = strikes.draw(kind, &named.name, true) else { return Duration::ZERO };
        let struck_op = StruckOp {
            fault,
            op: kind,
            dir: named.dir,
            name: &named.name,
            offset,
            len: op.bytes(),
        };
        strikes.log(*changes, clock.now(), struck_op, None, true);
        strikes.delay(fault, latency)
    }

    /// The rules of the interface that can be checked at submission.
    fn check(&self, process: u64, op: &Op) -> Result<FileNo, IoFault> {
        let (kind, id, offset) = op_summary(op);
        let Some(open) = self.open.get(&id).filter(|o| o.process == process) else {
            let detail = format!("no such open file id={}", id.0);
            return Err(fault(FaultKind::Invalid, kind, "", offset, &detail));
        };
        let named = self.files.get(open.file);
        let invalid = |kind_of, detail| {
            Err(fault(kind_of, kind, named.map_or("", |f| &f.path), offset, detail))
        };
        let (Op::Read { parts, .. } | Op::Write { parts, .. }) = op else { return Ok(open.file) };
        let len = op.bytes();
        if len == 0 {
            return invalid(FaultKind::Invalid, "no bytes");
        }
        if parts.len() > PARTS_MAX || len > BYTES_MAX {
            return invalid(FaultKind::Invalid, "too many parts or bytes");
        }
        if !is_aligned(offset) || !is_aligned(len) {
            return invalid(FaultKind::Invalid, "offset or length not a multiple of 4096");
        }
        if parts.iter().any(|p| !is_aligned(p.addr() as u64) || !is_aligned(p.len() as u64)) {
            return invalid(FaultKind::Invalid, "memory not aligned to 4096");
        }
        if kind == FaultOp::Read && parts.iter().any(|p| !p.is_exclusive()) {
            return invalid(FaultKind::Invalid, "read into shared memory");
        }
        let file_len = named.map_or(0, |f| f.file.len);
        if offset.checked_add(len).is_none_or(|end| end > file_len) {
            // Like the real backends: such a write is refused, such a read finds fewer bytes.
            let short = if kind == FaultOp::Read { FaultKind::Short } else { FaultKind::Invalid };
            return invalid(short, "beyond the end of the file");
        }
        Ok(open.file)
    }

    /// An operation in flight that shares bytes with `op`, if one of the two writes.
    fn overlapping(&self, file: FileNo, op: &Op) -> Option<&InFlight> {
        let writes = |op: &Op| matches!(op, Op::Write { .. });
        let (_, _, from) = op_summary(op);
        let to = from + op.bytes();
        self.in_flight.iter().find(|other| {
            let (_, _, start) = op_summary(&other.op);
            other.file == Some(file)
                && (writes(op) || writes(&other.op))
                && start < to
                && from < start + other.op.bytes()
                && self.alive.contains(&other.process)
        })
    }

    /// An operation in flight by the moment it was submitted.
    pub(crate) fn in_flight_of(&mut self, id: u64) -> Option<&mut InFlight> {
        let at = self.in_flight.binary_search_by_key(&id, |e| e.submitted).ok()?;
        self.in_flight.get_mut(at)
    }

    /// Executes an operation in flight, unless it already has an outcome.
    pub(crate) fn execute(&mut self, id: u64) {
        let stopped = self.stopped();
        let Some(entry) = self.in_flight_of(id).filter(|e| e.outcome.is_none()) else { return };
        if stopped {
            entry.outcome = Some(Err(dead(&entry.op)));
            return;
        }
        let (kind, number, offset) = op_summary(&entry.op);
        let (file, len) = (entry.file, entry.op.bytes());
        let done = match file
            .filter(|file| self.open.contains_key(&number) && self.files.get(*file).is_some())
        {
            None => Err(fault(FaultKind::NotFound, kind, "", offset, "the file was removed")),
            Some(file) => Ok(self.perform(id, file)),
        };
        let outcome = done.and_then(|done| {
            let Some(named) = file.and_then(|file| self.files.get(file)) else { return Ok(()) };
            let path = named.path.clone();
            let OpResult { failed, struck, detail } = done;
            self.record(kind, path.clone(), offset, len, (failed, struck));
            failed.map_or(Ok(()), |failed| Err(fault(failed, kind, &path, offset, detail)))
        });
        if let Some(entry) = self.in_flight_of(id) {
            entry.outcome = Some(outcome);
        }
    }

    /// Executes the due operations of `queue` and returns those that are not held.
    pub(crate) fn collect(&mut self, queue: u64, done: &mut Vec<Completion>) {
        let (now, stopped) = (self.clock.now(), self.stopped());
        let due = |e: &InFlight| {
            e.queue == queue && (e.outcome.is_some() || e.ready_at <= now || stopped)
        };
        let Some(rng) = &mut self.order else {
            let mut at = 0;
            while let Some(entry) = self.in_flight.get(at) {
                let id = entry.submitted;
                at += usize::from(!due(entry) || !self.hand_back(id, done));
            }
            return;
        };
        let mut ids: Vec<u64> =
            self.in_flight.iter().filter(|e| due(e)).map(|e| e.submitted).collect();
        rng.shuffle(&mut ids);
        ids.into_iter().for_each(|id| _ = self.hand_back(id, done));
    }

    /// Executes an operation and returns it; false if it is held.
    fn hand_back(&mut self, id: u64, done: &mut Vec<Completion>) -> bool {
        self.execute(id);
        let Ok(at) = self.in_flight.binary_search_by_key(&id, |e| e.submitted) else { return true };
        if self.held(&self.in_flight[at]) {
            return false;
        }
        let entry = self.in_flight.remove(at);
        let moment = self.tick();
        if let Some((file, seq)) = entry.wrote
            && let Some(named) = self.files.get_mut(file)
        {
            named.file.returned(seq, moment);
        }
        let result = entry.outcome.unwrap_or_else(|| Err(dead(&entry.op)));
        done.push(Completion { token: entry.token, result, op: entry.op });
        true
    }

    /// Whether a test holds this completion back. A dead process's operations are never held.
    pub(crate) fn held(&self, entry: &InFlight) -> bool {
        let Some(named) =
            entry.file.filter(|_| !self.holds.is_empty()).and_then(|f| self.files.get(f))
        else {
            return false;
        };
        let (kind, _, _) = op_summary(&entry.op);
        let matches = |h: &Hold| h.op == kind && h.name.as_ref().is_none_or(|n| **n == *named.name);
        self.holds.iter().any(matches) && self.alive.contains(&entry.process) && !self.stopped()
    }

    /// When the next operation of `queue` executes; `None` if all that are in flight are held.
    pub(crate) fn next_due(&self, queue: u64) -> Option<Mono> {
        let waits = |e: &&InFlight| e.queue == queue && e.outcome.is_none();
        self.in_flight.iter().filter(waits).map(|e| e.ready_at).min()
    }

    /// Operations of `queue` not yet returned.
    pub(crate) fn count(&self, queue: u64) -> usize {
        self.in_flight.iter().filter(|e| e.queue == queue).count()
    }

    /// Removes a dropped queue: its operations in flight execute or not, by chance, and their
    /// completions are lost. The caller gets the operations, because dropping them may run foreign
    /// code.
    pub(crate) fn forget(&mut self, queue: u64) -> Vec<Op> {
        let own = |e: &InFlight| e.queue == queue;
        let ids: Vec<u64> = self.in_flight.iter().filter(|e| own(e)).map(|e| e.submitted).collect();
        for id in ids {
            if self.rng.one_in(2) {
                self.execute(id);
            }
        }
        self.in_flight.extract_if(.., |e| own(e)).map(|e| e.op).collect()
    }
}

/// The outcome of every operation of a dead process.
pub(crate) fn dead(op: &Op) -> IoFault {
    let (kind, _, offset) = op_summary(op);
    fault(FaultKind::Device, kind, "", offset, "the simulated process is dead")
}

/// Kind, file and offset of an operation.
fn op_summary(op: &Op) -> (FaultOp, FileId, u64) {
    match op {
        Op::Read { file, offset, .. } => (FaultOp::Read, *file, *offset),
        Op::Write { file, offset, .. } => (FaultOp::Write, *file, *offset),
        Op::Sync { file } => (FaultOp::Sync, *file, 0),
    }
}

fn describe(token: u64, op: &Op) -> String {
    let (kind, _, offset) = op_summary(op);
    format!("{kind} token={token} offset={offset} len={}", op.bytes())
}
