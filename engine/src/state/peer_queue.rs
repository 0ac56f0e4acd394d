//! Queue of offers and removals to be sent to peers, in order.

use std::collections::VecDeque;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use super::peer_offers::OffersInFlight;
use crate::memory::frames::FrameRef;

/// Most queued frames. A further one replaces the oldest, which this store still has in DRAM or on
/// SSD.
const QUEUED_FRAMES_MAX: usize = 65_536;

/// A job of the peer writer.
#[derive(Debug)]
pub(crate) enum PeerJob {
    /// Offer a frame to the owner of its page, with the number of its objects.
    Frame(FrameRef, u64),
    /// Remove objects at every peer, and report the result as job `id`.
    Remove { id: u64, keys: Vec<ObjectKey> },
    /// Clear a namespace at every peer, and report the result as job `id`.
    Clear { id: u64, namespace: NamespaceId },
}

/// The queue; part of the core.
#[derive(Debug, Default)]
pub(crate) struct PeerQueue {
    pub jobs: VecDeque<PeerJob>,
    /// Number of frames in `jobs`.
    frames: usize,
    /// Number of objects of the removals in `jobs`.
    pub queued_removals: usize,
    pub in_flight: OffersInFlight,
}

impl PeerQueue {
    /// Queue a frame with `objects` objects. Returns the number of objects of the frame dropped for
    /// it.
    pub fn push_frame(&mut self, frame: FrameRef, objects: u64) -> u64 {
        self.jobs.push_back(PeerJob::Frame(frame, objects));
        self.frames += 1;
        if self.frames <= QUEUED_FRAMES_MAX {
            return 0;
        }
        self.frames -= 1;
        let oldest = self.jobs.iter().position(is_frame);
        match oldest.and_then(|at| self.jobs.remove(at)) {
            Some(PeerJob::Frame(_, objects)) => objects,
            Some(PeerJob::Remove { .. } | PeerJob::Clear { .. }) | None => 0,
        }
    }

    /// The next job. For a frame also the number of its offer, which is in flight until
    /// [`Core::end_offer`](crate::state::core::Core::end_offer).
    pub fn pop(&mut self) -> Option<(PeerJob, Option<u64>)> {
        let job = self.jobs.pop_front()?;
        let offer = is_frame(&job).then(|| self.in_flight.begin());
        self.frames -= usize::from(offer.is_some());
        self.queued_removals -= removed_objects(&job);
        Some((job, offer))
    }

    /// Return a job that cannot be done yet to the front of the queue.
    pub fn requeue_front(&mut self, job: PeerJob) {
        self.frames += usize::from(is_frame(&job));
        self.queued_removals += removed_objects(&job);
        self.jobs.push_front(job);
    }
}

/// Number of objects that a job removes.
pub(crate) fn removed_objects(job: &PeerJob) -> usize {
    match job {
        PeerJob::Remove { keys, .. } => keys.len(),
        PeerJob::Frame(..) | PeerJob::Clear { .. } => 0,
    }
}

fn is_frame(job: &PeerJob) -> bool {
    match job {
        PeerJob::Frame(..) => true,
        PeerJob::Remove { .. } | PeerJob::Clear { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use pagelith_tiers::policy::FrameId;

    use super::*;

    #[test]
    fn full_queue_drops_oldest_page_only() {
        let mut queue = PeerQueue::default();
        queue.jobs.push_back(PeerJob::Clear { id: 1, namespace: NamespaceId([0; 16]) });
        let frame = |i: usize| FrameRef { id: FrameId(i as u32), serial: i as u64 };
        let dropped: u64 = (0..QUEUED_FRAMES_MAX + 3).map(|i| queue.push_frame(frame(i), 2)).sum();
        assert_eq!((dropped, queue.jobs.len()), (6, QUEUED_FRAMES_MAX + 1));
        assert!(queue.pop().is_some_and(|(job, offer)| !is_frame(&job) && offer.is_none()));
        let Some((PeerJob::Frame(first, 2), Some(_))) = queue.pop() else { panic!("no page") };
        assert_eq!(first.serial, 3);
        queue.requeue_front(PeerJob::Frame(first, 2));
        assert_eq!(queue.frames, QUEUED_FRAMES_MAX);
    }
}
