//! Gets for the store's own use: probes for headers, bytes of objects that are stored again, and
//! prefetches. None counts as a hit.

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Mono;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::policy::Recency;

use super::GetBatch;
use crate::memory::index::SsdPlace;
use crate::read::slot::{Hit, HitSource, ProbedHeader, Settled, Slot};
use crate::state::reserve::ArenaReservation;
use crate::state::session_io::SessionIo;

/// An object that a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probed {
    /// Length in bytes.
    pub length: u64,
    /// Every object of its record, itself included, and the SSD place of each; empty if it was
    /// found in DRAM.
    pub members: Vec<(ObjectKey, SsdPlace)>,
    /// The kind of its group; `None` if it was found in DRAM.
    pub kind: Option<GroupKind>,
    /// The namespace's generation when the object was found on SSD. If the namespace was cleared
    /// since, the object is absent.
    pub generation: Option<Generation>,
}

impl GetBatch {
    /// Read these objects into arena memory that is reserved for them, and keep them there.
    pub fn prefetch(
        io: &mut SessionIo,
        objects: Vec<(ObjectKey, (ArenaReservation, Part))>,
        at: Recency,
        deadline: Mono,
    ) -> GetBatch {
        let slot = |(key, (reservation, part))| Slot::prefetch(key, reservation, part);
        Self::begin_slots(io, objects.into_iter().map(slot).collect(), at, deadline)
    }

    /// Probe by their headers whether these objects are present.
    pub fn probe(io: &mut SessionIo, keys: &[ObjectKey], at: Recency, deadline: Mono) -> GetBatch {
        Self::begin_slots(io, keys.iter().map(|k| Slot::probe(*k)).collect(), at, deadline)
    }

    /// The result of each probe; `None` for an absent object.
    pub fn into_probed(self) -> Vec<Option<Probed>> {
        let probed = |mut slot: Slot| {
            let Settled::Hit(Hit { length, source, .. }) = slot.take_settled()? else {
                return None;
            };
            Some(match source {
                HitSource::Header(header) => {
                    let ProbedHeader { members, kind, generation } = *header;
                    Probed { length, members, kind: Some(kind), generation: Some(generation) }
                }
                HitSource::Memory { .. } | HitSource::Ssd { .. } => {
                    Probed { length, members: Vec::new(), kind: None, generation: None }
                }
            })
        };
        self.slots.into_iter().map(probed).collect()
    }

    /// The buffer of each object that was read; not counted as hits.
    pub fn into_buffers(self) -> Vec<Option<AlignedBuf>> {
        let buffer = |mut slot: Slot| match slot.settled()? {
            Settled::Hit(_) => slot.destination.take()?.into_buffer(),
            Settled::Miss(_) | Settled::Failed(_) => None,
        };
        self.slots.into_iter().map(buffer).collect()
    }
}
