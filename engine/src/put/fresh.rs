//! What nothing is known of, told without the lock: most of what is put. It needs memory and nothing else, so that is all that is left
//! of its admission. Whether it is still new is asked again when it becomes visible, as it is of whatever was admitted.

use pagelith_layouts::ids::Generation;

use super::admit::{Admission, memory};
use super::{Kind, Room, Size};
use crate::core::Core;
use crate::outcome::PutOutcome;
use crate::shared::Shared;

/// A group of which the index had nothing, a moment ago.
#[derive(Debug)]
pub(crate) struct Fresh {
    generation: Generation,
    /// What the index will know its objects by.
    fingerprints: Vec<u128>,
    /// For their memory.
    room: Room,
}

/// Of each group whether it is fresh, all of them at one moment. Nobody has to be asked twice: who is not told so is admitted by a look
/// under the lock.
pub(crate) fn look(shared: &Shared, groups: &[&[Size]]) -> Vec<Option<Fresh>> {
    let pin = crossbeam_epoch::pin();
    let reading = shared.published.read(&pin);
    let known_by = |group: &&[Size]| {
        let generation = reading.visibility.generation(group[0].key.namespace());
        let fingerprints = group.iter().map(|object| shared.fingerprint(&object.key, generation)).collect();
        Fresh { generation, fingerprints, room: Room::of(group.len()) }
    };
    let mut found: Vec<Option<Fresh>> = groups.iter().map(|group| Some(known_by(group))).collect();
    let (index, mut objects) = (&shared.published.index, 0);
    for fresh in found.iter().flatten() {
        index.prefetch(&fresh.fingerprints);
        objects += fresh.fingerprints.len();
    }
    reading.expect(objects);
    for group in &mut found {
        let is_new =
            |fresh: &mut Fresh| fresh.fingerprints.iter().all(|f| reading.entries(*f).next().is_none());
        *group = group.take_if(is_new);
    }
    if !reading.holds(&pin) {
        found.fill_with(|| None);
    }
    found
}

impl Fresh {
    /// Under the lock: memory for its objects. `None` if its namespace was cleared since, or it has to be looked at for what it is.
    pub fn admit(self, shared: &Shared, core: &mut Core, kind: Kind, group: &[Size]) -> Option<Admission> {
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
