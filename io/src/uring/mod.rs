//! The io_uring backend: one ring for each queue.
//!
//! Invariants:
//! - Everything that the kernel may access (parts, vectors, file) is owned by `slots` from before
//!   its entry is pushed until its completion is seen. A dropped queue that cannot wait for that
//!   leaves it to a thread.
//! - A completion is matched by slot and generation; one without a match is counted in `strays` and
//!   dropped, never attributed to another operation.
//! - Entries in flight never outnumber the submission ring's, so a push always finds room and the
//!   completion ring, twice as large, cannot overflow. An operation is split into several entries
//!   only while one entry remains for each operation that may still be submitted (`extra_entries <=
//!   extra_entries_max`).
//! - Syncs never go through the ring, but to the disk's helper threads. The kernel always uses a
//!   worker thread of its own for a sync, and where it cannot start one (`pids.max`,
//!   `RLIMIT_NPROC`) it completes the sync with ECANCELED. That is indistinguishable from a file
//!   system's own error, and a failed sync must not be retried. So each sync is one system call of
//!   an existing thread.
//! - A read or write for which the kernel gets no worker or memory (ECANCELED, EAGAIN, ENOMEM, also
//!   of one whose submitting thread has exited) is done by a helper thread. All its entries have
//!   completed by then, so the kernel no longer uses its memory. Repeating it is sound whatever
//!   part was done already: a read fills the same parts, a write writes the same bytes to the same
//!   place.

mod entries;
mod fixed;
#[cfg(test)]
mod fixed_test;
#[cfg(test)]
mod long_writes_test;
mod ring;
mod slots;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads_test;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use rustix::io::Errno;

use self::entries::EntryRanges;
use self::fixed::FixedBuffers;
pub(crate) use self::fixed::may_register;
use self::slots::{InFlightOp, Slots};
use crate::blocking::{HelperOps, Pool};
use crate::disk::{Completion, Op, Queue};
use crate::fault::IoFault;
use crate::files::{FileCache, Files};
use crate::op_check::{Alignment, check, refused, verdict};
use crate::registered::RegisteredMemory;

/// How long a dropped queue waits for its operations before it leaves them to a thread. Waiting
/// longer than the 30 s that the kernel's SCSI layer gives a command by default would stall a
/// shutdown for nothing.
const DROP_WAIT: Duration = Duration::from_secs(30);

/// Ring entries for each operation, so that some operations may be split.
const ENTRIES_PER_OP: u32 = 2;

/// Longest wait for the ring while helper threads also have operations of the queue.
const RING_WAIT_WITH_HELPERS: Duration = Duration::from_millis(1);

/// Pause before a retry when the kernel has no memory for requests and nothing is in flight.
const BACK_OFF: Duration = Duration::from_millis(1);

/// A queue over one ring.
pub(crate) struct UringQueue {
    ring: ManuallyDrop<IoUring>,
    slots: ManuallyDrop<Slots>,
    /// Pushed entries that the kernel has not consumed, oldest first.
    pending: VecDeque<u64>,
    /// Completions that did not go through the kernel.
    ready: Vec<Completion>,
    /// Operations that helper threads perform.
    helpers: HelperOps,
    files: FileCache,
    fixed: FixedBuffers,
    align: Alignment,
    depth: usize,
    /// The number of entries beyond the first of each operation in flight, and its limit.
    extra_entries: usize,
    extra_entries_max: usize,
    /// The errno after which nothing is submitted any more.
    broken: Option<Errno>,
    /// Completions that matched no operation.
    strays: u64,
    drop_wait: Duration,
    /// The queue is being dropped: no operation is retried.
    closing: bool,
}

/// State that the queues of one disk share.
pub(crate) struct UringShared {
    pub(crate) files: Arc<Files>,
    pub(crate) registered: Arc<RegisteredMemory>,
    pub(crate) align: Alignment,
    pub(crate) pool: Arc<Pool>,
}

impl UringQueue {
    /// A queue for up to `depth` operations (at least 1, at most the capacity of the kernel's
    /// ring).
    pub(crate) fn new(common: UringShared, depth: usize) -> Result<UringQueue, IoFault> {
        let UringShared { files, registered, align, pool } = common;
        let wanted = wanted(depth);
        let ring = ring::build(wanted.saturating_mul(ENTRIES_PER_OP))?;
        let entries = ring.params().sq_entries();
        let depth = wanted.min(entries);
        Ok(UringQueue {
            ring: ManuallyDrop::new(ring),
            slots: ManuallyDrop::new(Slots::new(depth)),
            pending: VecDeque::new(),
            ready: Vec::new(),
            helpers: HelperOps::new(pool),
            files: FileCache::new(files),
            fixed: FixedBuffers::new(registered),
            align,
            depth: depth as usize,
            extra_entries: 0,
            extra_entries_max: (entries - depth) as usize,
            broken: None,
            strays: 0,
            drop_wait: DROP_WAIT,
            closing: false,
        })
    }

    /// Submit the pending entries and wait up to `timeout` for `want` completions. False if the
    /// kernel lacked a resource and the caller should retry later.
    fn enter(&mut self, want: u32, timeout: Duration) -> bool {
        self.enter_with(usize::MAX, want, timeout)
    }

    /// As `enter`, submitting at most `most` of the pending entries.
    fn enter_with(&mut self, most: usize, want: u32, timeout: Duration) -> bool {
        let submit = if self.broken.is_some() { 0 } else { self.pending.len().min(most) as u32 };
        let entered = ring::enter(&self.ring, submit, want, timeout);
        if self.broken.is_none() {
            let queued = ring::queued(&mut self.ring);
            let consumed = self.pending.len().saturating_sub(queued);
            self.pending.drain(..consumed);
        }
        match entered {
            Ok(()) => self.pending.is_empty(),
            // EBUSY: completions must be reaped first. EAGAIN, ENOMEM: no memory for requests.
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => false,
            Err(e) if self.broken.is_none() => {
                self.give_up(e);
                true
            }
            Err(_) => false,
        }
    }

    /// Stop using the ring for submissions. The kernel never consumes the pending entries, so their
    /// operations are handed back.
    fn give_up(&mut self, e: Errno) {
        tracing::error!(
            errno = e.raw_os_error(),
            "io_uring_enter failed, the queue takes no more operations"
        );
        self.broken = Some(e);
        for id in std::mem::take(&mut self.pending) {
            if let Some(inflight) = complete_entry(
                (&mut self.slots, &mut self.fixed, &mut self.extra_entries),
                id,
                Err(e),
            ) {
                let fault = broken_fault(&inflight.file.path, e);
                self.ready.push(refused(inflight.token, inflight.op, fault));
            }
        }
    }

    /// Move finished operations to `done`, without entering the kernel.
    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        self.helpers.take(done);
        for entry in self.ring.completion() {
            let id = entry.user_data();
            if self.slots.get(id).is_none() {
                self.strays += 1;
                tracing::warn!(
                    id,
                    strays = self.strays,
                    "dropped a completion that matches no operation"
                );
                continue;
            }
            let moved = match entry.result() {
                n if n < 0 => Err(Errno::from_raw_os_error(-n)),
                n => Ok(n as u64),
            };
            if let Some(inflight) = complete_entry(
                (&mut self.slots, &mut self.fixed, &mut self.extra_entries),
                id,
                moved,
            ) {
                if !self.closing && inflight.moved.is_err_and(lacks_resources) {
                    self.helpers.push(inflight.token, inflight.op, inflight.file.shared());
                    continue;
                }
                let result = verdict(&inflight.op, &inflight.file.path, inflight.moved);
                done.push(Completion { token: inflight.token, result, op: inflight.op });
            }
        }
    }

    /// Push the entries of an operation. False if the ring has no room for one.
    fn push(&mut self, id: u64) -> bool {
        let Some(inflight) = self.slots.get_mut(id) else { return false };
        let ranges = match &inflight.op {
            Op::Read { parts, .. } if self.fixed.refresh(&self.ring) => self.fixed.read_ranges(
                parts,
                self.align.offset,
                self.extra_entries_max - self.extra_entries,
            ),
            Op::Write { .. }
                if (2..=self.extra_entries_max - self.extra_entries + 1)
                    .contains(&slots::entry_count(inflight.op.bytes())) =>
            {
                inflight.split_vectors();
                EntryRanges::of_split(&inflight.vectors)
            }
            Op::Read { parts, .. } | Op::Write { parts, .. } => EntryRanges::whole(parts),
            Op::Sync { .. } => EntryRanges::whole(&[]),
        };
        let pushed = ranges
            .iter()
            .take_while(|range| ring::push(&mut self.ring, inflight, id, **range))
            .count();
        if pushed == 0 {
            return false;
        }
        // All entries must be pushed, else the operation would be short; the ring has room for all
        // of them.
        debug_assert_eq!(pushed, ranges.iter().count());
        (inflight.entries_left, inflight.fixed_entries) = (pushed, ranges.fixed_count());
        self.extra_entries += pushed - 1;
        self.fixed.begin_entries(inflight.fixed_entries);
        self.pending.extend(std::iter::repeat_n(id, pushed));
        true
    }
}

/// Whether an entry failed because the kernel had no worker or memory for it, or its submitting
/// thread has exited.
fn lacks_resources(e: Errno) -> bool {
    matches!(e, Errno::CANCELED | Errno::AGAIN | Errno::NOMEM)
}

/// Complete an entry of an operation; returns the operation if this was its last entry.
fn complete_entry(
    (slots, fixed, extra_entries): (&mut Slots, &mut FixedBuffers, &mut usize),
    id: u64,
    moved: Result<u64, Errno>,
) -> Option<InFlightOp> {
    if !slots.get_mut(id)?.complete_entry(moved) {
        *extra_entries -= 1;
        return None;
    }
    let inflight = slots.take(id)?;
    fixed.end_entries(inflight.fixed_entries);
    Some(inflight)
}

impl Queue for UringQueue {
    fn room(&self) -> usize {
        self.depth - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.slots.live() + self.ready.len() + self.helpers.outstanding()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.room() == 0 {
            return Err(op);
        }
        let file = match check(|id| self.files.get(id), self.align, &op) {
            Ok(file) => file,
            Err(fault) => {
                self.ready.push(refused(token, op, fault));
                return Ok(());
            }
        };
        if let Some(e) = self.broken {
            self.ready.push(refused(token, op, broken_fault(&file.path, e)));
            return Ok(());
        }
        if matches!(op, Op::Sync { .. }) {
            self.helpers.push(token, op, file.shared());
            return Ok(());
        }
        let id =
            self.slots.insert(InFlightOp::new(token, op, file)).map_err(|inflight| inflight.op)?;
        if self.push(id) {
            if self
                .slots
                .get(id)
                .is_some_and(|inflight| inflight.entries_left > 1 && inflight.vectors_split)
            {
                self.submit_each();
            }
            return Ok(());
        }
        match self.slots.take(id) {
            Some(inflight) => Err(inflight.op),
            None => Ok(()),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if !self.pending.is_empty() || ring::needs_enter(&mut self.ring) {
            self.enter(0, Duration::ZERO);
        }
        self.reap(done);
    }

    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        let before = done.len();
        self.poll_if(done, timeout.is_zero());
        let start = Instant::now();
        while done.len() == before && self.in_flight() > 0 {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            if self.slots.live() == 0 {
                if self.ready.is_empty() {
                    self.helpers.wait(left);
                }
                self.reap(done);
                continue;
            }
            let left = if self.helpers.outstanding() > 0 {
                left.min(RING_WAIT_WITH_HELPERS)
            } else {
                left
            };
            let started = self.enter(1, left);
            self.reap(done);
            if !started && done.len() == before {
                self.wait_for_resources(left);
                self.reap(done);
            }
        }
    }

    fn set_drop_timeout(&mut self, wait: Duration) {
        self.drop_wait = wait.min(DROP_WAIT);
    }
}

impl UringQueue {
    /// Submit the pending entries one by one: adjacent entries that are submitted together would be
    /// merged on their way to the disk.
    fn submit_each(&mut self) {
        for _ in 0..self.pending.len() {
            let before = self.pending.len();
            self.enter_with(1, 0, Duration::ZERO);
            if self.pending.len() >= before {
                // The kernel accepts no entry now; the next enter submits the rest.
                return;
            }
        }
    }

    /// The part of `wait` before the sleep. The sleep itself submits pending entries, so the common
    /// case enters the kernel once.
    fn poll_if(&mut self, done: &mut Vec<Completion>, now: bool) {
        let before = done.len();
        self.reap(done);
        if now || done.len() > before {
            self.poll(done);
        }
    }

    /// Sleep until an operation in the kernel finishes, which frees the resource that it lacked.
    fn wait_for_resources(&mut self, left: Duration) {
        let in_kernel = self.slots.live() + self.extra_entries > self.pending.len();
        if !in_kernel {
            std::thread::sleep(left.min(BACK_OFF));
        } else if let Err(e) = ring::enter(&self.ring, 0, 1, left) {
            tracing::debug!(errno = e.raw_os_error(), "io_uring_enter refused to wait");
            std::thread::sleep(left.min(BACK_OFF));
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        let start = Instant::now();
        let mut done = Vec::new();
        self.closing = true;
        loop {
            self.wait(&mut done, self.drop_wait.saturating_sub(start.elapsed()));
            done.clear();
            if self.in_flight() == 0 {
                break;
            }
            if start.elapsed() >= self.drop_wait {
                let stuck = self.in_flight();
                tracing::error!(
                    stuck,
                    "queue dropped with operations that do not end; their memory and files stay in use until \
                     they do"
                );
                match self.slots.live() {
                    0 => break,
                    _ => return self.leave_to_reaper(),
                }
            }
        }
        // SAFETY: this is the destructor, so neither field is used again. No operation is in flight
        // in the kernel, so the kernel has no address in either.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.slots);
        }
    }
}

impl UringQueue {
    /// Leave ring and operations to a thread that drops them once the operations have ended,
    /// however long that takes. Until then they hold the locks of the store's files. Called by the
    /// destructor, once.
    fn leave_to_reaper(&mut self) {
        // SAFETY: this is the destructor, which returns after this, so neither field is used again.
        let (ring, slots) =
            unsafe { (ManuallyDrop::take(&mut self.ring), ManuallyDrop::take(&mut self.slots)) };
        let unregistered = FixedBuffers::new(Arc::clone(&self.fixed.registered));
        // Not dropped if the thread cannot be started: the kernel has the addresses.
        let late = ManuallyDrop::new(UringQueue {
            ring: ManuallyDrop::new(ring),
            slots: ManuallyDrop::new(slots),
            pending: std::mem::take(&mut self.pending),
            ready: Vec::new(),
            helpers: self.helpers.without_ops(),
            files: FileCache::new(Arc::default()),
            fixed: std::mem::replace(&mut self.fixed, unregistered),
            align: self.align,
            depth: self.depth,
            extra_entries: self.extra_entries,
            extra_entries_max: self.extra_entries_max,
            broken: self.broken,
            strays: self.strays,
            drop_wait: Duration::MAX,
            closing: true,
        });
        let reaper = move || drop(ManuallyDrop::into_inner(late));
        let started = std::thread::Builder::new().name("pagelith-late-io".to_owned()).spawn(reaper);
        if let Err(error) = started {
            tracing::error!(%error, "no thread for stuck operations: their memory and files stay in use");
        }
    }
}

/// Create the rings of two queues of this depth at once, to find out whether a store's log and a
/// session can have theirs.
pub(crate) fn try_two(depth: usize) -> Result<(), IoFault> {
    let entries = wanted(depth).saturating_mul(ENTRIES_PER_OP);
    let _log = ring::build(entries)?;
    ring::build(entries).map(drop)
}

/// The number of operations for which a queue of this depth is created.
fn wanted(depth: usize) -> u32 {
    u32::try_from(depth.max(1)).unwrap_or(u32::MAX)
}

fn broken_fault(path: &str, e: Errno) -> IoFault {
    let mut fault = ring::mechanism_fault(path, e);
    fault.detail = "the ring takes no more operations".to_owned();
    fault
}
