//! Records in the log: those whose write has not ended, and those that no sync has covered.
//!
//! Invariants:
//! - A record is in `pending` until its write ends, and then in `unsynced` until a sync covers it,
//!   if the index has its members.
//! - A record of attached objects is then in [`crate::memory::undecided`] until its base is durable
//!   or will not be.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagelith_layouts::align::align_up;
use pagelith_layouts::ids::{Generation, GroupId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, GroupKind, RecordKind};
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_tiers::ssd::append::{NewRecord, RecordLocation, RecordMember};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::error::{Error, ErrorKind};
use crate::api::outcome::FlushReport;
use crate::memory::departed::Departure;
use crate::memory::frames::{Frame, FrameData};
use crate::memory::index::{Entry, RecordPlace, SsdLocation, name_of};
use crate::state::base_place::BasePlace;
use crate::state::core::Core;
use crate::state::frame_access::FrameGuard;
use crate::state::jobs::JobResult;
use crate::state::ssd_core::SsdCore;
use crate::state::unsynced::UnsyncedRecord;

/// The engine's action once a record is written or has failed.
pub(crate) enum PendingRecord {
    /// A frame, guarded until its write ends.
    Frame(FrameGuard),
    /// A record that reclaim reinserts: fingerprint and old location of each member.
    Reinserted(Vec<(u128, SsdLocation)>),
    /// Tombstones, and the job that waits for them; `None` if reclaim reinserts them.
    Tombstones(Option<u64>),
}

/// The records in the log that are not durable.
#[derive(Default)]
pub(crate) struct PendingRecords {
    pending: FxHashMap<u64, PendingRecord>,
    unsynced: FxHashMap<u64, UnsyncedRecord>,
    /// Places of the records of `unsynced`, without those that reclaim moves.
    unsynced_records: FxHashSet<RecordPlace>,
    last_id: u64,
}

impl PendingRecords {
    /// The identifier of the next record.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub fn insert(&mut self, id: u64, record: PendingRecord) {
        self.pending.insert(id, record);
    }

    /// Remove a record whose write has ended, or that is not to be written.
    pub fn remove(&mut self, id: u64) -> Option<PendingRecord> {
        self.pending.remove(&id)
    }

    /// The members of a record that reclaim reinserts; none for other records.
    pub fn moved_members(&self, id: u64) -> &[(u128, SsdLocation)] {
        match self.pending.get(&id) {
            Some(PendingRecord::Reinserted(members)) => members,
            Some(PendingRecord::Frame(_) | PendingRecord::Tombstones(_)) | None => &[],
        }
    }

    /// The job that waits for the tombstones of a record.
    pub fn removal_of(&self, id: u64) -> Option<u64> {
        match self.pending.get(&id) {
            Some(PendingRecord::Tombstones(job)) => *job,
            Some(PendingRecord::Frame(_) | PendingRecord::Reinserted(_)) | None => None,
        }
    }

    /// Whether a record's frame was dropped: removed, cleared, replaced, or found damaged.
    pub fn is_dead(&self, core: &Core, id: u64) -> bool {
        let Some(PendingRecord::Frame(guard)) = self.pending.get(&id) else { return false };
        core.dram.frames.get(guard.frame.id).is_none_or(Frame::is_dead)
    }

    /// Whether a record is attached to a base that is not on SSD and will not be.
    pub fn lacks_base(&self, core: &Core, id: u64) -> bool {
        let Some(PendingRecord::Frame(guard)) = self.pending.get(&id) else { return false };
        let base = base_of(core, &guard.data);
        base.is_some_and(|base| core.base_place(base) == BasePlace::Nowhere)
    }

    /// Whether a record is of a group that replaced durable objects.
    pub fn is_replacement(&self, core: &Core, id: u64) -> bool {
        let Some(PendingRecord::Frame(guard)) = self.pending.get(&id) else { return false };
        core.ssd.as_ref().is_some_and(|ssd| ssd.replaced.contains(guard.frame))
    }

    /// The record of a frame.
    pub fn add_frame(&mut self, guard: FrameGuard, memory: &Arc<ArenaMemory>) -> NewRecord {
        let id = self.next_id();
        let data = &guard.data;
        let member = |m: &crate::memory::frames::FrameMember| RecordMember {
            key: m.key,
            length: m.extent.bytes,
            checksums: m.checksums.clone(),
        };
        let record = NewRecord {
            id,
            kind: RecordKind::Data,
            group_kind: data.group_kind,
            namespace: data.namespace,
            generation: data.generation,
            sequence: data.sequence,
            group: GroupId(data.sequence.0),
            base_group: GroupId(data.base_name),
            depth: data.depth,
            reinserted: false,
            members: data.members.iter().map(member).collect(),
            payload: guard.parts(memory),
        };
        self.insert(id, PendingRecord::Frame(guard));
        record
    }

    /// A record of tombstones, for a job or for reclaim. `keys` is not empty, and all keys are of
    /// one namespace.
    pub fn add_tombstones(
        &mut self,
        generation: Generation,
        sequence: Sequence,
        keys: &[ObjectKey],
        job: Option<u64>,
    ) -> NewRecord {
        let id = self.next_id();
        self.insert(id, PendingRecord::Tombstones(job));
        let member =
            |k: &ObjectKey| RecordMember { key: *k, length: 0, checksums: Default::default() };
        NewRecord {
            id,
            kind: RecordKind::Tombstones,
            group_kind: GroupKind::Single,
            namespace: keys[0].namespace(),
            generation,
            sequence,
            group: GroupId(sequence.0),
            base_group: GroupId(0),
            depth: 0,
            reinserted: job.is_none(),
            members: keys.iter().map(member).collect(),
            payload: Vec::new(),
        }
    }

    /// Enter the locations of frames into the index. Returns the records that would not be readable
    /// there: they count as not written.
    pub fn frames_written(
        &mut self,
        core: &mut Core,
        frames: impl Iterator<Item = (u64, FrameGuard, RecordLocation)>,
    ) -> Vec<u64> {
        let mut lost = Vec::new();
        for (id, guard, location) in frames {
            match frame_written(core, &guard, &location) {
                Some(written) => {
                    core.note_written(&written);
                    self.unsynced_records.extend(written.record());
                    self.unsynced.insert(id, written);
                }
                None => {
                    self.insert(id, PendingRecord::Frame(guard));
                    lost.push(id);
                }
            }
        }
        lost
    }

    /// A record was reinserted: new and old location of each member.
    pub fn reinserted(
        &mut self,
        id: u64,
        members: Vec<(u128, SsdLocation)>,
        from: Vec<SsdLocation>,
        bytes: u64,
    ) {
        self.unsynced
            .insert(id, UnsyncedRecord { namespace: None, members, bytes, base: None, from });
    }

    /// A record was not written. A live frame returns to the front of the queue, unless `give_up`.
    /// Returns whether it is a record of reclaim, and the removal that fails with it.
    pub fn write_failed(&mut self, core: &mut Core, id: u64, give_up: bool) -> (bool, Option<u64>) {
        match self.remove(id) {
            Some(PendingRecord::Frame(guard)) => {
                let alive = core.dram.frames.get_live(guard.frame).is_some();
                if !(alive && give_up) {
                    core.requeue_front(&guard);
                    return (false, None);
                }
                core.count_lost(guard.data.namespace, guard.data.members.len());
                core.release_frame(guard.frame);
                core.end_write(guard.frame);
                (false, None)
            }
            Some(PendingRecord::Tombstones(Some(job))) => {
                let detail = "tombstones could not be written, so a restart may bring the objects \
                              back; see `ssd_state`, and repeat the removal";
                let error = Error::new(ErrorKind::Unavailable, detail);
                core.jobs.complete(job, JobResult::Failed(error));
                (false, Some(job))
            }
            // The record stays at its old location; reclaim defers the victim.
            Some(PendingRecord::Reinserted(_) | PendingRecord::Tombstones(None)) => (true, None),
            None => (false, None),
        }
    }

    /// A frame is not written, because of a limit of its namespace: it stays in DRAM only.
    pub fn end_over_limit(&mut self, core: &mut Core, id: u64) {
        let Some(PendingRecord::Frame(held)) = self.remove(id) else { return };
        let (namespace, objects) = (held.data.namespace, held.data.members.len());
        if core.dram.frames.get_live(held.frame).is_some() {
            core.flushes.add(namespace, &refused(objects));
            if let Some(tenant) = core.tenants.get_mut(namespace) {
                tenant.writes_refused += objects as u64;
            }
        }
        core.release_frame(held.frame);
        core.end_write(held.frame);
    }

    /// A sync covers these records: count their objects, and those that waited for them as their
    /// base.
    pub fn count_durable(&mut self, core: &mut Core, records: &[(u64, RecordLocation)]) {
        let mut bases = BTreeMap::new();
        for (id, _) in records {
            let Some(w) = self.unsynced.remove(id).filter(|w| w.from.is_empty()) else { continue };
            w.record().into_iter().for_each(|record| _ = self.unsynced_records.remove(&record));
            let synced = core.synced_objects(&w, |at| self.unsynced_records.contains(&at));
            let namespace = w.namespace.map(|(namespace, _)| namespace);
            let mut report = |report| {
                namespace.iter().for_each(|namespace| core.flushes.add(*namespace, &report));
            };
            report(FlushReport::lost(synced.lost));
            report(FlushReport::refused(synced.refused));
            if let Some(base) = w.base {
                core.await_base(&w, &synced, base);
                bases.insert(base, None);
                continue;
            }
            report(FlushReport::durable(synced.durable, synced.bytes));
            core.note_synced(&w);
            let undecided = core.ssd.as_ref().map(|ssd| &ssd.undecided).filter(|u| !u.is_empty());
            let names = w.members.iter().map(|(fingerprint, _)| name_of(*fingerprint));
            let waited = names.filter(|name| undecided.is_some_and(|u| u.has_base(*name)));
            bases.extend(waited.map(|name| (name, None)));
        }
        self.decide(core, bases);
    }

    /// Decide all attached objects whose base is durable or will not be.
    pub fn decide_attached(&self, core: &mut Core) {
        let bases = core.ssd.as_ref().map(|ssd| ssd.undecided.bases()).unwrap_or_default();
        self.decide(core, bases.into_iter().map(|base| (base, None)).collect());
    }

    /// Count the objects attached to these bases, and to those that have left, as durable if their
    /// base is and they are read, and as refused if it is not on SSD and will not be: without it a
    /// restart hides them.
    fn decide(&self, core: &mut Core, mut bases: BTreeMap<u64, Option<Departure>>) {
        let Some(ssd) = core.ssd.as_mut() else { return };
        bases.extend(ssd.undecided.take_left().into_iter().map(|(base, why)| (base, Some(why))));
        for (base, left) in bases {
            match core.base_place(base) {
                BasePlace::Undecided => {}
                BasePlace::Ssd(at) if self.unsynced_records.contains(&at.record()) => {}
                BasePlace::Ssd(_) => core.end_durable_of(base),
                // They are removed with it.
                BasePlace::Nowhere if left == Some(Departure::Removed) => {
                    core.end_undecided_of(base, |_| FlushReport::default());
                }
                BasePlace::Nowhere => core.end_undecided_of(base, FlushReport::refused),
            }
        }
    }

    /// A sync failed: writes that it should have covered may be lost although reads still see them,
    /// and another sync would prove nothing. Drop their SSD locations. Frames in DRAM are written
    /// again once the tier is on; reinserted objects get their old locations back.
    pub fn drop_untrusted(&mut self, core: &mut Core, records: &[(u64, RecordLocation)]) {
        let untrusted = records.iter().filter_map(|(id, _)| self.unsynced.remove(id));
        let (puts, moves): (Vec<_>, Vec<_>) = untrusted.partition(|w| w.from.is_empty());
        // The old location may be that of one of the puts.
        for w in moves {
            for ((fingerprint, location), from) in w.members.into_iter().zip(w.from) {
                core.set_ssd_location(fingerprint, |e| e.ssd == Some(location), from);
                if core.is_offline(from.record()) {
                    // Its purge may have passed.
                    core.drop_ssd(fingerprint, from, None, Departure::Lost);
                    core.events.forgot();
                }
            }
        }
        for w in puts {
            core.note_synced(&w);
            w.record().into_iter().for_each(|record| _ = self.unsynced_records.remove(&record));
            let namespace = w.namespace.filter(|_| !core.was_cleared(&w));
            // A purge may have dropped them already.
            let is_lost = |member: &&(u128, SsdLocation)| {
                let (fingerprint, location) = **member;
                core.is_lost(fingerprint)
                    || core.drop_ssd(fingerprint, location, None, Departure::Lost)
            };
            let lost = w.members.iter().filter(is_lost).count();
            namespace.iter().for_each(|(namespace, _)| core.count_lost(*namespace, lost));
            core.events.forgot();
        }
    }
}

/// Enter a frame's locations into the index. `None`, with nothing changed, if the location would
/// not be readable there.
fn frame_written(
    core: &mut Core,
    guard: &FrameGuard,
    location: &RecordLocation,
) -> Option<UnsyncedRecord> {
    let data = &guard.data;
    let blocks = data.members.iter().map(|m| m.checksums.len() as u64).sum();
    let mut offset = record::header_bytes(data.members.len() as u64, blocks);
    let dead = core.dram.frames.get(guard.frame.id).is_none_or(Frame::is_dead);
    let base = base_of(core, data);
    let unread =
        |s: &SsdCore| !s.health.reads() || s.health.is_quarantined(location.identity.segment);
    if !dead && core.ssd.as_ref().is_some_and(unread) {
        // The purge of the index may have passed some of this group's entries. The remaining ones
        // would stay, and be visible without them once the tier is on again.
        return None;
    }
    let mut members = Vec::with_capacity(data.members.len());
    let mut bytes = 0;
    for m in &data.members {
        let at = SsdLocation::at(location.identity.segment, location.offset, offset);
        offset += align_up(m.extent.bytes);
        // A frame that was removed or cleared during its write is garbage on SSD; its tombstone
        // follows it.
        let mine = |e: &Entry| {
            e.frame == Some(guard.frame.id.0)
                && e.ssd.is_none()
                && u64::from(e.length) == m.extent.bytes
        };
        if !dead && core.set_ssd_location(m.fingerprint, mine, at) {
            members.push((m.fingerprint, at));
            bytes += m.extent.bytes;
        }
    }
    let counts = core.namespaces.counts(data.namespace);
    counts.into_iter().for_each(|counts| counts.count_written(data.object_bytes()));
    core.release_frame(guard.frame);
    core.end_write(guard.frame);
    let namespace = Some((data.namespace, data.generation));
    Some(UnsyncedRecord { namespace, members, bytes, base, from: Vec::new() })
}

/// Name of the base that a frame is attached to; `None` also if it was dropped.
fn base_of(core: &Core, data: &FrameData) -> Option<u64> {
    let first = data.members.first().filter(|_| data.is_attached())?;
    core.index.link(first.fingerprint)
}

fn refused(objects: usize) -> FlushReport {
    FlushReport::refused(objects as u64)
}
