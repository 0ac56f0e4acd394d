//! State shared by the clients of a run.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith::Result;
use pagelith_io::clock::{Clock, Mono};
use pagelith_layouts::key::ObjectKey;

use super::object_keys::{group, key, removed_with};
use super::oracle::Oracle;
use super::report::Tally;
use crate::clock::SimClock;

/// Longest time between a call's deadline and its end. A link over RDMA that waits for its memory
/// gives up after a tenth of a second, and its queue pair then takes up to 229 ms to go down.
const OVER_DEADLINE_MAX: Duration = Duration::from_millis(400);

/// State shared by the clients of a run.
#[derive(Clone)]
pub struct Shared {
    pub oracle: Arc<Mutex<Oracle>>,
    pub tally: Arc<Mutex<Tally>>,
    /// The object that any client requested last.
    pub asked_last: Arc<AtomicUsize>,
    /// The object that any client put last.
    pub put_last: Arc<AtomicUsize>,
    /// The object that is being removed, plus 1; 0 if there is none.
    pub removing: Arc<AtomicUsize>,
    pub clock: SimClock,
    /// Nanoseconds that steps of clients and of the task of faults have taken. A task that waits
    /// steps the others, and goes on only when they are back.
    pub stepped: Arc<AtomicU64>,
}

/// The begin of a call or step.
#[derive(Clone, Copy)]
pub struct Begun {
    at: Mono,
    stepped: u64,
}

impl Shared {
    pub fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call or a step begins.
    pub fn begin(&self) -> Begun {
        Begun { at: self.clock.now(), stepped: self.stepped.load(Relaxed) }
    }

    /// A step ends.
    pub fn end_step(&self, begun: Begun) {
        let took = self.clock.now().since(begun.at);
        self.stepped.store(begun.stepped + took.as_nanos() as u64, Relaxed);
    }

    /// A call with this timeout ends. The time that it was interrupted by other steps does not
    /// count.
    pub fn end_call(&self, begun: Begun, timeout: Duration, what: &str) {
        let others = Duration::from_nanos(self.stepped.load(Relaxed) - begun.stepped);
        let over = self.clock.now().since(begun.at).saturating_sub(timeout + others);
        let mut tally = self.tally();
        tally.longest_over_deadline_us =
            tally.longest_over_deadline_us.max(over.as_micros() as u64);
        if over > OVER_DEADLINE_MAX {
            tally.overdue += 1;
            tally.add_finding(format!("{what} ended {over:?} after its deadline"));
        }
    }

    /// Removes objects through store `by`, with the objects that are removed with them.
    pub(super) fn removed(
        &self,
        by: usize,
        some: Vec<usize>,
        remove: impl FnOnce(&[ObjectKey]) -> Result<usize>,
    ) {
        let keys: Vec<ObjectKey> = some.iter().flat_map(|object| group(*object)).map(key).collect();
        let some: Vec<usize> = some.into_iter().flat_map(removed_with).collect();
        let begun = self.oracle().moment();
        if remove(&keys).is_ok() {
            some.into_iter().for_each(|object| self.oracle().removed(by, object, begun));
            self.tally().removals += 1;
        }
    }
}
