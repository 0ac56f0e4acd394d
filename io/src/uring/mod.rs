//! The io_uring side: one ring a queue.
//!
//! Invariants:
//! - What the kernel may touch (parts, vectors, file) is owned by `slots` from before its entry is pushed
//!   until its completion is seen. A queue that cannot wait for that leaks it.
//! - A completion is matched by slot and generation; one that matches nothing is counted and dropped, never
//!   counted for another operation.
//! - Entries in flight never outnumber the submission ring's, so a push always finds room and the
//!   completion ring, twice as large, cannot overflow. An operation is made in several entries only while that leaves one
//!   for each operation that may still be submitted.
//! - Syncs never go through the ring, but to the disk's helper threads. For a sync the kernel always takes a worker thread of its own,
//!   and where it cannot start one (`pids.max`, `RLIMIT_NPROC`) it completes it with ECANCELED. That could not be told from a file
//!   system's own answer, and a failed sync must not be tried again. So each sync is one call of a thread that exists.
//! - A read or write for which the kernel gets no worker or memory (ECANCELED, EAGAIN, ENOMEM, also of one whose submitting
//!   thread has exited) is done by a helper thread. All its entries have completed by then, so the kernel is done with its memory; and doing it
//!   once more is sound whatever was done already: a read fills the same parts, a write brings the same bytes to the same place.

mod fixed;
mod ring;
mod slots;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_fixed;
#[cfg(test)]
mod tests_long;
#[cfg(test)]
mod tests_threads;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::IoUring;
use rustix::io::Errno;

pub(crate) use self::fixed::may_register;
use self::fixed::{Fixed, Runs};
use self::slots::{Held, Slots};
use crate::blocking::{Aside, Pool};
use crate::check::{Align, check, refused, verdict};
use crate::disk::{Completion, Op, Queue};
use crate::fault::IoFault;
use crate::files::{FileCache, Files};
use crate::registered::Registered;

/// How long a dropped queue waits for its operations before it leaks them. Longer than the 30 s that the
/// kernel's SCSI layer gives a command by default would stall a shutdown for nothing.
const DROP_WAIT: Duration = Duration::from_secs(30);

/// Entries that the ring has for each operation: room for some to be made in several.
const ENTRIES_EACH: u32 = 2;

/// Longest wait for the ring while helper threads, too, have operations of the queue.
const BOTH_STEP: Duration = Duration::from_millis(1);

/// Pause before trying again when the kernel lacks memory to take anything and nothing is in flight.
const BACK_OFF: Duration = Duration::from_millis(1);

/// A queue over one ring.
pub(crate) struct UringQueue {
    ring: ManuallyDrop<IoUring>,
    slots: ManuallyDrop<Slots>,
    /// Pushed entries that the kernel has not consumed, oldest first.
    pending: VecDeque<u64>,
    /// Completions that need no kernel.
    ready: Vec<Completion>,
    /// What helper threads do for it.
    aside: Aside,
    files: FileCache,
    fixed: Fixed,
    align: Align,
    depth: usize,
    /// Entries that an operation is made in beyond its first, of all in flight, and the most of them.
    more: usize,
    more_max: usize,
    /// The errno after which nothing is submitted any more.
    broken: Option<Errno>,
    /// Completions that matched no operation.
    strays: u64,
    drop_wait: Duration,
    /// It is being dropped: nothing is begun again.
    closing: bool,
}

/// What queues of one disk share.
pub(crate) struct Common {
    pub(crate) files: Arc<Files>,
    pub(crate) registered: Arc<Registered>,
    pub(crate) align: Align,
    pub(crate) pool: Arc<Pool>,
}

impl UringQueue {
    /// A queue for up to `depth` operations (at least 1, at most what the kernel's ring can hold).
    pub(crate) fn new(common: Common, depth: usize) -> Result<UringQueue, IoFault> {
        let Common { files, registered, align, pool } = common;
        let wanted = wanted(depth);
        let ring = ring::build(wanted.saturating_mul(ENTRIES_EACH))?;
        let entries = ring.params().sq_entries();
        let depth = wanted.min(entries);
        Ok(UringQueue {
            ring: ManuallyDrop::new(ring),
            slots: ManuallyDrop::new(Slots::new(depth)),
            pending: VecDeque::new(),
            ready: Vec::new(),
            aside: Aside::new(pool),
            files: FileCache::new(files),
            fixed: Fixed::new(registered),
            align,
            depth: depth as usize,
            more: 0,
            more_max: (entries - depth) as usize,
            broken: None,
            strays: 0,
            drop_wait: DROP_WAIT,
            closing: false,
        })
    }

    /// Start what is pending and wait up to `timeout` for `want` completions. False if the kernel was short of
    /// something and should be tried again later.
    fn enter(&mut self, want: u32, timeout: Duration) -> bool {
        self.enter_with(usize::MAX, want, timeout)
    }

    /// The same, starting no more than so many of what is pending.
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

    /// The ring takes nothing any more: what the kernel has not consumed it never will, so that it can be
    /// handed back.
    fn give_up(&mut self, e: Errno) {
        tracing::error!(
            errno = e.raw_os_error(),
            "io_uring_enter failed, the queue takes no more operations"
        );
        self.broken = Some(e);
        for id in std::mem::take(&mut self.pending) {
            if let Some(held) = ended((&mut self.slots, &mut self.fixed, &mut self.more), id, Err(e)) {
                let fault = broken_fault(&held.file.path, e);
                self.ready.push(refused(held.token, held.op, fault));
            }
        }
    }

    /// Move what finished to `done`, without entering the kernel.
    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        self.aside.take(done);
        for entry in self.ring.completion() {
            let id = entry.user_data();
            if self.slots.get(id).is_none() {
                self.strays += 1;
                tracing::warn!(id, strays = self.strays, "completion of no operation dropped");
                continue;
            }
            let moved = match entry.result() {
                n if n < 0 => Err(Errno::from_raw_os_error(-n)),
                n => Ok(n as u64),
            };
            if let Some(held) = ended((&mut self.slots, &mut self.fixed, &mut self.more), id, moved) {
                if !self.closing && held.moved.is_err_and(is_short_of_something) {
                    self.aside.push(held.token, held.op, held.file.shared());
                    continue;
                }
                let result = verdict(&held.op, &held.file.path, held.moved);
                done.push(Completion { token: held.token, result, op: held.op });
            }
        }
    }

    /// Queue the entries of a held operation. False if the ring has no room for one.
    fn push(&mut self, id: u64) -> bool {
        let Some(held) = self.slots.get_mut(id) else { return false };
        let runs = match &held.op {
            Op::Read { parts, .. } if self.fixed.follow(&self.ring) => {
                self.fixed.runs(parts, self.align.offset, self.more_max - self.more)
            }
            Op::Write { .. }
                if (2..=self.more_max - self.more + 1).contains(&slots::entries(held.op.bytes())) =>
            {
                held.cut();
                Runs::of_cut(&held.vectors)
            }
            Op::Read { parts, .. } | Op::Write { parts, .. } => Runs::whole(parts),
            Op::Sync { .. } => Runs::whole(&[]),
        };
        let pushed = runs.iter().take_while(|run| ring::push(&mut self.ring, held, id, **run)).count();
        if pushed == 0 {
            return false;
        }
        // Were one left out, the operation would be short: the queue has room for all of them.
        debug_assert_eq!(pushed, runs.iter().count());
        (held.left, held.fixed) = (pushed, runs.fixed());
        self.more += pushed - 1;
        self.fixed.began(held.fixed);
        self.pending.extend(std::iter::repeat_n(id, pushed));
        true
    }
}

/// Whether an entry ended so because the kernel had no worker or no memory for it, or its thread is gone.
fn is_short_of_something(e: Errno) -> bool {
    matches!(e, Errno::CANCELED | Errno::AGAIN | Errno::NOMEM)
}

/// An entry of an operation has ended: the operation, if it was its last.
fn ended(
    (slots, fixed, more): (&mut Slots, &mut Fixed, &mut usize),
    id: u64,
    moved: Result<u64, Errno>,
) -> Option<Held> {
    if !slots.get_mut(id)?.ended(moved) {
        *more -= 1;
        return None;
    }
    let held = slots.take(id)?;
    fixed.ended(held.fixed);
    Some(held)
}

impl Queue for UringQueue {
    fn room(&self) -> usize {
        self.depth - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.slots.live() + self.ready.len() + self.aside.out()
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
            self.aside.push(token, op, file.shared());
            return Ok(());
        }
        let id = self.slots.insert(Held::new(token, op, file)).map_err(|held| held.op)?;
        if self.push(id) {
            if self.slots.get(id).is_some_and(|held| held.left > 1 && held.cut) {
                self.begin_each();
            }
            return Ok(());
        }
        match self.slots.take(id) {
            Some(held) => Err(held.op),
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
                    self.aside.wait(left);
                }
                self.reap(done);
                continue;
            }
            let left = if self.aside.out() > 0 { left.min(BOTH_STEP) } else { left };
            let started = self.enter(1, left);
            self.reap(done);
            if !started && done.len() == before {
                self.wait_for_resources(left);
                self.reap(done);
            }
        }
    }

    fn limit_drop(&mut self, wait: Duration) {
        self.drop_wait = wait.min(DROP_WAIT);
    }
}

impl UringQueue {
    /// Begin what is pending entry by entry: those that are begun together and lie side by side are joined again on their way to
    /// the disk.
    fn begin_each(&mut self) {
        for _ in 0..self.pending.len() {
            let before = self.pending.len();
            self.enter_with(1, 0, Duration::ZERO);
            if self.pending.len() >= before {
                // The kernel takes nothing now; it is begun with the next that is entered.
                return;
            }
        }
    }

    /// What `wait` does before it sleeps. The sleep itself starts what is pending, so that the common case
    /// enters the kernel once.
    fn poll_if(&mut self, done: &mut Vec<Completion>, now: bool) {
        let before = done.len();
        self.reap(done);
        if now || done.len() > before {
            self.poll(done);
        }
    }

    /// Sleep until something that is in the kernel's hands finishes, which frees what it was short of.
    fn wait_for_resources(&mut self, left: Duration) {
        let in_kernel = self.slots.live() + self.more > self.pending.len();
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
                    "queue dropped with operations stuck in the kernel, their memory is leaked"
                );
                match self.slots.live() {
                    0 => break,
                    _ => return,
                }
            }
        }
        // SAFETY: this is the destructor, so neither field is used again; no operation is in flight in
        // the kernel, so the kernel has no address in either.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            ManuallyDrop::drop(&mut self.slots);
        }
    }
}

/// Make the rings of two queues of this depth at once, to see whether a store's log and a session can
/// have theirs.
pub(crate) fn try_two(depth: usize) -> Result<(), IoFault> {
    let entries = wanted(depth).saturating_mul(ENTRIES_EACH);
    let _log = ring::build(entries)?;
    ring::build(entries).map(drop)
}

/// The operations that a queue of this depth is made for.
fn wanted(depth: usize) -> u32 {
    u32::try_from(depth.max(1)).unwrap_or(u32::MAX)
}

fn broken_fault(path: &str, e: Errno) -> IoFault {
    let mut fault = ring::mechanism_fault(path, e);
    fault.detail = "the ring takes no more operations".to_owned();
    fault
}
