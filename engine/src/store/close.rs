//! Ends a store, with a flush (`close`) or without (`abandon`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::Join;
use pagelith_io::sync::{Arc, Mutex, PoisonError};

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CloseReport, FlushReport};
use crate::state::health::TierState;
use crate::state::jobs::Job;
use crate::state::shared::{BUSY_STEP, Shared};
use crate::store::flush;
use crate::store::open::OpenReport;
use crate::store::session_pool::SessionPool;

/// Longest wait for a background task when no time is left, or when the tier has failed.
const GRACE: Duration = Duration::from_secs(1);

/// What runs while a store is open. Its drop ends the store without a flush.
pub(crate) struct RunningStore {
    pool: Arc<SessionPool>,
    flusher: Mutex<Option<Box<dyn Join>>>,
    writer: Mutex<Option<Box<dyn Join>>>,
    pub report: OpenReport,
    /// A close has begun.
    is_closing: AtomicBool,
}

impl RunningStore {
    pub fn new(
        pool: Arc<SessionPool>,
        flusher: Option<Box<dyn Join>>,
        writer: Option<Box<dyn Join>>,
        report: OpenReport,
    ) -> RunningStore {
        let (flusher, writer) = (Mutex::new(flusher), Mutex::new(writer));
        RunningStore { pool, flusher, writer, report, is_closing: AtomicBool::new(false) }
    }

    /// See [`crate::Store::close_within`].
    pub fn close(&self, timeout: Duration) -> CloseReport {
        if self.is_closing.swap(true, Ordering::AcqRel) {
            let error = Error::new(ErrorKind::Closed, "store is closed");
            return CloseReport::of(FlushReport::default(), (0, 0), Some(error));
        }
        close(self, timeout)
    }

    /// Stop without a flush.
    pub fn abandon(&self) {
        stop(self, self.pool.shared.deadline(None));
    }
}

impl Drop for RunningStore {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Flush, let the flusher seal and checkpoint, and release all resources.
#[tracing::instrument(level = "info", skip_all)]
fn close(store: &RunningStore, timeout: Duration) -> CloseReport {
    let shared = store.pool.shared.clone();
    let deadline = shared.now().after(timeout);
    shared.lock().drop_pending_groups();
    let flushed = flush::begin(&shared).and_then(|ids| {
        ids.into_iter().try_for_each(|id| await_answer_or_failure(&shared, id, deadline))
    });
    drain_peer_queue(&shared, deadline);
    shared.signals.closed.store(true, Ordering::Release);
    let closed = flushed.and_then(|()| {
        let asked = shared.lock().submit_job(|id| Job::Close { id });
        shared.signals.flusher.raise();
        asked.map_or(Ok(()), |id| await_answer_or_failure(&shared, id, deadline))
    });
    // Do not wait for a failed tier: operations that it has not completed by now may never
    // complete.
    stop(store, if closed.is_ok() { deadline } else { shared.now() });
    // In one critical section, because a flusher that still runs may be making objects durable.
    let (unsaved, flushed) = {
        let mut core = shared.lock();
        (core.unsaved(), core.flushes.last_report())
    };
    let (unsaved_objects, unsaved_bytes) = unsaved;
    let error = closed.err();
    if unsaved_objects > 0 || error.is_some() {
        let why = error.as_ref().map(tracing::field::display);
        tracing::error!(
            unsaved_objects,
            unsaved_bytes,
            why,
            "closed, and not everything is durable"
        );
    }
    CloseReport::of(flushed, unsaved, error)
}

/// Wait until the flusher answers request `id`, or until the tier fails.
fn await_answer_or_failure(shared: &Shared, id: u64, deadline: Mono) -> Result<()> {
    loop {
        let seen = shared.signals.progress.value();
        if let Some(answer) = shared.poll_job(id, deadline, "close") {
            return answer;
        }
        let state = shared.lock().ssd.as_ref().map(|ssd| ssd.health.state());
        if let Some(state) = state.filter(|state| *state != TierState::On) {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("close: ssd tier is {}", state.name()),
            ));
        }
        shared.env.runtime.pause(&shared.signals.progress, seen, deadline.since(shared.now()));
    }
}

/// Let the queue of offers to peers drain: after this the store makes no more offers.
fn drain_peer_queue(shared: &Shared, deadline: Mono) {
    let deadline = deadline.min(shared.deadline(None));
    loop {
        let seen = shared.signals.progress.value();
        let waits = shared.lock().remote.as_ref().is_some_and(|queue| !queue.jobs.is_empty());
        let left = deadline.since(shared.now());
        if !waits || left.is_zero() {
            return;
        }
        shared.env.runtime.pause(&shared.signals.progress, seen, left.min(BUSY_STEP));
    }
}

/// Stop the background tasks at `deadline`, or up to [`GRACE`] later, and release the files.
fn stop(store: &RunningStore, deadline: Mono) {
    let shared = &store.pool.shared;
    let take = |task: &Mutex<Option<Box<dyn Join>>>| {
        task.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    let left = || deadline.since(shared.now()).max(GRACE.min(shared.config.deadline()));
    shared.signals.closed.store(true, Ordering::Release);
    shared.lock().jobs.stopped = true;
    shared.signals.flusher.raise();
    // Callers that wait for jobs.
    shared.signals.progress.raise();
    store.pool.end(shared.now().after(left()));
    if !shared.prefetch.stop(left()) {
        tracing::error!(
            "close: prefetch reader still runs after the deadline, its files stay open"
        );
    }
    if let Some(flusher) = take(&store.flusher)
        && !flusher.join(left())
    {
        tracing::error!("close: flusher still runs after the deadline, its files stay open");
    }
    shared.devices.release_late();
    shared.remote.peers.iter().for_each(|remote| remote.writer_signal.raise());
    if let Some(writer) = take(&store.writer)
        && !writer.join(left())
    {
        tracing::error!("close: peer writer still runs after the deadline");
    }
}
