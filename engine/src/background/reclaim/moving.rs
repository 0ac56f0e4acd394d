//! Moves the survivors of a reclaim: reads them, verifies them, appends them again, and updates the
//! index.

use pagelith_io::buffer::Part;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::append::{RecordMember, RecordPlace, Unit};
use pagelith_tiers::ssd::read::Verifier;
use pagelith_tiers::ssd::segments::SegmentState;

use super::Stage;
use crate::background::flusher::{Flusher, PendingUnit, SyncPurpose, TAG_RECORD};
use crate::memory::index::SsdPlace;
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;
use crate::state::unsaved::UnsyncedUnit;

/// Most records that are read and not yet appended.
const READS_MAX: usize = 4;

impl Flusher {
    /// Read and append survivors; request a sync once everything is written.
    pub(crate) fn move_records(&mut self) -> bool {
        let mut moved = self.append_ready();
        moved |= self.read_records();
        let Some(r) = self.reclaim.as_mut() else { return moved };
        if r.to_read.is_empty() && r.reading.is_empty() && r.ready.is_empty() && r.in_log == 0 {
            if r.defer {
                self.defer_victim();
                return true;
            }
            r.stage = Stage::Syncing;
            // The sync is needed also when nothing was moved: newer records in other segments, to
            // which the index lost this segment's entries, may not be durable yet.
            if mutant::on(Mutant::FreeBeforeMoved) {
                self.reclaim_synced(true);
                return true;
            }
            self.sync_for(SyncPurpose::Reclaim);
            return true;
        }
        moved
    }

    fn read_records(&mut self) -> bool {
        let Some(volume) = self.shared.volume.clone() else { return false };
        let Some(r) = self.reclaim.as_mut() else { return false };
        let mut any = false;
        while r.reading.len() + r.ready.len() < READS_MAX {
            let Some(survivor) = r.to_read.pop() else { break };
            let fits = survivor.bytes as usize <= self.shared.staging.capacity();
            let part = self.shared.staging.try_part(survivor.bytes as usize);
            let Some(part) = part else {
                if fits {
                    r.to_read.push(survivor);
                } else {
                    // Larger than the staging pool: drop it, unless it must survive.
                    r.defer |= survivor.pinned;
                    any = true;
                }
                break;
            };
            let (file, offset) = volume.place(r.segment, survivor.record);
            let tag = TAG_RECORD + r.next_tag;
            r.next_tag += 1;
            let part = part.split(survivor.bytes as usize).0;
            match self.log.submit(tag, Op::Read { file, offset, parts: vec![part] }) {
                Ok(()) => {
                    r.reading.insert(tag, survivor);
                    any = true;
                }
                Err(_) => {
                    r.to_read.push(survivor);
                    break;
                }
            }
        }
        any
    }

    pub(crate) fn record_read(&mut self, tag: u64, completion: Completion) {
        let Some(survivor) = self.reclaim.as_mut().and_then(|r| r.reading.remove(&tag)) else {
            return;
        };
        let identity = self.reclaim.as_ref().map(|r| r.identity);
        let ok = completion.result.is_ok();
        let part = completion.op.into_parts().pop().filter(|_| ok);
        let id = self.unit_id();
        let unit = part
            .zip(identity)
            .and_then(|(part, identity)| decode_unit(id, part, identity, survivor.record));
        let Some(r) = self.reclaim.as_mut() else { return };
        match unit {
            Some(unit) => {
                r.ready.push(unit);
                self.units.insert(id, PendingUnit::IoResult(survivor.members));
            }
            None => {
                tracing::warn!(
                    segment = r.segment.0,
                    offset = survivor.record,
                    "reclaim: extent is damaged, not moved"
                );
                let segment = r.segment;
                let now = self.shared.now();
                let mut core = self.shared.lock();
                core.counters.damaged += survivor.members.len() as u64;
                core.suspect(segment, now);
                let unnamed = |(fingerprint, place)| (fingerprint, place, None);
                for page in core.drop_lost(survivor.members.into_iter().map(unnamed)) {
                    core.requeue_frame(FrameId(page));
                }
            }
        }
    }

    fn append_ready(&mut self) -> bool {
        let mut any = false;
        while self.log.has_room() {
            let Some(unit) = self.reclaim.as_mut().and_then(|r| r.ready.pop()) else { break };
            let id = unit.id;
            let members = match self.units.get(&id) {
                Some(PendingUnit::IoResult(members)) => members.clone(),
                _ => Vec::new(),
            };
            let (alive, pinned) = {
                let core = self.shared.lock();
                (all_in_place(&core, &members), members.iter().any(|m| core.pins.is_pinned(m.0)))
            };
            if !alive {
                // Removed, replaced or cleared since: a new copy would return after a crash.
                self.units.remove(&id);
                any = true;
                continue;
            }
            let bytes = unit.record_bytes();
            match self.append_now(unit) {
                Ok(()) => {
                    any = true;
                    if let Some(r) = self.reclaim.as_mut() {
                        r.in_log += 1;
                    }
                    let shared = self.shared.clone();
                    let mut core = shared.lock();
                    core.counters.bytes_reinserted += bytes;
                    self.note_appended(&mut core);
                }
                Err(unit) if self.waits_for_segment() => {
                    if let Some(r) = self.reclaim.as_mut() {
                        r.ready.push(unit);
                    }
                    return any;
                }
                Err(unit) => {
                    any = true;
                    if members.is_empty() {
                        self.blocked_namespaces.insert(unit.namespace);
                    }
                    // No room will appear: drop the record if it may go, else defer the victim.
                    self.units.remove(&id);
                    if let Some(r) = self.reclaim.as_mut() {
                        r.defer |= pinned || members.is_empty();
                    }
                }
            }
        }
        any
    }

    /// Whether a segment is being prepared for the log, or can be.
    fn waits_for_segment(&self) -> bool {
        let free =
            self.shared.lock().ssd.as_ref().map_or(0, |s| s.segments.count(SegmentState::Free));
        self.log.is_trusted() && (free > 0 || !self.log.wants_segment())
    }

    pub(crate) fn move_written(
        &mut self,
        id: u64,
        members: Vec<(u128, SsdPlace)>,
        place: &RecordPlace,
    ) {
        let mut core = self.shared.lock();
        let (mut now, mut from) = (Vec::new(), Vec::new());
        // A member that could not be read was dropped in the meantime, and takes the others along:
        // a group is visible as a whole or not at all.
        let whole = all_in_place(&core, &members)
            && !members.iter().any(|(_, old)| core.is_hidden_at(*old));
        if !whole {
            members.iter().for_each(|(fingerprint, old)| {
                core.drop_ssd(*fingerprint, *old, None);
            });
            core.events.forgot();
        }
        for (fingerprint, old) in members.iter().filter(|_| whole) {
            // A record moves as a unit: its payloads keep their distance from its header.
            let (segment, record) = (place.identity.segment, place.offset);
            let new =
                SsdPlace { payload_delta: old.payload_delta, ..SsdPlace::at(segment, record, 0) };
            if core.place_ssd(*fingerprint, |e| e.ssd == Some(*old), new) {
                now.push((*fingerprint, new));
                from.push(*old);
            }
        }
        drop(core);
        // Without members no index entry depends on this unit.
        if !now.is_empty() {
            self.written.insert(
                id,
                UnsyncedUnit { namespace: None, members: now, bytes: place.bytes, from },
            );
        }
        self.reclaim_unit_done();
    }

    /// The log finished a unit of reclaim.
    pub(crate) fn reclaim_unit_done(&mut self) {
        if let Some(r) = self.reclaim.as_mut() {
            r.in_log = r.in_log.saturating_sub(1);
        }
    }

    /// A unit of reclaim could not be written: defer the victim.
    pub(crate) fn reclaim_move_failed(&mut self) {
        if let Some(r) = self.reclaim.as_mut() {
            r.defer = true;
        }
        self.reclaim_unit_done();
    }
}

/// Whether the index still finds every member where it was read; vacuously true for tombstones.
fn all_in_place(core: &Core, members: &[(u128, SsdPlace)]) -> bool {
    members.iter().all(|(fp, place)| core.index.find(*fp).any(|e| e.ssd == Some(*place)))
}

/// The record in `part` as a unit to be appended again; `None` if any part fails verification.
fn decode_unit(id: u64, part: Part, identity: SegmentIdentity, offset: u64) -> Option<Unit> {
    let record = Record::decode(part.bytes()).ok()?;
    record.expect(identity, offset).ok()?;
    let facts = record.facts();
    if record.record_bytes() != part.len() as u64 || facts.kind != RecordKind::Data {
        return None;
    }
    let mut members = Vec::new();
    for m in record.members() {
        let checksums: Checksums = record.checksums(&m).collect();
        let from = m.payload_offset as usize;
        let bytes = part.bytes().get(from..from + m.length as usize)?;
        let mut verifier = Verifier::new(checksums.iter().copied(), 0, m.length, facts.block_bytes);
        verifier.update(bytes).ok()?;
        members.push(RecordMember { key: m.key, length: m.length, checksums });
    }
    let header = record.header_bytes() as usize;
    let payload = part.split(header).1;
    Some(Unit {
        id,
        kind: RecordKind::Data,
        group_kind: facts.group_kind,
        namespace: facts.namespace,
        generation: facts.generation,
        sequence: facts.sequence,
        group: facts.group,
        base_group: facts.base_group,
        depth: facts.depth,
        moved: true,
        members,
        payload: vec![payload],
    })
}
