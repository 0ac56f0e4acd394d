//! The helper threads of a disk: a queue of jobs, and a few threads that process it in order.
//!
//! Invariant: a started pool has at least one thread until it is dropped, so each job is done also
//! when no further thread can be started (`pids.max`, `RLIMIT_NPROC`).

use std::collections::VecDeque;
use std::time::Duration;

use super::completions::CompletionQueue;
use super::transfer;
use crate::disk::{Completion, Op};
use crate::fault::IoFault;
use crate::files::DataFile;
use crate::sync::{Arc, Builder, Condvar, Mutex, MutexGuard, PoisonError, wait_while};
use crate::threads::thread_start_fault;

/// Most threads of one disk. A few overlap the device's latency; more would only add context
/// switches, since speed is already given up on this backend.
const THREADS: usize = 4;

/// An operation for a helper thread. The thread owns its memory until the system call has returned.
pub(super) struct Job {
    /// The submitter's number for it.
    pub(super) token: u64,
    /// The operation with its parts.
    pub(super) op: Op,
    /// Keeps file and lock.
    pub(super) file: Arc<DataFile>,
    /// Receives the completion.
    pub(super) completions: Arc<CompletionQueue>,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
    /// Idle threads, which wait for a job.
    idle: usize,
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
        let mut jobs = self.lock();
        jobs.idle += 1;
        let waits = |jobs: &mut Jobs| jobs.waiting.is_empty() && !jobs.closed;
        let mut jobs = wait_while(&self.changed, jobs, Duration::MAX, waits);
        jobs.idle -= 1;
        jobs.waiting.pop_front()
    }
}

/// The threads. They end when the pool is dropped and its last job is done. They are not joined,
/// since one may be blocked in the kernel by a failing device.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Start one thread; the others are started when jobs need them.
    pub(crate) fn start() -> Result<Pool, IoFault> {
        let pool = Pool { shared: Arc::default() };
        pool.shared.lock().threads = 1;
        pool.spawn(0).map_err(|error| thread_start_fault("pagelith-io", &error))?;
        Ok(pool)
    }

    fn spawn(&self, number: usize) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        Builder::new().name(format!("pagelith-io-{number}")).spawn(move || work(&shared)).map(drop)
    }

    /// Hand a job to the threads, and start another if all of them are busy.
    pub(super) fn push(&self, job: Job) {
        let mut jobs = self.shared.lock();
        jobs.waiting.push_back(job);
        let grows = jobs.waiting.len() > jobs.idle && jobs.threads < THREADS;
        let number = jobs.threads;
        jobs.threads += usize::from(grows);
        drop(jobs);
        self.shared.changed.notify_one();
        if grows && let Err(error) = self.spawn(number) {
            // The existing threads do the job.
            self.shared.lock().threads -= 1;
            tracing::debug!(%error, "no further helper thread");
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn work(shared: &Shared) {
    while let Some(Job { token, mut op, file, completions }) = shared.next() {
        let result = transfer::run(&mut op, &file);
        // Dropped before the completion is visible: a caller that drops the disk next expects its
        // locks to be free.
        drop(file);
        completions.push(Completion { token, result, op });
    }
}
