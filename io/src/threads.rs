//! The real runtime: one named thread for each background task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::runtime::{Join, Runtime, Step, Task};
use crate::signal::Signal;
use crate::sync::Builder;

/// The fault of a thread that could not be started, naming the limits that may have prevented it.
pub fn thread_start_fault(name: &str, error: &std::io::Error) -> IoFault {
    let mut fault = IoFault::of_errno(FaultOp::Spawn, name, 0, error.raw_os_error().unwrap_or(0));
    fault.detail = "no thread can be started".to_owned();
    limits::named(fault)
}

/// Runs each task on its own thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

struct Running {
    finished: Signal,
    /// Its thread, once it has begun.
    thread: Arc<OnceLock<ThreadId>>,
}

impl Running {
    /// Whether the caller is the task. Threads of a checker share one of the system.
    fn is_own(&self) -> bool {
        cfg!(not(any(loom, shuttle))) && self.thread.get() == Some(&std::thread::current().id())
    }
}

impl Join for Running {
    fn join(&self, timeout: Duration) -> bool {
        if self.is_own() {
            return true;
        }
        self.finished.wait(0, timeout);
        self.finished.value() != 0
    }
}

/// Raises its signal when dropped, so that a task is reported as finished however its thread ends.
struct RaiseOnDrop(Signal);

impl Drop for RaiseOnDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl Runtime for Threads {
    /// A panic in the task is logged and ends the task. Errors: kind `Exhausted` if the system
    /// cannot start another thread, `Invalid` for a name with a NUL.
    fn spawn(
        &self,
        name: &str,
        task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<Box<dyn Join>, IoFault> {
        if name.contains('\0') {
            let detail = "the thread name contains a NUL";
            return Err(IoFault::found(FaultKind::Invalid, FaultOp::Spawn, name, 0, detail));
        }
        let finished = Signal::default();
        let guard = RaiseOnDrop(finished.clone());
        let own_name = name.to_owned();
        let thread = Arc::new(OnceLock::new());
        let begun = thread.clone();
        Builder::new()
            .name(own_name.clone())
            .spawn(move || {
                let _last = guard;
                let _ = begun.set(std::thread::current().id());
                drive(&own_name, task, &wake);
            })
            .map_err(|error| thread_start_fault(name, &error))?;
        Ok(Box::new(Running { finished, thread }))
    }

    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration) {
        signal.wait(seen, timeout);
    }
}

fn drive(name: &str, mut task: Box<dyn Task>, wake: &Signal) {
    // The task is also dropped inside `catch_unwind`, since its drop may panic.
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        loop {
            // Read before the step, so that a raise during the step ends the wait at once.
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

    /// Reports each step to the test, and returns the step that the test sends.
    struct ScriptedTask {
        stepped: Sender<()>,
        orders: Receiver<Step>,
    }

    impl Task for ScriptedTask {
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

    fn scripted_task() -> (Sender<Step>, Receiver<()>, Box<ScriptedTask>) {
        let (stepped, steps) = channel();
        let (order, orders) = channel();
        (order, steps, Box::new(ScriptedTask { stepped, orders }))
    }

    #[test]
    fn wake_during_step_is_not_lost() {
        let (order, steps, task) = scripted_task();
        let wake = Signal::default();
        let join = Threads.spawn("scripted", task, wake.clone()).unwrap();
        steps.recv_timeout(LONG).unwrap();
        // The step has been called and has not returned.
        wake.raise();
        order.send(Step::Idle(Duration::MAX)).unwrap();
        steps.recv_timeout(LONG).expect("the task missed a wake raised during its step");
        order.send(Step::Done).unwrap();
        assert!(join.join(LONG));
    }

    #[test]
    fn idle_step_ends_at_timeout_and_again_at_once() {
        let (order, steps, task) = scripted_task();
        let join = Threads.spawn("scripted", task, Signal::default()).unwrap();
        order.send(Step::Again).unwrap();
        order.send(Step::Idle(Duration::from_millis(1))).unwrap();
        for _ in 0..3 {
            steps.recv_timeout(LONG).unwrap();
        }
        assert!(!join.join(Duration::ZERO), "done before the test sent Done");
        order.send(Step::Done).unwrap();
        assert!(join.join(LONG));
        assert!(join.join(Duration::ZERO), "done is final");
    }

    #[test]
    fn panicking_task_is_done() {
        let join = Threads.spawn("panics", Box::new(Panics), Signal::default()).unwrap();
        assert!(join.join(LONG));
    }

    #[test]
    fn thread_name_with_nul_is_refused() {
        let refused = Threads.spawn("a\0b", Box::new(Panics), Signal::default()).err().unwrap();
        assert_eq!(refused.kind, FaultKind::Invalid);
    }
}
