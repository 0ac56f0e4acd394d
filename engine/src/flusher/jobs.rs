//! What is asked of the tier becomes records: jobs leave the queue in their order and are appended to the log.

use std::sync::atomic::Ordering;

use pagelith_layouts::ids::{Generation, GroupId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, RecordKind};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::append::{Unit, UnitMember};
use pagelith_tiers::ssd::segments::SegmentState;

use super::{Appended, Flusher, Purpose};
use crate::core::{Answer, Core, Job, SsdCore};
use crate::error::{Error, ErrorKind};
use crate::frame_io::Held;
use crate::frames::FrameState;
use crate::reclaim::Reclaim;

/// What is to be written or done next.
enum Next {
    Frames(Vec<Held>),
    Other(Job),
}

impl Flusher {
    /// Move jobs into the log while it has room, until it has begun a write: the device gets that before the next is made.
    pub(super) fn take_jobs(&mut self) -> bool {
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
            // Those are taken many at a time.
            Job::Frame(_) => {}
            Job::Tombstones { id, generation, sequence, keys } => {
                let unit = self.tombstone_unit(generation, sequence, &keys, Some(id));
                self.append(unit);
            }
            Job::Clear { id, namespace, generation } => {
                if mutant::on(Mutant::ClearBeforeSync) {
                    self.shared.lock().answer(id, Answer::Done);
                }
                self.clears.push((namespace, generation, id));
                self.log.raise_generation(namespace, generation);
            }
            Job::Flush { id } if mutant::on(Mutant::FlushBeforeSync) => {
                self.shared.lock().answer(id, Answer::Done);
            }
            Job::Flush { id } => self.take_flush(id),
            Job::Close { id } => {
                self.log.seal_open();
                self.closing = Some(id);
            }
        }
    }

    /// Append frames until the log begins a write beyond `before` or one has to wait for a segment; the rest goes back to
    /// where it was.
    fn append_frames(&mut self, frames: Vec<Held>, before: usize) {
        let mut frames = frames.into_iter();
        for held in frames.by_ref() {
            let unit = self.frame_unit(held);
            if !self.append(unit) || self.log.in_flight() != before {
                break;
            }
        }
        if frames.len() > 0 {
            let mut core = self.shared.lock();
            frames.rev().for_each(|held| core.write_later(&held));
        }
    }

    /// What comes next, in one section: the frames that make the next write, each held until that is over, or one job of
    /// another kind. Frames and what is behind them are never taken together: if their write fails they go back in front of it.
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
            let queued = core.frames.get_ref(frame).filter(|f| !f.dead && f.state == FrameState::Queued);
            if queued.map(|f| f.state = FrameState::Writing).is_none() {
                continue;
            }
            if let Some(held) = Held::new(&mut core, frame) {
                bytes += held.data.bytes();
                core.ssd.iter_mut().for_each(|ssd| ssd.written.add(held.data.namespace));
                frames.push(held);
            }
        }
        (!frames.is_empty()).then_some(Next::Frames(frames))
    }

    /// Whether a unit is of a page that was removed or cleared while it waited for a segment: there may be none for
    /// long, and its memory is wanted.
    fn is_dead(&self, id: u64) -> bool {
        let Some(Appended::Frame(held)) = self.units.get(&id) else { return false };
        self.shared.lock().frames.get(held.frame.id).is_none_or(|f| f.dead)
    }

    /// Append a unit of a job. False if it has to wait for a segment; it is kept.
    fn append(&mut self, unit: Unit) -> bool {
        let moves = self.reclaim.as_ref().is_some_and(Reclaim::needs_room);
        let none_free = |s: &SsdCore| s.segments.count(SegmentState::Free) == 0;
        let is_full = || self.shared.lock().ssd.as_ref().is_none_or(none_free);
        // The last segment is reclaim's while it has something to move, from its first byte to its last: else
        // nobody could make room. What may be moved fits into it, since it came out of one.
        let fits = self.log.open_fits(&unit);
        // And nobody but reclaim takes the last segment at all: after a crash the open one is sealed, and
        // without another one nothing could be moved any more.
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

    /// The core learns what was appended since the last time.
    pub fn note_appended(&mut self, core: &mut Core) {
        let Some(ssd) = core.ssd.as_mut().filter(|_| !self.appended.is_empty()) else { return };
        for (segment, bytes, sequence) in self.appended.drain(..) {
            ssd.appended_bytes += bytes;
            let segment = ssd.segments.get_mut(segment);
            segment.min_sequence = sequence.map_or(segment.min_sequence, |s| segment.min_sequence.min(s));
        }
        self.shared.published.tick.store(core.now_tick(), Ordering::Relaxed);
    }

    /// Append a unit; what its segment holds from now on is to be noted ([`Flusher::note_appended`]) before anything else is
    /// decided.
    pub fn append_now(&mut self, unit: Unit) -> Result<(), Unit> {
        let (sequence, data) = (unit.sequence, unit.kind == RecordKind::Data);
        let (bytes, id) = (unit.record_bytes(), unit.id);
        let (place, header) = self.log.append(unit)?;
        if data {
            self.shared.headers.written(&place, &header);
        }
        self.appended.push((place.identity.segment, bytes, data.then_some(sequence)));
        let answer = match self.units.get(&id) {
            Some(Appended::Tombstones(answer)) => *answer,
            Some(Appended::Frame(_) | Appended::Moved(_)) | None => None,
        };
        if let Some(answer) = answer {
            if mutant::on(Mutant::TombstoneBeforeSync) {
                self.shared.lock().answer(answer, Answer::Done);
            }
            self.sync_for(Purpose::Tombstones(answer));
        }
        Ok(())
    }

    fn frame_unit(&mut self, held: Held) -> Unit {
        let id = self.unit_id();
        let data = &held.data;
        let member = |m: &crate::frames::FrameMember| UnitMember {
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
        self.units.insert(id, Appended::Frame(held));
        unit
    }

    /// A record of tombstones; `keys` is not empty, and all are of one namespace.
    pub fn tombstone_unit(
        &mut self,
        generation: Generation,
        sequence: Sequence,
        keys: &[ObjectKey],
        answer: Option<u64>,
    ) -> Unit {
        let id = self.unit_id();
        self.units.insert(id, Appended::Tombstones(answer));
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
                .map(|k| UnitMember { key: *k, length: 0, checksums: Default::default() })
                .collect(),
            payload: Vec::new(),
        }
    }

    /// What is asked of a tier that takes nothing hears so at once: nobody else would answer it.
    pub(super) fn refuse_jobs(&mut self) -> bool {
        let asked = self.stalled.is_some()
            || !self.behind.is_empty()
            || self.shared.lock().ssd.as_ref().is_some_and(|s| !s.queue.is_empty());
        let refuse = asked && self.is_read_only();
        if refuse {
            self.fail_queue();
        }
        refuse
    }

    /// Nothing is written for now: everything that waits for the tier hears so, and frames stay in DRAM only.
    pub fn fail_queue(&mut self) {
        let stalled = self.stalled.take().map(|u| u.id);
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let state = ssd.health.state().name();
        let mut jobs = std::mem::take(&mut ssd.queue);
        ssd.removing = 0;
        jobs.extend(self.behind.drain(..).map(|behind| Job::Flush { id: behind.flush }));
        let message = format!("ssd tier is {state}: {}", self.reason);
        let failed = || Answer::Failed(Error::new(ErrorKind::Unavailable, message.clone()));
        for job in jobs {
            match job {
                Job::Frame(frame) => {
                    let Some(f) = core.frames.get_ref(frame).filter(|f| f.state == FrameState::Queued) else {
                        continue;
                    };
                    let (namespace, objects, bytes) =
                        (f.data.namespace, f.data.members.len(), f.data.bytes());
                    core.note_lost(namespace, objects);
                    if let Some(ssd) = core.ssd.as_mut() {
                        ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(bytes);
                    }
                    core.settle_frame(frame);
                }
                Job::Tombstones { id, .. } | Job::Clear { id, .. } | Job::Flush { id } => {
                    core.answer(id, failed())
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
