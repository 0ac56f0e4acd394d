//! The end of a store, with and without goodbye.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::batch::Options;
use crate::core::Job;
use crate::error::Result;
use crate::flush;
use crate::outcome::FlushReport;
use crate::shared::{BUSY_STEP, Shared};
use crate::store::Store;

/// Flush, let the flusher seal and checkpoint, and release everything.
#[tracing::instrument(level = "info", skip_all)]
pub(crate) fn close(store: &mut Store) -> Result<FlushReport> {
    let shared = store.shared.clone();
    shared.lock().drop_waiting_groups();
    let flushed = flush::flush(&shared, Options::default());
    tell_peers(&shared);
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

/// Give what waits for peers its time: this store will not offer it again.
fn tell_peers(shared: &Shared) {
    let deadline = shared.deadline(None);
    loop {
        let seen = shared.progress.value();
        let waits = shared.lock().remote.as_ref().is_some_and(|queue| !queue.jobs.is_empty());
        let left = deadline.since(shared.now());
        if !waits || left.is_zero() {
            return;
        }
        shared.env.runtime.pause(&shared.progress, seen, left.min(BUSY_STEP));
    }
}

/// Stop the flusher where it stands, and let go of the files.
pub(crate) fn stop(store: &mut Store) {
    let shared = &store.shared;
    shared.closed.store(true, Ordering::Release);
    shared.lock().stopping = true;
    shared.work.raise();
    store.sessions.lock().unwrap_or_else(PoisonError::into_inner).clear();
    if !shared.prefetch.stop(shared.config.deadline()) {
        tracing::error!("what reads ahead did not end in time, its files stay open");
    }
    if let Some(flusher) = store.flusher.take()
        && !flusher.join(shared.config.deadline())
    {
        tracing::error!("flusher did not end in time, its files stay open");
    }
    shared.remote.iter().for_each(|remote| remote.work.raise());
    if let Some(writer) = store.writer.take()
        && !writer.join(shared.config.deadline())
    {
        tracing::error!("the writer to peers did not end in time");
    }
}
