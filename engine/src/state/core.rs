//! State protected by the core's lock: index, frames, segments, generations, pins. Plain data,
//! changed in short critical sections: no I/O, copy or hash of payload happens under the lock.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::{FrameId, Recency, RecordRequest};

use crate::api::events::Event;
use crate::api::outcome::{FlushReport, Tier};
use crate::memory::departed::{DepartedObjects, Departure};
use crate::memory::frames::{Frame, FrameData, FrameRef, FrameState};
use crate::memory::index::{Entry, Index, RecordPlace, SsdLocation, TICK_MODULUS, tick_age};
use crate::memory::namespaces::KnownNamespaces;
use crate::memory::pins::Pins;
use crate::memory::tenants::Tenants;
use crate::memory::visibility::{Visibility, VisibilityFilter};
use crate::state::dram_core::DramCore;
use crate::state::event_log::EventLog;
use crate::state::flush_counts::FlushCounts;
use crate::state::frame_access::FrameGuard;
use crate::state::jobs::{Job, JobTable};
use crate::state::peer_queue::PeerQueue;
use crate::state::pending_groups::PendingGroups;
use crate::state::read_view::SnapshotVersion;
use crate::state::ssd_core::SsdCore;
use crate::state::stats::Counters;

pub(crate) struct Core {
    pub index: Index,
    pub visibility: Visibility,
    /// The version that was last published to readers without the lock.
    pub snapshot_version: SnapshotVersion,
    pub dram: DramCore,
    pub ssd: Option<SsdCore>,
    /// Offers and removals to be sent to peers; `None` without peers.
    pub remote: Option<PeerQueue>,
    pub pins: Pins,
    /// Groups that are not visible yet.
    pub pending_groups: PendingGroups,
    pub sequence: Sequence,
    pub counters: Counters,
    /// Why objects left or were not taken.
    pub departed: DepartedObjects,
    /// Namespaces in which objects were put.
    pub namespaces: Arc<KnownNamespaces>,
    /// Namespaces with limits.
    pub tenants: Tenants,
    /// Counts for the reports of flushes.
    pub flushes: FlushCounts,
    /// Objects stored and removed, for event subscribers.
    pub events: EventLog,
    pub jobs: JobTable,
}

impl VisibilityFilter for Core {
    fn is_hidden_at(&self, location: SsdLocation) -> bool {
        self.ssd.is_some()
            && (self.is_offline(location.record()) || self.visibility.hides(location))
    }

    fn link(&self, fingerprint: u128) -> Option<u64> {
        self.index.link(fingerprint)
    }

    fn any_named(&self, name: u64, matches: impl Fn(&Entry) -> bool) -> bool {
        self.index.find_named(name).any(|entry| matches(&entry))
    }
}

impl Core {
    /// Whether nothing is read from the segment of a record, or from the whole tier.
    pub fn is_offline(&self, (segment, _): RecordPlace) -> bool {
        let is_offline =
            |ssd: &SsdCore| !ssd.health.reads() || ssd.health.is_quarantined(SegmentId(segment));
        self.ssd.as_ref().is_some_and(is_offline)
    }

    /// The current generation of a namespace.
    pub fn generation(&self, namespace: NamespaceId) -> Generation {
        self.visibility.generation(namespace)
    }

    /// Raise a namespace's generation: its objects become unreachable. The caller must record it in
    /// the manifest.
    pub fn clear(&mut self, namespace: NamespaceId) -> Generation {
        let generation = self.next_generation(namespace);
        self.visibility.clear(namespace, generation);
        self.clear_pending_groups(namespace);
        let in_namespace = |f: &Frame| !f.is_dead() && f.data.namespace == namespace;
        let frames: Vec<_> =
            self.dram.frames.iter().filter(|(_, f)| in_namespace(f)).map(|(id, _)| id).collect();
        frames.into_iter().for_each(|id| self.drop_frame(id, true, Departure::Removed));
        self.pins.end_leases(namespace);
        self.clear_undecided(namespace);
        self.tenants.cleared(namespace);
        self.events.note(|| Event::Cleared { namespace });
        generation
    }

    /// A generation that no object in DRAM or on SSD has, even if an earlier clear was undone
    /// because the manifest lost it. A record's sequence is at most one below its generation (of a
    /// tombstone that repair wrote), and an open begins above the sequences of all records.
    fn next_generation(&mut self, namespace: NamespaceId) -> Generation {
        self.begin_sequences_at(Sequence(self.generation(namespace).0));
        self.next_sequence();
        Generation(self.sequence.0)
    }

    /// Assign no sequence number below this one.
    pub fn begin_sequences_at(&mut self, least: Sequence) {
        self.sequence = self.sequence.max(least);
    }

    /// The next sequence number.
    pub fn next_sequence(&mut self) -> Sequence {
        let now = self.sequence;
        self.sequence.0 += 1;
        now
    }

    /// The current tick.
    pub fn now_tick(&self) -> u64 {
        self.ssd.as_ref().map_or(0, |s| s.ticks.now())
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
            let frame = self.dram.frames.get(id).filter(|f| !f.is_dead())?;
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
        if let Some(location) = entry.ssd {
            self.visibility.hide_record(location);
            self.events.forgot();
        }
    }

    /// Record a request for an object.
    pub fn record_request(
        &mut self,
        fingerprint: u128,
        is_match: impl Fn(&Entry) -> bool,
        at: Recency,
        how: RecordRequest,
    ) {
        let Some((slot, entry)) = self.index.locate(fingerprint, is_match) else { return };
        let now = self.now_tick();
        if let Some(frame) = entry.frame.map(FrameId) {
            how(self.dram.frames.last_requests(), frame, at);
        }
        // Ticks wrap by design.
        let tick = (now % u64::from(TICK_MODULUS)) as u32;
        // Compared with the tick in the index, because a batch may name an object twice.
        let before = self.index.replace_tick(slot, tick);
        if before != tick {
            let before = self.full_tick(before);
            if let (Some(location), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
                let s = ssd.segments.get_mut(SegmentId(location.segment));
                s.recency_sum = s.recency_sum.saturating_sub(before) + now;
            }
        }
    }

    /// Remove an entry, subtract it from the live bytes of its segment, and note why it left.
    pub fn remove_entry(
        &mut self,
        fingerprint: u128,
        matches: impl FnMut(&Entry) -> bool,
        departure: Departure,
    ) -> Option<Entry> {
        let entry = self.index.remove(fingerprint, matches)?;
        self.departed.note(fingerprint, departure);
        self.note_undecided(&entry, departure);
        if entry.attached {
            self.index.remove_link(fingerprint);
        }
        self.subtract_live(&entry);
        Some(entry)
    }

    /// Subtract an entry from the live bytes of its segment.
    fn subtract_live(&mut self, entry: &Entry) {
        let tick = self.full_tick(entry.tick);
        if let (Some(location), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
            ssd.segments.remove_live(SegmentId(location.segment), tick);
            if let Some(records) = ssd.withdrawn_records.as_mut() {
                records.insert(location.record());
            }
        }
    }

    /// Emit the events for an object whose entry was removed. A hidden location emits none: its
    /// loss was reported when it was hidden, and the object may have been put again since.
    pub fn emit_removed(&mut self, key: &ObjectKey, entry: &Entry) {
        if entry.ssd.is_some_and(|location| !self.is_hidden_at(location)) {
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
        let data = &self.dram.frames.get(FrameId(frame))?.data;
        data.members.iter().find(|m| m.fingerprint == fingerprint).map(|m| m.key)
    }

    /// Remove an object's location on SSD, and its entry if it is not in DRAM. `key` is its key, if
    /// known. For an object that is not in DRAM only the caller can know the key; without it the
    /// caller must report an unnamed loss ([`EventLog::forgot`]).
    pub fn drop_ssd(
        &mut self,
        fingerprint: u128,
        location: SsdLocation,
        key: Option<&ObjectKey>,
        departure: Departure,
    ) -> bool {
        let at = |e: &Entry| e.ssd == Some(location);
        let Some(entry) = self.index.find(fingerprint).find(at) else { return false };
        let Some(frame) = entry.frame else {
            if let Some(key) = key {
                self.emit_removed(key, &entry);
            }
            return self.remove_entry(fingerprint, at, departure).is_some();
        };
        if let Some(key) = self.key_in_frame(frame, fingerprint) {
            self.events.removed(Tier::Ssd, &key, false);
        }
        self.note_undecided(&entry, departure);
        self.subtract_live(&entry);
        self.index.update(fingerprint, at, |e| e.ssd = None).unwrap_or(false)
    }

    /// Remove objects that are lost on SSD, given by location, and by key if it is known. Returns
    /// the frames that DRAM still has: the caller must write them again ([`Core::requeue_frame`]),
    /// because they and the groups attached to them were reported as durable.
    pub fn drop_lost(
        &mut self,
        lost: impl IntoIterator<Item = (u128, SsdLocation, Option<ObjectKey>)>,
    ) -> BTreeSet<u32> {
        let departure = Departure::Damaged;
        let mut frames = BTreeSet::new();
        for (fingerprint, location, key) in lost {
            let frame = self
                .index
                .find(fingerprint)
                .find(|e| e.ssd == Some(location))
                .and_then(|e| e.frame);
            frames.extend(frame);
            let dropped = self.drop_ssd(fingerprint, location, key.as_ref(), departure);
            if dropped {
                self.note_damage(SegmentId(location.segment));
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

    /// Set the location on SSD of the object that `matches`, and subtract it from the live bytes of
    /// an earlier location.
    pub fn set_ssd_location(
        &mut self,
        fingerprint: u128,
        matches: impl Fn(&Entry) -> bool,
        location: SsdLocation,
    ) -> bool {
        let Some(entry) = self.index.find(fingerprint).find(|e| matches(e)) else { return false };
        let updated = self
            .index
            .update(fingerprint, |e| *e == entry, |e| e.ssd = Some(location))
            .unwrap_or(false);
        if updated {
            let new = entry.frame.filter(|_| entry.ssd.is_none());
            if let Some(key) = new.and_then(|frame| self.key_in_frame(frame, fingerprint)) {
                self.events.stored(Tier::Ssd, &key, false);
            }
            self.move_undecided(&entry, location);
            self.subtract_live(&entry);
            let tick = self.full_tick(entry.tick);
            if let Some(ssd) = self.ssd.as_mut() {
                ssd.segments.add_live(SegmentId(location.segment), tick);
            }
        }
        updated
    }

    /// Return a frame that was taken for a write to the front of the queue. A frame that was
    /// dropped meanwhile is released instead.
    pub fn requeue_front(&mut self, guard: &FrameGuard) {
        let live = self.dram.frames.get_live(guard.frame);
        let queued = live.map(|f| f.state = FrameState::Unwritten).is_some();
        if let Some(ssd) = self.ssd.as_mut().filter(|_| queued) {
            ssd.queue.push_front(Job::Frame(guard.frame));
        }
        self.release_frame(guard.frame);
    }

    /// Mark a frame as written, or as exempt from it: it may be evicted from now on. If the arena
    /// is only a write buffer the frame is dropped at once, even while it has readers, because no
    /// later step would drop it. Its last reader then frees it.
    pub fn end_write(&mut self, frame: FrameRef) {
        let Some(f) = self.dram.frames.get_live(frame) else { return };
        f.state = FrameState::Evictable;
        let bytes = f.data.bytes();
        let fingerprint = f.data.members.first().map_or(0, |m| m.fingerprint);
        let pinned = f.any_fingerprint(|fingerprint| self.pins.is_pinned(fingerprint));
        if self.dram.write_buffer_only && !pinned {
            self.drop_frame(frame.id, false, Departure::Lost);
        } else {
            let at = self
                .dram
                .frames
                .last_requests()
                .get(frame.id)
                .unwrap_or(Recency { request: 0, depth: 0 });
            self.dram.policy.insert(frame.id, bytes, fingerprint, at);
        }
    }

    /// Queue a frame for SSD that is not, or no longer completely, stored there. False if it is
    /// already queued or being written, or if the store does not write.
    pub fn requeue_frame(&mut self, id: FrameId) -> bool {
        if !self.ssd.as_ref().is_some_and(|s| s.health.writes()) || self.dram.write_buffer_only {
            return false;
        }
        let Some(f) = self.dram.frames.get(id).filter(|f| f.state == FrameState::Evictable) else {
            return false;
        };
        let (data, serial) = (f.data.clone(), f.serial);
        self.end_refusal(FrameRef { id, serial });
        // The last checkpoint may name the old location, and takes precedence over groups put
        // before it. A new sequence number gives precedence to this write. An attached group keeps
        // its number, because a removal of its base compares it.
        let sequence = if data.is_attached() { data.sequence } else { self.next_sequence() };
        // A group is stored in one record, so locations in an older record are no longer valid.
        for m in &data.members {
            let location =
                self.index.find(m.fingerprint).find(|e| e.frame == Some(id.0)).and_then(|e| e.ssd);
            location.map(|location| {
                self.drop_ssd(m.fingerprint, location, Some(&m.key), Departure::Lost)
            });
        }
        self.dram.policy.remove(id);
        if let Some(f) = self.dram.frames.get_mut(id) {
            f.state = FrameState::Unwritten;
            f.data = Arc::new(FrameData { sequence, ..(*data).clone() });
        }
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.queue.push(Job::Frame(FrameRef { id, serial }));
        }
        true
    }

    /// Queue every frame that is only in DRAM for SSD, but for refused ones, the last first, and
    /// return their number. It scans all frames, and is called after the tier was enabled again.
    pub fn requeue_unsaved(&mut self) -> usize {
        let unsaved = |(id, f): (FrameId, &Frame)| {
            let only_in_memory = |e: &Entry| e.frame == Some(id.0) && e.ssd.is_none();
            let unsaved = |fingerprint| self.index.find(fingerprint).any(|e| only_in_memory(&e));
            let is_unsaved = f.data.members.iter().any(|m| unsaved(m.fingerprint));
            (is_unsaved && !f.refused).then_some((f.serial, id))
        };
        let mut frames: Vec<_> = self.dram.frames.iter().filter_map(unsaved).collect();
        frames.sort_unstable_by_key(|(serial, _)| Reverse(*serial));
        frames.into_iter().filter(|(_, id)| self.requeue_frame(*id)).count()
    }

    /// Drop expired leases and groups, which hold memory. Without an SSD tier no background task
    /// does it.
    pub fn expire(&mut self, now: Mono) {
        self.pins.expire(now);
        self.drop_expired_groups(now);
    }

    /// As [`Core::expire`], for a caller that calls often.
    pub fn expire_step(&mut self, now: Mono) {
        self.pins.expire_step(now);
        self.drop_expired_groups(now);
    }

    /// As [`Core::expire`], at little cost while there is nothing that expires.
    pub fn expire_due(&mut self, now: impl Fn() -> Mono) {
        self.pins.expire_due(&now);
        if !self.pending_groups.is_empty() {
            self.drop_expired_groups(now());
        }
    }

    /// Queue frames of a batch for the flusher, the last first, except those that are queued or
    /// refused. So, of the pages that one call queues, the first of a chain is the youngest in the
    /// log: if a segment ends within the chain, the younger one has its head. A large batch is
    /// queued by several calls, and the log has their pages in the order of the calls.
    pub fn enqueue(&mut self, frames: &mut Vec<FrameRef>) {
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.queue.push_frames(frames.drain(..));
        }
        frames.clear();
    }

    /// Count objects of a namespace that were put and cannot be made durable.
    pub fn count_lost(&mut self, namespace: NamespaceId, objects: usize) {
        self.flushes.add(namespace, &FlushReport::lost(objects as u64));
    }

    /// Queue a job for the flusher, and return the id of its result. All unqueued frames are queued
    /// before it, even if the put of their batch still runs: other clients may have seen those
    /// objects, and may assume that the job covers them.
    pub fn submit_job(&mut self, job: impl FnOnce(u64) -> Job) -> Option<u64> {
        let ssd = self.ssd.as_mut()?;
        ssd.queue.push_all_unqueued();
        let id = self.jobs.begin();
        ssd.queue.push(job(id));
        Some(id)
    }

    /// Something in a segment was dropped as damaged.
    pub fn note_damage(&mut self, segment: SegmentId) {
        if let Some(ssd) = self.ssd.as_mut() {
            let order = ssd.segments.get(segment).order;
            ssd.damage.note(order);
        }
    }

    /// Drop a frame whose bytes in the arena differ from the put's, with its entries. Its record
    /// may be in flight to SSD, or be there although its write failed (the frame is queued again
    /// then); an open after a crash would find it.
    pub fn drop_damaged(&mut self, id: FrameId) {
        let may_be_written = self.dram.frames.get(id).is_some_and(|f| match f.state {
            FrameState::Unwritten | FrameState::Writing => true,
            // A dead frame was written, or was removed or cleared, which the log records, or its
            // damage was noted when it was dropped.
            FrameState::Evictable | FrameState::Dead => false,
        });
        let frame = self.dram.frames.get(id).filter(|_| self.ssd.is_some());
        if let Some((serial, data)) = frame.map(|f| (f.serial, f.data.clone())) {
            self.count_refused_frame(FrameRef { id, serial });
            if may_be_written {
                self.count_lost(data.namespace, data.members.len());
            }
        }
        self.drop_frame(id, false, Departure::Damaged);
        if let Some(ssd) = self.ssd.as_mut().filter(|_| may_be_written) {
            ssd.damage.writing = true;
        }
    }

    /// Whether this store certainly holds objects of a namespace, and whether it may: the
    /// namespaces on SSD are not always known.
    pub fn holds_of(&self, namespace: NamespaceId) -> (bool, bool) {
        let (written, may) =
            self.ssd.as_ref().map_or((false, false), |ssd| ssd.written.has(namespace));
        let in_memory =
            || self.dram.frames.iter().any(|(_, f)| !f.is_dead() && f.data.namespace == namespace);
        // A commit in progress learns of a clear only through the raised generation.
        let holds = written || self.pending_groups.is_committing_in(namespace) || in_memory();
        (holds, holds || may)
    }
}
