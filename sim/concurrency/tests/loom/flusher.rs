//! Waking the flusher, and waiting for it: `Signal`, and the loop of `Threads` that drives a task.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::Mutex;
use loom::thread;
use pagelith_io::runtime::{Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::system::Threads;

use super::every_order;

/// A raise between the check and the wait ends the wait; a lost raise would be a deadlock.
#[test]
fn raise_between_check_and_wait_is_seen() {
    every_order("signal_two_raisers", None, || {
        let (signal, state) = (Signal::default(), Arc::new(Mutex::new(0)));
        let raisers: Vec<_> = (0..2)
            .map(|_| {
                let (signal, state) = (signal.clone(), state.clone());
                thread::spawn(move || {
                    *state.lock().unwrap() += 1;
                    signal.raise();
                })
            })
            .collect();
        loop {
            let seen = signal.value();
            if *state.lock().unwrap() == 2 {
                break;
            }
            signal.wait(seen, Duration::MAX);
        }
        raisers.into_iter().for_each(|r| r.join().unwrap());
    });
}

/// A raise wakes all waiters.
#[test]
fn raise_wakes_all_waiters() {
    every_order("signal_two_waiters", Some(4), || {
        let signal = Signal::default();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let signal = signal.clone();
                thread::spawn(move || signal.wait(0, Duration::MAX))
            })
            .collect();
        signal.raise();
        waiters.into_iter().for_each(|w| w.join().unwrap());
    });
}

/// Takes queued jobs, and raises `progress` when all have arrived.
struct Worker {
    queue: Arc<Mutex<Vec<u32>>>,
    taken: Vec<u32>,
    progress: Signal,
}

impl Task for Worker {
    fn step(&mut self) -> Step {
        self.taken.append(&mut self.queue.lock().unwrap());
        if self.taken.len() == 2 {
            self.progress.raise();
            return Step::Done;
        }
        Step::Idle(Duration::MAX)
    }
}

/// Jobs that arrive while the task checks, steps or goes to sleep are taken, and a joining thread
/// sees its end.
#[test]
fn task_misses_no_job() {
    every_order("task_two_jobs", Some(4), || {
        let (queue, work, progress) =
            (Arc::new(Mutex::new(Vec::new())), Signal::default(), Signal::default());
        let worker = Worker { queue: queue.clone(), taken: Vec::new(), progress: progress.clone() };
        let join = Threads.spawn("worker", Box::new(worker), work.clone()).unwrap();
        let other = {
            let (queue, work) = (queue.clone(), work.clone());
            thread::spawn(move || {
                queue.lock().unwrap().push(1);
                work.raise();
            })
        };
        queue.lock().unwrap().push(2);
        work.raise();
        Threads.pause(&progress, 0, Duration::MAX);
        assert!(join.join(Duration::MAX));
        other.join().unwrap();
    });
}
