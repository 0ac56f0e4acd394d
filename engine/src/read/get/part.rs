//! A batch that is part of a client's request: its other objects, or other chunks of the same
//! object, are in other batches.

use pagelith_io::clock::Mono;
use pagelith_tiers::policy::Recency;

use super::GetBatch;
use crate::api::request::Get;
use crate::read::item::BatchItem;
use crate::read::recompute::Recompute;
use crate::state::session_io::SessionIo;

/// Part of a request of a client.
pub(crate) struct GetPart {
    pub gets: Vec<Get>,
    /// Which gets continue the object of an earlier one, with which it counts.
    pub continued: Vec<bool>,
    /// Peers are not asked: the caller asks them for whole objects.
    pub local_only: bool,
    pub recompute: Recompute,
}

impl GetBatch {
    /// As [`GetBatch::begin`]. Also returns the decision to load or to recompute, for the other
    /// batches of the request.
    pub fn begin_part(
        io: &mut SessionIo,
        part: GetPart,
        at: Recency,
        deadline: Mono,
    ) -> (GetBatch, Recompute) {
        let mut items: Vec<_> = part.gets.into_iter().map(BatchItem::new).collect();
        items.iter_mut().zip(part.continued).for_each(|(item, is)| item.is_continued = is);
        let batch = Self::begin_items(io, items, at, deadline, part.recompute);
        let decided = batch.recompute.of_next_batch();
        (GetBatch { local_only: part.local_only, ..batch }, decided)
    }
}
