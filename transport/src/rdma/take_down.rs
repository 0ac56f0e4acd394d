//! The end of a link's queue pairs, on a thread of its own: it may take long.
//!
//! Only after this end has taken its own queue pairs down can it reuse memory that a peer or a
//! device may still access. Neither the peer's completions nor the end of the byte stream say so.
//!
//! Each taking down has one result, `DOWN` or `LEAKED`, which never changes: a device that releases
//! a queue pair after that is too late, since its memory is leaked and counted already.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::system::SystemClock;
use pagelith_io::verbs::{CompletionQueue, Drain, DrainMarkers, QueuePair, State, VerbsError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::host::RdmaHost;
use super::rail_queue::RailQueue;

/// Maximum duration of a drain. Some devices flush no marker: the destruction of the queue pair
/// follows in any case.
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// Maximum single wait of a drain.
const DRAIN_STEP: Duration = Duration::from_millis(20);
/// Duration after which a queue pair that is not destroyed counts as leaked.
const DESTROY_MAX: Duration = Duration::from_secs(5);
/// Numbers of the requests that mark the ends of the queues.
const MARKERS: DrainMarkers = DrainMarkers { receive: u64::MAX, send: u64::MAX - 1 };

const RUNNING: u8 = 0;
const DOWN: u8 = 1;
const LEAKED: u8 = 2;

/// The result of taking queue pairs down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenDown {
    /// No device accesses memory for the link any more.
    Down,
    /// A device did not release a queue pair: it may access memory for ever.
    Leaked,
}

/// Queue pairs that are being taken down.
pub(crate) struct TakeDown(Arc<Progress>);

/// The progress of a taking down.
pub(super) struct Progress {
    host: Arc<RdmaHost>,
    pairs: u64,
    result: AtomicU8,
    /// Begins at zero when the taking down begins, so its time is the duration so far.
    clock: SystemClock,
    /// Readable once there is a result; `None` if the system has no descriptor.
    wake: Option<OwnedFd>,
}

impl Progress {
    /// Time until there is a result in any case.
    fn due(&self) -> Duration {
        DESTROY_MAX.saturating_sub(self.clock.now().since(Mono::default()))
    }

    /// The result, if there is one. A device that needs too long counts as one that does not
    /// release its queue pairs.
    pub fn result(&self) -> Option<TakenDown> {
        if self.due().is_zero() {
            self.leak();
        }
        match self.result.load(Ordering::Acquire) {
            DOWN => Some(TakenDown::Down),
            LEAKED => Some(TakenDown::Leaked),
            _ => None,
        }
    }

    /// Without a result, the result is that all of the queue pairs are leaked.
    fn leak(&self) {
        if self.finish(LEAKED, self.pairs) {
            tracing::error!(
                pairs = self.pairs,
                "queue pairs are not released in time, and their memory is leaked; restart this \
                 process"
            );
        }
    }

    /// Set the result and count the leaked queue pairs. False if there is a result already.
    fn finish(&self, result: u8, leaked: u64) -> bool {
        let (done, order) = (&self.result, (Ordering::AcqRel, Ordering::Acquire));
        let is_first = done.compare_exchange(RUNNING, result, order.0, order.1).is_ok();
        if is_first {
            self.host.counters().leaked.fetch_add(leaked, Ordering::Relaxed);
        }
        is_first
    }
}

impl TakeDown {
    /// Begin to take down the queue pairs of these rails. `revokes` tells whether memory waits for
    /// it; otherwise the link was idle.
    pub fn begin(host: Arc<RdmaHost>, rails: Vec<RailQueue>, revokes: bool) -> TakeDown {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let progress = Arc::new(Progress {
            host: host.clone(),
            pairs: rails.len() as u64,
            result: AtomicU8::new(RUNNING),
            // The system clock: verbs are never simulated.
            clock: SystemClock::new(),
            wake: eventfd(0, flags).ok(),
        });
        host.note_take_down(&progress);
        run_on_thread(Job { rails, revokes, progress: progress.clone() });
        TakeDown(progress)
    }

    /// The result, if there is one.
    pub fn result(&self) -> Option<TakenDown> {
        self.0.result()
    }

    /// Time until there is a result in any case.
    pub fn due(&self) -> Duration {
        self.0.due()
    }

    /// Readable once the queue pairs are down or leaked.
    pub fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.0.wake.as_ref().map(AsFd::as_fd)
    }

    /// Wait at most `timeout` for the result. Without one until then, the queue pairs are leaked.
    pub fn wait(&self, timeout: Duration) -> TakenDown {
        let until = self.0.clock.now().after(timeout);
        loop {
            let left = until.since(self.0.clock.now()).min(self.due());
            if left.is_zero() {
                self.0.leak();
            }
            if let Some(result) = self.result() {
                return result;
            }
            let mut fds: Vec<_> =
                self.wake().iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            // Without a descriptor the result is looked for from time to time.
            let left = if fds.is_empty() { left.min(DRAIN_STEP) } else { left };
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}

/// Work of the thread.
struct Job {
    rails: Vec<RailQueue>,
    revokes: bool,
    progress: Arc<Progress>,
}

impl Job {
    fn run(self) {
        let Job { rails, revokes, progress } = self;
        let clock = SystemClock::new();
        let begun: Vec<_> = rails.into_iter().map(ClosingQueuePair::begin).collect();
        let leaked = begun.into_iter().map(|rail| rail.end(&clock)).filter(|down| !down).count();
        if revokes {
            let counters = progress.host.counters();
            counters.taken_down.fetch_add(progress.pairs, Ordering::Relaxed);
        }
        progress.finish(if leaked > 0 { LEAKED } else { DOWN }, leaked as u64);
        if let Some(wake) = &progress.wake {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a device may need long to release a queue pair, and is never simulated"
)]
fn run_on_thread(job: Job) {
    let job = Arc::new(Mutex::new(Some(job)));
    let take = |job: &Mutex<Option<Job>>| job.lock().unwrap_or_else(PoisonError::into_inner).take();
    let of_thread = job.clone();
    let run = move || take(&of_thread).into_iter().for_each(Job::run);
    let name = "pagelith-rdma".to_owned();
    if std::thread::Builder::new().name(name).spawn(run).is_err() {
        // The system has no thread: this one waits.
        take(&job).into_iter().for_each(Job::run);
    }
}

/// A queue pair on its way down: both queues are drained, for a limited time, and it is destroyed.
struct ClosingQueuePair {
    rail: String,
    pair: QueuePair,
    completions: Arc<CompletionQueue>,
    drain: Option<Drain>,
}

impl ClosingQueuePair {
    fn begin(rail: RailQueue) -> ClosingQueuePair {
        let (rail, pair, completions) = rail.into_parts();
        // A queue pair that failed already may never flush markers: its destruction suffices.
        let failed = pair.state().is_ok_and(|state| state == State::Error);
        let drain = if failed { None } else { pair.begin_drain(MARKERS).ok() };
        ClosingQueuePair { rail, pair, completions, drain }
    }

    /// False if the device did not release the queue pair.
    fn end(mut self, clock: &SystemClock) -> bool {
        if let Some(drain) = self.drain.take()
            && let Err(error) = wait_for(drain, &self.completions, clock)
        {
            tracing::debug!(rail = self.rail, %error, "queue pair is destroyed without a drain");
        }
        let result = self.pair.destroy();
        if let Err(error) = &result {
            tracing::error!(
                rail = self.rail, %error,
                "queue pair is not released, and its memory is leaked; restart this process"
            );
        }
        result.is_ok()
    }
}

/// Wait until both markers are flushed, or [`DRAIN_MAX`] has passed since the clock's zero.
fn wait_for(
    mut drain: Drain,
    completions: &CompletionQueue,
    clock: &SystemClock,
) -> Result<(), VerbsError> {
    loop {
        completions.consume_events()?;
        completions.arm()?;
        let mut found = Vec::new();
        while completions.poll(&mut found)? > 0 {}
        let is_done = found.iter().any(|completion| drain.observe(completion));
        let left = DRAIN_MAX.saturating_sub(clock.now().since(Mono::default()));
        if is_done || left.is_zero() {
            return Ok(());
        }
        completions.sleep(left.min(DRAIN_STEP))?;
    }
}
