//! Jobs for the background tasks, and their results.

use std::collections::{BTreeMap, HashMap, VecDeque};

use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;

use crate::api::error::Error;
use crate::memory::frames::FrameRef;

/// Work for the flusher, in the order in which it must reach the log.
#[derive(Debug)]
pub(crate) enum Job {
    /// Write a frame.
    Frame(FrameRef),
    /// Write tombstones of one namespace, at most one record's worth.
    Tombstones { id: u64, generation: Generation, sequence: Sequence, keys: Vec<ObjectKey> },
    /// Raise a namespace's generation.
    Clear { id: u64, namespace: NamespaceId, generation: Generation },
    /// Make all earlier jobs durable.
    Flush { id: u64 },
    /// Seal the log, write a checkpoint, and stop.
    Close { id: u64 },
}

impl Job {
    /// Number of objects that it removes.
    fn removals(&self) -> usize {
        match self {
            Job::Tombstones { keys, .. } => keys.len(),
            Job::Frame(_) | Job::Clear { .. } | Job::Flush { .. } | Job::Close { .. } => 0,
        }
    }
}

/// The flusher's queue.
#[derive(Debug, Default)]
pub(crate) struct JobQueue {
    jobs: VecDeque<Job>,
    /// Number of objects of the removals in `jobs`.
    removals: usize,
    /// Frames that are visible but not yet in `jobs`, by serial: the put of their batch still runs.
    unqueued: BTreeMap<u64, FrameRef>,
    /// Frames that are kept off SSD, by serial.
    refused: BTreeMap<u64, FrameRef>,
}

impl JobQueue {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Number of objects of the queued removals.
    pub fn removals(&self) -> usize {
        self.removals
    }

    /// As if this number of objects were removed.
    #[cfg(test)]
    pub fn set_removals(&mut self, objects: usize) {
        self.removals = objects;
    }

    pub fn push(&mut self, job: Job) {
        self.removals += job.removals();
        self.jobs.push_back(job);
    }

    /// Return a job that was taken to the front.
    pub fn push_front(&mut self, job: Job) {
        self.removals += job.removals();
        self.jobs.push_front(job);
    }

    /// Take the next job.
    pub fn pop(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.removals -= job.removals();
        Some(job)
    }

    /// Take the next job, if it is a frame.
    pub fn pop_frame(&mut self) -> Option<FrameRef> {
        match self.jobs.front() {
            Some(Job::Frame(frame)) => {
                let frame = *frame;
                self.jobs.pop_front();
                Some(frame)
            }
            Some(_) | None => None,
        }
    }

    /// Take all jobs.
    pub fn take_all(&mut self) -> VecDeque<Job> {
        self.removals = 0;
        std::mem::take(&mut self.jobs)
    }

    /// A frame is visible; its put queues it later.
    pub fn note_unqueued(&mut self, frame: FrameRef) {
        self.unqueued.insert(frame.serial, frame);
    }

    /// Queue the frames that are not yet queued, the last first.
    pub fn push_frames(&mut self, frames: impl DoubleEndedIterator<Item = FrameRef>) {
        for frame in frames.rev() {
            if self.unqueued.remove(&frame.serial).is_some() {
                self.jobs.push_back(Job::Frame(frame));
            }
        }
    }

    /// Whether a frame is visible and not yet in `jobs`.
    pub fn is_unqueued(&self, frame: FrameRef) -> bool {
        self.unqueued.contains_key(&frame.serial)
    }

    /// Keep an unqueued frame off SSD; false, without effect, if it is in `jobs` already.
    pub fn refuse(&mut self, frame: FrameRef) -> bool {
        let is_unqueued = self.unqueued.remove(&frame.serial).is_some();
        if is_unqueued {
            self.refused.insert(frame.serial, frame);
        }
        is_unqueued
    }

    /// A frame is no longer refused.
    pub fn forget_refused(&mut self, frame: FrameRef) {
        self.refused.remove(&frame.serial);
    }

    /// All refused frames, the last first.
    pub fn refused(&self) -> Vec<FrameRef> {
        self.refused.values().rev().copied().collect()
    }

    /// Queue all unqueued frames, the last first.
    pub fn push_all_unqueued(&mut self) {
        let unqueued = std::mem::take(&mut self.unqueued);
        self.jobs.extend(unqueued.into_values().rev().map(Job::Frame));
    }
}

/// The result of a job that a caller waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobResult {
    Done,
    Failed(Error),
}

/// The jobs that callers wait for.
#[derive(Debug, Default)]
pub(crate) struct JobTable {
    results: HashMap<u64, Option<JobResult>>,
    last_id: u64,
    /// The store was abandoned: no further job is done, and the background tasks end.
    pub stopped: bool,
}

impl JobTable {
    /// Add a job, and return its id, which is not 0.
    pub fn begin(&mut self) -> u64 {
        self.last_id += 1;
        self.results.insert(self.last_id, None);
        self.last_id
    }

    /// Store a job's result; ignored if its caller no longer waits for it.
    pub fn complete(&mut self, id: u64, result: JobResult) {
        if let Some(slot) = self.results.get_mut(&id) {
            *slot = Some(result);
        }
    }

    /// Take a job's result; with `give_up` the job is forgotten also without one.
    pub fn take(&mut self, id: u64, give_up: bool) -> Option<JobResult> {
        let result = self.results.get(&id).cloned().flatten();
        if result.is_some() || give_up {
            self.results.remove(&id);
        }
        result
    }

    /// Whether no caller waits for a job or has left its result.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.results.is_empty()
    }

    /// A job without a result.
    #[cfg(test)]
    pub fn unfinished(&self) -> Option<u64> {
        self.results.iter().find(|(_, result)| result.is_none()).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use pagelith_tiers::policy::FrameId;

    use super::*;

    fn frame(serial: u64) -> FrameRef {
        FrameRef { id: FrameId(serial as u32), serial }
    }

    fn removal(objects: u8) -> Job {
        let key = |n| {
            use pagelith_layouts::{ids::PrefixHash, key::Role, shard::Shard};
            let (namespace, hash) = (NamespaceId([1; 16]), PrefixHash([n; 32]));
            ObjectKey::new(namespace, hash, Role::Target, "kv", "k", Shard::Whole).expect("a key")
        };
        let keys = (0..objects).map(key).collect();
        Job::Tombstones { id: 1, generation: Generation::FIRST, sequence: Sequence(1), keys }
    }

    #[test]
    fn unqueued_frames_are_queued_once_and_the_last_first() {
        let mut queue = JobQueue::default();
        (1..=4).for_each(|serial| queue.note_unqueued(frame(serial)));
        queue.push_frames([1, 2].map(frame).into_iter());
        queue.push_all_unqueued();
        queue.push_frames([1, 2, 3, 4].map(frame).into_iter());
        let order: Vec<u64> =
            std::iter::from_fn(|| queue.pop_frame()).map(|frame| frame.serial).collect();
        assert_eq!(order, [2, 1, 4, 3]);
    }

    #[test]
    fn refused_frame_is_not_queued_and_only_an_unqueued_frame_is_refused() {
        let mut queue = JobQueue::default();
        (1..=4).for_each(|serial| queue.note_unqueued(frame(serial)));
        assert!(queue.refuse(frame(2)) && queue.refuse(frame(3)));
        assert!(!queue.refuse(frame(2)), "it is not unqueued twice");
        queue.push_all_unqueued();
        assert!(!queue.refuse(frame(1)), "it is queued");
        let order: Vec<u64> =
            std::iter::from_fn(|| queue.pop_frame()).map(|frame| frame.serial).collect();
        assert_eq!(order, [4, 1]);
        assert_eq!(queue.refused(), [frame(3), frame(2)]);
        queue.forget_refused(frame(3));
        assert_eq!(queue.refused(), [frame(2)]);
    }

    #[test]
    fn queued_removals_are_counted_by_object() {
        let mut queue = JobQueue::default();
        queue.push(removal(2));
        queue.push(removal(3));
        assert!(queue.pop_frame().is_none(), "the first job is no frame");
        let first = queue.pop().expect("a job");
        assert_eq!(queue.removals(), 3);
        queue.push_front(first);
        assert_eq!(queue.removals(), 5);
        assert_eq!((queue.take_all().len(), queue.removals(), queue.is_empty()), (2, 0, true));
    }
}
