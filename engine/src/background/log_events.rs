//! Handles the log's events: enters places into the index, answers requests, acts on faults.

use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_layouts::align::align_up;
use pagelith_layouts::record;
use pagelith_tiers::ssd::append::RecordPlace;
use pagelith_tiers::ssd::log::Event;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::sync::SyncId;

use crate::api::error::{Error, ErrorKind};
use crate::api::outcome::FlushReport;
use crate::background::flusher::{Flusher, PendingUnit, SyncPurpose};
use crate::memory::frames::Frame;
use crate::memory::index::{Entry, SsdPlace};
use crate::state::core::{Core, Job, JobResult, SsdCore};
use crate::state::frame_access::FrameGuard;
use crate::state::unsaved::UnsyncedUnit;

/// Frames whose places enter the index in one critical section: bounds how long others wait for the
/// lock.
const FRAMES: usize = 8;

/// Enter a frame's places into the index. `None`, with nothing changed, if the place would not be
/// readable there.
fn frame_written(core: &mut Core, held: &FrameGuard, place: &RecordPlace) -> Option<UnsyncedUnit> {
    let data = &held.data;
    let blocks = data.members.iter().map(|m| m.checksums.len() as u64).sum();
    let mut offset = record::header_bytes(data.members.len() as u64, blocks);
    let dead = core.frames.get(held.frame.id).is_none_or(Frame::is_dead);
    let unread = |s: &SsdCore| !s.health.reads() || s.health.is_quarantined(place.identity.segment);
    if !dead && core.ssd.as_ref().is_some_and(unread) {
        // The purge of the index may have passed some of this group's entries. The remaining ones
        // would stay, and be visible without them once the tier is on again.
        return None;
    }
    let mut members = Vec::with_capacity(data.members.len());
    for m in &data.members {
        let at = SsdPlace::at(place.identity.segment, place.offset, offset);
        offset += align_up(m.extent.bytes);
        // A frame that was removed or cleared during its write is garbage on SSD; its tombstone
        // follows it.
        let mine = |e: &Entry| {
            e.frame == Some(held.frame.id.0)
                && e.ssd.is_none()
                && u64::from(e.length) == m.extent.bytes
        };
        if !dead && core.place_ssd(m.fingerprint, mine, at) {
            members.push((m.fingerprint, at));
        }
    }
    if let Some(ssd) = core.ssd.as_mut() {
        ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(data.bytes());
    }
    let bytes = data.object_bytes();
    core.release_frame(held.frame);
    core.mark_frame_clean(held.frame);
    Some(UnsyncedUnit { namespace: Some(data.namespace), members, bytes, from: Vec::new() })
}

impl Flusher {
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Written(units) => self.written(units),
            Event::WriteFailed(of, ids, fault) => {
                tracing::warn!(%fault, "write failed");
                let now = self.shared.now();
                let mut core = self.shared.lock();
                core.counters.flush_errors += 1;
                let health = core.ssd.as_mut().map(|s| &mut s.health);
                let changed =
                    health.is_some_and(|h| h.write_failed(of.segment, of.incarnation, now));
                drop(core);
                self.writes_failed(ids);
                if changed {
                    self.state_changed(&fault.to_string());
                }
            }
            Event::Unwritten(ids, _) => self.writes_failed(ids),
            Event::SyncFailed(fault) => self.sync_failed(&fault),
            Event::NotReady(segment, fault) => self.not_ready(segment, &fault),
            Event::Durable(units) => self.durable(units),
            Event::Untrusted(units, _) => self.untrusted(units),
            Event::Synced(id, ok) => self.synced(id, ok),
            Event::Ready(segment, incarnation, order) => {
                let mut core = self.shared.lock();
                if let Some(ssd) = core.ssd.as_mut() {
                    let s = ssd.segments.get_mut(segment);
                    (s.incarnation, s.order) = (incarnation, order);
                    // From now on nothing of the old incarnation can be recovered.
                    (s.min_sequence, s.data_end) = (pagelith_layouts::ids::Sequence(u64::MAX), 0);
                    ssd.health.reused(segment);
                    ssd.guards.open(segment, incarnation);
                }
                core.visibility.reuse_segment(segment);
            }
            Event::Sealed(facts, whole) => {
                let mut core = self.shared.lock();
                core.counters.segments_sealed += 1;
                if let Some(ssd) = core.ssd.as_mut() {
                    ssd.segments.get_mut(facts.identity.segment).data_end = facts.data_end;
                }
                core.set_segment_state(facts.identity.segment, SegmentState::Sealed);
                drop(core);
                self.sealed_since_checkpoint = self.sealed_since_checkpoint.saturating_add(1);
                tracing::debug!(segment = facts.identity.segment.0, footer = whole, "sealed");
            }
            Event::Generation(namespace, generation, result) => {
                let answer = match result {
                    Ok(()) => {
                        self.durable_generations.insert(namespace, generation);
                        JobResult::Done
                    }
                    // `Event::ManifestFailed` reports the manifest's failure.
                    Err(fault) => JobResult::Failed(fault.into()),
                };
                let mut core = self.shared.lock();
                self.clears.retain(|(ns, gen_, id)| {
                    let this = (*ns, *gen_) == (namespace, generation);
                    if this {
                        core.complete_job(*id, answer.clone());
                    }
                    !this
                });
            }
            Event::ManifestFailed(fault) => self.manifest_failed(&fault),
            Event::Other(tag, completion) => self.other(tag, completion),
        }
    }

    fn written(&mut self, units: Vec<(u64, RecordPlace)>) {
        let mut frames = Vec::with_capacity(FRAMES);
        for (id, place) in units {
            match self.units.remove(&id) {
                Some(PendingUnit::Frame(held)) => {
                    frames.push((id, held, place));
                    if frames.len() == FRAMES {
                        self.frames_written(&mut frames);
                    }
                }
                Some(PendingUnit::IoResult(members)) => self.move_written(id, members, &place),
                // Reclaim waits for every unit it appended.
                Some(PendingUnit::Tombstones(None)) => self.reclaim_unit_done(),
                Some(PendingUnit::Tombstones(Some(answer))) => {
                    self.tombstones.insert(answer, place);
                }
                None => {}
            }
        }
        self.frames_written(&mut frames);
    }

    /// Enter the places of frames into the index, in one critical section.
    fn frames_written(&mut self, frames: &mut Vec<(u64, FrameGuard, RecordPlace)>) {
        if frames.is_empty() {
            return;
        }
        let shared = self.shared.clone();
        let mut core = shared.lock();
        let mut lost = Vec::new();
        for (id, held, place) in frames.drain(..) {
            match frame_written(&mut core, &held, &place) {
                Some(written) => {
                    core.note_written(&written);
                    self.written.insert(id, written);
                }
                None => {
                    self.units.insert(id, PendingUnit::Frame(held));
                    lost.push(id);
                }
            }
        }
        drop(core);
        if !lost.is_empty() {
            self.writes_failed(lost);
        }
    }

    /// Return units that were not written to the front of the queue, unless the tier is read-only.
    fn writes_failed(&mut self, ids: Vec<u64>) {
        let give_up = self.is_read_only();
        // A flush covers these units too, so its request is queued after them.
        let flushes: Vec<SyncId> = self
            .syncs
            .iter()
            .rev()
            .filter(|(_, purpose)| match purpose {
                SyncPurpose::Flush(_) => true,
                SyncPurpose::Tombstones(_) | SyncPurpose::Reclaim | SyncPurpose::Checkpoint(_) => {
                    false
                }
            })
            .map(|(id, _)| *id)
            .collect();
        for sync in flushes {
            if let Some(SyncPurpose::Flush(id)) = self.syncs.remove(&sync)
                && let Some(ssd) = self.shared.lock().ssd.as_mut()
            {
                ssd.queue.push_front(Job::Flush { id });
            }
        }
        if let Some(ssd) = self.shared.lock().ssd.as_mut() {
            let flushes = self
                .pending_flushes
                .drain(..)
                .rev()
                .map(|pending| Job::Flush { id: pending.flush });
            flushes.for_each(|job| ssd.queue.push_front(job));
        }
        for id in ids.into_iter().rev() {
            self.write_failed(id, give_up);
        }
    }

    pub(crate) fn write_failed(&mut self, id: u64, give_up: bool) {
        match self.units.remove(&id) {
            Some(PendingUnit::Frame(held)) => {
                let mut core = self.shared.lock();
                let alive = core.frames.get_live(held.frame).is_some();
                if !(alive && give_up) {
                    core.requeue_front(&held);
                    return;
                }
                core.count_lost(held.data.namespace, held.data.members.len());
                if let Some(ssd) = core.ssd.as_mut() {
                    ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(held.data.bytes());
                }
                core.release_frame(held.frame);
                core.mark_frame_clean(held.frame);
            }
            // The extent stays at its old place; reclaim defers the victim.
            Some(PendingUnit::IoResult(_)) => self.reclaim_move_failed(),
            Some(PendingUnit::Tombstones(Some(answer))) => {
                let error = Error::new(ErrorKind::Unavailable, "tombstone could not be written");
                self.syncs.retain(|_, purpose| *purpose != SyncPurpose::Tombstones(answer));
                self.shared.lock().complete_job(answer, JobResult::Failed(error));
            }
            Some(PendingUnit::Tombstones(None)) => self.reclaim_move_failed(),
            None => {}
        }
    }

    fn durable(&mut self, units: Vec<(u64, RecordPlace)>) {
        let mut core = self.shared.lock();
        for (id, _) in units {
            if let Some(w) = self.written.remove(&id).filter(|w| w.from.is_empty()) {
                core.note_synced(&w);
                let (durable_objects, durable_bytes) = (w.members.len() as u64, w.bytes);
                let durable =
                    FlushReport { durable_objects, durable_bytes, ..FlushReport::default() };
                w.namespace.iter().for_each(|namespace| core.flushes.add(*namespace, &durable));
            }
        }
    }

    /// A sync failed: writes that it should have covered may be lost although reads still see them,
    /// and another sync would prove nothing. Drop their SSD places. Frames in DRAM are written
    /// again once the tier is on; moved objects get their old places back.
    fn untrusted(&mut self, units: Vec<(u64, RecordPlace)>) {
        let mut core = self.shared.lock();
        for (id, _) in units {
            let Some(w) = self.written.remove(&id) else { continue };
            if w.from.is_empty() {
                core.note_synced(&w);
                let lost = w
                    .members
                    .into_iter()
                    .filter(|(fp, place)| core.drop_ssd(*fp, *place, None))
                    .count();
                w.namespace.iter().for_each(|namespace| core.count_lost(*namespace, lost));
                core.events.forgot();
                continue;
            }
            for ((fingerprint, place), from) in w.members.into_iter().zip(w.from) {
                core.place_ssd(fingerprint, |e| e.ssd == Some(place), from);
            }
        }
    }

    fn synced(&mut self, id: SyncId, ok: bool) {
        let Some(purpose) = self.syncs.remove(&id) else { return };
        let fault = self.log.fault().map_or_else(|| "sync failed".to_owned(), ToString::to_string);
        let answer = |what: &str| match ok {
            true => JobResult::Done,
            false => {
                JobResult::Failed(Error::new(ErrorKind::Unavailable, format!("{what}: {fault}")))
            }
        };
        match purpose {
            SyncPurpose::Flush(id) => self.shared.lock().complete_job(id, answer("flush")),
            SyncPurpose::Tombstones(id) if ok => self.read_back(id),
            SyncPurpose::Tombstones(id) => {
                self.tombstones.remove(&id);
                self.shared.lock().complete_job(id, answer("remove"));
            }
            SyncPurpose::Reclaim => self.reclaim_synced(ok),
            SyncPurpose::Checkpoint(serial) => self.checkpoint_synced(serial, ok),
        }
    }

    fn sync_failed(&mut self, fault: &IoFault) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        core.counters.flush_errors += 1;
        let changed = core.ssd.as_mut().is_some_and(|s| match fault.kind {
            // Removed files do not indicate a faulty device.
            FaultKind::Gone => s.health.stop_writing(now),
            _ => s.health.sync_failed(now),
        });
        drop(core);
        if changed {
            self.state_changed(&fault.to_string());
        }
    }

    /// Without a manifest write, no segment can be reused and no namespace cleared.
    fn manifest_failed(&mut self, fault: &IoFault) {
        if fault.op == FaultOp::Sync {
            return self.sync_failed(fault);
        }
        let now = self.shared.now();
        let mut core = self.shared.lock();
        core.counters.flush_errors += 1;
        let changed = core.ssd.as_mut().is_some_and(|s| s.health.stop_writing(now));
        drop(core);
        if changed {
            self.state_changed(&fault.to_string());
        }
    }

    /// The tier accepts nothing until a probe succeeds.
    pub(crate) fn state_changed(&mut self, reason: &str) {
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let state = ssd.health.state();
        if !ssd.health.reads() {
            ssd.purges.push_back(None);
            core.events.forgot();
        }
        drop(core);
        tracing::error!(reason, state = state.name(), "ssd tier failed");
        self.reason = reason.to_owned();
        self.fail_queue();
    }
}
