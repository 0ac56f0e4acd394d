//! The flusher: the one background task. It takes frames, tombstones and requests in order, gives them to
//! the log, and acts on what the log reports ([`crate::flushed`]). Reclaim and checkpoints run inside it,
//! step by step, so that the log has one owner and one order.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::{Step, Task};
use pagelith_layouts::ids::{Generation, GroupId, NamespaceId, SegmentId, SegmentOrder, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::mutant::{self, Mutant};
use pagelith_layouts::record::{GroupKind, RecordKind};
use pagelith_tiers::ssd::append::{RecordPlace, Unit, UnitMember};
use pagelith_tiers::ssd::log::Log;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::sync::SyncId;

use crate::checkpoint::Checkpointing;
use crate::core::{Answer, Job, SsdCore};
use crate::error::{Error, ErrorKind};
use crate::frame_io::Held;
use crate::frames::FrameState;
use crate::index::SsdPlace;
use crate::probe::Trial;
use crate::quarantine::Purge;
use crate::reclaim::{Kept, Reclaim};
use crate::scrub::Background;
use crate::shared::Shared;
use crate::stuck::Stuck;

/// Longest that the flusher sleeps with nothing to do: leases end and readers leave without a signal.
const IDLE: Duration = Duration::from_millis(50);
/// Longest wait for a completion.
const WAIT: Duration = Duration::from_millis(10);

/// Tags of the operations that are submitted beside the log's own; below them are the numbers of checkpoints.
pub(crate) const TAG_FOOTER: u64 = 1 << 32;
pub(crate) const TAG_RECORD: u64 = 2 << 32;
pub(crate) const TAG_TRIAL: u64 = 3 << 32;
pub(crate) const TAG_SCAN: u64 = 4 << 32;
pub(crate) const TAG_SCRUB: u64 = 5 << 32;
pub(crate) const TAG_READBACK: u64 = 6 << 32;

/// What a unit in the log is to the engine.
pub(crate) enum Appended {
    /// A frame, held until the write is over.
    Frame(Held),
    /// An extent that reclaim wrote again: fingerprint and old place of each member.
    Moved(Vec<(u128, SsdPlace)>),
    /// Tombstones, and who waits for them; nobody for those that reclaim wrote again.
    Tombstones(Option<u64>),
}

/// Objects written and not yet durable.
pub(crate) struct Written {
    pub members: Vec<(u128, SsdPlace)>,
    pub bytes: u64,
    /// Where reclaim took each member from; empty for what was put.
    pub from: Vec<SsdPlace>,
}

/// Why a sync was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Flush(u64),
    Tombstones(u64),
    Reclaim,
    Checkpoint(u64),
}

pub(crate) struct Flusher {
    pub shared: Arc<Shared>,
    pub log: Log,
    pub units: HashMap<u64, Appended>,
    pub written: HashMap<u64, Written>,
    pub next_unit: u64,
    /// A unit that waits for a segment.
    stalled: Option<Unit>,
    pub syncs: HashMap<SyncId, Purpose>,
    /// Generations that the manifest durably holds; namespaces that were never cleared are not in it.
    pub durable_generations: HashMap<NamespaceId, Generation>,
    /// Namespaces whose tombstones keep victims from being emptied.
    pub stuck: BTreeSet<NamespaceId>,
    /// Generations being made durable, and who waits.
    pub clears: Vec<(NamespaceId, Generation, u64)>,
    pub next_order: SegmentOrder,
    pub reclaim: Option<Reclaim>,
    /// Victims that could not be emptied.
    pub kept: HashMap<SegmentId, Kept>,
    /// Emptied victims that somebody still reads, and since when.
    pub leaving: Vec<(SegmentId, Mono)>,
    /// Refused puts that room was made for, and entries in the index when that last began.
    pub refused_seen: u64,
    pub entries_before: u64,
    pub checkpoint: Option<Checkpointing>,
    pub checkpoint_serial: u64,
    pub sealed_since_checkpoint: u32,
    /// Bytes written to the device before this task had the log.
    pub bytes_before: u64,
    /// A trial of a device that failed, and entries on their way out of the index.
    pub trial: Option<Trial>,
    pub purge: Option<Purge>,
    /// Tombstones that somebody waits for: where they lie, which are being read back, and which wait for that.
    pub tombstones: HashMap<u64, RecordPlace>,
    pub reading_back: HashMap<u64, (u64, SegmentId)>,
    pub to_read_back: Vec<u64>,
    pub scrub: Background,
    /// Whether the device ends what was submitted.
    device: Stuck,
    pub closing: Option<u64>,
    pub over: bool,
}

impl Flusher {
    pub fn new(
        shared: Arc<Shared>,
        log: Log,
        next_order: SegmentOrder,
        serial: u64,
        bytes_before: u64,
    ) -> Flusher {
        let device = Stuck::new(shared.now());
        Flusher {
            shared,
            log,
            units: HashMap::new(),
            written: HashMap::new(),
            next_unit: 0,
            stalled: None,
            syncs: HashMap::new(),
            durable_generations: HashMap::new(),
            stuck: BTreeSet::new(),
            clears: Vec::new(),
            next_order,
            reclaim: None,
            kept: HashMap::new(),
            leaving: Vec::new(),
            refused_seen: 0,
            entries_before: u64::MAX,
            checkpoint: None,
            checkpoint_serial: serial,
            sealed_since_checkpoint: 0,
            bytes_before,
            trial: None,
            purge: None,
            tombstones: HashMap::new(),
            reading_back: HashMap::new(),
            to_read_back: Vec::new(),
            scrub: Background::default(),
            device,
            closing: None,
            over: false,
        }
    }

    /// A name for the next unit.
    pub fn unit_id(&mut self) -> u64 {
        self.next_unit += 1;
        self.next_unit
    }

    /// Ask for a sync and remember why.
    pub fn sync_for(&mut self, purpose: Purpose) {
        let id = self.log.sync();
        self.syncs.insert(id, purpose);
    }

    fn pump(&mut self, wait: Option<Duration>) -> bool {
        let mut events = Vec::new();
        self.log.pump(wait, &mut events);
        let any = !events.is_empty();
        for event in events {
            self.handle(event);
        }
        if any {
            let (bytes, syncs) = self.log.written();
            let mut core = self.shared.lock();
            core.counters.bytes_to_device = self.bytes_before + bytes;
            core.counters.syncs = syncs;
            drop(core);
            self.shared.progress.raise();
        }
        any
    }

    /// Keep a segment ready for when the open one is full.
    fn prepare_segment(&mut self) -> bool {
        // While closing, only for what is still to be written.
        let moves = self.reclaim.as_ref().is_some_and(Reclaim::needs_room);
        let done = self.closing.is_some() && self.stalled.is_none() && !moves;
        if !self.log.wants_segment() || done {
            return false;
        }
        !self.is_read_only() && self.prepare_free().is_some()
    }

    /// Writes that may be in flight: few while somebody reads, who would wait for them.
    fn write_depth(&self) -> usize {
        let config = &self.shared.config;
        (if self.shared.is_read() { config.write_depth_reading() } else { config.write_depth() }) as usize
    }

    /// Move jobs into the log while it has room.
    fn take_jobs(&mut self) -> bool {
        let mut moved = false;
        while self.log.has_room() {
            if let Some(unit) = self.stalled.take() {
                if self.is_dead(unit.id) {
                    self.write_failed(unit.id, true);
                } else if !self.append(unit) {
                    break;
                }
                moved = true;
            }
            let Some((job, held)) = self.next_job() else { break };
            moved = true;
            match job {
                Job::Frame(_) => {
                    if let Some(held) = held {
                        let unit = self.frame_unit(held);
                        self.append(unit);
                    }
                }
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
                Job::Flush { id } => self.sync_for(Purpose::Flush(id)),
                Job::Close { id } => {
                    self.log.seal_open();
                    self.closing = Some(id);
                }
            }
        }
        moved
    }

    /// The next job; with a frame that is still to be written, that frame, held until the write is over.
    fn next_job(&self) -> Option<(Job, Option<Held>)> {
        let mut core = self.shared.lock();
        let job = core.ssd.as_mut()?.queue.pop_front()?;
        let Job::Frame(frame) = job else { return Some((job, None)) };
        let queued = core.frames.get_ref(frame).filter(|f| !f.dead && f.state == FrameState::Queued);
        let is_queued = queued.map(|f| f.state = FrameState::Writing).is_some();
        let held = if is_queued { Held::new(&mut core, frame) } else { None };
        Some((job, held))
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

    /// Append a unit, and note what its segment holds from now on.
    pub fn append_now(&mut self, unit: Unit) -> Result<(), Unit> {
        let (sequence, data) = (unit.sequence, unit.kind == RecordKind::Data);
        let (bytes, id) = (unit.record_bytes(), unit.id);
        let (place, header) = self.log.append(unit)?;
        if data {
            self.shared.headers.written(&place, &header);
        }
        let mut core = self.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            ssd.appended_bytes += bytes;
            let segment = ssd.segments.get_mut(place.identity.segment);
            if data {
                segment.min_sequence = segment.min_sequence.min(sequence);
            }
        }
        self.shared.published.tick.store(core.now_tick(), Ordering::Relaxed);
        drop(core);
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
            members: keys.iter().map(|k| UnitMember { key: *k, length: 0, checksums: Vec::new() }).collect(),
            payload: Vec::new(),
        }
    }

    /// Whether nothing is written for now.
    pub fn is_read_only(&self) -> bool {
        !self.log.is_trusted() || self.shared.lock().ssd.as_ref().is_none_or(|s| !s.health.writes())
    }

    /// A device that ends nothing for as long as any call may take is not waited for: callers go on without it.
    fn notice_stuck(&mut self) {
        let now = self.shared.now();
        if self.device.look(self.log.ended(), self.log.in_flight(), now) < self.shared.config.deadline() {
            return;
        }
        if self.shared.lock().ssd.as_mut().is_some_and(|s| s.health.stop_writing(now)) {
            self.state_changed("nothing that was submitted ends");
        }
    }

    /// What is asked of a tier that takes nothing hears so at once: nobody else would answer it.
    fn refuse_jobs(&mut self) -> bool {
        let asked =
            self.stalled.is_some() || self.shared.lock().ssd.as_ref().is_some_and(|s| !s.queue.is_empty());
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
        let jobs = std::mem::take(&mut ssd.queue);
        let failed = || Answer::Failed(Error::new(ErrorKind::Unavailable, format!("ssd tier is {state}")));
        for job in jobs {
            match job {
                Job::Frame(frame) => {
                    let Some(f) = core.frames.get_ref(frame).filter(|f| f.state == FrameState::Queued) else {
                        continue;
                    };
                    let (objects, bytes) = (f.data.members.len() as u64, f.data.bytes());
                    core.counters.lost_objects += objects;
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

    /// A checkpoint behind everything, then the end.
    fn close(&mut self) -> bool {
        let Some(id) = self.closing else { return false };
        if !self.log.idle() || self.reclaim.is_some() || self.checkpoint.is_some() || self.stalled.is_some() {
            return false;
        }
        let answer = match !self.is_read_only() {
            true if self.sealed_since_checkpoint == u32::MAX => Answer::Done,
            true => {
                self.begin_checkpoint(true);
                // Set so that the second time round there is nothing left to do.
                self.sealed_since_checkpoint = u32::MAX;
                return true;
            }
            false => Answer::Done,
        };
        self.shared.lock().answer(id, answer);
        self.over = true;
        self.shared.progress.raise();
        true
    }
}

impl Task for Flusher {
    fn step(&mut self) -> Step {
        if self.over {
            return Step::Done;
        }
        if self.shared.lock().stopping {
            // Abandoned: what is under way ends, nothing new begins.
            let mut events = Vec::new();
            if self.log.in_flight() == 0 {
                return Step::Done;
            }
            self.log.pump(Some(WAIT), &mut events);
            return Step::Again;
        }
        crate::put::expire(&self.shared, &mut self.shared.lock());
        let mut busy = self.pump(None);
        self.notice_stuck();
        busy |= self.step_purge();
        busy |= self.step_probe();
        busy |= self.step_read_back();
        busy |= self.prepare_segment();
        busy |= self.step_reclaim();
        busy |= self.refuse_jobs();
        self.log.limit_writes(self.write_depth());
        busy |= self.take_jobs();
        busy |= self.step_checkpoint();
        busy |= self.step_scrub();
        busy |= self.close();
        if busy {
            return Step::Again;
        }
        if self.log.in_flight() > 0 {
            self.pump(Some(WAIT));
            return Step::Again;
        }
        // What was only gathered is submitted before sleeping.
        if self.pump(None) || !self.log.idle() { Step::Again } else { Step::Idle(IDLE) }
    }
}
