//! Tests of the scheduler.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::{Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;

use super::SimRuntime;
use crate::clock::SimClock;

const MS: Duration = Duration::from_millis(1);

/// A task made of a closure.
struct Do<F>(F);

impl<F: FnMut() -> Step + Send> Task for Do<F> {
    fn step(&mut self) -> Step {
        (self.0)()
    }
}

fn runtime(seed: u64) -> (SimRuntime, SimClock) {
    let clock = SimClock::new();
    (SimRuntime::new(clock.clone(), seed), clock)
}

fn spawn(
    on: &SimRuntime,
    name: &str,
    step: impl FnMut() -> Step + Send + 'static,
) -> Box<dyn Join> {
    on.spawn(name, Box::new(Do(step)), Signal::default()).expect("a live process")
}

/// A counter, and a task that increments it at each step and returns `step`.
fn counting(on: &SimRuntime, step: Step) -> (Arc<AtomicU64>, Box<dyn Join>) {
    let count = Arc::new(AtomicU64::new(0));
    let inner = count.clone();
    let join = spawn(on, "counting", move || {
        inner.fetch_add(1, Ordering::SeqCst);
        step
    });
    (count, join)
}

#[test]
fn pause_steps_tasks_until_signal_is_raised() {
    let (rt, clock) = runtime(1);
    let signal = Signal::default();
    let raise = signal.clone();
    let mut left = 5;
    spawn(&rt, "raiser", move || {
        left -= 1;
        if left == 0 {
            raise.raise();
            return Step::Done;
        }
        Step::Idle(MS)
    });
    rt.pause(&signal, 0, Duration::from_secs(1));
    assert_eq!(signal.value(), 1);
    // Four idles of a millisecond, and five steps of a microsecond.
    assert_eq!(clock.now(), Mono(4_005_000));
    assert_eq!(rt.tasks(), Vec::<String>::new());
    rt.pause(&signal, 0, Duration::from_secs(1));
    assert_eq!(clock.now(), Mono(4_005_000), "raised already: no wait");
}

#[test]
fn pause_ends_at_timeout_in_simulated_time() {
    let (rt, clock) = runtime(1);
    let signal = Signal::default();
    rt.pause(&signal, 0, MS);
    assert_eq!(clock.now(), Mono(1_000_000), "with no task at all");
    let (steps, _join) = counting(&rt, Step::Again);
    rt.pause(&signal, 0, MS);
    assert_eq!((clock.now(), steps.load(Ordering::SeqCst)), (Mono(2_000_000), 1000));
    rt.pause(&signal, 0, Duration::ZERO);
    assert_eq!(steps.load(Ordering::SeqCst), 1001, "a caller that only asks makes progress");
}

#[test]
fn raised_signal_ends_idle_of_task() {
    let (rt, clock) = runtime(1);
    let wake = Signal::default();
    let count = Arc::new(AtomicU64::new(0));
    let (inner, own) = (count.clone(), wake.clone());
    let task = Do(move || {
        // A raise during the step counts, as on a thread that read the signal before it stepped.
        if inner.fetch_add(1, Ordering::SeqCst) == 0 {
            own.raise();
        }
        Step::Idle(Duration::from_secs(3600))
    });
    rt.spawn("sleeper", Box::new(task), wake.clone()).expect("a live process");
    rt.run_until_idle();
    assert_eq!(count.load(Ordering::SeqCst), 2);
    wake.raise();
    rt.run_until_idle();
    assert_eq!((count.load(Ordering::SeqCst), clock.now()), (3, Mono(3_000)));
    rt.run_for(Duration::from_secs(3600) + MS);
    assert_eq!(count.load(Ordering::SeqCst), 4, "the hour is over");
}

#[test]
fn pause_inside_task_steps_only_other_tasks() {
    let (rt, _clock) = runtime(3);
    let (inside, inner_rt) = (Arc::new(AtomicU64::new(0)), rt.clone());
    let (others, _join) = counting(&rt, Step::Idle(MS));
    let depth = inside.clone();
    spawn(&rt, "pauser", move || {
        assert_eq!(depth.fetch_add(1, Ordering::SeqCst), 0, "stepped while being stepped");
        inner_rt.pause(&Signal::default(), 0, MS * 10);
        depth.fetch_sub(1, Ordering::SeqCst);
        Step::Idle(MS)
    });
    rt.run_for(MS * 50);
    let steps = others.load(Ordering::SeqCst);
    assert!((45..=60).contains(&steps), "the other task kept its pace steps={steps}");
    rt.kill();
}

#[test]
fn join_waits_for_end_or_timeout() {
    let (rt, clock) = runtime(1);
    let mut left = 3;
    let join = spawn(&rt, "short", move || {
        left -= 1;
        if left == 0 { Step::Done } else { Step::Idle(MS) }
    });
    assert!(!join.join(MS), "done too early");
    assert!(join.join(MS * 10), "not done in time");
    assert!(clock.now() < Mono(3_000_000), "waited longer than the task ran now={:?}", clock.now());
    assert!(join.join(Duration::ZERO), "done is done");
}

#[test]
fn killed_process_tasks_stop_and_calls_return() {
    let (rt, clock) = runtime(1);
    let other = rt.fresh();
    let (steps, join) = counting(&rt, Step::Idle(MS));
    let (other_steps, _other_join) = counting(&other, Step::Idle(MS));
    other.run_for(MS * 5);
    let before = steps.load(Ordering::SeqCst);
    assert!(before > 3, "the task ran before={before}");
    rt.kill();
    other.run_for(MS * 5);
    assert_eq!(steps.load(Ordering::SeqCst), before);
    assert!(other_steps.load(Ordering::SeqCst) > 8, "the other process runs on");
    assert!(join.join(Duration::ZERO), "a killed task is gone");
    let (now, others) = (clock.now(), other_steps.load(Ordering::SeqCst));
    rt.pause(&Signal::default(), 0, MS * 5);
    assert_eq!((clock.now(), other_steps.load(Ordering::SeqCst)), (now.after(MS * 5), others));
    let refused = rt.spawn("late", Box::new(Do(|| Step::Again)), Signal::default());
    assert!(refused.is_err(), "a dead process spawned a task");
    other.kill_all();
    assert_eq!(other.tasks(), Vec::<String>::new());
}

/// Pauses in its drop, like a store's background task that waits for its last write.
struct Lingering(SimRuntime);

impl Task for Lingering {
    fn step(&mut self) -> Step {
        Step::Done
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        self.0.pause(&Signal::default(), 0, MS);
    }
}

#[test]
fn task_may_use_runtime_in_drop() {
    let (rt, clock) = runtime(1);
    rt.spawn("done", Box::new(Lingering(rt.clone())), Signal::default()).expect("a live process");
    rt.run_until_idle();
    assert_eq!(clock.now(), Mono(1_001_000));
    rt.spawn("killed", Box::new(Lingering(rt.clone())), Signal::default()).expect("a live process");
    rt.kill();
    assert_eq!(clock.now(), Mono(2_001_000));
    assert!(rt.spawn("refused", Box::new(Lingering(rt.clone())), Signal::default()).is_err());
}

#[test]
fn kill_inside_step_drops_task_after_step() {
    let (rt, _clock) = runtime(1);
    let killer = rt.clone();
    let join = spawn(&rt, "killer", move || {
        killer.kill();
        Step::Again
    });
    rt.run_until_idle();
    assert!(join.join(Duration::ZERO), "still there");
}

/// The order in which three tasks took 30 steps.
fn order_of(seed: u64) -> Vec<u8> {
    let (rt, _clock) = runtime(seed);
    let order = Arc::new(Mutex::new(Vec::new()));
    for name in 0..3u8 {
        let order = order.clone();
        spawn(&rt, "racer", move || {
            order.lock().expect("no panic").push(name);
            Step::Again
        });
    }
    (0..30).for_each(|_| assert!(rt.step_once(), "a task can run"));
    let steps = order.lock().expect("no panic").clone();
    rt.kill();
    steps
}

#[test]
fn seed_decides_order_of_steps() {
    let orders: std::collections::BTreeSet<_> = (0..10).map(order_of).collect();
    assert_eq!(orders.len(), 10, "every seed has an order of its own");
    assert_eq!(order_of(4), order_of(4));
    assert!((0..3).all(|name| order_of(4).contains(&name)), "a task starved");
}

#[test]
#[should_panic(expected = "tasks never went idle")]
fn livelock_panics() {
    let (rt, _clock) = runtime(1);
    let (_steps, _join) = counting(&rt, Step::Again);
    rt.run_until_idle();
}

#[test]
#[should_panic(expected = "no task can ever run")]
fn deadlock_panics() {
    let (rt, _clock) = runtime(1);
    rt.pause(&Signal::default(), 0, Duration::MAX);
}
