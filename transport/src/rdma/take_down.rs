//! The end of a link's queue pairs, on a thread of its own: it may take long.
//!
//! Only after this end has taken its own queue pairs down can it reuse memory that a peer or a
//! device may still access. Neither the peer's completions nor the end of the byte stream say so.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_io::verbs::{CompletionQueue, DrainMarkers, QueuePair, VerbsError};
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
pub(crate) struct TakeDown {
    state: Arc<State>,
    clock: SystemClock,
}

struct State {
    result: AtomicU8,
    /// Readable once there is a result; `None` if the system has no descriptor.
    wake: Option<OwnedFd>,
}

impl TakeDown {
    /// Begin to take down the queue pairs of these rails.
    pub fn begin(host: Arc<RdmaHost>, rails: Vec<RailQueue>) -> TakeDown {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let state =
            Arc::new(State { result: AtomicU8::new(RUNNING), wake: eventfd(0, flags).ok() });
        // The system clock: verbs are never simulated.
        let clock = SystemClock::new();
        let job = Job { host, rails, state: state.clone() };
        run_on_thread(job);
        TakeDown { state, clock }
    }

    /// The result, if there is one. A device that needs too long counts as one that does not
    /// release its queue pair.
    pub fn result(&self) -> Option<TakenDown> {
        match self.state.result.load(Ordering::Acquire) {
            DOWN => Some(TakenDown::Down),
            LEAKED => Some(TakenDown::Leaked),
            _ if self.due().is_zero() => Some(TakenDown::Leaked),
            _ => None,
        }
    }

    /// Time until there is a result in any case.
    pub fn due(&self) -> Duration {
        DESTROY_MAX.saturating_sub(Duration::from_nanos(self.clock.now().0))
    }

    /// Readable once the queue pairs are down or leaked.
    pub fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.state.wake.as_ref().map(AsFd::as_fd)
    }

    /// Wait at most `timeout` for the result.
    pub fn wait(&self, timeout: Duration) -> Option<TakenDown> {
        let until = self.clock.now().after(timeout.min(self.due()));
        loop {
            let left = until.since(self.clock.now());
            if self.result().is_some() || left.is_zero() {
                return self.result();
            }
            let mut fds: Vec<_> =
                self.wake().iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            // Without a descriptor the result is looked for from time to time.
            let left = if fds.is_empty() { left.min(DRAIN_STEP) } else { left };
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
        }
    }
}

/// What the thread does.
struct Job {
    host: Arc<RdmaHost>,
    rails: Vec<RailQueue>,
    state: Arc<State>,
}

impl Job {
    fn run(self) {
        let counters = self.host.counters();
        let mut result = DOWN;
        for rail in self.rails {
            let (name, pair, completions) = rail.into_parts();
            match take_down(pair, &completions) {
                Ok(()) => counters.taken_down.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    result = LEAKED;
                    tracing::error!(
                        rail = name, %error,
                        "queue pair is not released; its memory is leaked; restart this process"
                    );
                    counters.leaked.fetch_add(1, Ordering::Relaxed)
                }
            };
        }
        self.state.result.store(result, Ordering::Release);
        if let Some(wake) = &self.state.wake {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a device may need long to release a queue pair, and is never simulated"
)]
fn run_on_thread(job: Job) {
    // A thread that cannot be started drops its job: the queue pairs are then destroyed here. The
    // result stays open, so that the memory counts as leaked.
    let name = "pagelith-rdma".to_owned();
    if let Err(error) = std::thread::Builder::new().name(name).spawn(move || job.run()) {
        tracing::error!(%error, "no thread to take queue pairs down; their memory is leaked");
    }
}

/// Take a queue pair down: both queues are drained, for a limited time, and it is destroyed.
fn take_down(pair: QueuePair, completions: &CompletionQueue) -> Result<(), VerbsError> {
    // A queue pair that failed already may refuse markers: its destruction decides.
    if let Err(error) = drain(&pair, completions) {
        tracing::debug!(%error, "queue pair is destroyed without a drain");
    }
    pair.destroy()
}

fn drain(pair: &QueuePair, completions: &CompletionQueue) -> Result<(), VerbsError> {
    let clock = SystemClock::new();
    let mut drain = pair.begin_drain(MARKERS)?;
    loop {
        completions.consume_events()?;
        completions.arm()?;
        let mut found = Vec::new();
        while completions.poll(&mut found)? > 0 {}
        if found.iter().any(|completion| drain.observe(completion)) {
            return Ok(());
        }
        let left = DRAIN_MAX.saturating_sub(Duration::from_nanos(clock.now().0));
        if left.is_zero() {
            return Ok(());
        }
        completions.sleep(left.min(DRAIN_STEP))?;
    }
}
