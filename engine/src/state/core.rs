//! State protected by the core's lock: index, frames, segments, generations, pins. Plain data,
//! changed in short critical sections: no I/O, copy or hash of payload happens under the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use pagelith_layouts::align::align_up;
use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::ArenaSpace;
use pagelith_tiers::policy::{FrameId, FramePolicy, Recency, SegmentPolicy};
use pagelith_tiers::ssd::guards::SegmentGuards;
use pagelith_tiers::ssd::segments::SegmentTable;

use crate::api::events::{Event, EventLog};
use crate::api::outcome::{FlushReport, Tier};
use crate::api::stats::Counters;
use crate::memory::frames::{Frame, FrameData, FrameRef, FrameState, Frames};
use crate::memory::index::{Entry, Index, SsdPlace, TICK_MODULUS, tick_age};
use crate::memory::pins::Pins;
use crate::memory::visibility::{Visibility, VisibilityFilter};
use crate::state::busy::BusyPuts;
use crate::state::damage::Damage;
use crate::state::flush_counts::FlushCounts;
use crate::state::frame_access::FrameGuard;
use crate::state::health::Health;
use crate::state::peer_queue::RemoteQueue;
use crate::state::pending_groups::PendingGroups;
use crate::state::read_view::SnapshotVersion;
use crate::state::written_namespaces::WrittenNamespaces;

/// Recency ticks per lap of the log. The tick counter of the index wraps after 2^20 ticks, 256
/// laps.
const TICKS_PER_LAP: u64 = 4096;

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

/// The SSD tier's part of the core.
pub(crate) struct SsdCore {
    pub segments: SegmentTable,
    /// Guards with which gets pin segments without the lock.
    pub guards: Arc<SegmentGuards>,
    pub policy: Box<dyn SegmentPolicy>,
    pub queue: VecDeque<Job>,
    /// Number of objects of the removals in `queue`.
    pub queued_removals: usize,
    /// Frames that are visible but not yet in `queue`, by serial: the put of their batch still
    /// runs.
    pub unqueued: BTreeMap<u64, FrameRef>,
    pub health: Health,
    /// Bytes of frames that are queued or being written.
    pub unflushed_bytes: u64,
    /// Number and bytes of objects that were written but not yet synced.
    pub unsynced: (u64, u64),
    /// Bytes appended since the store was opened.
    pub appended_bytes: u64,
    /// Appended bytes per tick.
    pub tick_bytes: u64,
    pub first_tick: u64,
    /// While a checkpoint copies the index: records (segment, block) of entries that were removed
    /// or moved meanwhile.
    pub withdrawn_records: Option<HashSet<(u32, u16)>>,
    /// Namespaces of which objects were written.
    pub written: WrittenNamespaces,
    /// Segments whose entries must be removed from the index; `None` stands for all segments. The
    /// first one stays until all its entries are removed.
    pub purges: VecDeque<Option<SegmentId>>,
    /// Damaged locations that recovery after a crash must not use again.
    pub damage: Damage,
}

impl SsdCore {
    /// The next job.
    pub fn next_job(&mut self) -> Option<Job> {
        let job = self.queue.pop_front()?;
        if let Job::Tombstones { keys, .. } = &job {
            self.queued_removals -= keys.len();
        }
        Some(job)
    }

    /// Queue the frames that are not yet queued, the last first.
    pub fn enqueue(&mut self, frames: impl DoubleEndedIterator<Item = FrameRef>) {
        for frame in frames.rev() {
            if self.unqueued.remove(&frame.serial).is_some() {
                self.queue.push_back(Job::Frame(frame));
            }
        }
    }

    pub fn tick_bytes_of(capacity: u64) -> u64 {
        (capacity / TICKS_PER_LAP).max(1)
    }
}

/// The result of a job that a caller waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobResult {
    Done,
    Failed(crate::api::error::Error),
}

pub(crate) struct Core {
    pub index: Index,
    pub frames: Frames,
    pub space: ArenaSpace,
    pub policy: Box<dyn FramePolicy>,
    pub visibility: Visibility,
    /// The version that was last published to readers without the lock.
    pub snapshot_version: SnapshotVersion,
    pub ssd: Option<SsdCore>,
    /// Offers and removals to be sent to peers; `None` without peers.
    pub remote: Option<RemoteQueue>,
    pub pins: Pins,
    /// Groups that are not visible yet.
    pub pending_groups: PendingGroups,
    /// Bytes of buffers for objects that groups adopt.
    pub adopting_bytes: u64,
    pub sequence: Sequence,
    pub counters: Counters,
    /// Recent puts that `counters` counts as busy.
    pub busy: BusyPuts,
    /// Counts for the reports of flushes.
    pub flushes: FlushCounts,
    /// Objects stored and removed, for event subscribers.
    pub events: EventLog,
    pub job_results: HashMap<u64, Option<JobResult>>,
    pub next_job_id: u64,
    /// The arena is only a write buffer: frames are dropped as soon as they are written.
    pub write_buffer_only: bool,
    pub stopping: bool,
}

impl VisibilityFilter for Core {
    fn is_hidden_at(&self, place: SsdPlace) -> bool {
        let Some(ssd) = &self.ssd else { return false };
        let is_unread = !ssd.health.reads() || ssd.health.is_quarantined(SegmentId(place.segment));
        is_unread || self.visibility.hides(place)
    }

    fn link(&self, fingerprint: u128) -> Option<u64> {
        self.index.link(fingerprint)
    }

    fn any_named(&self, name: u64, matches: impl Fn(&Entry) -> bool) -> bool {
        self.index.find_named(name).any(|entry| matches(&entry))
    }
}

impl Core {
    /// The current generation of a namespace.
    pub fn generation(&self, namespace: NamespaceId) -> Generation {
        self.visibility.generation(namespace)
    }

    /// Raise a namespace's generation: its objects become unreachable. The caller must record it in
    /// the manifest.
    pub fn clear(&mut self, namespace: NamespaceId) -> Generation {
        let generation = Generation(self.generation(namespace).0 + 1);
        self.visibility.set_generation(namespace, generation);
        self.clear_pending_groups(namespace);
        let in_namespace = |f: &Frame| !f.dead && f.data.namespace == namespace;
        let frames: Vec<_> =
            self.frames.iter().filter(|(_, f)| in_namespace(f)).map(|(id, _)| id).collect();
        frames.into_iter().for_each(|id| self.drop_frame(id, true));
        self.pins.end_leases(namespace);
        self.events.note(|| Event::Cleared { namespace });
        generation
    }

    /// The next sequence number.
    pub fn next_sequence(&mut self) -> Sequence {
        let now = self.sequence;
        self.sequence.0 += 1;
        now
    }

    /// The current tick.
    pub fn now_tick(&self) -> u64 {
        self.ssd.as_ref().map_or(0, |s| s.first_tick + s.appended_bytes / s.tick_bytes)
    }

    /// The full tick count of an entry's tick, which is stored modulo [`TICK_MODULUS`].
    pub fn full_tick(&self, tick: u32) -> u64 {
        let now = self.now_tick();
        now.saturating_sub(u64::from(tick_age((now % u64::from(TICK_MODULUS)) as u32, tick)))
    }

    /// The frame and the member index of this object in DRAM.
    pub fn find_memory(
        &self,
        key: &ObjectKey,
        fingerprint: u128,
        generation: Generation,
    ) -> Option<(FrameRef, usize)> {
        self.index.find(fingerprint).filter_map(|e| e.frame).find_map(|id| {
            let id = FrameId(id);
            let frame = self.frames.get(id).filter(|f| !f.dead)?;
            let member = frame.data.find(key, generation)?;
            Some((FrameRef { id, serial: frame.serial }, member))
        })
    }

    /// The entries that may be this object on SSD: entries with the fingerprint that are in no
    /// frame. For the others DRAM has the key.
    pub fn find_ssd(&self, fingerprint: u128) -> Vec<Entry> {
        let on_ssd = |e: &Entry| e.frame.is_none() && e.ssd.is_some() && !self.is_hidden(e);
        self.index.find(fingerprint).filter(on_ssd).collect()
    }

    /// Hide all objects of the SSD record that contains this entry's object.
    pub fn hide_record(&mut self, entry: &Entry) {
        if let Some(place) = entry.ssd {
            self.visibility.hide_record(place);
            self.events.forgot();
        }
    }

    /// Record a request for an object.
    pub fn touch(&mut self, fingerprint: u128, place: impl Fn(&Entry) -> bool, at: Recency) {
        let Some((slot, entry)) = self.index.locate(fingerprint, place) else { return };
        let now = self.now_tick();
        if let Some(frame) = entry.frame.map(FrameId) {
            self.frames.touches().raise(frame, at);
            if self.policy.counts_touches() {
                self.policy.touch(frame, at);
            }
        }
        // Ticks wrap by design.
        let tick = (now % u64::from(TICK_MODULUS)) as u32;
        // Compared with the tick in the index, because a batch may name an object twice.
        let before = self.index.replace_tick(slot, tick);
        if before != tick {
            let before = self.full_tick(before);
            if let (Some(place), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
                let s = ssd.segments.get_mut(SegmentId(place.segment));
                s.recency_sum = s.recency_sum.saturating_sub(before) + now;
            }
        }
    }

    /// Remove an entry, and subtract it from the live bytes of its segment.
    pub fn remove_entry(
        &mut self,
        fingerprint: u128,
        matches: impl FnMut(&Entry) -> bool,
    ) -> Option<Entry> {
        let entry = self.index.remove(fingerprint, matches)?;
        if entry.attached {
            self.index.remove_link(fingerprint);
        }
        self.subtract_live(&entry);
        Some(entry)
    }

    /// Subtract an entry from the live bytes of its segment.
    fn subtract_live(&mut self, entry: &Entry) {
        let tick = self.full_tick(entry.tick);
        if let (Some(place), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
            ssd.segments.remove_live(SegmentId(place.segment), align_up(entry.length.into()), tick);
            if let Some(records) = ssd.withdrawn_records.as_mut() {
                records.insert((place.segment, place.record_block));
            }
        }
    }

    /// Emit the events for an object whose entry was removed. A hidden place emits none: its loss
    /// was reported when it was hidden, and the object may have been put again since.
    pub fn emit_removed(&mut self, key: &ObjectKey, entry: &Entry) {
        if entry.ssd.is_some_and(|place| !self.is_hidden_at(place)) {
            self.events.removed(Tier::Ssd, key, entry.frame.is_none());
        }
        if entry.frame.is_some() {
            self.events.removed(Tier::Memory, key, true);
        }
    }

    /// The key of the object with this fingerprint in a frame, for events; `None` if events are
    /// off.
    fn key_in_frame(&self, frame: u32, fingerprint: u128) -> Option<ObjectKey> {
        if !self.events.is_on() {
            return None;
        }
        let data = &self.frames.get(FrameId(frame))?.data;
        data.members.iter().find(|m| m.fingerprint == fingerprint).map(|m| m.key)
    }

    /// Remove an object's place on SSD, and its entry if it is not in DRAM. `key` is its key, if
    /// known. For an object that is not in DRAM only the caller can know the key; without it the
    /// caller must report an unnamed loss ([`EventLog::forgot`]).
    pub fn drop_ssd(
        &mut self,
        fingerprint: u128,
        place: SsdPlace,
        key: Option<&ObjectKey>,
    ) -> bool {
        let at = |e: &Entry| e.ssd == Some(place);
        let Some(entry) = self.index.find(fingerprint).find(at) else { return false };
        let Some(frame) = entry.frame else {
            if let Some(key) = key {
                self.emit_removed(key, &entry);
            }
            return self.remove_entry(fingerprint, at).is_some();
        };
        if let Some(key) = self.key_in_frame(frame, fingerprint) {
            self.events.removed(Tier::Ssd, &key, false);
        }
        self.subtract_live(&entry);
        self.index.update(fingerprint, at, |e| e.ssd = None).unwrap_or(false)
    }

    /// Remove objects that are lost on SSD, given by place, and by key if it is known. Returns the
    /// frames that DRAM still has: the caller must write them again ([`Core::requeue_frame`]),
    /// because they and the groups attached to them were reported as durable.
    pub fn drop_lost(
        &mut self,
        lost: impl IntoIterator<Item = (u128, SsdPlace, Option<ObjectKey>)>,
    ) -> BTreeSet<u32> {
        let mut frames = BTreeSet::new();
        for (fingerprint, place, key) in lost {
            let frame =
                self.index.find(fingerprint).find(|e| e.ssd == Some(place)).and_then(|e| e.frame);
            frames.extend(frame);
            let dropped = self.drop_ssd(fingerprint, place, key.as_ref());
            if dropped {
                self.note_damage(SegmentId(place.segment));
            }
            if dropped && frame.is_none() {
                self.pins.end_lease(fingerprint);
                if key.is_none() {
                    self.events.forgot();
                }
            }
        }
        frames
    }

    /// Set the place on SSD of the object that `matches`, and subtract it from the live bytes of an
    /// earlier place.
    pub fn place_ssd(
        &mut self,
        fingerprint: u128,
        matches: impl Fn(&Entry) -> bool,
        place: SsdPlace,
    ) -> bool {
        let Some(entry) = self.index.find(fingerprint).find(|e| matches(e)) else { return false };
        let updated = self
            .index
            .update(fingerprint, |e| *e == entry, |e| e.ssd = Some(place))
            .unwrap_or(false);
        if updated {
            let new = entry.frame.filter(|_| entry.ssd.is_none());
            if let Some(key) = new.and_then(|frame| self.key_in_frame(frame, fingerprint)) {
                self.events.stored(Tier::Ssd, &key, false);
            }
            self.subtract_live(&entry);
            let tick = self.full_tick(entry.tick);
            if let Some(ssd) = self.ssd.as_mut() {
                ssd.segments.add_live(
                    SegmentId(place.segment),
                    align_up(entry.length.into()),
                    tick,
                );
            }
        }
        updated
    }

    /// Return a frame that was taken for a write to the front of the queue. A frame that was
    /// dropped meanwhile is released instead.
    pub fn requeue_front(&mut self, held: &FrameGuard) {
        let alive = self.frames.get_ref(held.frame).filter(|f| !f.dead);
        let queued = alive.map(|f| f.state = FrameState::Queued).is_some();
        if let Some(ssd) = self.ssd.as_mut() {
            match queued {
                true => ssd.queue.push_front(Job::Frame(held.frame)),
                false => {
                    ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(held.data.bytes())
                }
            }
        }
        self.release_frame(held.frame);
    }

    /// Mark a frame as written, or as exempt from it: it may be evicted from now on. If the arena
    /// is only a write buffer the frame is dropped at once, even while it has readers, because no
    /// later step would drop it. Its last reader then frees it.
    pub fn mark_frame_clean(&mut self, frame: FrameRef) {
        let Some(f) = self.frames.get_ref(frame) else { return };
        f.state = FrameState::Clean;
        if f.dead {
            return;
        }
        let bytes = f.data.bytes();
        let fingerprint = f.data.members.first().map_or(0, |m| m.fingerprint);
        let pinned = f.any_fingerprint(|fingerprint| self.pins.is_pinned(fingerprint));
        if self.write_buffer_only && !pinned {
            self.drop_frame(frame.id, false);
        } else {
            let at = self.frames.touches().get(frame.id).unwrap_or(Recency { epoch: 0, depth: 0 });
            self.policy.insert(frame.id, bytes, fingerprint, at);
        }
    }

    /// Queue a frame for SSD that is not, or no longer completely, stored there. False if it is
    /// already queued or being written, or if the store does not write.
    pub fn requeue_frame(&mut self, id: FrameId) -> bool {
        if !self.ssd.as_ref().is_some_and(|s| s.health.writes()) || self.write_buffer_only {
            return false;
        }
        let Some(f) = self.frames.get(id).filter(|f| !f.dead && f.state == FrameState::Clean)
        else {
            return false;
        };
        let (data, serial) = (f.data.clone(), f.serial);
        // The last checkpoint may name the old place, and takes precedence over groups put before
        // it. A new sequence number gives precedence to this write. An attached group keeps its
        // number, because a removal of its base compares it.
        let sequence = if data.is_attached() { data.sequence } else { self.next_sequence() };
        // A group is stored in one record, so places in an older record are no longer valid.
        for m in &data.members {
            let place =
                self.index.find(m.fingerprint).find(|e| e.frame == Some(id.0)).and_then(|e| e.ssd);
            place.map(|place| self.drop_ssd(m.fingerprint, place, Some(&m.key)));
        }
        self.policy.remove(id);
        if let Some(f) = self.frames.get_mut(id) {
            f.state = FrameState::Queued;
            f.data = Arc::new(FrameData { sequence, ..(*data).clone() });
        }
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.unflushed_bytes += data.bytes();
            ssd.queue.push_back(Job::Frame(FrameRef { id, serial }));
        }
        true
    }

    /// Queue every frame that is only in DRAM for SSD, and return their number. It scans all
    /// frames, and is called after the tier was enabled again.
    pub fn requeue_unsaved(&mut self) -> usize {
        let unsaved = |(id, f): (FrameId, &Frame)| {
            let only_in_memory = |e: &Entry| e.frame == Some(id.0) && e.ssd.is_none();
            f.data
                .members
                .iter()
                .any(|m| self.index.find(m.fingerprint).any(|e| only_in_memory(&e)))
                .then_some(id)
        };
        let ids: Vec<FrameId> = self.frames.iter().filter_map(unsaved).collect();
        ids.into_iter().filter(|id| self.requeue_frame(*id)).count()
    }

    /// Count objects of a namespace that were put and cannot be made durable.
    pub fn count_lost(&mut self, namespace: NamespaceId, objects: usize) {
        let lost = FlushReport { lost_objects: objects as u64, ..FlushReport::default() };
        self.flushes.add(namespace, &lost);
    }

    /// Queue a job for the flusher, and return the id of its result. All visible frames are queued
    /// before it, even if the put of their batch still runs: other clients may have seen those
    /// objects, and may assume that the job covers them.
    pub fn submit_job(&mut self, job: impl FnOnce(u64) -> Job) -> Option<u64> {
        let id = self.next_job_id;
        let ssd = self.ssd.as_mut()?;
        let visible = std::mem::take(&mut ssd.unqueued);
        ssd.queue.extend(visible.into_values().rev().map(Job::Frame));
        let job = job(id);
        if let Job::Tombstones { keys, .. } = &job {
            ssd.queued_removals += keys.len();
        }
        ssd.queue.push_back(job);
        self.next_job_id += 1;
        self.job_results.insert(id, None);
        Some(id)
    }

    /// Store a job's result; ignored if its caller no longer waits for it.
    pub fn complete_job(&mut self, id: u64, result: JobResult) {
        if let Some(slot) = self.job_results.get_mut(&id) {
            *slot = Some(result);
        }
    }
}
