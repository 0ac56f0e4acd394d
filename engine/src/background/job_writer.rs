//! Turns queued jobs into log records, in queue order.

use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::append::NewRecord;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::api::error::{Error, ErrorKind};
use crate::background::checkpoint::Checkpointer;
use crate::background::log_context::{Closing, LogContext};
use crate::memory::frames::FrameState;
use crate::state::frame_access::FrameGuard;
use crate::state::jobs::{Job, JobResult};
use crate::state::ssd_core::SsdCore;

/// The next work from the queue.
enum Next {
    Frames(Vec<FrameGuard>),
    Other(Job),
}

/// Takes jobs from the queue.
#[derive(Default)]
pub(crate) struct JobWriter {
    /// A record that waits for a free segment.
    stalled: Option<NewRecord>,
}

impl JobWriter {
    /// Whether a record waits for a free segment.
    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// Append jobs until the log is full or has begun a write: the device receives that write
    /// before the next is built. `reclaim_moves`: reclaim has records to move.
    pub fn step(
        &mut self,
        cx: &mut LogContext,
        checkpointer: &mut Checkpointer,
        reclaim_moves: bool,
    ) -> bool {
        let mut any = false;
        let before = cx.log.in_flight();
        while cx.log.has_room() && cx.log.in_flight() == before {
            if let Some(record) = self.stalled.take() {
                // Its wait may be long, and the memory of a removed frame is needed.
                let is_dead = cx.pending_records.is_dead(&cx.shared.lock(), record.id);
                if is_dead {
                    cx.write_failed(record.id, true);
                } else if !self.append(cx, record, reclaim_moves) {
                    break;
                }
                any = true;
            }
            let Some(next) = next_jobs(cx) else { break };
            any = true;
            match next {
                Next::Frames(frames) => self.append_frames(cx, frames, before, reclaim_moves),
                Next::Other(job) => self.take_job(cx, job, checkpointer, reclaim_moves),
            }
        }
        if cx.has_appended() {
            let shared = cx.shared.clone();
            cx.note_appended(&mut shared.lock());
        }
        any
    }

    fn take_job(
        &mut self,
        cx: &mut LogContext,
        job: Job,
        checkpointer: &mut Checkpointer,
        reclaim_moves: bool,
    ) {
        match job {
            // `next_jobs` returns frames as `Next::Frames`.
            Job::Frame(_) => {}
            Job::Tombstones { id, generation, sequence, keys } => {
                let record =
                    cx.pending_records.add_tombstones(generation, sequence, &keys, Some(id));
                self.append(cx, record, reclaim_moves);
            }
            Job::Clear { id, namespace, generation } => {
                if mutant::on(Mutant::ClearBeforeSync) {
                    cx.shared.lock().jobs.complete(id, JobResult::Done);
                }
                cx.generations.raise(&mut cx.log, namespace, generation, id);
            }
            Job::Flush { id } if mutant::on(Mutant::FlushBeforeSync) => {
                cx.shared.lock().jobs.complete(id, JobResult::Done);
            }
            Job::Flush { id } => checkpointer.take_flush(cx, id),
            Job::Close { id } => {
                cx.log.seal_open();
                cx.closing = Closing::Draining(id);
            }
        }
    }

    /// Append frames until the log begins a write beyond `before` or one has to wait for a segment;
    /// the remaining frames return to the queue.
    fn append_frames(
        &mut self,
        cx: &mut LogContext,
        frames: Vec<FrameGuard>,
        before: usize,
        reclaim_moves: bool,
    ) {
        let mut frames = frames.into_iter();
        for guard in frames.by_ref() {
            let record = cx.pending_records.add_frame(guard, &cx.shared.memory);
            if !self.append(cx, record, reclaim_moves) || cx.log.in_flight() != before {
                break;
            }
        }
        if frames.len() > 0 {
            let mut core = cx.shared.lock();
            frames.rev().for_each(|guard| core.requeue_front(&guard));
        }
    }

    /// Append a record of a job; false if it was kept to wait for a segment.
    fn append(&mut self, cx: &mut LogContext, record: NewRecord, reclaim_moves: bool) -> bool {
        if cx.exceeds_limit(&record) {
            cx.pending_records.end_over_limit(&mut cx.shared.lock(), record.id);
            return true;
        }
        let none_free = |s: &SsdCore| s.segments.count(SegmentState::Free) == 0;
        let lacks_free = || cx.shared.lock().ssd.as_ref().is_none_or(none_free);
        // While reclaim has records to move, the last segment is reserved for it from its first
        // byte to its last, or no space could ever be freed. Survivors fit into one segment because
        // they come from one.
        let fits = cx.log.open_fits(&record);
        // Jobs never open the last free segment at all: after a crash the open segment is sealed,
        // and without another one reclaim could move nothing.
        let waits = !(fits && (cx.log.has_spare() || !reclaim_moves)) && lacks_free();
        let kept = if waits { Some(record) } else { cx.append(record).err() };
        self.stalled = kept;
        self.stalled.is_none()
    }

    /// While the tier accepts no writes, fail queued jobs at once: no other task would answer
    /// them. True if there were any.
    pub fn fail_jobs(&mut self, cx: &mut LogContext, checkpointer: &mut Checkpointer) -> bool {
        let asked = self.is_stalled()
            || !checkpointer.flushes.is_empty()
            || cx.shared.lock().ssd.as_ref().is_some_and(|s| !s.queue.is_empty());
        let fails = asked && cx.is_read_only();
        if fails {
            self.fail_all(cx, checkpointer);
        }
        fails
    }

    /// Fail every job that waits for the tier; frames stay in DRAM only.
    fn fail_all(&mut self, cx: &mut LogContext, checkpointer: &mut Checkpointer) {
        let stalled = self.stalled.take().map(|u| u.id);
        let mut core = cx.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let state = ssd.health.state().name();
        let mut jobs = ssd.queue.take_all();
        jobs.extend(checkpointer.flushes.take().map(|id| Job::Flush { id }));
        let message = format!("ssd tier is {state}: {}", cx.reason);
        let failed = || JobResult::Failed(Error::new(ErrorKind::Unavailable, message.clone()));
        for job in jobs {
            match job {
                Job::Frame(frame) => {
                    let Some(f) = core
                        .dram
                        .frames
                        .get_ref(frame)
                        .filter(|f| f.state == FrameState::Unwritten)
                    else {
                        continue;
                    };
                    let (namespace, objects) = (f.data.namespace, f.data.members.len());
                    core.count_lost(namespace, objects);
                    core.end_write(frame);
                }
                Job::Tombstones { id, .. } | Job::Clear { id, .. } | Job::Flush { id } => {
                    core.jobs.complete(id, failed())
                }
                Job::Close { id } => cx.closing = Closing::Draining(id),
            }
        }
        drop(core);
        if let Some(id) = stalled {
            cx.write_failed(id, true);
        }
        cx.shared.signals.progress.raise();
    }
}

/// Take the next work in one critical section: the frames of the next write, each guarded until it
/// ends, or one job of another kind. Frames and a job after them are never taken together: if the
/// frames' write fails, they return to the queue ahead of that job.
fn next_jobs(cx: &mut LogContext) -> Option<Next> {
    let room = cx.log.write_threshold();
    let shared = cx.shared.clone();
    let mut core = shared.lock();
    cx.note_appended(&mut core);
    let mut frames = Vec::new();
    let mut bytes = 0;
    while bytes < room {
        let queue = &mut core.ssd.as_mut()?.queue;
        let frame = match queue.pop_frame() {
            Some(frame) => frame,
            None if frames.is_empty() => return queue.pop().map(Next::Other),
            None => break,
        };
        let queued = core.dram.frames.get_ref(frame).filter(|f| f.state == FrameState::Unwritten);
        if queued.map(|f| f.state = FrameState::Writing).is_none() {
            continue;
        }
        if let Some(guard) = FrameGuard::new(&mut core, frame) {
            bytes += guard.data.bytes();
            core.ssd.iter_mut().for_each(|ssd| ssd.written.add(guard.data.namespace));
            frames.push(guard);
        }
    }
    (!frames.is_empty()).then_some(Next::Frames(frames))
}
