//! Waiting until what was put is durable.

use crate::batch::Options;
use crate::core::Job;
use crate::error::Result;
use crate::outcome::FlushReport;
use crate::shared::Shared;

/// See [`crate::Store::flush`].
#[tracing::instrument(level = "debug", skip_all)]
pub(crate) fn flush(shared: &Shared, options: Options) -> Result<FlushReport> {
    let deadline = shared.deadline(options.timeout);
    for id in begin(shared)? {
        shared.await_answer(id, deadline, "flush")?;
    }
    Ok(report(shared))
}

/// Ask for it; the answers to wait for.
pub(crate) fn begin(shared: &Shared) -> Result<Vec<u64>> {
    shared.check_open()?;
    let asked = shared.lock().ask(|id| Job::Flush { id });
    shared.work.raise();
    Ok(asked.into_iter().collect())
}

/// What happened since the last report.
pub(crate) fn report(shared: &Shared) -> FlushReport {
    let mut core = shared.lock();
    let c = &mut core.counters;
    FlushReport {
        durable_objects: std::mem::take(&mut c.durable_objects),
        durable_bytes: std::mem::take(&mut c.durable_bytes),
        refused_objects: std::mem::take(&mut c.refused_objects),
        lost_objects: std::mem::take(&mut c.lost_objects),
    }
}
