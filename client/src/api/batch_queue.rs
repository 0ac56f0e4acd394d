//! Batches on threads of their own, for callers that must not block: event loops and async tasks.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pagelith_io::event_fd::EventFd;
use pagelith_io::runtime::{Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::sync::{Arc, Mutex, MutexGuard, PoisonError};
use pagelith_io::system::Threads;

use super::error::Result;
use super::outcome::{CompletedBatch, GetOutcome, MissCause, Ticket};
use super::page_store::{PageSession, PageStore};
use super::request::{Get, Options, PutGroup};

/// How long a thread waits at a time, for a batch and for its own end.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// A queue of batches for a store, run by threads with a session each. They start in the order of
/// their submission. No method but the drop waits for a batch.
///
/// A finished batch is taken once: by [`BatchQueue::poll`], which a poll loop calls when the
/// descriptor is readable ([`AsFd`]), or by awaiting [`BatchQueue::completion`]. The timeout of a
/// batch starts when a thread starts the batch.
///
/// Dropping it drops the batches that have not started, and waits for the others. A waker may drop
/// it.
pub struct BatchQueue {
    shared: Arc<Shared>,
    threads: Vec<Box<dyn Join>>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Raised for each submitted batch, and at the end.
    wake: Signal,
    /// Raised while a finished batch was not taken.
    event: EventFd,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Ticket, Batch)>,
    /// The batches that are not finished, each with the tasks that await it.
    pending: HashMap<Ticket, Vec<Waker>>,
    finished: VecDeque<(Ticket, CompletedBatch)>,
    last_ticket: u64,
    /// Threads that have not ended.
    runners: usize,
    is_closed: bool,
}

enum Batch {
    Get(Vec<Get>, Options),
    Put(Vec<PutGroup>, Options),
}

impl BatchQueue {
    /// A queue with `threads` threads, which is also the most batches in progress at a time.
    ///
    /// # Errors
    /// As [`PageStore::session`]; `Busy` if the system cannot start another thread or has no
    /// descriptor left.
    pub fn new(store: &dyn PageStore, threads: usize) -> Result<BatchQueue> {
        let sessions = (0..threads.max(1)).map(|_| store.session());
        BatchQueue::with_sessions(sessions.collect::<Result<_>>()?)
    }

    /// A queue with one thread for each session.
    fn with_sessions(sessions: Vec<Box<dyn PageSession>>) -> Result<BatchQueue> {
        let (queue, wake, event) = (Mutex::default(), Signal::default(), EventFd::new()?);
        let shared = Arc::new(Shared { queue, wake, event });
        let mut batches = BatchQueue { shared: shared.clone(), threads: Vec::new() };
        for (number, session) in sessions.into_iter().enumerate() {
            shared.lock().runners += 1;
            let running = RunningBatch { shared: shared.clone(), ticket: None };
            let runner = Runner { session, running, left_reads: false };
            let name = format!("pagelith-batch{number}");
            batches.threads.push(Threads.spawn(&name, Box::new(runner), shared.wake.clone())?);
        }
        Ok(batches)
    }

    /// Submit a batch of gets.
    pub fn submit_get(&self, gets: Vec<Get>, options: Options) -> Ticket {
        self.submit(Batch::Get(gets, options))
    }

    /// Submit groups to be put: without room the outcome is `Busy`.
    pub fn submit_put(&self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        self.submit(Batch::Put(groups, options))
    }

    fn submit(&self, batch: Batch) -> Ticket {
        let mut queue = self.shared.lock();
        queue.last_ticket += 1;
        let ticket = Ticket(queue.last_ticket);
        if queue.runners == 0 {
            // All threads have ended by panics: the batch has no result.
            return ticket;
        }
        queue.pending.insert(ticket, Vec::new());
        queue.waiting.push_back((ticket, batch));
        drop(queue);
        self.shared.wake.raise();
        ticket
    }

    /// Take a finished batch, if there is one.
    pub fn poll(&self) -> Option<(Ticket, CompletedBatch)> {
        let mut queue = self.shared.lock();
        let taken = queue.finished.pop_front();
        self.shared.clear_if_empty(&queue);
        taken
    }

    /// A future of a batch. It borrows nothing, and needs no certain runtime. Dropping it leaves
    /// the batch in the queue.
    pub fn completion(&self, ticket: Ticket) -> BatchCompletion {
        BatchCompletion { shared: self.shared.clone(), ticket }
    }
}

/// Readable while a finished batch was not taken.
impl AsFd for BatchQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl Drop for BatchQueue {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        let waiting = std::mem::take(&mut queue.waiting);
        drop(queue);
        waiting.into_iter().for_each(|(ticket, _)| self.shared.finish(ticket, None));
        self.shared.wake.raise();
        for thread in &self.threads {
            while !thread.join(WAIT_STEP) {}
        }
    }
}

/// The batch of a ticket, when it is finished; `None` if it was taken already, if its queue was
/// dropped before the batch started, or if the thread of the batch ended by a panic. A poll loop
/// gets no such batch.
#[must_use = "a future does nothing unless it is awaited"]
pub struct BatchCompletion {
    shared: Arc<Shared>,
    ticket: Ticket,
}

impl Future for BatchCompletion {
    type Output = Option<CompletedBatch>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut queue = self.shared.lock();
        if let Some(wakers) = queue.pending.get_mut(&self.ticket) {
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            return Poll::Pending;
        }
        let at = queue.finished.iter().position(|(ticket, _)| *ticket == self.ticket);
        let taken = at.and_then(|at| queue.finished.remove(at)).map(|(_, done)| done);
        self.shared.clear_if_empty(&queue);
        Poll::Ready(taken)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Record the end of a batch; `None` if it has no result.
    fn finish(&self, ticket: Ticket, done: Option<CompletedBatch>) {
        let mut queue = self.lock();
        let wakers = queue.pending.remove(&ticket).unwrap_or_default();
        queue.finished.extend(done.map(|done| (ticket, done)));
        if !queue.finished.is_empty() {
            self.event.raise();
        }
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn clear_if_empty(&self, queue: &Queue) {
        if queue.finished.is_empty() {
            self.event.clear();
        }
    }
}

/// One thread of a queue.
struct Runner {
    /// Dropped first: after that no read uses the memory of its batch.
    session: Box<dyn PageSession>,
    running: RunningBatch,
    /// A batch was late, or a put failed: reads that it left may be in flight. Their ends are
    /// processed by polls only, and until then their segments cannot be reused. So from then on an
    /// idle thread polls, until they have ended.
    left_reads: bool,
}

/// The batch in progress of a thread. After a panic it ends without a result.
struct RunningBatch {
    shared: Arc<Shared>,
    ticket: Option<Ticket>,
}

impl Task for Runner {
    fn step(&mut self) -> Step {
        let mut queue = self.running.shared.lock();
        let next = queue.waiting.pop_front();
        let is_closed = queue.is_closed;
        drop(queue);
        let Some((ticket, batch)) = next else {
            if is_closed {
                return Step::Done;
            }
            if self.left_reads {
                self.session.poll();
                self.left_reads = self.session.is_busy();
            }
            return Step::Idle(if self.left_reads { WAIT_STEP } else { Duration::MAX });
        };
        self.running.ticket = Some(ticket);
        let own = match batch {
            Batch::Get(gets, options) => self.session.submit_get(gets, options),
            Batch::Put(groups, options) => self.session.submit_put(groups, options),
        };
        let done = loop {
            if let Some(done) = self.session.wait(own, WAIT_STEP) {
                break done;
            }
        };
        self.running.ticket = None;
        self.left_reads |= is_late(&done);
        self.running.shared.finish(ticket, Some(done));
        Step::Again
    }
}

/// Whether a batch may have left reads to the device at its deadline.
fn is_late(done: &CompletedBatch) -> bool {
    match done {
        CompletedBatch::Get(gets) => {
            gets.iter().any(|get| get.outcome == Ok(GetOutcome::Miss(MissCause::Late)))
        }
        CompletedBatch::Put(puts) => puts.iter().any(|put| put.outcome.is_err()),
        CompletedBatch::Exists(_) | CompletedBatch::ExistsGroups(_) => false,
    }
}

impl Drop for RunningBatch {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.runners -= 1;
        // Without a thread, nothing waiting begins.
        let waiting = match queue.runners {
            0 => std::mem::take(&mut queue.waiting),
            _ => VecDeque::new(),
        };
        drop(queue);
        let ended = self.ticket.into_iter().chain(waiting.into_iter().map(|(ticket, _)| ticket));
        ended.for_each(|ticket| self.shared.finish(ticket, None));
    }
}

impl std::fmt::Debug for BatchQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchQueue").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}
