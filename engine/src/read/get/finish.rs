//! The end of a batch of gets: counters, returned results, and misses to request from peers.

use super::GetBatch;
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Tier};
use crate::api::stats::Counters;
use crate::read::slot::Slot;
use crate::rpc::remote_get::{CallOptions, MissedItem};
use crate::state::session_io::SessionIo;

/// The result of a batch in this store.
pub(crate) struct Finished {
    pub done: Vec<GetDone>,
    /// Misses that peers may have.
    pub missed: Vec<MissedItem>,
    pub options: CallOptions,
}

impl GetBatch {
    /// The outcomes, once [`GetBatch::advance`] returned true.
    pub fn finish(mut self, io: &mut SessionIo) -> Finished {
        let is_prefetch = self.slots.iter().any(Slot::keeps_in_arena);
        let missed = if is_prefetch { Vec::new() } else { self.missed(io) };
        let promoted = crate::read::promote::promote(&io.shared, &mut self.slots, self.at);
        let mut counters = Counters::default();
        if is_prefetch {
            io.shared.lock().counters.prefetched += promoted;
        }
        for slot in &self.slots {
            match &slot.outcome {
                // A prefetched object counts neither as a hit nor as a miss.
                Some(Ok(GetOutcome::Miss(MissCause::Damaged))) if is_prefetch => {
                    counters.damaged += 1
                }
                _ if is_prefetch => {}
                Some(Ok(GetOutcome::Hit { tier: Tier::Memory, bytes })) => {
                    counters.hits_memory += 1;
                    counters.bytes_memory += bytes;
                    counters.hits_unverified += u64::from(slot.unverified);
                }
                Some(Ok(GetOutcome::Hit { bytes, .. })) => {
                    counters.hits_ssd += 1;
                    counters.bytes_ssd += bytes;
                    counters.staged_bytes += slot.cold.as_ref().map_or(0, |cold| cold.staged_bytes);
                }
                // Peers are asked first; they decide whether it is a miss.
                Some(Ok(GetOutcome::Miss(_))) if !missed.is_empty() => {}
                Some(Ok(GetOutcome::Miss(cause))) => counters.miss(*cause),
                Some(Err(_)) | None => {}
            }
        }
        io.shared.reads.counters.add(io.counter_stripe, &counters);
        if io.shared.config.batch_summary() {
            crate::read::summary::log_gets(&self.slots);
        }
        let options = CallOptions { recency: self.at, deadline: self.deadline };
        Finished { done: self.slots.iter_mut().map(Slot::take_done).collect(), missed, options }
    }

    /// Misses that peers may have.
    fn missed(&self, io: &SessionIo) -> Vec<MissedItem> {
        if io.connections.is_none() || self.late || self.local_only {
            return Vec::new();
        }
        let is_miss = |slot: &Slot| {
            slot.outcome.as_ref().is_some_and(|o| o.as_ref().is_ok_and(|o| !o.is_hit()))
        };
        let missed = |(at, slot): (usize, &Slot)| MissedItem {
            index: at,
            key: slot.get.key,
            range: slot.get.range.clone(),
        };
        self.slots.iter().enumerate().filter(|(_, slot)| is_miss(slot)).map(missed).collect()
    }
}
