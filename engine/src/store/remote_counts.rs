//! Counts a batch of gets for which peers were asked.

use pagelith_layouts::key::ObjectKey;

use crate::api::outcome::{GetOutcome, MissCause};
use crate::read::absence;
use crate::rpc::remote_get::RemoteGet;
use crate::state::absence::AbsenceCounts;
use crate::state::shared::Shared;

/// Count the hits at peers of a batch, and the misses that remain. `missed` has the keys of the
/// objects that were requested from peers.
pub(crate) fn count(shared: &Shared, batch: &RemoteGet, missed: &[(usize, ObjectKey)]) {
    let absent = |(index, _): &&(usize, ObjectKey)| {
        let done = batch.done().get(*index);
        done.is_some_and(|done| done.outcome == Ok(GetOutcome::Miss(MissCause::Absent)))
    };
    let namespaces = &shared.read_view.namespaces;
    for (index, key) in missed.iter().filter(|_| namespaces.is_counting()) {
        let Some(counts) = namespaces.counts(key.namespace()) else { continue };
        match batch.done().get(*index).map(|done| &done.outcome) {
            Some(Ok(GetOutcome::Hit { bytes, .. })) => counts.count_hit(*bytes),
            Some(Ok(GetOutcome::Miss(_))) => counts.count_miss(),
            Some(Err(_)) | None => {}
        }
    }
    let mut counts = AbsenceCounts::default();
    for (_, key) in missed.iter().filter(absent) {
        let generation = shared.lock().generation(key.namespace());
        let fingerprint = shared.fingerprint(key, generation);
        absence::count(shared, std::iter::once((key, fingerprint)), &mut counts);
    }
    let mut core = shared.lock();
    core.counters.add_remote(batch);
    core.counters.absent.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
}
