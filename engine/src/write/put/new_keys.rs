//! Detects without the core's lock that all keys of a group are new, as most keys that are put are.
//! The admission of such a group under the lock only reserves memory. As for every admitted group,
//! [`publish`](super::publish::publish) checks again that its keys are new.

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;

use super::admit::{AdmitOutcome, reserve_memory};
use crate::api::outcome::PutOutcome;
use crate::state::core::Core;
use crate::state::group_memory::Reservation;
use crate::state::put_spec::{ObjectSize, PutKind};
use crate::state::shared::Shared;

/// The keys of a group that the index had no entry for when it was read.
#[derive(Debug)]
pub(crate) struct NewKeys {
    generation: Generation,
    /// Fingerprints of the group's objects in the index.
    fingerprints: Vec<u128>,
    /// Holds the reservation made on admission.
    reservation: Reservation,
}

/// Determine which groups are new, all in one snapshot. Groups not marked here take the admission
/// path under the lock.
pub(crate) fn find_new(shared: &Shared, groups: &mut [(&[ObjectSize], &mut Option<NewKeys>)]) {
    let epoch_guard = crossbeam_epoch::pin();
    let snapshot = shared.read_view.read(&epoch_guard);
    let keys_of = |group: &[ObjectSize]| {
        let generation = snapshot.visibility.generation(group[0].key.namespace());
        let fingerprints =
            group.iter().map(|object| shared.fingerprint(&object.key, generation)).collect();
        NewKeys { generation, fingerprints, reservation: Reservation::with_capacity(group.len()) }
    };
    let mut objects = 0;
    for (group, new_keys) in &mut *groups {
        let new_keys = new_keys.insert(keys_of(group));
        shared.read_view.index.prefetch(&new_keys.fingerprints);
        objects += new_keys.fingerprints.len();
    }
    snapshot.reserve(objects);
    for (_, new_keys) in &mut *groups {
        let is_indexed = |new_keys: &mut NewKeys| {
            new_keys.fingerprints.iter().any(|f| snapshot.entries(*f).next().is_some())
        };
        new_keys.take_if(is_indexed);
    }
    if !snapshot.validate(&epoch_guard) {
        groups.iter_mut().for_each(|(_, new_keys)| **new_keys = None);
    }
}

/// Whether the index has no entry for any of these keys, in one snapshot.
pub(crate) fn all_new<'a>(shared: &Shared, keys: impl Iterator<Item = &'a ObjectKey>) -> bool {
    let epoch_guard = crossbeam_epoch::pin();
    let snapshot = shared.read_view.read(&epoch_guard);
    let fingerprint =
        |key: &ObjectKey| shared.fingerprint(key, snapshot.visibility.generation(key.namespace()));
    let fingerprints: Vec<u128> = keys.map(fingerprint).collect();
    shared.read_view.index.prefetch(&fingerprints);
    snapshot.reserve(fingerprints.len());
    fingerprints.iter().all(|f| snapshot.entries(*f).next().is_none())
        && snapshot.validate(&epoch_guard)
}

impl NewKeys {
    /// Under the lock, reserve memory for the objects. `None` if the namespace was cleared since,
    /// or if a length is missing: the group then needs the full admission.
    pub fn admit(
        self,
        shared: &Shared,
        core: &mut Core,
        kind: PutKind<'_>,
        group: &[ObjectSize],
    ) -> Option<AdmitOutcome> {
        let complete = group.iter().all(|object| object.length.is_some());
        if !complete || core.generation(group[0].key.namespace()) != self.generation {
            return None;
        }
        if let Err(error) = core.pending_groups.check_overlap(kind, group) {
            return Some(AdmitOutcome::Done(Err::<PutOutcome, _>(error)));
        }
        Some(reserve_memory(
            shared,
            core,
            (self.generation, self.fingerprints),
            (kind, group),
            self.reservation,
        ))
    }
}
