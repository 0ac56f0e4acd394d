//! Turns queued jobs into log records, in queue order.

use std::sync::atomic::Ordering;

use pagelith_layouts::ids::{Generation, GroupId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, RecordKind};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::append::{RecordMember, Unit};
use pagelith_tiers::ssd::segments::SegmentState;

use super::{Flusher, PendingUnit, SyncPurpose};
use crate::api::error::{Error, ErrorKind};
use crate::background::reclaim::Reclaim;
use crate::memory::frames::{Frame, FrameState};
use crate::state::core::{Core, Job, JobResult, SsdCore};
use crate::state::frame_access::FrameGuard;

/// The next work from the queue.
enum Next {
    Frames(Vec<FrameGuard>),
    Other(Job),
}

impl Flusher {
    /// Append jobs until the log is full or has begun a write: the device receives that write
    /// before the next is gathered.
    pub(crate) fn take_jobs(&mut self) -> bool {
        let mut moved = false;
        let before = self.log.in_flight();
        while self.log.has_room() && self.log.in_flight() == before {
            if let Some(unit) = self.stalled.take() {
                if self.is_dead(unit.id) {
                    self.write_failed(unit.id, true);
                } else if !self.append(unit) {
                    break;
                }
                moved = true;
            }
            let Some(next) = self.next_jobs() else { break };
            moved = true;
            match next {
                Next::Frames(frames) => self.append_frames(frames, before),
                Next::Other(job) => self.take_job(job),
            }
        }
        if !self.appended.is_empty() {
            let shared = self.shared.clone();
            self.note_appended(&mut shared.lock());
        }
        moved
    }

    fn take_job(&mut self, job: Job) {
        match job {
            // `next_jobs` returns frames as `Next::Frames`.
            Job::Frame(_) => {}
            Job::Tombstones { id, generation, sequence, keys } => {
                let unit = self.tombstone_unit(generation, sequence, &keys, Some(id));
                self.append(unit);
            }
            Job::Clear { id, namespace, generation } => {
                if mutant::on(Mutant::ClearBeforeSync) {
                    self.shared.lock().complete_job(id, JobResult::Done);
                }
                self.clears.push((namespace, generation, id));
                self.log.raise_generation(namespace, generation);
            }
            Job::Flush { id } if mutant::on(Mutant::FlushBeforeSync) => {
                self.shared.lock().complete_job(id, JobResult::Done);
            }
            Job::Flush { id } => self.take_flush(id),
            Job::Close { id } => {
                self.log.seal_open();
                self.closing = Some(id);
            }
        }
    }

    /// Append frames until the log begins a write beyond `before` or one has to wait for a segment;
    /// the remaining frames return to the queue.
    fn append_frames(&mut self, frames: Vec<FrameGuard>, before: usize) {
        let mut frames = frames.into_iter();
        for held in frames.by_ref() {
            let unit = self.frame_unit(held);
            if !self.append(unit) || self.log.in_flight() != before {
                break;
            }
        }
        if frames.len() > 0 {
            let mut core = self.shared.lock();
            frames.rev().for_each(|held| core.requeue_front(&held));
        }
    }

    /// Take the next work in one critical section: the frames of the next write, each pinned until
    /// it ends, or one job of another kind. Frames and a job after them are never taken together:
    /// if the frames' write fails, they return to the queue ahead of that job.
    fn next_jobs(&mut self) -> Option<Next> {
        let room = self.log.wanted_bytes();
        let shared = self.shared.clone();
        let mut core = shared.lock();
        self.note_appended(&mut core);
        let mut frames = Vec::new();
        let mut bytes = 0;
        while bytes < room {
            let is_frame = |job: &Job| matches!(job, Job::Frame(_));
            let queue = &mut core.ssd.as_mut()?.queue;
            if !frames.is_empty() && !queue.front().is_some_and(is_frame) {
                break;
            }
            let Some(job) = core.ssd.as_mut()?.next_job() else { break };
            let Job::Frame(frame) = job else { return Some(Next::Other(job)) };
            let queued = core.frames.get_ref(frame).filter(|f| f.state == FrameState::Queued);
            if queued.map(|f| f.state = FrameState::Writing).is_none() {
                continue;
            }
            if let Some(held) = FrameGuard::new(&mut core, frame) {
                bytes += held.data.bytes();
                core.ssd.iter_mut().for_each(|ssd| ssd.written.add(held.data.namespace));
                frames.push(held);
            }
        }
        (!frames.is_empty()).then_some(Next::Frames(frames))
    }

    /// Whether a unit's page was removed or cleared while it waited for a segment. That wait may be
    /// long, and the frame's memory is needed.
    fn is_dead(&self, id: u64) -> bool {
        let Some(PendingUnit::Frame(held)) = self.units.get(&id) else { return false };
        self.shared.lock().frames.get(held.frame.id).is_none_or(Frame::is_dead)
    }

    /// Append a unit of a job; false if it was kept to wait for a segment.
    fn append(&mut self, unit: Unit) -> bool {
        let moves = self.reclaim.as_ref().is_some_and(Reclaim::needs_room);
        let none_free = |s: &SsdCore| s.segments.count(SegmentState::Free) == 0;
        let is_full = || self.shared.lock().ssd.as_ref().is_none_or(none_free);
        // While reclaim has records to move, the last segment is reserved for it from its first
        // byte to its last, or no space could ever be freed. Survivors fit into one segment because
        // they come from one.
        let fits = self.log.open_fits(&unit);
        // Jobs never open the last free segment at all: after a crash the open segment is sealed,
        // and without another one reclaim could move nothing.
        if !(fits && (self.log.has_spare() || !moves)) && is_full() {
            self.stalled = Some(unit);
            return false;
        }
        match self.append_now(unit) {
            Ok(()) => true,
            Err(unit) => {
                self.stalled = Some(unit);
                false
            }
        }
    }

    /// Account in the core for the units appended since the last call.
    pub fn note_appended(&mut self, core: &mut Core) {
        let Some(ssd) = core.ssd.as_mut().filter(|_| !self.appended.is_empty()) else { return };
        for (segment, bytes, sequence) in self.appended.drain(..) {
            ssd.appended_bytes += bytes;
            let segment = ssd.segments.get_mut(segment);
            segment.min_sequence =
                sequence.map_or(segment.min_sequence, |s| segment.min_sequence.min(s));
        }
        self.shared.read_view.tick.store(core.now_tick(), Ordering::Relaxed);
    }

    /// Append a unit. The caller must account for it ([`Flusher::note_appended`]) before it decides
    /// anything that depends on the segment's contents.
    pub fn append_now(&mut self, unit: Unit) -> Result<(), Unit> {
        let (sequence, data) = (unit.sequence, unit.kind == RecordKind::Data);
        let (bytes, id) = (unit.record_bytes(), unit.id);
        let (place, header) = self.log.append(unit)?;
        if data {
            self.shared.headers.insert_written(&place, &header);
        }
        self.appended.push((place.identity.segment, bytes, data.then_some(sequence)));
        let answer = match self.units.get(&id) {
            Some(PendingUnit::Tombstones(answer)) => *answer,
            Some(PendingUnit::Frame(_) | PendingUnit::IoResult(_)) | None => None,
        };
        if let Some(answer) = answer {
            if mutant::on(Mutant::TombstoneBeforeSync) {
                self.shared.lock().complete_job(answer, JobResult::Done);
            }
            self.sync_for(SyncPurpose::Tombstones(answer));
        }
        Ok(())
    }

    fn frame_unit(&mut self, held: FrameGuard) -> Unit {
        let id = self.unit_id();
        let data = &held.data;
        let member = |m: &crate::memory::frames::FrameMember| RecordMember {
            key: m.key,
            length: m.extent.bytes,
            checksums: m.checksums.clone(),
        };
        let unit = Unit {
            id,
            kind: RecordKind::Data,
            group_kind: data.group_kind,
            namespace: data.namespace,
            generation: data.generation,
            sequence: data.sequence,
            group: GroupId(data.sequence.0),
            base_group: GroupId(data.base_group),
            depth: data.depth,
            moved: false,
            members: data.members.iter().map(member).collect(),
            payload: held.parts(&self.shared.memory),
        };
        self.units.insert(id, PendingUnit::Frame(held));
        unit
    }

    /// A tombstone record; `keys` is not empty, and all keys are of one namespace.
    pub fn tombstone_unit(
        &mut self,
        generation: Generation,
        sequence: Sequence,
        keys: &[ObjectKey],
        answer: Option<u64>,
    ) -> Unit {
        let id = self.unit_id();
        self.units.insert(id, PendingUnit::Tombstones(answer));
        Unit {
            id,
            kind: RecordKind::Tombstones,
            group_kind: GroupKind::Single,
            namespace: keys[0].namespace(),
            generation,
            sequence,
            group: GroupId(sequence.0),
            base_group: GroupId(0),
            depth: 0,
            moved: answer.is_none(),
            members: keys
                .iter()
                .map(|k| RecordMember { key: *k, length: 0, checksums: Default::default() })
                .collect(),
            payload: Vec::new(),
        }
    }

    /// While the tier accepts no writes, fail queued requests at once: no other task would answer
    /// them.
    pub(crate) fn refuse_jobs(&mut self) -> bool {
        let asked = self.stalled.is_some()
            || !self.pending_flushes.is_empty()
            || self.shared.lock().ssd.as_ref().is_some_and(|s| !s.queue.is_empty());
        let refuse = asked && self.is_read_only();
        if refuse {
            self.fail_queue();
        }
        refuse
    }

    /// Fail every request that waits for the tier; frames stay in DRAM only.
    pub fn fail_queue(&mut self) {
        let stalled = self.stalled.take().map(|u| u.id);
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let state = ssd.health.state().name();
        let mut jobs = std::mem::take(&mut ssd.queue);
        ssd.queued_removals = 0;
        jobs.extend(self.pending_flushes.drain(..).map(|pending| Job::Flush { id: pending.flush }));
        let message = format!("ssd tier is {state}: {}", self.reason);
        let failed = || JobResult::Failed(Error::new(ErrorKind::Unavailable, message.clone()));
        for job in jobs {
            match job {
                Job::Frame(frame) => {
                    let Some(f) =
                        core.frames.get_ref(frame).filter(|f| f.state == FrameState::Queued)
                    else {
                        continue;
                    };
                    let (namespace, objects, bytes) =
                        (f.data.namespace, f.data.members.len(), f.data.bytes());
                    core.count_lost(namespace, objects);
                    if let Some(ssd) = core.ssd.as_mut() {
                        ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(bytes);
                    }
                    core.mark_frame_clean(frame);
                }
                Job::Tombstones { id, .. } | Job::Clear { id, .. } | Job::Flush { id } => {
                    core.complete_job(id, failed())
                }
                Job::Close { id } => self.closing = Some(id),
            }
        }
        drop(core);
        if let Some(id) = stalled {
            self.write_failed(id, true);
        }
        self.shared.progress.raise();
    }
}
