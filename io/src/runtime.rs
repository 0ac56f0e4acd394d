//! The runtime of background work. The store's background work is a state machine ([`Task`]),
//! driven by a runtime. The real runtime gives each task a thread; a simulated one steps tasks from
//! inside [`Runtime::pause`], so that one seed replays a whole run.

use std::sync::Arc;
use std::time::Duration;

use crate::fault::IoFault;
use crate::signal::Signal;

/// The request of a task after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Call again at once: the step made progress.
    Again,
    /// Call again when the task's signal is raised, or after this long.
    Idle(Duration),
    /// Never call again; drop the task.
    Done,
}

/// Background work. A step is short, but it may wait for the disk for a bounded time.
pub trait Task: Send {
    /// Make progress.
    fn step(&mut self) -> Step;
}

/// Runs tasks, and lets callers wait for the results of tasks.
pub trait Runtime: Send + Sync {
    /// Drive `task` until it is done; `wake` ends its idling early. The returned handle joins it.
    fn spawn(
        &self,
        name: &str,
        task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<Box<dyn Join>, IoFault>;

    /// Wait until `signal` has been raised since it had the value `seen`, or `timeout` passed. A
    /// simulated runtime steps its tasks and moves its clock instead of waiting.
    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration);
}

/// A running task.
pub trait Join: Send + Sync {
    /// Wait until the task is done, at most `timeout`; true if it is. A task on a thread of its own
    /// that joins itself, as a callback may, does not wait: true.
    fn join(&self, timeout: Duration) -> bool;
}

/// Everything that a store takes from outside, real or simulated.
#[derive(Clone)]
pub struct Env {
    /// Storage; `None` for a store without an SSD tier.
    pub disk: Option<Arc<dyn crate::disk::Disk>>,
    /// Monotonic time.
    pub clock: Arc<dyn crate::clock::Clock>,
    /// Randomness.
    pub entropy: Arc<dyn crate::entropy::Entropy>,
    /// Background work.
    pub runtime: Arc<dyn Runtime>,
}
