//! The end of a link's queue pairs, on a thread of its own: it may take long.
//!
//! Only after this end has taken its own queue pairs down can it reuse memory that a peer or a
//! device may still access. Neither the peer's completions nor the end of the byte stream say so.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::system::SystemClock;
use pagelith_io::verbs::{CompletionQueue, Drain, DrainMarkers, QueuePair, State, VerbsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::host::RdmaHost;
use super::rail_queue::RailQueue;
use super::take_down_progress::{TakeDownProgress, TakenDown};

/// Maximum duration of a drain. Some devices flush no marker: the destruction of the queue pair
/// follows in any case.
const DRAIN_MAX: Duration = Duration::from_millis(500);
/// Maximum single wait of a drain.
const DRAIN_STEP: Duration = Duration::from_millis(20);
/// Numbers of the requests that mark the ends of the queues.
const MARKERS: DrainMarkers = DrainMarkers { receive: u64::MAX, send: u64::MAX - 1 };

/// Queue pairs that are being taken down.
pub(crate) struct TakeDown(Arc<TakeDownProgress>);

impl TakeDown {
    /// Begin to take down the queue pairs of these rails. `revokes` tells whether memory waits for
    /// it; otherwise the link was idle.
    pub fn begin(host: Arc<RdmaHost>, rails: Vec<RailQueue>, revokes: bool) -> TakeDown {
        let progress = host.begin_take_down(rails.len() as u64);
        run_on_thread(Job { host, rails, revokes, progress: progress.clone() });
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
        self.0.wake()
    }

    /// Wait at most `timeout` for the result. Without one until then, the queue pairs are leaked.
    pub fn wait(&self, timeout: Duration) -> TakenDown {
        let until = self.0.age() + timeout;
        loop {
            let left = until.saturating_sub(self.0.age()).min(self.due());
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
    host: Arc<RdmaHost>,
    rails: Vec<RailQueue>,
    revokes: bool,
    progress: Arc<TakeDownProgress>,
}

impl Job {
    fn run(self) {
        let Job { host, rails, revokes, progress } = self;
        let (clock, pairs) = (SystemClock::new(), rails.len() as u64);
        let begun: Vec<_> = rails.into_iter().map(ClosingQueuePair::begin).collect();
        let leaked = begun.into_iter().map(|rail| rail.end(&clock)).filter(|down| !down).count();
        if revokes {
            host.counters().taken_down.fetch_add(pairs, Ordering::Relaxed);
        }
        progress.end(leaked as u64);
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
