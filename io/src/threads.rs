//! The real runtime: one named thread for each background task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::runtime::{Join, Runtime, Step, Task};
use crate::signal::Signal;
use crate::sync::Builder;

/// Why a thread of this name could not be started, with the limits that keep the system from it.
pub fn no_thread(name: &str, error: &std::io::Error) -> IoFault {
    let mut fault = IoFault::of_errno(FaultOp::Spawn, name, 0, error.raw_os_error().unwrap_or(0));
    fault.detail = "no thread can be started".to_owned();
    limits::named(fault)
}

/// Runs each task on its own thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

struct Running {
    finished: Signal,
}

impl Join for Running {
    fn join(&self, timeout: Duration) -> bool {
        self.finished.wait(0, timeout);
        self.finished.value() != 0
    }
}

/// Raises its signal when dropped, so that a task is reported done however its thread ends.
struct RaiseOnDrop(Signal);

impl Drop for RaiseOnDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl Runtime for Threads {
    /// A panic in the task is logged and ends it. Errors: kind `Exhausted` if the system has no thread left,
    /// `Invalid` for a name with a NUL.
    fn spawn(&self, name: &str, task: Box<dyn Task>, wake: Signal) -> Result<Box<dyn Join>, IoFault> {
        if name.contains('\0') {
            let detail = "a thread's name has a nul";
            return Err(IoFault::found(FaultKind::Invalid, FaultOp::Spawn, name, 0, detail));
        }
        let finished = Signal::default();
        let guard = RaiseOnDrop(finished.clone());
        let own_name = name.to_owned();
        Builder::new()
            .name(own_name.clone())
            .spawn(move || {
                let _last = guard;
                drive(&own_name, task, &wake);
            })
            .map_err(|error| no_thread(name, &error))?;
        Ok(Box::new(Running { finished }))
    }

    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration) {
        signal.wait(seen, timeout);
    }
}

fn drive(name: &str, mut task: Box<dyn Task>, wake: &Signal) {
    // The task's own drop is inside too: it may be what panics.
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        loop {
            // Read before the step: what is raised during it ends the wait at once.
            let seen = wake.value();
            match task.step() {
                Step::Again => {}
                Step::Idle(most) => wake.wait(seen, most),
                Step::Done => break,
            }
        }
    }));
    if let Err(panic) = outcome {
        let text = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        tracing::error!(task = name, panic = %text, "background task panicked and will not run again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// Says each step to the test, and does what the test answers.
    struct Obedient {
        stepped: Sender<()>,
        orders: Receiver<Step>,
    }

    impl Task for Obedient {
        fn step(&mut self) -> Step {
            self.stepped.send(()).unwrap();
            self.orders.recv().unwrap()
        }
    }

    struct Panics;

    impl Task for Panics {
        fn step(&mut self) -> Step {
            panic!("planted")
        }
    }

    fn obedient() -> (Sender<Step>, Receiver<()>, Box<Obedient>) {
        let (stepped, steps) = channel();
        let (order, orders) = channel();
        (order, steps, Box::new(Obedient { stepped, orders }))
    }

    #[test]
    fn a_wake_during_a_step_is_not_lost() {
        let (order, steps, task) = obedient();
        let wake = Signal::default();
        let join = Threads.spawn("obedient", task, wake.clone()).unwrap();
        steps.recv_timeout(LONG).unwrap();
        // The step is under way: it has been called and has not answered.
        wake.raise();
        order.send(Step::Idle(Duration::MAX)).unwrap();
        steps.recv_timeout(LONG).expect("the task sleeps through a wake raised during its step");
        order.send(Step::Done).unwrap();
        assert!(join.join(LONG));
    }

    #[test]
    fn idling_ends_at_its_time_and_again_at_once() {
        let (order, steps, task) = obedient();
        let join = Threads.spawn("obedient", task, Signal::default()).unwrap();
        order.send(Step::Again).unwrap();
        order.send(Step::Idle(Duration::from_millis(1))).unwrap();
        for _ in 0..3 {
            steps.recv_timeout(LONG).unwrap();
        }
        assert!(!join.join(Duration::ZERO), "done before it was told so");
        order.send(Step::Done).unwrap();
        assert!(join.join(LONG));
        assert!(join.join(Duration::ZERO), "done is for good");
    }

    #[test]
    fn a_panicking_task_is_done() {
        let join = Threads.spawn("panics", Box::new(Panics), Signal::default()).unwrap();
        assert!(join.join(LONG));
    }

    #[test]
    fn a_name_with_nul_is_refused() {
        let refused = Threads.spawn("a\0b", Box::new(Panics), Signal::default()).err().unwrap();
        assert_eq!(refused.kind, FaultKind::Invalid);
    }
}
