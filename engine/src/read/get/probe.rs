//! Probes: whether objects are present, by their record headers. They do not count as hits.

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::policy::Recency;

use super::GetBatch;
use crate::memory::index::SsdLocation;
use crate::read::item::{BatchItem, Hit, HitSource, ItemOutcome, ProbedHeader};
use crate::read::recompute::Recompute;
use crate::state::session_io::SessionIo;

/// An object that a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbedObject {
    /// Length in bytes.
    pub length: u64,
    /// Every object of its record, itself included, and the SSD location of each; empty if it was
    /// found in DRAM.
    pub members: Vec<(ObjectKey, SsdLocation)>,
    /// The kind of its group; `None` if it was found in DRAM.
    pub kind: Option<GroupKind>,
    /// The namespace's generation when the object was found on SSD. If the namespace was cleared
    /// since, the object is absent.
    pub generation: Option<Generation>,
}

impl GetBatch {
    /// Probe by their headers whether these objects are present.
    pub fn probe(io: &mut SessionIo, keys: &[ObjectKey], at: Recency, deadline: Mono) -> GetBatch {
        let items = keys.iter().map(|k| BatchItem::probe(*k)).collect();
        Self::begin_items(io, items, at, deadline, Recompute::Never)
    }

    /// The result of each probe; `None` for an absent object.
    pub fn into_probed(self) -> Vec<Option<ProbedObject>> {
        let probed = |mut item: BatchItem| {
            let ItemOutcome::Hit(Hit { length, source, .. }) = item.take_outcome()? else {
                return None;
            };
            Some(match source {
                HitSource::Header(header) => {
                    let ProbedHeader { members, kind, generation } = *header;
                    ProbedObject { length, members, kind: Some(kind), generation: Some(generation) }
                }
                HitSource::Memory { .. } | HitSource::Ssd { .. } => {
                    ProbedObject { length, members: Vec::new(), kind: None, generation: None }
                }
            })
        };
        self.items.into_iter().map(probed).collect()
    }
}
