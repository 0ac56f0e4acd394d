//! State shared by all sessions, the flusher, the peer writer and the server.

use std::sync::OnceLock;
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
use pagelith_transport::rdma::host::RdmaHost;

use crate::api::device::bound::Devices;
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::MissCause;
use crate::api::request::Options;
use crate::config::ValidConfig;
use crate::memory::departed::Departure;
use crate::memory::index::name_of;
use crate::memory::namespaces::NamespaceCounts;
use crate::rpc::Peers;
use crate::rpc::removal_fence::RemovalFence;
use crate::state::core::Core;
use crate::state::header_cache::HeaderCache;
use crate::state::hints::Hints;
use crate::state::jobs::JobResult;
use crate::state::leaving::Superseded;
use crate::state::load_totals::LoadTotals;
use crate::state::prefetch::Prefetch;
use crate::state::read_view::{CoreGuard, ReadView};
use crate::state::reads::ReadState;
use crate::state::ssd_admission::SsdAdmission;
use crate::state::stats::Counters;

/// The fingerprint of every key if `index.constant_fingerprint` is set, which only tests do.
pub(crate) const CONSTANT_FINGERPRINT: u128 = 1;

/// Longest single wait for free memory in the arena.
pub(crate) const BUSY_STEP: Duration = Duration::from_millis(10);

/// The use of RDMA.
#[derive(Default)]
pub(crate) struct RdmaDevices {
    /// The devices with which the store's memory is registered.
    pub host: OnceLock<Arc<RdmaHost>>,
    /// A peer may use RDMA, and this host has no usable devices.
    pub is_missing: bool,
}

pub(crate) struct Shared {
    /// Locked only with [`Shared::lock`], which publishes changes to `read_view`.
    pub core: Mutex<Core>,
    /// The part of the core that is readable without the lock.
    pub read_view: ReadView,
    /// The memory of the arena.
    pub memory: Arc<ArenaMemory>,
    pub ssd: SsdAccess,
    /// The policy that admits frames to SSD.
    pub admission: SsdAdmission,
    /// Hints that sessions have ended.
    pub hints: Hints,
    /// Recurrent states that longer prefixes have superseded.
    pub superseded: Superseded,
    pub env: Env,
    pub config: ValidConfig,
    pub fingerprint_key: [u8; FINGERPRINT_KEY_BYTES],
    /// Largest object and largest group record that the store accepts, in bytes.
    pub object_bytes_max: u64,
    pub remote: RemoteTier,
    pub rdma: RdmaDevices,
    pub devices: Devices,
    pub signals: Signals,
    pub reads: ReadState,
    /// Prefetch hints and their task.
    pub prefetch: Prefetch,
    pub bytes: BytesInUse,
}

/// Access to the SSD tier's records.
pub(crate) struct SsdAccess {
    /// The files; `None` without an SSD tier.
    pub volume: Option<Arc<Volume>>,
    /// Memory for bytes that are copied on.
    pub staging: StagingPool,
    /// Cached headers of records on SSD.
    pub headers: HeaderCache,
}

/// The remote tier, and the state that rejects offers of removed objects.
pub(crate) struct RemoteTier {
    /// The peers; `None` without a remote tier.
    pub peers: Option<Arc<Peers>>,
    /// Removals and clears in progress.
    pub removal_fence: Arc<RemovalFence>,
}

/// Signals between callers and the background tasks.
#[derive(Default)]
pub(crate) struct Signals {
    /// Wakes the flusher.
    pub flusher: Signal,
    /// Raised when a condition that callers wait for may have changed.
    pub progress: Signal,
    /// The store is closed.
    pub closed: AtomicBool,
}

/// Bytes of memory in use, each with its own limit.
#[derive(Default)]
pub(crate) struct BytesInUse {
    /// In the arena, reserved for payload over links and for prefetches: see
    /// [`crate::state::reserve`].
    pub reserved: AtomicU64,
    /// Bytes of the arena that views of other processes keep.
    pub viewed: AtomicU64,
    /// Bytes of client operations in progress, and of outcomes that clients have not read.
    pub served: LoadTotals,
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

    /// Count a put of these objects that was refused as `Busy`.
    pub fn count_busy<'a>(&self, core: &mut Core, keys: impl Iterator<Item = &'a ObjectKey>) {
        let now = self.now();
        for key in keys {
            core.counters.puts_busy += u64::from(core.dram.busy.record(key, now));
            let fingerprint = self.fingerprint(key, core.generation(key.namespace()));
            core.departed.note(fingerprint, Departure::NotTaken);
        }
    }

    /// Count an object of a client that was not read before the deadline.
    pub fn count_late(&self, key: &ObjectKey) {
        let mut late = Counters::default();
        late.miss(MissCause::Late);
        self.reads.counters.add(0, &late);
        let counts = self.read_view.namespaces.counts(key.namespace());
        counts.into_iter().for_each(NamespaceCounts::count_miss);
    }

    /// Deadline of a group that begins now; an incomplete group is dropped then.
    pub fn group_deadline(&self) -> Mono {
        self.now().after(self.config.group_deadline())
    }

    pub fn now(&self) -> Mono {
        self.env.clock.now()
    }

    /// An error if the store is closed.
    pub fn check_open(&self) -> Result<()> {
        if self.signals.closed.load(Ordering::Acquire) {
            return Err(closed());
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
    pub fn retry_while_busy<T>(
        &self,
        deadline: Mono,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        loop {
            let seen = self.signals.progress.value();
            let outcome = attempt();
            let left = deadline.since(self.now());
            if !outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy) || left.is_zero() {
                return outcome;
            }
            self.env.runtime.pause(&self.signals.progress, seen, left.min(BUSY_STEP));
        }
    }

    /// Wait for the result of job `id`. `what` names the operation in errors.
    pub fn wait_for_job(&self, id: u64, deadline: Mono, what: &str) -> Result<()> {
        loop {
            let seen = self.signals.progress.value();
            match self.poll_job(id, deadline, what) {
                Some(result) => return result,
                None => {
                    self.env.runtime.pause(&self.signals.progress, seen, deadline.since(self.now()))
                }
            }
        }
    }

    /// Take the result of job `id`, or an error after the deadline; the job is forgotten in both
    /// cases. `None` while neither applies.
    pub fn poll_job(&self, id: u64, deadline: Mono, what: &str) -> Option<Result<()>> {
        let late = deadline.since(self.now()).is_zero();
        let mut core = self.lock();
        // No task completes jobs any more.
        let stopped = core.jobs.stopped;
        let result = core.jobs.take(id, late || stopped);
        drop(core);
        match result {
            Some(JobResult::Done) => Some(Ok(())),
            Some(JobResult::Failed(error)) => Some(Err(error.context(what))),
            None if stopped => Some(Err(closed().context(what))),
            None => late.then(|| {
                let detail = "did not end in time; raise its timeout, or see `ssd_state`";
                Err(Error::new(ErrorKind::Unavailable, format!("{what} {detail}")))
            }),
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "store is closed")
}

/// Jobs whose results a poller waits for. The jobs go on after its drop.
pub(crate) struct PendingJobs {
    shared: Arc<Shared>,
    ids: Vec<u64>,
    deadline: Mono,
    failed: Option<Error>,
}

impl PendingJobs {
    pub fn new(shared: Arc<Shared>, ids: Vec<u64>, deadline: Mono) -> PendingJobs {
        PendingJobs { shared, ids, deadline, failed: None }
    }

    /// The first error, or `Ok`, once each job has its result or is late.
    pub fn poll(&mut self, what: &str) -> Option<Result<()>> {
        self.ids.retain(|id| match self.shared.poll_job(*id, self.deadline, what) {
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

impl Drop for PendingJobs {
    /// No caller takes the results that are left.
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            let mut core = self.shared.lock();
            self.ids.iter().for_each(|id| _ = core.jobs.take(*id, true));
        }
    }
}
