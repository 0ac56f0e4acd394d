//! What is to be told to peers, in order.

use std::collections::VecDeque;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use super::peer_offers::InHand;
use crate::memory::frames::FrameRef;

/// Most pages that wait. The oldest gives way to the newest: it is in DRAM or on SSD here still.
const FRAMES_MAX: usize = 65_536;

/// Work for the writer.
#[derive(Debug)]
pub(crate) enum RemoteJob {
    /// Offer a page of so many objects to its owner.
    Frame(FrameRef, u64),
    /// Remove objects at every peer; answered.
    Remove { id: u64, keys: Vec<ObjectKey> },
    /// Clear a namespace at every peer; answered.
    Clear { id: u64, namespace: NamespaceId },
}

/// The queue, a part of the core.
#[derive(Debug, Default)]
pub(crate) struct RemoteQueue {
    pub jobs: VecDeque<RemoteJob>,
    frames: usize,
    /// Objects of removals that wait.
    pub removing: usize,
    pub in_hand: InHand,
}

impl RemoteQueue {
    /// Queue a page of so many objects; how many objects of older ones were dropped for it.
    pub fn push_frame(&mut self, frame: FrameRef, objects: u64) -> u64 {
        self.jobs.push_back(RemoteJob::Frame(frame, objects));
        self.frames += 1;
        if self.frames <= FRAMES_MAX {
            return 0;
        }
        self.frames -= 1;
        let oldest = self.jobs.iter().position(is_frame);
        match oldest.and_then(|at| self.jobs.remove(at)) {
            Some(RemoteJob::Frame(_, objects)) => objects,
            Some(RemoteJob::Remove { .. } | RemoteJob::Clear { .. }) | None => 0,
        }
    }

    /// The next job, and its turn if it is a page, which is in hand until that is said to have ended.
    pub fn pop(&mut self) -> Option<(RemoteJob, Option<u64>)> {
        let job = self.jobs.pop_front()?;
        let turn = is_frame(&job).then(|| self.in_hand.take());
        self.frames -= usize::from(turn.is_some());
        self.removing -= removed(&job);
        Some((job, turn))
    }

    /// A job that cannot be done yet.
    pub fn push_back(&mut self, job: RemoteJob) {
        self.frames += usize::from(is_frame(&job));
        self.removing += removed(&job);
        self.jobs.push_front(job);
    }
}

/// Objects that a job removes.
pub(crate) fn removed(job: &RemoteJob) -> usize {
    match job {
        RemoteJob::Remove { keys, .. } => keys.len(),
        RemoteJob::Frame(..) | RemoteJob::Clear { .. } => 0,
    }
}

fn is_frame(job: &RemoteJob) -> bool {
    match job {
        RemoteJob::Frame(..) => true,
        RemoteJob::Remove { .. } | RemoteJob::Clear { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use pagelith_tiers::policy::FrameId;

    use super::*;

    #[test]
    fn the_oldest_page_gives_way_and_nothing_else() {
        let mut queue = RemoteQueue::default();
        queue.jobs.push_back(RemoteJob::Clear { id: 1, namespace: NamespaceId([0; 16]) });
        let frame = |i: usize| FrameRef { id: FrameId(i as u32), serial: i as u64 };
        let dropped: u64 = (0..FRAMES_MAX + 3).map(|i| queue.push_frame(frame(i), 2)).sum();
        assert_eq!((dropped, queue.jobs.len()), (6, FRAMES_MAX + 1));
        assert!(queue.pop().is_some_and(|(job, turn)| !is_frame(&job) && turn.is_none()));
        let Some((RemoteJob::Frame(first, 2), Some(_))) = queue.pop() else { panic!("no page") };
        assert_eq!(first.serial, 3);
        queue.push_back(RemoteJob::Frame(first, 2));
        assert_eq!(queue.frames, FRAMES_MAX);
    }
}
