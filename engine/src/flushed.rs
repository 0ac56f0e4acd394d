//! What follows from the log's reports: places enter the index, requests are answered, faults are acted on.

use pagelith_io::fault::IoFault;
use pagelith_layouts::align::align_up;
use pagelith_layouts::record;
use pagelith_tiers::ssd::append::RecordPlace;
use pagelith_tiers::ssd::log::Event;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::sync::SyncId;

use crate::core::{Answer, Job, SsdHealth};
use crate::error::{Error, ErrorKind};
use crate::flusher::{Appended, Flusher, Purpose, Written};
use crate::frame_io::Held;
use crate::frames::FrameState;
use crate::index::{Entry, SsdPlace};

/// Failed writes in a row after which nothing more is written.
const WRITE_FAILURES_MAX: u32 = 3;

impl Flusher {
    pub(crate) fn handle(&mut self, event: Event) {
        match event {
            Event::Written(units) => {
                self.write_failures = 0;
                units.into_iter().for_each(|(id, place)| self.written(id, place));
            }
            Event::WriteFailed(ids, fault) => {
                self.write_failures += 1;
                self.writes_failed(ids, &fault);
            }
            // Of one failure that was counted.
            Event::Headless(ids, fault) => self.writes_failed(ids, &fault),
            Event::Durable(units) => self.durable(units),
            Event::Untrusted(units, fault) => self.untrusted(units, &fault),
            Event::Synced(id, ok) => self.synced(id, ok),
            Event::Ready(segment, incarnation, order) => {
                let mut core = self.shared.lock();
                if let Some(ssd) = core.ssd.as_mut() {
                    let s = ssd.segments.get_mut(segment);
                    (s.incarnation, s.order) = (incarnation, order);
                    // Only now can nothing of the old incarnation come back.
                    (s.min_sequence, s.data_end) = (pagelith_layouts::ids::Sequence(u64::MAX), 0);
                    ssd.broken.retain(|(broken, _)| *broken != segment.0);
                }
            }
            Event::Sealed(facts, whole) => {
                let mut core = self.shared.lock();
                core.counters.segments_sealed += 1;
                if let Some(ssd) = core.ssd.as_mut() {
                    let s = ssd.segments.get_mut(facts.identity.segment);
                    s.data_end = facts.data_end;
                    s.state = SegmentState::Sealed;
                }
                drop(core);
                self.sealed_since_checkpoint = self.sealed_since_checkpoint.saturating_add(1);
                tracing::debug!(segment = facts.identity.segment.0, footer = whole, "sealed");
            }
            Event::Generation(namespace, generation, result) => {
                let answer = match result {
                    Ok(()) => {
                        self.durable_generations.insert(namespace, generation);
                        Answer::Done
                    }
                    Err(fault) => {
                        self.tier_failed(&fault);
                        Answer::Failed(fault.into())
                    }
                };
                let mut core = self.shared.lock();
                self.clears.retain(|(ns, gen_, id)| {
                    let this = (*ns, *gen_) == (namespace, generation);
                    if this {
                        core.answer(*id, answer.clone());
                    }
                    !this
                });
            }
            Event::ManifestFailed(fault) => self.tier_failed(&fault),
            Event::Other(tag, completion) => self.other(tag, completion),
        }
    }

    fn written(&mut self, id: u64, place: RecordPlace) {
        match self.units.remove(&id) {
            Some(Appended::Frame(held)) => self.frame_written(id, held, &place),
            Some(Appended::Moved(members)) => self.move_written(id, members, &place),
            // Those of reclaim's: it waits for everything it gave to the log.
            Some(Appended::Tombstones(None)) => self.reclaim_unit_done(),
            Some(Appended::Tombstones(Some(_))) | None => {}
        }
    }

    fn frame_written(&mut self, id: u64, held: Held, place: &RecordPlace) {
        let data = &held.data;
        let blocks = data.members.iter().map(|m| m.checksums.len() as u64).sum();
        let mut offset = record::header_bytes(data.members.len() as u64, blocks);
        let mut core = self.shared.lock();
        let dead = core.frames.get(held.frame.id).is_none_or(|f| f.dead);
        let mut members = Vec::new();
        for m in &data.members {
            let at = SsdPlace::at(place.identity.segment, place.offset, offset);
            offset += align_up(m.extent.bytes);
            // A frame that was removed or cleared meanwhile is garbage on SSD; its tombstone follows it.
            let mine = |e: &Entry| {
                e.frame == Some(held.frame.id.0) && e.ssd.is_none() && u64::from(e.length) == m.extent.bytes
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
        core.settle_frame(held.frame);
        drop(core);
        self.written.insert(id, Written { members, bytes, first_time: true });
    }

    /// Units whose write failed go to the front of the queue again, twice at most.
    fn writes_failed(&mut self, ids: Vec<u64>, fault: &IoFault) {
        tracing::warn!(%fault, "write failed");
        self.shared.lock().counters.flush_errors += 1;
        let give_up = self.write_failures >= WRITE_FAILURES_MAX || !self.log.is_trusted();
        // Whoever asked for a flush waits for these too: its request goes behind them.
        let flushes: Vec<SyncId> = self
            .syncs
            .iter()
            .filter(|(_, purpose)| match purpose {
                Purpose::Flush(_) => true,
                Purpose::Tombstones(_) | Purpose::Reclaim | Purpose::Checkpoint => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for sync in flushes {
            if let Some(Purpose::Flush(id)) = self.syncs.remove(&sync)
                && let Some(ssd) = self.shared.lock().ssd.as_mut()
            {
                ssd.queue.push_front(Job::Flush { id });
            }
        }
        for id in ids.into_iter().rev() {
            self.write_failed(id, give_up);
        }
        if give_up {
            self.tier_failed(fault);
        }
    }

    pub(crate) fn write_failed(&mut self, id: u64, give_up: bool) {
        match self.units.remove(&id) {
            Some(Appended::Frame(held)) => {
                let mut core = self.shared.lock();
                let frame = held.frame;
                let bytes = held.data.bytes();
                let alive = core.frames.get_ref(frame).is_some_and(|f| !f.dead);
                if let (true, false, Some(ssd)) = (alive, give_up, core.ssd.as_mut()) {
                    ssd.queue.push_front(Job::Frame(frame));
                    if let Some(f) = core.frames.get_ref(frame) {
                        f.state = FrameState::Queued;
                    }
                    core.release_frame(frame);
                    return;
                }
                if alive {
                    core.counters.lost_objects += held.data.members.len() as u64;
                }
                if let Some(ssd) = core.ssd.as_mut() {
                    ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(bytes);
                }
                core.release_frame(frame);
                core.settle_frame(frame);
            }
            // The extent stays where it was; reclaim notices that it was not moved.
            Some(Appended::Moved(_)) => self.reclaim_move_failed(),
            Some(Appended::Tombstones(Some(answer))) => {
                let error = Error::new(ErrorKind::Unavailable, "tombstone could not be written");
                self.syncs.retain(|_, purpose| *purpose != Purpose::Tombstones(answer));
                self.shared.lock().answer(answer, Answer::Failed(error));
            }
            Some(Appended::Tombstones(None)) => self.reclaim_move_failed(),
            None => {}
        }
    }

    fn durable(&mut self, units: Vec<(u64, RecordPlace)>) {
        let mut core = self.shared.lock();
        for (id, _) in units {
            if let Some(w) = self.written.remove(&id).filter(|w| w.first_time) {
                core.counters.durable_objects += w.members.len() as u64;
                core.counters.durable_bytes += w.bytes;
            }
        }
    }

    /// A sync failed: what it should have covered may be gone although reads still see it, and a second sync
    /// would prove nothing. It is forgotten, and nothing more is written.
    fn untrusted(&mut self, units: Vec<(u64, RecordPlace)>, fault: &IoFault) {
        let mut core = self.shared.lock();
        core.counters.flush_errors += 1;
        for (id, _) in units {
            let Some(w) = self.written.remove(&id) else { continue };
            for (fingerprint, place) in w.members {
                core.counters.lost_objects += u64::from(core.drop_ssd(fingerprint, place));
            }
        }
        drop(core);
        self.tier_failed(fault);
    }

    fn synced(&mut self, id: SyncId, ok: bool) {
        let Some(purpose) = self.syncs.remove(&id) else { return };
        let answer = |what: &str| match ok {
            true => Answer::Done,
            false => Answer::Failed(Error::new(ErrorKind::Unavailable, format!("{what}: sync failed"))),
        };
        match purpose {
            Purpose::Flush(id) => self.shared.lock().answer(id, answer("flush")),
            Purpose::Tombstones(id) => self.shared.lock().answer(id, answer("remove")),
            Purpose::Reclaim => self.reclaim_synced(ok),
            Purpose::Checkpoint => self.checkpoint_synced(ok),
        }
    }

    /// Nothing more is written from now on; what is there is served.
    pub(crate) fn tier_failed(&mut self, fault: &IoFault) {
        let was_on = {
            let mut core = self.shared.lock();
            core.ssd
                .as_mut()
                .is_some_and(|s| std::mem::replace(&mut s.health, SsdHealth::ReadOnly) == SsdHealth::On)
        };
        if was_on {
            tracing::error!(%fault, "ssd tier is read-only from now on");
        }
        self.fail_queue();
    }
}
