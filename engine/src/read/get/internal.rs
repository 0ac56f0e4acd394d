//! Gets of the store's own: what lies where, the bytes of what is put again, and what is read ahead. Nobody's hits.

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::clock::Mono;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::policy::Recency;

use super::GetBatch;
use crate::api::outcome::GetOutcome;
use crate::memory::index::SsdPlace;
use crate::read::slot::{Slot, SlotCold};
use crate::state::reserve::Arriving;
use crate::store::session::SessionIo;

/// An object that a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probed {
    /// Length in bytes.
    pub length: u64,
    /// Every object of its record, itself among them, and where each is on SSD; empty if it was found in
    /// DRAM.
    pub members: Vec<(ObjectKey, SsdPlace)>,
    /// How they belong together; `None` if it was found in DRAM.
    pub kind: Option<GroupKind>,
    /// Of its namespace, when it was found on SSD: cleared since, it is not here any more.
    pub generation: Option<Generation>,
}

impl GetBatch {
    /// Read these objects into memory of the arena that was set aside for them, and keep them there.
    pub fn prefetch(
        io: &mut SessionIo,
        objects: Vec<(ObjectKey, (Arriving, Part))>,
        at: Recency,
        deadline: Mono,
    ) -> GetBatch {
        let slot = |(key, (reservation, part))| Slot::prefetch(key, reservation, part);
        Self::begin_slots(io, objects.into_iter().map(slot).collect(), at, deadline)
    }

    /// Ask only whether these objects are here, by their headers.
    pub fn probe(io: &mut SessionIo, keys: &[ObjectKey], at: Recency, deadline: Mono) -> GetBatch {
        Self::begin_slots(io, keys.iter().map(|k| Slot::probe(*k)).collect(), at, deadline)
    }

    /// Of each probe, where the object is and its length; `None` if it is not here.
    pub fn into_probed(self) -> Vec<Option<Probed>> {
        let probed = |s: Slot| match s.outcome {
            Some(Ok(GetOutcome::Hit { bytes, .. })) => {
                let generation = s.expected.map(|expected| expected.generation);
                let SlotCold { members, kind, .. } = s.cold.map(|cold| *cold).unwrap_or_default();
                Some(Probed { length: bytes, members, kind, generation })
            }
            Some(Ok(GetOutcome::Miss(_)) | Err(_)) | None => None,
        };
        self.slots.into_iter().map(probed).collect()
    }

    /// Of each object that is here, the buffer that it was got into: for the store's own use, not counted as
    /// hits.
    pub fn into_buffers(self) -> Vec<Option<AlignedBuf>> {
        let buffer = |s: Slot| match s.outcome {
            Some(Ok(GetOutcome::Hit { .. })) => s.get.destination.into_buffer(),
            Some(Ok(GetOutcome::Miss(_)) | Err(_)) | None => None,
        };
        self.slots.into_iter().map(buffer).collect()
    }
}
