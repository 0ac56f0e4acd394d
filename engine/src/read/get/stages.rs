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
                self.slots[targets[*target].slot].stage = self.stage_unsettled.len();
            }
        }
    }

    pub(crate) fn leave_stage(&mut self, i: usize) {
        let stage = std::mem::take(&mut self.slots[i].stage);
        if stage > 0 {
            self.stage_unsettled[stage - 1] -= 1;
        }
    }

    /// Plan again, as staged reads, the direct pieces of a waiting read: the device may not
    /// complete a direct read before the deadline.
    pub(crate) fn stage_instead(&mut self, io: &mut SessionIo, fetch: &Fetch) {
        let mut which = Vec::new();
        for piece in &fetch.pieces {
            if let Piece::Direct { slot, round, .. } = piece
                && self.slots[*slot].outcome.is_none()
                && self.slots[*slot].round == *round
            {
                which.push(*slot);
            }
        }
        for &slot in &which {
            self.leave_stage(slot);
            self.release_header(io, slot);
            self.slots[slot].reset_for_retry();
        }
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
