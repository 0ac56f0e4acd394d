//! Divides the staged objects of a batch into sub-batches that fit the staging budget.

use pagelith_layouts::staging;

use super::GetBatch;
use crate::read::plan::{Fetch, Piece, ReadTarget};
use crate::state::session_io::SessionIo;

impl GetBatch {
    /// Split the staged objects into sub-batches, in order and greedily. Numbers continue from the
    /// sub-batches that the batch already has.
    pub(crate) fn assign_stages(
        &mut self,
        targets: &mut [ReadTarget],
        staged: &[(usize, u64)],
        budget: u64,
    ) {
        let costs: Vec<u64> = staged.iter().map(|(_, cost)| *cost).collect();
        for range in staging::split(&costs, budget) {
            self.stage_unsettled.push(range.len());
            for (target, _) in &staged[range] {
                targets[*target].stage = self.stage_unsettled.len();
            }
        }
    }

    /// Plan again, as staged reads, the direct pieces of a waiting read: the device may not
    /// complete a direct read before the deadline.
    pub(crate) fn stage_instead(&mut self, io: &mut SessionIo, fetch: &Fetch) {
        let mut which = Vec::new();
        for piece in &fetch.pieces {
            if let Piece::Direct { slot, round, .. } = piece
                && self.slots[*slot].needs_round(*round)
            {
                which.push(*slot);
            }
        }
        which.iter().for_each(|&slot| self.discard_read(io, slot));
        if let Some(Piece::Header { header, bytes }) = fetch.pieces.first()
            && self.headers[*header].users > 0
        {
            // Objects of other reads still need the header.
            let pieces = [Piece::Header { header: *header, bytes: *bytes }].into();
            self.waiting.push_front(Fetch { bytes: *bytes, parts: 1, pieces, ..fetch.clone() });
        }
        self.plan(io, &which);
    }
}
