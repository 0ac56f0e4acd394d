//! The end of a store, with and without goodbye.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::batch::Options;
use crate::core::Job;
use crate::error::Result;
use crate::flush;
use crate::outcome::FlushReport;
use crate::store::Store;

/// Flush, let the flusher seal and checkpoint, and release everything.
#[tracing::instrument(level = "info", skip_all)]
pub(crate) fn close(store: &mut Store) -> Result<FlushReport> {
    let shared = store.shared.clone();
    shared.lock().drop_waiting_groups();
    let flushed = flush::flush(&shared, Options::default());
    shared.closed.store(true, Ordering::Release);
    let deadline = shared.deadline(None);
    let asked = shared.lock().ask(|id| Job::Close { id });
    shared.work.raise();
    let closed = match asked {
        Some(id) => shared.await_answer(id, deadline, "close"),
        None => Ok(()),
    };
    stop(store);
    closed.and(flushed)
}

/// Stop the flusher where it stands, and let go of the files.
pub(crate) fn stop(store: &mut Store) {
    let shared = &store.shared;
    shared.closed.store(true, Ordering::Release);
    shared.lock().stopping = true;
    shared.work.raise();
    store.sessions.lock().unwrap_or_else(PoisonError::into_inner).clear();
    if let Some(flusher) = store.flusher.take()
        && !flusher.join(shared.config.deadline())
    {
        tracing::error!("flusher did not end in time, its files stay open");
    }
}
