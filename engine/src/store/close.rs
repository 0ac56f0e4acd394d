//! Ends a store, with a flush (`close`) or without (`abandon`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::clock::Mono;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::CloseReport;
use crate::state::health::TierState;
use crate::state::jobs::Job;
use crate::state::shared::{BUSY_STEP, Shared};
use crate::store::embedded::Store;
use crate::store::flush;

/// Longest wait for a background task when no time is left, or when the tier has failed.
const GRACE: Duration = Duration::from_secs(1);

/// Flush, let the flusher seal and checkpoint, and release all resources.
#[tracing::instrument(level = "info", skip_all)]
pub(crate) fn close(store: &mut Store, timeout: Duration) -> CloseReport {
    let shared = store.shared.clone();
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
    let (unsaved_objects, unsaved_bytes) = shared.lock().unsaved();
    // Do not wait for a failed tier: operations that it has not completed by now may never
    // complete.
    stop(store, if closed.is_ok() { deadline } else { shared.now() });
    let flushed = shared.lock().flushes.last_report();
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
    CloseReport { flushed, unsaved_objects, unsaved_bytes, error }
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

/// Stop without a flush.
pub(crate) fn abandon(store: &mut Store) {
    let deadline = store.shared.deadline(None);
    stop(store, deadline);
}

/// Stop the background tasks at `deadline`, or up to [`GRACE`] later, and release the files.
fn stop(store: &mut Store, deadline: Mono) {
    let shared = &store.shared;
    let left = || deadline.since(shared.now()).max(GRACE.min(shared.config.deadline()));
    shared.signals.closed.store(true, Ordering::Release);
    shared.lock().jobs.stopped = true;
    shared.signals.flusher.raise();
    store.end_sessions(shared.now().after(left()));
    if !shared.prefetch.stop(left()) {
        tracing::error!(
            "close: prefetch reader still runs after the deadline, its files stay open"
        );
    }
    if let Some(flusher) = store.flusher.take()
        && !flusher.join(left())
    {
        tracing::error!("close: flusher still runs after the deadline, its files stay open");
    }
    shared.remote.peers.iter().for_each(|remote| remote.writer_signal.raise());
    if let Some(writer) = store.writer.take()
        && !writer.join(left())
    {
        tracing::error!("close: peer writer still runs after the deadline");
    }
}
