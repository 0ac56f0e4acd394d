//! What nothing is known of, told without the lock: most of what is put. It needs memory and nothing else, so that is all that is left
//! of its admission. Whether it is still new is asked again when it becomes visible, as it is of whatever was admitted.

use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;

use super::admit::{Admission, memory};
use super::{Kind, Room, Size};
use crate::api::outcome::PutOutcome;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// A group of which the index had nothing, a moment ago.
#[derive(Debug)]
pub(crate) struct Fresh {
    generation: Generation,
    /// What the index will know its objects by.
    fingerprints: Vec<u128>,
    /// For their memory.
    room: Room,
}

/// Note of each group whether it is fresh, all of them at one moment. Nobody has to be asked twice: who is not told so is admitted by a look
/// under the lock.
pub(crate) fn look(shared: &Shared, groups: &mut [(&[Size], &mut Option<Fresh>)]) {
    let pin = crossbeam_epoch::pin();
    let reading = shared.read_view.read(&pin);
    let known_by = |group: &[Size]| {
        let generation = reading.visibility.generation(group[0].key.namespace());
        let fingerprints = group.iter().map(|object| shared.fingerprint(&object.key, generation)).collect();
        Fresh { generation, fingerprints, room: Room::of(group.len()) }
    };
    let mut objects = 0;
    for (group, fresh) in &mut *groups {
        let fresh = fresh.insert(known_by(group));
        shared.read_view.index.prefetch(&fresh.fingerprints);
        objects += fresh.fingerprints.len();
    }
    reading.reserve(objects);
    for (_, fresh) in &mut *groups {
        let is_known =
            |fresh: &mut Fresh| fresh.fingerprints.iter().any(|f| reading.entries(*f).next().is_some());
        fresh.take_if(is_known);
    }
    if !reading.validate(&pin) {
        groups.iter_mut().for_each(|(_, fresh)| **fresh = None);
    }
}

/// Whether the index has nothing of any of these, a moment ago.
pub(crate) fn all_new<'a>(shared: &Shared, keys: impl Iterator<Item = &'a ObjectKey>) -> bool {
    let pin = crossbeam_epoch::pin();
    let reading = shared.read_view.read(&pin);
    let fingerprint =
        |key: &ObjectKey| shared.fingerprint(key, reading.visibility.generation(key.namespace()));
    let fingerprints: Vec<u128> = keys.map(fingerprint).collect();
    shared.read_view.index.prefetch(&fingerprints);
    reading.reserve(fingerprints.len());
    fingerprints.iter().all(|f| reading.entries(*f).next().is_none()) && reading.validate(&pin)
}

impl Fresh {
    /// Under the lock: memory for its objects. `None` if its namespace was cleared since, or it has to be looked at for what it is.
    pub fn admit(
        self,
        shared: &Shared,
        core: &mut Core,
        kind: Kind<'_>,
        group: &[Size],
    ) -> Option<Admission> {
        let whole = group.iter().all(|object| object.length.is_some());
        if !whole || core.generation(group[0].key.namespace()) != self.generation {
            return None;
        }
        if let Err(error) = core.waiting.check_overlap(kind, group) {
            return Some(Admission::Settled(Err::<PutOutcome, _>(error)));
        }
        Some(memory(shared, core, (self.generation, self.fingerprints), group, self.room))
    }
}
