//! The progress of taking queue pairs down.
//!
//! It has one result, which never changes: a device that releases a queue pair after they were
//! given up is too late, since their memory is leaked and counted already.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::system::SystemClock;
use rustix::event::{EventfdFlags, eventfd};

use super::counters::RdmaCounters;

/// Duration after which a queue pair that is not destroyed counts as leaked.
const DESTROY_MAX: Duration = Duration::from_secs(5);

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

/// Queue pairs that are being taken down, or were.
pub(crate) struct TakeDownProgress {
    counters: Arc<RdmaCounters>,
    pairs: u64,
    result: AtomicU8,
    /// Begins at zero when the taking down begins.
    clock: SystemClock,
    /// Readable once all of them are destroyed or leaked; `None` if the system has no descriptor.
    wake: Option<OwnedFd>,
}

impl TakeDownProgress {
    pub fn new(counters: Arc<RdmaCounters>, pairs: u64) -> TakeDownProgress {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        // The system clock: verbs are never simulated.
        let (clock, wake) = (SystemClock::new(), eventfd(0, flags).ok());
        TakeDownProgress { counters, pairs, result: AtomicU8::new(RUNNING), clock, wake }
    }

    /// The duration so far.
    pub fn age(&self) -> Duration {
        self.clock.now().since(Mono::default())
    }

    /// Time until there is a result in any case.
    pub fn due(&self) -> Duration {
        DESTROY_MAX.saturating_sub(self.age())
    }

    /// Readable once all of them are destroyed or leaked.
    pub fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(AsFd::as_fd)
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

    /// Give the queue pairs up: without a result, the result is that all of them are leaked.
    pub fn leak(&self) {
        if self.finish(LEAKED, self.pairs) {
            tracing::error!(
                pairs = self.pairs,
                "queue pairs are not released in time, and their memory is leaked; restart this \
                 process"
            );
        }
    }

    /// All of them are destroyed, but for `leaked`.
    pub fn end(&self, leaked: u64) {
        self.finish(if leaked > 0 { LEAKED } else { DOWN }, leaked);
        if let Some(wake) = &self.wake {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Set the result and count the leaked queue pairs. False if there is a result already.
    fn finish(&self, result: u8, leaked: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let is_first = self.result.compare_exchange(RUNNING, result, success, failure).is_ok();
        if is_first {
            self.counters.leaked.fetch_add(leaked, Ordering::Relaxed);
        }
        is_first
    }
}
