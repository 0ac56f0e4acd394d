//! Waits until earlier puts are durable.

use crate::api::error::Result;
use crate::api::outcome::FlushReport;
use crate::api::request::Options;
use crate::state::jobs::Job;
use crate::state::shared::Shared;

/// See [`crate::Store::flush`].
#[tracing::instrument(level = "debug", skip_all)]
pub(crate) fn flush(shared: &Shared, options: Options) -> Result<FlushReport> {
    let deadline = shared.deadline(options.timeout);
    for id in begin(shared)? {
        shared.wait_for_job(id, deadline, "flush")?;
    }
    Ok(report(shared))
}

/// Queue a flush; returns the answers to wait for.
pub(crate) fn begin(shared: &Shared) -> Result<Vec<u64>> {
    shared.check_open()?;
    let mut core = shared.lock();
    // A flush also writes the frames that admission has refused.
    core.requeue_refused();
    let asked = core.submit_job(|id| Job::Flush { id });
    drop(core);
    shared.signals.flusher.raise();
    Ok(asked.into_iter().collect())
}

/// The counts since the last report to the embedding process.
pub(crate) fn report(shared: &Shared) -> FlushReport {
    shared.lock().flushes.report()
}
