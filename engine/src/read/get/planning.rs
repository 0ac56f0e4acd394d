//! Plans the reads of a batch, and divides its staged objects into sub-batches that fit the staging
//! budget.

use std::sync::atomic::Ordering;

use pagelith_layouts::staging;

use super::{GetBatch, Header, HeaderBytes};
use crate::read::item::{PayloadRead, StagedRead};
use crate::read::plan;
use crate::read::plan::{Piece, PlannedRead, ReadTarget};
use crate::state::session_io::SessionIo;

impl GetBatch {
    /// Plan the reads of these objects, which are on SSD.
    pub(crate) fn plan(&mut self, io: &SessionIo, which: &[usize]) {
        let Some(facts) = &io.facts else { return };
        let align = facts.memory_align.max(facts.offset_align);
        let budget = io.shared.config.staging_budget();
        let late = io.shared.reads.latency.may_outlast(self.deadline, io.shared.now());
        let staged_only = late || io.shared.reads.direct_suspended.load(Ordering::Relaxed);
        let mut targets = Vec::with_capacity(which.len());
        let mut cached_headers = Vec::with_capacity(which.len());
        let mut staged = Vec::new();
        io.shared
            .ssd
            .headers
            .prefetch(which.iter().filter_map(|&i| self.items[i].header_location()));
        for &i in which {
            let Some(mut target) = self.items[i].target(i, align, facts.parts_max, staged_only)
            else {
                continue;
            };
            if target.direct_parts.is_none() {
                let range = target.chunks[0].clone();
                let cost = staging::cost(range.end - range.start);
                if cost > budget {
                    // Above the whole budget: streamed alone, in chunks.
                    target.chunks =
                        plan::split_chunks(range, io.shared.config.staging_chunk_bytes());
                }
                staged.push((targets.len(), cost));
            }
            let cached = self.items[i].find_cached_header(&io.shared);
            target.header_cached = cached.is_some();
            cached_headers.push(cached);
            targets.push(target);
        }
        self.assign_sub_batches(&mut targets, &staged, budget);
        let (reads, headers, header_of) = plan::plan(&targets, self.headers.len(), facts.parts_max);
        self.headers.extend(headers.into_iter().map(Header::new));
        for ((target, number), cached) in targets.iter().zip(header_of).zip(cached_headers) {
            let header = &mut self.headers[number];
            header.users += 1;
            header.bytes = cached.map(HeaderBytes::Cached).or(header.bytes.take());
            self.items[target.item].begin_read(number, payload_read(target));
        }
        self.waiting.extend(reads);
    }

    /// Split the staged objects into sub-batches, in order and greedily. Numbers continue from the
    /// sub-batches that the batch already has.
    fn assign_sub_batches(
        &mut self,
        targets: &mut [ReadTarget],
        staged: &[(usize, u64)],
        budget: u64,
    ) {
        let costs: Vec<u64> = staged.iter().map(|(_, cost)| *cost).collect();
        for range in staging::split(&costs, budget) {
            self.sub_batch_left.push(range.len());
            for (target, _) in &staged[range] {
                targets[*target].sub_batch = self.sub_batch_left.len();
            }
        }
    }

    /// Plan again, as staged reads, the direct pieces of a waiting read: the device may not
    /// complete a direct read before the deadline.
    pub(crate) fn replan_through_staging(&mut self, io: &mut SessionIo, read: &PlannedRead) {
        let mut which = Vec::new();
        for piece in &read.pieces {
            if let Piece::Direct { item, plan_number, .. } = piece
                && self.items[*item].needs_plan(*plan_number)
            {
                which.push(*item);
            }
        }
        which.iter().for_each(|&item| self.discard_read(io, item));
        for piece in &read.pieces {
            if let Piece::Header { header, bytes } = piece
                && self.headers[*header].users > 0
            {
                // Objects of other reads still need the header.
                self.waiting.push_front(PlannedRead {
                    offset: self.headers[*header].location.record,
                    bytes: *bytes,
                    parts: 1,
                    pieces: [piece.clone()].into(),
                    ..read.clone()
                });
            }
        }
        self.plan(io, &which);
    }
}

/// The read of a target's payload, not begun.
fn payload_read(target: &ReadTarget) -> PayloadRead {
    match target.direct_parts {
        None => PayloadRead::Staged(StagedRead {
            sub_batch: target.sub_batch,
            left: target.chunks.len(),
            arrived: Vec::new(),
        }),
        Some(_) if target.chunks.is_empty() => PayloadRead::Skipped,
        Some(_) => PayloadRead::Direct { arrived: false },
    }
}
