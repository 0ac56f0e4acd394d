use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Wake;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::outcome::CompletedGet;
use super::super::request::Destination;
use super::*;

const LONG: Duration = Duration::from_secs(30);

/// Reports each submitted batch and each poll to the test, and ends a batch when the test says so.
struct ScriptedSession {
    submitted: Sender<()>,
    /// Whether the batch ends, or the session panics.
    orders: Receiver<bool>,
    /// The outcome of each batch in turn; then batches are empty.
    outcomes: std::vec::IntoIter<GetOutcome>,
    /// Polls until what a late batch left has ended.
    busy_polls: usize,
}

impl PageSession for ScriptedSession {
    fn submit_get(&mut self, _: Vec<Get>, _: Options) -> Ticket {
        self.submitted.send(()).expect("the test runs");
        Ticket(0)
    }

    fn submit_put(&mut self, _: Vec<PutGroup>, _: Options) -> Ticket {
        unreachable!("the test gets only")
    }

    fn poll(&mut self) -> Option<(Ticket, CompletedBatch)> {
        self.busy_polls = self.busy_polls.saturating_sub(1);
        // A later poll may find that the test has ended.
        let _ = self.submitted.send(());
        None
    }

    fn wait(&mut self, _: Ticket, _: Duration) -> Option<CompletedBatch> {
        assert!(self.orders.recv().expect("an order"), "planted");
        let done = |outcome: GetOutcome| CompletedGet {
            outcome: Ok(outcome),
            destination: Destination(Vec::new()),
            length: 0,
            meta: None,
        };
        Some(CompletedBatch::Get(self.outcomes.next().map(done).into_iter().collect()))
    }

    fn wait_any(&mut self, _: Duration) -> Option<(Ticket, CompletedBatch)> {
        unreachable!("the queue waits for one batch")
    }

    fn is_busy(&self) -> bool {
        self.busy_polls > 0
    }
}

/// A queue of one thread, its orders and its reports.
fn scripted() -> (BatchQueue, Sender<bool>, Receiver<()>) {
    scripted_with(Vec::new())
}

/// The same; its batches have these outcomes.
fn scripted_with(outcomes: Vec<GetOutcome>) -> (BatchQueue, Sender<bool>, Receiver<()>) {
    let ((submitted, reports), (order, orders)) = (channel(), channel());
    let outcomes = outcomes.into_iter();
    let session = Box::new(ScriptedSession { submitted, orders, outcomes, busy_polls: 1 });
    (BatchQueue::with_sessions(vec![session]).expect("a queue"), order, reports)
}

struct RaiseOnWake(Signal);

impl Wake for RaiseOnWake {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.raise();
    }
}

/// Poll the future when it wakes its task, and only then.
fn block_on(mut batch: BatchCompletion) -> Option<CompletedBatch> {
    let woken = Signal::default();
    let waker = Waker::from(std::sync::Arc::new(RaiseOnWake(woken.clone())));
    loop {
        let seen = woken.value();
        if let Poll::Ready(done) = Pin::new(&mut batch).poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        woken.wait(seen, LONG);
        assert_ne!(woken.value(), seen, "the future did not wake its task");
    }
}

fn is_readable(batches: &BatchQueue, most: Duration) -> bool {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(batches, PollFlags::IN)], Some(&most)).expect("polled") == 1
}

fn get(batches: &BatchQueue) -> Ticket {
    batches.submit_get(Vec::new(), Options::default())
}

#[test]
fn descriptor_is_readable_until_all_finished_batches_are_taken() {
    let (batches, order, _reports) = scripted();
    let tickets = [get(&batches), get(&batches), get(&batches)];
    assert!(!is_readable(&batches, Duration::ZERO) && batches.poll().is_none());
    for ticket in tickets {
        order.send(true).expect("the queue runs");
        assert!(is_readable(&batches, LONG));
        assert_eq!(batches.poll().map(|(ticket, _)| ticket), Some(ticket), "in order");
        assert!(!is_readable(&batches, Duration::ZERO) && batches.poll().is_none());
    }
    assert!(block_on(batches.completion(tickets[0])).is_none(), "it was taken");
}

#[test]
fn awaited_batch_is_taken_from_the_queue() {
    let (batches, order, reports) = scripted();
    let (first, second) = (get(&batches), get(&batches));
    reports.recv_timeout(LONG).expect("the first batch has started");
    // A dropped future leaves its batch in the queue.
    let waker = Waker::noop();
    let mut dropped = batches.completion(second);
    assert!(Pin::new(&mut dropped).poll(&mut Context::from_waker(waker)).is_pending());
    drop(dropped);
    order.send(true).expect("the queue runs");
    assert!(block_on(batches.completion(first)).is_some());
    order.send(true).expect("the queue runs");
    assert!(is_readable(&batches, LONG));
    assert_eq!(batches.poll().map(|(ticket, _)| ticket), Some(second));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the drop waits on another thread")]
fn dropped_queue_waits_for_the_running_batch_and_ends_the_others() {
    let (batches, order, reports) = scripted();
    let (running, waiting) = (get(&batches), get(&batches));
    let (running, waiting) = (batches.completion(running), batches.completion(waiting));
    reports.recv_timeout(LONG).expect("the first batch has started");
    let dropping = std::thread::spawn(move || drop(batches));
    assert!(block_on(waiting).is_none());
    assert!(!dropping.is_finished(), "the first batch is in progress");
    order.send(true).expect("the queue runs");
    assert!(block_on(running).is_some());
    dropping.join().expect("no panic");
}

#[test]
fn batches_end_without_a_result_once_the_last_session_has_panicked() {
    let (batches, order, reports) = scripted();
    let (running, waiting) = (get(&batches), get(&batches));
    let (running, waiting) = (batches.completion(running), batches.completion(waiting));
    reports.recv_timeout(LONG).expect("the first batch has started");
    order.send(false).expect("the queue runs");
    assert!(block_on(running).is_none());
    // Memory of the batch may be reused now, so its session must be gone.
    assert!(order.send(true).is_err(), "the session was not dropped before its batch ended");
    assert!(block_on(waiting).is_none());
    assert!(block_on(batches.completion(get(&batches))).is_none(), "submitted after the panic");
}

#[test]
fn all_tasks_that_await_a_batch_are_woken() {
    let (batches, order, reports) = scripted();
    let ticket = get(&batches);
    reports.recv_timeout(LONG).expect("the batch has started");
    let await_it = || {
        let woken = Signal::default();
        let waker = Waker::from(std::sync::Arc::new(RaiseOnWake(woken.clone())));
        let mut batch = batches.completion(ticket);
        assert!(Pin::new(&mut batch).poll(&mut Context::from_waker(&waker)).is_pending());
        woken
    };
    let tasks = [await_it(), await_it()];
    let seen = tasks.each_ref().map(Signal::value);
    order.send(true).expect("the queue runs");
    for (woken, seen) in tasks.iter().zip(seen) {
        woken.wait(seen, LONG);
        assert_ne!(woken.value(), seen, "a task was not woken");
    }
}

#[test]
fn session_is_polled_after_a_late_batch_and_not_after_others() {
    for is_late in [false, true] {
        let outcome = if is_late {
            GetOutcome::Miss(MissCause::Late)
        } else {
            GetOutcome::Miss(MissCause::Absent)
        };
        let (batches, order, reports) = scripted_with(vec![outcome]);
        let ticket = get(&batches);
        reports.recv_timeout(LONG).expect("the batch has started");
        order.send(true).expect("the queue runs");
        assert!(block_on(batches.completion(ticket)).is_some());
        if is_late {
            reports.recv_timeout(LONG).expect("the session is polled");
        }
        drop(batches);
        assert!(is_late || reports.recv().is_err(), "polled without a reason");
    }
}

#[test]
fn session_is_polled_after_a_late_batch_also_if_the_next_was_in_time() {
    let late_then_absent = [MissCause::Late, MissCause::Absent].map(GetOutcome::Miss);
    let (batches, order, reports) = scripted_with(late_then_absent.into());
    let (_, second) = (get(&batches), get(&batches));
    for _ in 0..2 {
        reports.recv_timeout(LONG).expect("the batch has started");
        order.send(true).expect("the queue runs");
    }
    assert!(block_on(batches.completion(second)).is_some());
    reports.recv_timeout(LONG).expect("the session is polled");
}

#[test]
fn session_is_not_polled_again_once_late_reads_have_ended() {
    let late_then_absent = [MissCause::Late, MissCause::Absent].map(GetOutcome::Miss);
    let (batches, order, reports) = scripted_with(late_then_absent.into());
    let run = || {
        let ticket = get(&batches);
        reports.recv_timeout(LONG).expect("the batch has started");
        order.send(true).expect("the queue runs");
        assert!(block_on(batches.completion(ticket)).is_some());
    };
    run();
    reports.recv_timeout(LONG).expect("the session is polled");
    // A thread that still polls would do it after this batch, before it waits.
    (0..100).for_each(|_| run());
    drop(batches);
    assert!(reports.recv().is_err(), "polled without a reason");
}

/// Drops its queue when it is woken.
struct DropOnWake {
    queue: std::sync::Mutex<Option<BatchQueue>>,
    dropped: Signal,
}

impl Wake for DropOnWake {
    fn wake(self: std::sync::Arc<Self>) {
        drop(self.queue.lock().expect("no panic").take());
        self.dropped.raise();
    }
}

#[test]
fn waker_may_drop_the_queue() {
    let (batches, order, reports) = scripted();
    let (running, waiting) = (get(&batches), get(&batches));
    let (mut running, waiting) = (batches.completion(running), batches.completion(waiting));
    reports.recv_timeout(LONG).expect("the first batch has started");
    let dropped = Signal::default();
    let queue = std::sync::Mutex::new(Some(batches));
    let waker = Waker::from(std::sync::Arc::new(DropOnWake { queue, dropped: dropped.clone() }));
    assert!(Pin::new(&mut running).poll(&mut Context::from_waker(&waker)).is_pending());
    order.send(true).expect("the queue runs");
    dropped.wait(0, LONG);
    assert_ne!(dropped.value(), 0, "the drop waits for its own thread");
    assert!(block_on(running).is_some() && block_on(waiting).is_none());
}
