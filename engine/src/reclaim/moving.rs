//! Moving what survives a reclaim: read, verified, appended again, and found where it lies now.

use pagelith_io::buffer::Part;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::append::{RecordPlace, Unit, UnitMember};
use pagelith_tiers::ssd::read::Verifier;
use pagelith_tiers::ssd::segments::SegmentState;

use super::Stage;
use crate::core::Core;
use crate::flusher::{Appended, Flusher, Purpose, TAG_RECORD, Written};
use crate::index::SsdPlace;
use crate::visibility::Sight;

/// Records read and not yet appended.
const READS_MAX: usize = 4;

impl Flusher {
    /// Read, append, and finish once everything is written.
    pub(super) fn move_records(&mut self) -> bool {
        let mut moved = self.append_ready();
        moved |= self.read_records();
        let Some(r) = self.reclaim.as_mut() else { return moved };
        if r.to_read.is_empty() && r.reading.is_empty() && r.ready.is_empty() && r.in_log == 0 {
            if r.kept {
                self.keep_victim();
                return true;
            }
            r.stage = Stage::Syncing;
            // Step 3: also when nothing was moved, because what the index lost to newer records in other
            // segments may be no more durable there.
            if mutant::on(Mutant::FreeBeforeMoved) {
                self.reclaim_synced(true);
                return true;
            }
            self.sync_for(Purpose::Reclaim);
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
                    // Larger than all staging memory: given up, unless it may not be.
                    r.kept |= survivor.pinned;
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

    pub(super) fn record_read(&mut self, tag: u64, completion: Completion) {
        let Some(survivor) = self.reclaim.as_mut().and_then(|r| r.reading.remove(&tag)) else { return };
        let identity = self.reclaim.as_ref().map(|r| r.identity);
        let ok = completion.result.is_ok();
        let part = completion.op.into_parts().pop().filter(|_| ok);
        let id = self.unit_id();
        let unit =
            part.zip(identity).and_then(|(part, identity)| unit_of(id, part, identity, survivor.record));
        let Some(r) = self.reclaim.as_mut() else { return };
        match unit {
            Some(unit) => {
                r.ready.push(unit);
                self.units.insert(id, Appended::Moved(survivor.members));
            }
            None => {
                tracing::warn!(
                    segment = r.segment.0,
                    offset = survivor.record,
                    "extent is damaged, it is not moved"
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
                Some(Appended::Moved(members)) => members.clone(),
                _ => Vec::new(),
            };
            let (alive, pinned) = {
                let core = self.shared.lock();
                (is_alive(&core, &members), members.iter().any(|m| core.pins.is_pinned(m.0)))
            };
            if !alive {
                // Removed, replaced or cleared since: writing it again would bring it back at a crash.
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
                        self.stuck.insert(unit.namespace);
                    }
                    // No room will come: what may go goes, what may not keeps the victim as it is.
                    self.units.remove(&id);
                    if let Some(r) = self.reclaim.as_mut() {
                        r.kept |= pinned || members.is_empty();
                    }
                }
            }
        }
        any
    }

    /// Whether a segment is on its way to the log.
    fn waits_for_segment(&self) -> bool {
        let free = self.shared.lock().ssd.as_ref().map_or(0, |s| s.segments.count(SegmentState::Free));
        self.log.is_trusted() && (free > 0 || !self.log.wants_segment())
    }

    pub(crate) fn move_written(&mut self, id: u64, members: Vec<(u128, SsdPlace)>, place: &RecordPlace) {
        let mut core = self.shared.lock();
        let (mut now, mut from) = (Vec::new(), Vec::new());
        // A member that could not be read has left meanwhile, and takes the others along: a group is whole or not
        // here.
        let whole = is_alive(&core, &members) && !members.iter().any(|(_, old)| core.is_hidden_at(*old));
        if !whole {
            members.iter().for_each(|(fingerprint, old)| {
                core.drop_ssd(*fingerprint, *old, None);
            });
            core.events.forgot();
        }
        for (fingerprint, old) in members.iter().filter(|_| whole) {
            // A record moves as it is: its payloads lie as far behind its header as before.
            let (segment, record) = (place.identity.segment, place.offset);
            let new = SsdPlace { payload_delta: old.payload_delta, ..SsdPlace::at(segment, record, 0) };
            if core.place_ssd(*fingerprint, |e| e.ssd == Some(*old), new) {
                now.push((*fingerprint, new));
                from.push(*old);
            }
        }
        drop(core);
        // Without members nobody's place depends on it.
        if !now.is_empty() {
            self.written.insert(id, Written { namespace: None, members: now, bytes: place.bytes, from });
        }
        self.reclaim_unit_done();
    }

    /// A unit of reclaim's is out of the log.
    pub(crate) fn reclaim_unit_done(&mut self) {
        if let Some(r) = self.reclaim.as_mut() {
            r.in_log = r.in_log.saturating_sub(1);
        }
    }

    /// A unit of reclaim's could not be written: the victim is kept.
    pub(crate) fn reclaim_move_failed(&mut self) {
        if let Some(r) = self.reclaim.as_mut() {
            r.kept = true;
        }
        self.reclaim_unit_done();
    }
}

/// Whether the index still finds every member where it was read from; tombstones always are.
fn is_alive(core: &Core, members: &[(u128, SsdPlace)]) -> bool {
    members.iter().all(|(fp, place)| core.index.find(*fp).any(|e| e.ssd == Some(*place)))
}

/// The record in `part` as a unit to be appended again; `None` if anything of it does not verify.
fn unit_of(id: u64, part: Part, identity: SegmentIdentity, offset: u64) -> Option<Unit> {
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
        members.push(UnitMember { key: m.key, length: m.length, checksums });
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
