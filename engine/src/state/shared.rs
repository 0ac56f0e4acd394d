//! What every session and the flusher share.

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
use crate::rpc::Remote;
use crate::rpc::removal_fence::RemovalFence;
use crate::state::core::{Core, JobResult};
use crate::state::counters::StripedCounters;
use crate::state::header_cache::HeaderCache;
use crate::state::load_totals::ServedBytes;
use crate::state::prefetch::Prefetch;
use crate::state::read_latency::SlowReads;
use crate::state::read_view::{CoreGuard, ReadView};

/// The fingerprint of every key where all have the same, which tests alone set.
pub(crate) const CONSTANT_FINGERPRINT: u128 = 1;

/// Nobody read yet.
pub(crate) const NEVER_READ: u64 = u64::MAX;
/// How long after the last sign of a reader the next one is still expected: longer than a session's wait for the device
/// before it gives another sign.
const READER_TIMEOUT: Duration = Duration::from_millis(50);

/// Longest single wait for room in the arena.
pub(crate) const BUSY_STEP: Duration = Duration::from_millis(10);

pub(crate) struct Shared {
    /// Locked by [`Shared::lock`] alone, which publishes what was changed.
    pub core: Mutex<Core>,
    /// What can be known of it without the lock.
    pub read_view: ReadView,
    /// Number of the last request.
    pub last_request: AtomicU64,
    /// What gets counted, beside what the core has counted.
    pub get_counters: StripedCounters,
    pub memory: Arc<ArenaMemory>,
    pub volume: Option<Arc<Volume>>,
    pub staging: StagingPool,
    /// Headers of records on SSD that need not be read.
    pub headers: HeaderCache,
    pub env: Env,
    pub config: ValidConfig,
    pub fingerprint_key: [u8; FINGERPRINT_KEY_BYTES],
    /// Largest object and largest group record that the store takes, in bytes.
    pub object_bytes_max: u64,
    /// The remote tier, if there is one.
    pub remote: Option<Arc<Remote>>,
    /// What is being removed and cleared.
    pub removal_fence: Arc<RemovalFence>,
    /// Wakes the flusher.
    pub work: Signal,
    /// Raised by the flusher whenever something that callers wait for may have changed.
    pub progress: Signal,
    pub closed: AtomicBool,
    /// A direct read was late: until all of those are back, and then one comes in time, reads are staged.
    pub direct_reads_suspended: AtomicBool,
    /// Direct reads past their deadline that the kernel still has.
    pub late_reads: AtomicU64,
    /// How long reads took lately.
    pub slow_reads: SlowReads,
    /// What is to be read before it is asked for.
    pub prefetch: Prefetch,
    /// Bytes of the arena that are set aside for what arrives over links, and for what is read ahead.
    pub reserved_bytes: AtomicU64,
    /// Bytes of the arena that other processes look at, for as long as they want.
    pub viewed_bytes: AtomicU64,
    /// Bytes that operations of clients take, and outcomes that these have not read.
    pub served_bytes: ServedBytes,
    /// When somebody last had reads on the device, as the clock has it; [`NEVER_READ`] at first.
    pub last_read_at: AtomicU64,
}

impl Shared {
    /// The core. A panic elsewhere leaves it consistent enough to go on: every change keeps the invariants
    /// from one statement to the next, and what is found is verified.
    pub fn lock(&self) -> CoreGuard<'_> {
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        CoreGuard::new(core, &self.read_view)
    }

    /// What the index knows a key by.
    pub fn fingerprint(&self, key: &ObjectKey, generation: Generation) -> u128 {
        if self.config.constant_fingerprint() {
            return CONSTANT_FINGERPRINT;
        }
        checksum::fingerprint(&self.fingerprint_key, key, generation)
    }

    /// What records call the base group that has this object: the upper half of its true fingerprint, whatever
    /// the index is configured to use.
    pub fn group_name(&self, key: &ObjectKey, generation: Generation) -> u64 {
        name_of(checksum::fingerprint(&self.fingerprint_key, key, generation))
    }

    /// When a group that begins now is dropped if it is not complete.
    pub fn group_deadline(&self) -> Mono {
        self.now().after(self.config.group_deadline())
    }

    pub fn now(&self) -> Mono {
        self.env.clock.now()
    }

    /// Somebody has reads on the device.
    pub fn note_reads(&self, now: Mono) {
        // Written at most once a millisecond: sessions share the line.
        if now.0.abs_diff(self.last_read_at.load(Ordering::Relaxed)) > 1_000_000 {
            self.last_read_at.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether somebody reads from the device, or did a moment ago.
    pub fn has_recent_reads(&self) -> bool {
        let at = self.last_read_at.load(Ordering::Relaxed);
        at != NEVER_READ && self.now().since(Mono(at)) < READER_TIMEOUT
    }

    /// An error if the store was closed.
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

    /// When a put that meets a full arena gives up: the time is over, or all that it wants to wait for room.
    pub fn arena_wait_deadline(&self, options: &Options) -> Mono {
        let over = self.deadline(options.timeout);
        options.wait.map_or(over, |wait| over.min(self.now().after(wait)))
    }

    /// Try `once` again as long as it is `Busy`, until the deadline.
    pub fn while_busy<T>(&self, deadline: Mono, mut once: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            let seen = self.progress.value();
            let outcome = once();
            let left = deadline.since(self.now());
            if !outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy) || left.is_zero() {
                return outcome;
            }
            self.env.runtime.pause(&self.progress, seen, left.min(BUSY_STEP));
        }
    }

    /// Wait until the flusher answers request `id`.
    pub fn wait_for_job(&self, id: u64, deadline: Mono, what: &str) -> Result<()> {
        loop {
            let seen = self.progress.value();
            match self.poll_job(id, deadline, what) {
                Some(answer) => return answer,
                None => self.env.runtime.pause(&self.progress, seen, deadline.since(self.now())),
            }
        }
    }

    /// The flusher's answer to request `id`, which is forgotten with it, or that the time is up; `None` as long as
    /// neither is so.
    pub fn poll_job(&self, id: u64, deadline: Mono, what: &str) -> Option<Result<()>> {
        let mut core = self.lock();
        let answer = core.job_results.get(&id).cloned().flatten();
        let late = deadline.since(self.now()).is_zero();
        if answer.is_some() || late {
            core.job_results.remove(&id);
        }
        drop(core);
        match answer {
            Some(JobResult::Done) => Some(Ok(())),
            Some(JobResult::Failed(error)) => Some(Err(error.context(what))),
            None => {
                late.then(|| Err(Error::new(ErrorKind::Unavailable, format!("{what} did not end in time"))))
            }
        }
    }
}

/// Answers of the flusher that somebody comes back for.
pub(crate) struct PendingJobs {
    ids: Vec<u64>,
    deadline: Mono,
    failed: Option<Error>,
}

impl PendingJobs {
    pub fn new(ids: Vec<u64>, deadline: Mono) -> PendingJobs {
        PendingJobs { ids, deadline, failed: None }
    }

    /// What came of all of them, once each is answered or late.
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
