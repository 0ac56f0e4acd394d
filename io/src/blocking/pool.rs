//! The helper threads of a disk: a queue of jobs, and a few threads that work it off in order.

use std::collections::VecDeque;
use std::time::Duration;

use super::inbox::Inbox;
use super::transfer;
use crate::disk::{Completion, Op};
use crate::fault::IoFault;
use crate::files::DataFile;
use crate::sync::{Arc, Builder, Condvar, Mutex, MutexGuard, PoisonError, wait_while};
use crate::threads::no_thread;

/// Threads of one disk. A few overlap the device's latency; more would only add switching, since this side
/// is for systems where speed is already given up.
const THREADS: usize = 4;

/// An operation on its way to a thread. The thread owns its memory until the system call has returned.
pub(super) struct Job {
    /// The submitter's name for it.
    pub(super) token: u64,
    /// The operation with its parts.
    pub(super) op: Op,
    /// Keeps file and lock.
    pub(super) file: Arc<DataFile>,
    /// Where the completion goes.
    pub(super) inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None` once the pool is closed and empty.
    fn next(&self) -> Option<Job> {
        let waits = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.closed;
        wait_while(&self.changed, self.lock(), Duration::MAX, waits).waiting.pop_front()
    }
}

/// The threads; they end when the pool is dropped and its last job is done. They are not joined: one may be
/// stuck in the kernel with a sick device.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Start the threads.
    pub(crate) fn start() -> Result<Pool, IoFault> {
        // Made first, so that a failed start closes the threads already running.
        let pool = Pool { shared: Arc::default() };
        for n in 0..THREADS {
            let shared = Arc::clone(&pool.shared);
            let started = Builder::new().name(format!("pagelith-io-{n}")).spawn(move || work(&shared));
            started.map_err(|error| no_thread("pagelith-io", &error))?;
        }
        Ok(pool)
    }

    /// Hand a job to the threads.
    pub(super) fn push(&self, job: Job) {
        self.shared.lock().waiting.push_back(job);
        self.shared.changed.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn work(shared: &Shared) {
    while let Some(Job { token, mut op, file, inbox }) = shared.next() {
        let result = transfer::run(&mut op, &file);
        // Before the completion can be seen: whoever drops the disk next expects its locks to be free.
        drop(file);
        inbox.push(Completion { token, result, op });
    }
}
