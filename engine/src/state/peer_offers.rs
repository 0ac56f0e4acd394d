//! Offers in flight: an offer is in flight from its removal from the queue until its outcome is
//! known, or until it is given up. A store that receives a removal replies after all earlier offers
//! have ended ([`Core::wait_for_offers`]). Until then such an offer could store a removed object at
//! a peer that has already processed the removal.

use std::collections::BTreeSet;

use super::peer_queue::{PeerJob, removed_objects};
use crate::state::core::Core;
use crate::state::jobs::JobResult;

/// The offers in flight; part of the peer queue.
#[derive(Debug, Default)]
pub(crate) struct OffersInFlight {
    /// Numbers of the offers, in the order in which they began.
    offers: BTreeSet<u64>,
    /// Number of the last offer that began.
    last: u64,
    /// Job ids, each with an offer number: the job completes when no offer up to this number is in
    /// flight.
    waiters: Vec<(u64, u64)>,
}

impl OffersInFlight {
    /// Begin an offer, and return its number.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.offers.insert(self.last);
        self.last
    }

    /// End an offer, and return the ids of the jobs that are complete now.
    fn finish(&mut self, offer: u64) -> Vec<u64> {
        self.offers.remove(&offer);
        let first = self.offers.first().copied().unwrap_or(u64::MAX);
        let (finished, waiting) =
            std::mem::take(&mut self.waiters).into_iter().partition(|(_, last)| *last < first);
        self.waiters = waiting;
        let finished: Vec<(u64, u64)> = finished;
        finished.into_iter().map(|(id, _)| id).collect()
    }
}

impl Core {
    /// Queue a job for the peer writer, and return the id of its result.
    pub fn submit_peer_job(&mut self, job: impl FnOnce(u64) -> PeerJob) -> Option<u64> {
        let remote = self.remote.as_mut()?;
        let id = self.jobs.begin();
        let job = job(id);
        remote.queued_removals += removed_objects(&job);
        remote.jobs.push_back(job);
        Some(id)
    }

    /// Return the id of a job that completes when all offers now in flight have ended; `None` if
    /// there are none. It does not wait for removals that are being sent to peers: those peers may
    /// wait for it.
    pub fn wait_for_offers(&mut self) -> Option<u64> {
        let in_flight = &mut self.remote.as_mut()?.in_flight;
        if in_flight.offers.is_empty() {
            return None;
        }
        let id = self.jobs.begin();
        in_flight.waiters.push((id, in_flight.last));
        Some(id)
    }

    /// End an offer; true if that completed a job.
    pub fn end_offer(&mut self, offer: u64) -> bool {
        let finished =
            self.remote.as_mut().map(|queue| queue.in_flight.finish(offer)).unwrap_or_default();
        let is_waited_for = !finished.is_empty();
        finished.into_iter().for_each(|id| self.jobs.complete(id, JobResult::Done));
        is_waited_for
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiter_completes_after_earlier_offers_only() {
        let mut in_flight = OffersInFlight::default();
        let [a, b] = [in_flight.begin(), in_flight.begin()];
        in_flight.waiters.push((7, in_flight.last));
        let c = in_flight.begin();
        in_flight.waiters.push((8, in_flight.last));
        assert_eq!(in_flight.finish(b), [0; 0]);
        assert_eq!(in_flight.finish(a), [7]);
        assert_eq!(in_flight.finish(c), [8]);
        assert!(in_flight.waiters.is_empty());
    }
}
