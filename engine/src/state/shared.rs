//! State shared by all sessions, the flusher, the peer writer and the server.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::Env;
use pagelith_io::signal::Signal;
use pagelith_io::staging::StagingPool;
use pagelith_io::sync::{Arc, AtomicBool, AtomicU64, Mutex, PoisonError};
use pagelith_layouts::checksum::{self, FINGERPRINT_KEY_BYTES};
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_tiers::ssd::volume::Volume;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::request::Options;
use crate::config::ValidConfig;
use crate::memory::index::name_of;
use crate::rpc::Peers;
use crate::rpc::removal_fence::RemovalFence;
use crate::state::core::{Core, JobResult};
use crate::state::counters::StripedCounters;
use crate::state::header_cache::HeaderCache;
use crate::state::load_totals::ServedBytes;
use crate::state::prefetch::Prefetch;
use crate::state::read_latency::SlowReads;
use crate::state::read_view::{CoreGuard, ReadView};

/// The fingerprint of every key if `index.constant_fingerprint` is set, which only tests do.
pub(crate) const CONSTANT_FINGERPRINT: u128 = 1;

/// Value of [`Shared::last_read_at`] before the first read.
pub(crate) const NEVER_READ: u64 = u64::MAX;
/// How long after [`Shared::note_reads`] the device still counts as read from. Longer than a
/// session's wait for the device between two such calls.
const READER_TIMEOUT: Duration = Duration::from_millis(50);

/// Longest single wait for free memory in the arena.
pub(crate) const BUSY_STEP: Duration = Duration::from_millis(10);

pub(crate) struct Shared {
    /// Locked only with [`Shared::lock`], which publishes changes to `read_view`.
    pub core: Mutex<Core>,
    /// The part of the core that is readable without the lock.
    pub read_view: ReadView,
    /// Epoch of the last request.
    pub last_request: AtomicU64,
    /// Counters of gets; the core has all others.
    pub get_counters: StripedCounters,
    pub memory: Arc<ArenaMemory>,
    pub volume: Option<Arc<Volume>>,
    pub staging: StagingPool,
    /// Cached headers of records on SSD.
    pub headers: HeaderCache,
    pub env: Env,
    pub config: ValidConfig,
    pub fingerprint_key: [u8; FINGERPRINT_KEY_BYTES],
    /// Largest object and largest group record that the store accepts, in bytes.
    pub object_bytes_max: u64,
    /// The peers; `None` without a remote tier.
    pub remote: Option<Arc<Peers>>,
    /// Removals and clears in progress.
    pub removal_fence: Arc<RemovalFence>,
    /// Wakes the flusher.
    pub flusher_signal: Signal,
    /// Raised when a condition that callers wait for may have changed.
    pub progress: Signal,
    pub closed: AtomicBool,
    /// A direct read missed its deadline. Reads go through staging memory until `late_reads` is 0
    /// and a read has completed in time.
    pub direct_reads_suspended: AtomicBool,
    /// Direct reads that are past their deadline and not completed by the kernel.
    pub late_reads: AtomicU64,
    /// Recent read latency.
    pub slow_reads: SlowReads,
    /// Prefetch hints and their task.
    pub prefetch: Prefetch,
    /// Arena bytes reserved for payload over links and for prefetches: see
    /// [`crate::state::reserve`].
    pub reserved_bytes: AtomicU64,
    /// Arena bytes pinned by views of other processes.
    pub viewed_bytes: AtomicU64,
    /// Bytes of client operations in progress, and of outcomes that clients have not read.
    pub served_bytes: ServedBytes,
    /// Clock time of the last [`Shared::note_reads`]; [`NEVER_READ`] at first.
    pub last_read_at: AtomicU64,
}

impl Shared {
    /// Lock the core. A poisoned lock is accepted: every statement preserves the core's invariants,
    /// and bytes are verified when they are read.
    pub fn lock(&self) -> CoreGuard<'_> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        CoreGuard::new(core, &self.read_view)
    }

    /// The key's fingerprint, which identifies it in the index.
    pub fn fingerprint(&self, key: &ObjectKey, generation: Generation) -> u128 {
        if self.config.constant_fingerprint() {
            return CONSTANT_FINGERPRINT;
        }
        checksum::fingerprint(&self.fingerprint_key, key, generation)
    }

    /// The name in records of the base group that has this object: the upper half of the key's true
    /// fingerprint, also with a constant fingerprint in the index.
    pub fn group_name(&self, key: &ObjectKey, generation: Generation) -> u64 {
        name_of(checksum::fingerprint(&self.fingerprint_key, key, generation))
    }

    /// Deadline of a group that begins now; an incomplete group is dropped then.
    pub fn group_deadline(&self) -> Mono {
        self.now().after(self.config.group_deadline())
    }

    pub fn now(&self) -> Mono {
        self.env.clock.now()
    }

    /// Record that a session has reads in flight on the device.
    pub fn note_reads(&self, now: Mono) {
        // Stored at most once a millisecond, since all sessions share the cache line.
        if now.0.abs_diff(self.last_read_at.load(Ordering::Relaxed)) > 1_000_000 {
            self.last_read_at.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether a session had reads in flight within the last [`READER_TIMEOUT`].
    pub fn has_recent_reads(&self) -> bool {
        let at = self.last_read_at.load(Ordering::Relaxed);
        at != NEVER_READ && self.now().since(Mono(at)) < READER_TIMEOUT
    }

    /// An error if the store is closed.
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, "store is closed"));
        }
        Ok(())
    }

    /// The deadline of an operation.
    pub fn deadline(&self, timeout: Option<Duration>) -> Mono {
        self.now().after(timeout.unwrap_or_else(|| self.config.deadline()))
    }

    /// When a put stops waiting for memory in a full arena: after `options.wait`, at its deadline
    /// at the latest.
    pub fn arena_wait_deadline(&self, options: &Options) -> Mono {
        let deadline = self.deadline(options.timeout);
        options.wait.map_or(deadline, |wait| deadline.min(self.now().after(wait)))
    }

    /// Call `attempt` until its outcome is not `Busy`, or until the deadline.
    pub fn while_busy<T>(
        &self,
        deadline: Mono,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            let seen = self.progress.value();
            let outcome = attempt();
            let left = deadline.since(self.now());
            if !outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy) || left.is_zero() {
                return outcome;
            }
            self.env.runtime.pause(&self.progress, seen, left.min(BUSY_STEP));
        }
    }

    /// Wait for the result of job `id`. `what` names the operation in errors.
    pub fn wait_for_job(&self, id: u64, deadline: Mono, what: &str) -> Result<()> {
        loop {
            let seen = self.progress.value();
            match self.poll_job(id, deadline, what) {
                Some(result) => return result,
                None => self.env.runtime.pause(&self.progress, seen, deadline.since(self.now())),
            }
        }
    }

    /// Take the result of job `id`, or an error after the deadline; the job is forgotten in both
    /// cases. `None` while neither applies.
    pub fn poll_job(&self, id: u64, deadline: Mono, what: &str) -> Option<Result<()>> {
        let mut core = self.lock();
        let result = core.job_results.get(&id).cloned().flatten();
        let late = deadline.since(self.now()).is_zero();
        if result.is_some() || late {
            core.job_results.remove(&id);
        }
        drop(core);
        match result {
            Some(JobResult::Done) => Some(Ok(())),
            Some(JobResult::Failed(error)) => Some(Err(error.context(what))),
            None => late.then(|| {
                Err(Error::new(ErrorKind::Unavailable, format!("{what} did not end in time")))
            }),
        }
    }
}

/// Jobs whose results a poller waits for.
pub(crate) struct PendingJobs {
    ids: Vec<u64>,
    deadline: Mono,
    failed: Option<Error>,
}

impl PendingJobs {
    pub fn new(ids: Vec<u64>, deadline: Mono) -> PendingJobs {
        PendingJobs { ids, deadline, failed: None }
    }

    /// The first error, or `Ok`, once each job has its result or is late.
    pub fn poll(&mut self, shared: &Shared, what: &str) -> Option<Result<()>> {
        self.ids.retain(|id| match shared.poll_job(*id, self.deadline, what) {
            Some(Err(error)) => {
                self.failed.get_or_insert(error);
                false
            }
            Some(Ok(())) => false,
            None => true,
        });
        self.ids.is_empty().then(|| self.failed.take().map_or(Ok(()), Err))
    }
}
