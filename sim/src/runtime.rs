//! A scheduler for background tasks. It steps them inside a waiting call, on the caller's thread.
//!
//! Invariants:
//! - No thread, no sleep: time advances only by [`STEP_COST`] per step and, when no task can run,
//!   directly to the next moment at which one can (nothing happens in between, so a smaller quantum
//!   would only cost time).
//! - A task is never stepped while it is being stepped: a pause inside a task steps the *others*.
//! - The seed decides which of several runnable tasks is stepped.
//! - A task is dropped outside the scheduler's lock, so its drop may use the runtime.

mod sched;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_io::runtime::{Join, Runtime, Task};
use pagelith_io::signal::Signal;

use crate::clock::SimClock;
use sched::Sched;

/// Simulated time that one step of a task takes, so that a spinning task sees time pass.
pub const STEP_COST: Duration = Duration::from_micros(1);

/// Steps after which [`SimRuntime::run_until_idle`] gives up on tasks that never idle.
const STEPS_MAX: u64 = 1_000_000;

struct Shared {
    clock: SimClock,
    sched: Mutex<Sched>,
}

/// A process's handle on the scheduler. Clones are handles of the same process;
/// [`SimRuntime::fresh`] makes another process on the same scheduler.
#[derive(Clone)]
pub struct SimRuntime {
    shared: Arc<Shared>,
    process: u64,
}

impl SimRuntime {
    /// A scheduler with its first process.
    pub fn new(clock: SimClock, seed: u64) -> SimRuntime {
        let mut sched = Sched::new(seed);
        let process = sched.new_process();
        SimRuntime { shared: Arc::new(Shared { clock, sched: Mutex::new(sched) }), process }
    }

    /// A handle for a new process, whose tasks are stepped together with those of all others.
    pub fn fresh(&self) -> SimRuntime {
        let process = self.lock().new_process();
        SimRuntime { shared: self.shared.clone(), process }
    }

    fn lock(&self) -> MutexGuard<'_, Sched> {
        self.shared.sched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps one runnable task; false if there is none. Advances the clock by [`STEP_COST`] if one
    /// was stepped.
    pub fn step_once(&self) -> bool {
        let picked = self.lock().pick(self.shared.clock.now());
        let Some((id, mut task)) = picked else { return false };
        let step = task.step();
        self.shared.clock.advance(STEP_COST);
        let finished = self.lock().put_back(id, task, step, self.shared.clock.now());
        drop(finished);
        true
    }

    /// Steps until no task can run unless time passes. Does not wait for operations in flight: see
    /// [`SimRuntime::run_for`].
    ///
    /// # Panics
    /// If tasks still run after a million steps.
    pub fn run_until_idle(&self) {
        for _ in 0..STEPS_MAX {
            if !self.step_once() {
                return;
            }
        }
        panic!("tasks never went idle steps={STEPS_MAX} tasks={:?}", self.tasks());
    }

    /// Advances simulated time by `d`, and steps tasks when they can run.
    pub fn run_for(&self, d: Duration) {
        self.drive(d, || false);
    }

    /// Drops every task of every process without another step; the processes stay dead.
    pub fn kill_all(&self) {
        let tasks = self.lock().kill(|_| true);
        drop(tasks);
    }

    /// Ends every process but this one, as [`SimRuntime::kill`] ends one.
    pub fn kill_others(&self) {
        let tasks = self.lock().kill(|process| process != self.process);
        drop(tasks);
    }

    /// Drops the tasks of this process without another step. The process stays dead: tasks that it
    /// spawns are dropped, and its pauses advance time without stepping any task.
    pub fn kill(&self) {
        let tasks = self.lock().kill(|process| process == self.process);
        drop(tasks);
    }

    /// Names of the tasks that are not done, oldest first.
    pub fn tasks(&self) -> Vec<String> {
        self.lock().names()
    }

    /// Steps tasks and advances time until `until` holds or `timeout` has passed; returns whether
    /// it holds. Steps once even if `timeout` is zero, so that a polling caller makes progress.
    fn drive(&self, timeout: Duration, until: impl Fn() -> bool) -> bool {
        let clock = &self.shared.clock;
        let deadline = clock.now().after(timeout);
        loop {
            if until() {
                return true;
            }
            if !self.lock().is_alive(self.process) {
                clock.advance_to(deadline);
                return until();
            }
            if !self.step_once() {
                let next = self.lock().next_wake();
                let to = next.map_or(deadline, |next| next.min(deadline));
                assert!(to < Mono(u64::MAX), "pause without timeout while no task can ever run");
                clock.advance_to(to);
            }
            if clock.now() >= deadline {
                return until();
            }
        }
    }
}

impl Runtime for SimRuntime {
    fn spawn(
        &self,
        name: &str,
        task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<Box<dyn Join>, IoFault> {
        let added = self.lock().add(self.process, name, task, wake);
        // The lock is free from here on, so a refused task may be dropped.
        added.map(|id| Box::new(SimJoin { runtime: self.clone(), id }) as Box<dyn Join>).map_err(
            |_| IoFault {
                kind: FaultKind::Exhausted,
                op: FaultOp::Queue,
                path: name.to_string(),
                offset: 0,
                errno: 0,
                detail: "the simulated process is dead".to_string(),
            },
        )
    }

    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration) {
        self.drive(timeout, || signal.value() != seen);
    }
}

impl fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimRuntime(process={}, tasks={:?})", self.process, self.tasks())
    }
}

struct SimJoin {
    runtime: SimRuntime,
    id: u64,
}

impl Join for SimJoin {
    /// A killed task counts as done.
    fn join(&self, timeout: Duration) -> bool {
        self.runtime.drive(timeout, || !self.runtime.lock().has(self.id))
    }
}
