//! The end of a batch of gets: what is counted, what is handed back, and what a peer may have.

use super::GetBatch;
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Tier};
use crate::api::stats::Counters;
use crate::read::slot::Slot;
use crate::rpc::remote_get::{Manner, Missed};
use crate::store::session::SessionIo;

/// A batch that is over here.
pub(crate) struct Finished {
    pub done: Vec<GetDone>,
    /// What a peer may have.
    pub missed: Vec<Missed>,
    pub manner: Manner,
}

impl GetBatch {
    /// The outcomes, once [`GetBatch::advance`] said that all are there.
    pub fn finish(mut self, io: &mut SessionIo) -> Finished {
        let ahead = self.slots.iter().any(Slot::is_arriving);
        let missed = if ahead { Vec::new() } else { self.missed(io) };
        let promoted = crate::read::promote::promote(&io.shared, &mut self.slots, self.at);
        let mut counters = Counters::default();
        if ahead {
            io.shared.lock().counters.prefetched += promoted;
        }
        for slot in &self.slots {
            match &slot.outcome {
                // What was read ahead is nobody's hit yet, and nobody's miss.
                Some(Ok(GetOutcome::Miss(MissCause::Damaged))) if ahead => counters.damaged += 1,
                _ if ahead => {}
                Some(Ok(GetOutcome::Hit { tier: Tier::Memory, bytes })) => {
                    counters.hits_memory += 1;
                    counters.bytes_memory += bytes;
                    counters.hits_unverified += u64::from(slot.unverified);
                }
                Some(Ok(GetOutcome::Hit { bytes, .. })) => {
                    counters.hits_ssd += 1;
                    counters.bytes_ssd += bytes;
                    counters.staged_bytes += slot.rare.as_ref().map_or(0, |rare| rare.staged_bytes);
                }
                // Peers are asked first.
                Some(Ok(GetOutcome::Miss(_))) if !missed.is_empty() => {}
                Some(Ok(GetOutcome::Miss(cause))) => counters.miss(*cause),
                Some(Err(_)) | None => {}
            }
        }
        io.shared.get_counters.add(io.counter_stripe, &counters);
        if io.shared.config.batch_summary() {
            crate::read::summary::gets(&self.slots);
        }
        let manner = Manner { at: self.at, deadline: self.deadline };
        Finished { done: self.slots.iter_mut().map(Slot::take_done).collect(), missed, manner }
    }

    /// What a peer may have.
    fn missed(&self, io: &SessionIo) -> Vec<Missed> {
        if io.desk.is_none() || self.late || self.own {
            return Vec::new();
        }
        let is_miss =
            |slot: &Slot| slot.outcome.as_ref().is_some_and(|o| o.as_ref().is_ok_and(|o| !o.is_hit()));
        let missed =
            |(at, slot): (usize, &Slot)| Missed { at, key: slot.get.key, range: slot.get.range.clone() };
        self.slots.iter().enumerate().filter(|(_, slot)| is_miss(slot)).map(missed).collect()
    }
}
