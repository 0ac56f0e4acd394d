//! Data operations: the rules checked at submission, execution, and handing back.

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::disk::{Completion, FileId, Op};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_layouts::align::is_aligned;

use super::image::blocks_of;
use super::plan::fault;
use super::state::{FileKey, InFlight, State, path};

/// Most parts of an operation: UIO_MAXIOV of Linux.
pub(crate) const PARTS_MAX: usize = 1024;

/// Most bytes of an operation: MAX_RW_COUNT of Linux, which cuts longer transfers short.
const BYTES_MAX: u64 = 0x7fff_f000;

/// Two operations in flight at once that must not be.
pub(crate) struct Clash {
    /// Both operations, for the panic.
    pub(crate) message: String,
    /// The refused operation, to be dropped outside the lock.
    pub(crate) op: Op,
}

impl State {
    /// Take an operation of `queue`. Broken rules make it complete with a fault, except for an overlap with
    /// another one in flight, which no disk defines and no store may do.
    pub(crate) fn submit(&mut self, process: u64, queue: u64, token: u64, op: Op) -> Result<(), Clash> {
        let checked = if self.alive.contains(&process) && !self.stopped() {
            self.check(process, &op)
        } else {
            Err(dead(&op))
        };
        let (key, outcome) = match checked {
            Ok(key) => (Some(key), None),
            Err(fault) => (None, Some(Err(fault))),
        };
        if let Some(other) = key.as_ref().and_then(|key| self.overlapping(key, &op)) {
            let message = format!(
                "operations in flight overlap: {} and {} file={}",
                describe(token, &op),
                describe(other.token, &other.op),
                key.as_ref().map(path).unwrap_or_default(),
            );
            return Err(Clash { message, op });
        }
        let ready_at = self.clock.now().after(self.draw_latency());
        let submitted = self.tick();
        let entry = InFlight { process, queue, token, op, key, submitted, ready_at, wrote: None, outcome };
        self.in_flight.insert(submitted, entry);
        Ok(())
    }

    fn draw_latency(&mut self) -> std::time::Duration {
        match &mut self.order {
            None => self.latency,
            // Half to one and a half times: enough for later operations to overtake earlier ones.
            Some(rng) => {
                let ns = self.latency.as_nanos() as u64;
                std::time::Duration::from_nanos(ns / 2 + rng.below(ns + 1))
            }
        }
    }

    /// The rules of the seam that can be seen at submission.
    fn check(&self, process: u64, op: &Op) -> Result<FileKey, IoFault> {
        let (kind, id, offset) = outline(op);
        let Some(open) = self.open.get(&id).filter(|o| o.process == process) else {
            let detail = format!("no such open file id={}", id.0);
            return Err(fault(FaultKind::Invalid, kind, "", offset, &detail));
        };
        let invalid = |kind_of, detail| Err(fault(kind_of, kind, &path(&open.key), offset, detail));
        let (Op::Read { parts, .. } | Op::Write { parts, .. }) = op else { return Ok(open.key.clone()) };
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
        let file_len = self.files.get(&open.key).map_or(0, |f| f.len);
        if offset.checked_add(len).is_none_or(|end| end > file_len) {
            // As the real sides: such a write is refused, such a read finds fewer bytes.
            let short = if kind == FaultOp::Read { FaultKind::Short } else { FaultKind::Invalid };
            return invalid(short, "beyond the end of the file");
        }
        Ok(open.key.clone())
    }

    /// An operation in flight that shares bytes with `op`, if one of the two writes.
    fn overlapping(&self, key: &FileKey, op: &Op) -> Option<&InFlight> {
        let writes = |op: &Op| outline(op).0 == FaultOp::Write;
        let (_, _, from) = outline(op);
        let to = from + op.bytes();
        self.in_flight.values().find(|other| {
            let (_, _, start) = outline(&other.op);
            other.key.as_ref() == Some(key)
                && self.alive.contains(&other.process)
                && start < to
                && from < start + other.op.bytes()
                && (writes(op) || writes(&other.op))
        })
    }

    /// Execute an operation in flight, unless it has a verdict already.
    pub(crate) fn execute(&mut self, id: u64) {
        let Some(mut entry) = self.in_flight.remove(&id) else { return };
        if entry.outcome.is_none() {
            entry.outcome = Some(self.perform(&mut entry));
        }
        self.in_flight.insert(id, entry);
    }

    fn perform(&mut self, entry: &mut InFlight) -> Result<(), IoFault> {
        let (kind, id, offset) = outline(&entry.op);
        if self.stopped() {
            return Err(dead(&entry.op));
        }
        let Some(key) = entry.key.as_ref().filter(|_| self.open.contains_key(&id)) else {
            return Err(fault(FaultKind::NotFound, kind, "", offset, "the file was removed"));
        };
        let injected = self.pending.draw(kind);
        let seq = self.tick();
        let Some(file) = self.files.get_mut(key) else {
            return Err(fault(FaultKind::NotFound, kind, &path(key), offset, "the file was removed"));
        };
        let len = entry.op.bytes();
        match &mut entry.op {
            Op::Read { parts, .. } => {
                // A failed read has filled the first half of each part.
                let share = if injected.is_some() { 2 } else { 1 };
                let mut at = offset;
                for part in parts {
                    let part_len = part.len() as u64;
                    if let Some(bytes) = part.bytes_mut() {
                        let filled = bytes.len() / share;
                        file.read(at, &mut bytes[..filled]);
                    }
                    at += part_len;
                }
            }
            Op::Write { parts, .. } => {
                let blocks = parts.iter().flat_map(|p| blocks_of(p.bytes())).collect::<Vec<_>>();
                entry.wrote = Some(seq);
                match injected {
                    None => file.write(seq, offset, blocks),
                    Some(_) => file.write_failing(seq, offset, &blocks, &mut self.rng),
                }
            }
            Op::Sync { .. } if injected.is_some() => file.sync_failing(),
            Op::Sync { .. } if self.lies.strike(&path(key)) => {}
            Op::Sync { .. } => file.sync(entry.submitted),
        }
        let name = path(key);
        self.record(kind, name.clone(), offset, len, injected);
        injected.map_or(Ok(()), |k| Err(fault(k, kind, &name, offset, "injected")))
    }

    /// Execute what is due on `queue` and hand back what is not held.
    pub(crate) fn collect(&mut self, queue: u64, done: &mut Vec<Completion>) {
        let now = self.clock.now();
        let due = |e: &InFlight| e.outcome.is_some() || e.ready_at <= now || self.stopped();
        let mut ids: Vec<u64> =
            self.in_flight.iter().filter(|(_, e)| e.queue == queue && due(e)).map(|(id, _)| *id).collect();
        if let Some(rng) = &mut self.order {
            rng.shuffle(&mut ids);
        }
        for id in ids {
            self.execute(id);
            if self.in_flight.get(&id).is_some_and(|e| self.held(e)) {
                continue;
            }
            let Some(entry) = self.in_flight.remove(&id) else { continue };
            let moment = self.tick();
            if let (Some(key), Some(seq)) = (&entry.key, entry.wrote)
                && let Some(file) = self.files.get_mut(key)
            {
                file.returned(seq, moment);
            }
            let result = entry.outcome.unwrap_or_else(|| Err(dead(&entry.op)));
            done.push(Completion { token: entry.token, result, op: entry.op });
        }
    }

    /// Whether a test keeps this completion back. A dead process's operations are never kept.
    pub(crate) fn held(&self, entry: &InFlight) -> bool {
        let Some(key) = &entry.key else { return false };
        let (kind, _, _) = outline(&entry.op);
        let matches = self.holds.iter().any(|h| h.op == kind && h.name.as_ref().is_none_or(|n| *n == key.1));
        matches && self.alive.contains(&entry.process) && !self.stopped()
    }

    /// When the next operation of `queue` executes; `None` if all that are in flight are held.
    pub(crate) fn next_due(&self, queue: u64) -> Option<Mono> {
        let waits = |e: &&InFlight| e.queue == queue && e.outcome.is_none();
        self.in_flight.values().filter(waits).map(|e| e.ready_at).min()
    }

    /// Operations of `queue` not handed back.
    pub(crate) fn count(&self, queue: u64) -> usize {
        self.in_flight.values().filter(|e| e.queue == queue).count()
    }

    /// The queue is dropped: what it had in flight executes or not, by chance, and its completions are lost.
    /// The operations go to the caller, whose drop of them may run foreign code.
    pub(crate) fn forget(&mut self, queue: u64) -> Vec<Op> {
        let ids: Vec<u64> =
            self.in_flight.iter().filter(|(_, e)| e.queue == queue).map(|(id, _)| *id).collect();
        let mut ops = Vec::with_capacity(ids.len());
        for id in ids {
            if self.rng.one_in(2) {
                self.execute(id);
            }
            ops.extend(self.in_flight.remove(&id).map(|e| e.op));
        }
        ops
    }
}

/// The verdict on every operation of a process that is dead.
pub(crate) fn dead(op: &Op) -> IoFault {
    let (kind, _, offset) = outline(op);
    fault(FaultKind::Device, kind, "", offset, "the simulated process is dead")
}

/// Kind, file and offset of an operation.
fn outline(op: &Op) -> (FaultOp, FileId, u64) {
    match op {
        Op::Read { file, offset, .. } => (FaultOp::Read, *file, *offset),
        Op::Write { file, offset, .. } => (FaultOp::Write, *file, *offset),
        Op::Sync { file } => (FaultOp::Sync, *file, 0),
    }
}

fn describe(token: u64, op: &Op) -> String {
    let (kind, _, offset) = outline(op);
    format!("{kind} token={token} offset={offset} len={}", op.bytes())
}
