//! Finds why objects are absent.
//!
//! The cause is looked up after the miss, and the store may have changed since. So each absent
//! object counts under exactly one cause, and a race or a forgotten departure makes that cause less
//! precise, never the sum.

use pagelith_layouts::key::ObjectKey;

use crate::api::outcome::MissCause;
use crate::memory::departed::Departure;
use crate::memory::namespaces::NamespaceCounts;
use crate::memory::visibility::VisibilityFilter;
use crate::state::absence::{Absence, AbsenceCounts};
use crate::state::pending_groups::PendingGroups;
use crate::state::read_view::Snapshot;
use crate::state::shared::Shared;
use crate::state::stats::Counters;

/// Finds the causes of absences.
pub(crate) struct AbsenceFinder<'a> {
    pub shared: &'a Shared,
    pub snapshot: &'a Snapshot<'a>,
    /// The pending groups, for a caller that holds the core lock.
    pending_groups: Option<&'a PendingGroups>,
}

impl<'a> AbsenceFinder<'a> {
    pub fn new(
        shared: &'a Shared,
        snapshot: &'a Snapshot<'a>,
        pending_groups: Option<&'a PendingGroups>,
    ) -> AbsenceFinder<'a> {
        AbsenceFinder { shared, snapshot, pending_groups }
    }

    /// Prefetch the memory that [`AbsenceFinder::count`] reads.
    pub fn prefetch(&self, fingerprint: u128) {
        self.shared.read_view.departed.prefetch(fingerprint);
    }

    /// Add an absent object, given with the fingerprint under which it was looked up, to `counts`.
    pub fn count(&self, key: &ObjectKey, fingerprint: u128, counts: &mut AbsenceCounts) {
        counts[self.cause(key, fingerprint).number()] += 1;
    }

    fn cause(&self, key: &ObjectKey, fingerprint: u128) -> Absence {
        let AbsenceFinder { shared, snapshot, .. } = self;
        if self.is_pending(key) {
            return Absence::Uncommitted;
        }
        // With a constant fingerprint the entries are of any objects.
        if !shared.config.constant_fingerprint() {
            for entry in snapshot.entries(fingerprint) {
                if snapshot.is_hidden(&entry) {
                    return Absence::Departed(Departure::Lost);
                }
                if !snapshot.is_visible(&entry) {
                    return Absence::Stranded;
                }
            }
        }
        let departed = &shared.read_view.departed;
        if let Some(departure) = departed.find(fingerprint) {
            return Absence::Departed(departure);
        }
        if let Some(cleared) = snapshot.visibility.cleared_generation(key.namespace()) {
            // A clear leaves objects on SSD in the index, and notes those that DRAM had.
            let before = shared.fingerprint(key, cleared);
            if snapshot.entries(before).next().is_some() || departed.find(before).is_some() {
                return Absence::Departed(Departure::Removed);
            }
        }
        match shared.read_view.namespaces.lacks(key.namespace()) {
            true => Absence::OtherNamespace,
            false => Absence::Unknown,
        }
    }

    fn is_pending(&self, key: &ObjectKey) -> bool {
        match self.pending_groups {
            Some(groups) => groups.contains(key),
            None => {
                let read_view = &self.shared.read_view;
                read_view.has_pending_groups() && self.shared.lock().pending_groups.contains(key)
            }
        }
    }
}

/// Add these absent objects, each with the fingerprint under which it was looked up, to `counts`.
/// The caller does not hold the core lock.
pub(crate) fn count<'a>(
    shared: &Shared,
    absent: impl Iterator<Item = (&'a ObjectKey, u128)> + Clone,
    counts: &mut AbsenceCounts,
) {
    let epoch_guard = crossbeam_epoch::pin();
    let snapshot = shared.read_view.read(&epoch_guard);
    let finder = AbsenceFinder::new(shared, &snapshot, None);
    absent.clone().for_each(|(_, fingerprint)| finder.prefetch(fingerprint));
    absent.for_each(|(key, fingerprint)| finder.count(key, fingerprint, counts));
}

/// Count an absent object of a client's get, of which no batch counts it.
pub(crate) fn count_one(shared: &Shared, key: &ObjectKey) {
    let fingerprint = shared.fingerprint(key, shared.lock().generation(key.namespace()));
    let mut counters = Counters::default();
    counters.miss(MissCause::Absent);
    count(shared, std::iter::once((key, fingerprint)), &mut counters.absent);
    shared.reads.counters.add(0, &counters);
    let counts = shared.read_view.namespaces.counts(key.namespace());
    counts.into_iter().for_each(NamespaceCounts::count_miss);
}
