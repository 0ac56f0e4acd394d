//! What is behind the lock: index, frames, segments, generations, pins. Plain state, changed in short
//! critical sections; no I/O, no copying, no hashing of payload happens here.

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
use crate::state::frame_access::Held;
use crate::state::health::Health;
use crate::state::peer_queue::RemoteQueue;
use crate::state::pending_groups::Waiting;
use crate::state::read_view::SnapshotVersion;
use crate::state::written_namespaces::WrittenNamespaces;

/// Laps of the log that a recency tick counter takes to wrap: 2^20 ticks at 4096 a lap.
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
    /// Everything before this is to become durable.
    Flush { id: u64 },
    /// Seal, write a checkpoint, and end.
    Close { id: u64 },
}

/// The SSD tier's part of the core.
pub(crate) struct SsdCore {
    pub segments: SegmentTable,
    /// What gets hold segments by, without the lock.
    pub guards: Arc<SegmentGuards>,
    pub policy: Box<dyn SegmentPolicy>,
    pub queue: VecDeque<Job>,
    /// Objects of removals that wait in it.
    pub removing: usize,
    /// Frames that are visible and not in the queue yet, by serial: their batch is still being put.
    pub unqueued: BTreeMap<u64, FrameRef>,
    pub health: Health,
    /// Bytes of frames waiting or being written.
    pub unflushed_bytes: u64,
    /// Objects of frames that were written and that no sync has covered yet, and their bytes.
    pub unsynced: (u64, u64),
    /// Bytes appended since the store was opened, and how many make a tick.
    pub appended_bytes: u64,
    pub tick_bytes: u64,
    pub first_tick: u64,
    /// While a checkpoint copies the index: the records (segment, block) that entries have left meanwhile.
    pub left: Option<HashSet<(u32, u16)>>,
    /// Namespaces that something was written of.
    pub written: WrittenNamespaces,
    /// Segments whose entries are to leave the index, or `None` for all of them.
    pub purges: VecDeque<Option<SegmentId>>,
    /// What an open after a crash must not find again.
    pub damage: Damage,
}

impl SsdCore {
    /// The next job.
    pub fn next_job(&mut self) -> Option<Job> {
        let job = self.queue.pop_front()?;
        if let Job::Tombstones { keys, .. } = &job {
            self.removing -= keys.len();
        }
        Some(job)
    }

    /// Queue those of `frames` that are not queued yet, the last first.
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

/// A request that the flusher answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobResult {
    Done,
    Failed(crate::Error),
}

pub(crate) struct Core {
    pub index: Index,
    pub frames: Frames,
    pub space: ArenaSpace,
    pub policy: Box<dyn FramePolicy>,
    pub visibility: Visibility,
    /// What readers without the lock were last told of.
    pub edition: SnapshotVersion,
    pub ssd: Option<SsdCore>,
    /// What is to be told to peers; `None` without any.
    pub remote: Option<RemoteQueue>,
    pub pins: Pins,
    /// Groups that are not visible yet.
    pub waiting: Waiting,
    /// Bytes of memory in use for objects that groups take in.
    pub adopting: u64,
    pub sequence: Sequence,
    pub counters: Counters,
    /// Puts that were counted in it as busy.
    pub busy: BusyPuts,
    /// Counts that reports of flushes are made of.
    pub flushes: FlushCounts,
    /// What came and went, for who asks.
    pub events: EventLog,
    pub answers: HashMap<u64, Option<JobResult>>,
    pub next_answer: u64,
    /// The arena is only a write buffer: frames leave as soon as they are written.
    pub write_buffer_only: bool,
    pub stopping: bool,
}

impl VisibilityFilter for Core {
    fn is_hidden_at(&self, place: SsdPlace) -> bool {
        let Some(ssd) = &self.ssd else { return false };
        let unread = !ssd.health.reads() || ssd.health.is_quarantined(SegmentId(place.segment));
        unread || self.visibility.hides(place)
    }

    fn link(&self, fingerprint: u128) -> Option<u64> {
        self.index.link(fingerprint)
    }

    fn any_named(&self, name: u64, is: impl Fn(&Entry) -> bool) -> bool {
        self.index.find_named(name).any(|entry| is(&entry))
    }
}

impl Core {
    /// The generation that a namespace has now.
    pub fn generation(&self, namespace: NamespaceId) -> Generation {
        self.visibility.generation(namespace)
    }

    /// Raise a namespace's generation: what it holds is unreachable from here on. The manifest has to hear of
    /// it.
    pub fn clear(&mut self, namespace: NamespaceId) -> Generation {
        let generation = Generation(self.generation(namespace).0 + 1);
        self.visibility.set_generation(namespace, generation);
        self.clear_waiting_groups(namespace);
        let in_it = |f: &Frame| !f.dead && f.data.namespace == namespace;
        let old: Vec<_> = self.frames.iter().filter(|(_, f)| in_it(f)).map(|(id, _)| id).collect();
        old.into_iter().for_each(|id| self.drop_frame(id, true));
        self.pins.end_leases(namespace);
        self.events.note(|| Event::Cleared { namespace });
        generation
    }

    /// The next sequence.
    pub fn next_sequence(&mut self) -> Sequence {
        let now = self.sequence;
        self.sequence.0 += 1;
        now
    }

    /// The tick that counts as now.
    pub fn now_tick(&self) -> u64 {
        self.ssd.as_ref().map_or(0, |s| s.first_tick + s.appended_bytes / s.tick_bytes)
    }

    /// An entry's tick as the count it was taken from.
    pub fn full_tick(&self, tick: u32) -> u64 {
        let now = self.now_tick();
        now.saturating_sub(u64::from(tick_age((now % u64::from(TICK_MODULUS)) as u32, tick)))
    }

    /// The frame and member that hold this object in DRAM.
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

    /// The entries that may be this object on SSD: those with the fingerprint whose key is not known from
    /// DRAM to be another.
    pub fn find_ssd(&self, fingerprint: u128) -> Vec<Entry> {
        let on_ssd = |e: &Entry| e.frame.is_none() && e.ssd.is_some() && !self.is_hidden(e);
        self.index.find(fingerprint).filter(on_ssd).collect()
    }

    /// Nothing of the record that an object on SSD lies in is seen any more.
    pub fn hide_record(&mut self, entry: &Entry) {
        if let Some(place) = entry.ssd {
            self.visibility.hide_record(place);
            self.events.forgot();
        }
    }

    /// Note that an object was asked for.
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
        // As the index has it: a batch may name an object twice.
        let before = self.index.replace_tick(slot, tick);
        if before != tick {
            let before = self.full_tick(before);
            if let (Some(place), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
                let s = ssd.segments.get_mut(SegmentId(place.segment));
                s.recency_sum = s.recency_sum.saturating_sub(before) + now;
            }
        }
    }

    /// Remove an entry, counting it out of its segment.
    pub fn remove_entry(&mut self, fingerprint: u128, matches: impl FnMut(&Entry) -> bool) -> Option<Entry> {
        let entry = self.index.remove(fingerprint, matches)?;
        if entry.attached {
            self.index.remove_link(fingerprint);
        }
        self.count_out(&entry);
        Some(entry)
    }

    fn count_out(&mut self, entry: &Entry) {
        let tick = self.full_tick(entry.tick);
        if let (Some(place), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
            ssd.segments.remove_live(SegmentId(place.segment), align_up(entry.length.into()), tick);
            if let Some(left) = ssd.left.as_mut() {
                left.insert((place.segment, place.record_block));
            }
        }
    }

    /// An object's entry is gone. A place that is not believed was told of as forgotten: the object may have been put
    /// again since.
    pub fn note_gone(&mut self, key: &ObjectKey, entry: &Entry) {
        if entry.ssd.is_some_and(|place| !self.is_hidden_at(place)) {
            self.events.removed(Tier::Ssd, key, entry.frame.is_none());
        }
        if entry.frame.is_some() {
            self.events.removed(Tier::Memory, key, true);
        }
    }

    /// The key of an object of this fingerprint that DRAM has in a frame, for events; `None` if nobody asks for those.
    fn key_in_frame(&self, frame: u32, fingerprint: u128) -> Option<ObjectKey> {
        if !self.events.is_on() {
            return None;
        }
        let data = &self.frames.get(FrameId(frame))?.data;
        data.members.iter().find(|m| m.fingerprint == fingerprint).map(|m| m.key)
    }

    /// Forget an object's place on SSD; its entry goes too if it is nowhere else. `key` is the object's, if the caller
    /// knows: of what DRAM has not nobody else does, and the caller says that something was forgotten
    /// ([`EventLog::forgot`]).
    pub fn drop_ssd(&mut self, fingerprint: u128, place: SsdPlace, key: Option<&ObjectKey>) -> bool {
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
        self.count_out(&entry);
        self.index.update(fingerprint, at, |e| e.ssd = None).unwrap_or(false)
    }

    /// Forget objects that are lost on SSD, each at its place, and by its key where that is known; the pages that DRAM
    /// still has, which are to be written again ([`Core::requeue_frame`]): they count as durable, and what is attached to
    /// them does with them.
    pub fn drop_lost(
        &mut self,
        lost: impl IntoIterator<Item = (u128, SsdPlace, Option<ObjectKey>)>,
    ) -> BTreeSet<u32> {
        let mut pages = BTreeSet::new();
        for (fingerprint, place, key) in lost {
            let page = self.index.find(fingerprint).find(|e| e.ssd == Some(place)).and_then(|e| e.frame);
            pages.extend(page);
            let dropped = self.drop_ssd(fingerprint, place, key.as_ref());
            if dropped {
                self.note_damage(SegmentId(place.segment));
            }
            if dropped && page.is_none() {
                self.pins.end_lease(fingerprint);
                if key.is_none() {
                    self.events.forgot();
                }
            }
        }
        pages
    }

    /// Give an object that `matches` its place on SSD, counting it out of an earlier one.
    pub fn place_ssd(
        &mut self,
        fingerprint: u128,
        matches: impl Fn(&Entry) -> bool,
        place: SsdPlace,
    ) -> bool {
        let Some(entry) = self.index.find(fingerprint).find(|e| matches(e)) else { return false };
        let placed =
            self.index.update(fingerprint, |e| *e == entry, |e| e.ssd = Some(place)).unwrap_or(false);
        if placed {
            let new = entry.frame.filter(|_| entry.ssd.is_none());
            if let Some(key) = new.and_then(|frame| self.key_in_frame(frame, fingerprint)) {
                self.events.stored(Tier::Ssd, &key, false);
            }
            self.count_out(&entry);
            let tick = self.full_tick(entry.tick);
            if let Some(ssd) = self.ssd.as_mut() {
                ssd.segments.add_live(SegmentId(place.segment), align_up(entry.length.into()), tick);
            }
        }
        placed
    }

    /// A frame that was taken to be written goes back to the front of the queue; one that was dropped meanwhile is let go of.
    pub fn write_later(&mut self, held: &Held) {
        let alive = self.frames.get_ref(held.frame).filter(|f| !f.dead);
        let queued = alive.map(|f| f.state = FrameState::Queued).is_some();
        if let Some(ssd) = self.ssd.as_mut() {
            match queued {
                true => ssd.queue.push_front(Job::Frame(held.frame)),
                false => ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(held.data.bytes()),
            }
        }
        self.release_frame(held.frame);
    }

    /// A frame is written or was never to be: it may be evicted from now on. Of an arena that is only a write buffer it
    /// goes at once, also from under a reader, who frees it when it leaves: nothing else would come by to do it.
    pub fn settle_frame(&mut self, frame: FrameRef) {
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

    /// Put a page that is in DRAM, and that SSD does not hold or no longer holds whole, in the queue for SSD; false if
    /// it is there already, or if nothing is written.
    pub fn requeue_frame(&mut self, id: FrameId) -> bool {
        if !self.ssd.as_ref().is_some_and(|s| s.health.writes()) || self.write_buffer_only {
            return false;
        }
        let Some(f) = self.frames.get(id).filter(|f| !f.dead && f.state == FrameState::Clean) else {
            return false;
        };
        let (data, serial) = (f.data.clone(), f.serial);
        // The last checkpoint may say where it was, and counts as younger than what was put before it. A new number
        // makes this the younger one; what is attached keeps its own, by which a removal of its base judges it.
        let sequence = if data.is_attached() { data.sequence } else { self.next_sequence() };
        // A group lies in one record: what is left of an older one is not its place any more.
        for m in &data.members {
            let place = self.index.find(m.fingerprint).find(|e| e.frame == Some(id.0)).and_then(|e| e.ssd);
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

    /// Put every page that only DRAM holds in the queue for SSD; how many. A look at every frame, for when the tier
    /// is on again.
    pub fn requeue_unsaved(&mut self) -> usize {
        let unsaved = |(id, f): (FrameId, &Frame)| {
            let only_here = |e: &Entry| e.frame == Some(id.0) && e.ssd.is_none();
            f.data.members.iter().any(|m| self.index.find(m.fingerprint).any(|e| only_here(&e))).then_some(id)
        };
        let ids: Vec<FrameId> = self.frames.iter().filter_map(unsaved).collect();
        ids.into_iter().filter(|id| self.requeue_frame(*id)).count()
    }

    /// Objects of a namespace were put and cannot be made durable.
    pub fn note_lost(&mut self, namespace: NamespaceId, objects: usize) {
        let lost = FlushReport { lost_objects: objects as u64, ..FlushReport::default() };
        self.flushes.add(namespace, &lost);
    }

    /// Ask the flusher for something; the number to wait for. What is visible by now comes before it, also if its
    /// batch is not done: others were told that it is here, and may take it for covered.
    pub fn ask(&mut self, job: impl FnOnce(u64) -> Job) -> Option<u64> {
        let id = self.next_answer;
        let ssd = self.ssd.as_mut()?;
        let visible = std::mem::take(&mut ssd.unqueued);
        ssd.queue.extend(visible.into_values().rev().map(Job::Frame));
        let job = job(id);
        if let Job::Tombstones { keys, .. } = &job {
            ssd.removing += keys.len();
        }
        ssd.queue.push_back(job);
        self.next_answer += 1;
        self.answers.insert(id, None);
        Some(id)
    }

    /// JobResult a request; nothing happens if nobody waits for it any more.
    pub fn answer(&mut self, id: u64, answer: JobResult) {
        if let Some(slot) = self.answers.get_mut(&id) {
            *slot = Some(answer);
        }
    }
}
