//! Reinserts the survivors of a reclaim: reads them, verifies them, appends them again, and updates
//! the index.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_io::buffer::Part;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::append::{NewRecord, RecordLocation, RecordMember};
use pagelith_tiers::ssd::read::Verifier;
use pagelith_tiers::ssd::segments::SegmentState;

use super::contents::Survivor;
use crate::background::log_context::LogContext;
use crate::background::log_op::LogOp;
use crate::background::pending_records::PendingRecord;
use crate::memory::departed::Departure;
use crate::memory::index::SsdLocation;
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;

/// Most records that are read and not yet appended.
const READS_MAX: usize = 4;

/// The reinsertion of a victim's survivors and tombstones.
pub(super) struct Reinsertion {
    to_read: Vec<Survivor>,
    /// Reads in flight, by number.
    reading: BTreeMap<u32, Survivor>,
    next_read: u32,
    /// Records that wait for room in the log, by number. They are appended in the order of their
    /// numbers, which is that of the policy.
    ready: BTreeMap<u32, NewRecord>,
    /// Number of records in the log.
    in_log: usize,
    /// Whether there was anything to reinsert.
    pub any: bool,
    /// A record that must survive could not be reinserted: defer the victim.
    pub defer: bool,
}

impl Reinsertion {
    pub fn new(survivors: Vec<Survivor>, tombstones: Vec<NewRecord>) -> Reinsertion {
        Reinsertion {
            any: !survivors.is_empty() || !tombstones.is_empty(),
            to_read: survivors,
            reading: BTreeMap::new(),
            next_read: tombstones.len() as u32,
            ready: (0..).zip(tombstones).collect(),
            in_log: 0,
            defer: false,
        }
    }

    /// Whether everything is written, or given up.
    pub fn is_done(&self) -> bool {
        self.to_read.is_empty()
            && self.reading.is_empty()
            && self.ready.is_empty()
            && self.in_log == 0
    }

    /// Append the records that are ready, and read more; true if anything was done. A namespace
    /// whose tombstones find no room is added to `blocked`.
    pub fn step(
        &mut self,
        cx: &mut LogContext,
        identity: SegmentIdentity,
        blocked: &mut BTreeSet<NamespaceId>,
    ) -> bool {
        let appended = self.append_ready(cx, blocked);
        self.read_records(cx, identity) || appended
    }

    /// The tier stopped writing: records that were to be reinserted stay in the victim, and the
    /// victim stays.
    pub fn stop(&mut self, cx: &mut LogContext) {
        self.defer = true;
        self.to_read.clear();
        for (_, record) in std::mem::take(&mut self.ready) {
            cx.pending_records.remove(record.id);
        }
    }

    /// The write of a record ended.
    pub fn record_ended(&mut self) {
        self.in_log = self.in_log.saturating_sub(1);
    }

    fn read_records(&mut self, cx: &mut LogContext, identity: SegmentIdentity) -> bool {
        let mut any = false;
        while self.reading.len() + self.ready.len() < READS_MAX {
            let Some(survivor) = self.to_read.pop() else { break };
            let fits = survivor.bytes as usize <= cx.shared.ssd.staging.capacity();
            let part = cx.shared.ssd.staging.try_part(survivor.bytes as usize);
            let Some(part) = part else {
                if fits {
                    self.to_read.push(survivor);
                } else {
                    // Larger than the staging pool: drop it, unless it must survive.
                    self.defer |= survivor.pinned;
                    any = true;
                }
                break;
            };
            let (file, offset) = cx.volume.file_offset(identity.segment, survivor.offset);
            let number = self.next_read;
            self.next_read += 1;
            let part = part.split(survivor.bytes as usize).0;
            let read = Op::Read { file, offset, parts: vec![part] };
            if cx.log.submit(LogOp::Record(number).encode(), read).is_err() {
                self.to_read.push(survivor);
                break;
            }
            self.reading.insert(number, survivor);
            any = true;
        }
        any
    }

    /// The read of a survivor ended.
    pub fn record_read(
        &mut self,
        cx: &mut LogContext,
        identity: SegmentIdentity,
        number: u32,
        completion: Completion,
    ) {
        let Some(survivor) = self.reading.remove(&number) else { return };
        let ok = completion.result.is_ok();
        let part = completion.op.into_parts().pop().filter(|_| ok);
        let id = cx.pending_records.next_id();
        if let Some(record) =
            part.and_then(|part| decode_record(id, part, identity, survivor.offset))
        {
            self.ready.insert(number, record);
            cx.pending_records.insert(id, PendingRecord::Reinserted(survivor.members));
            return;
        }
        let segment = identity.segment;
        tracing::warn!(
            segment = segment.0,
            offset = survivor.offset,
            "reclaim: record is damaged, not reinserted; check the drive"
        );
        let now = cx.shared.now();
        let mut core = cx.shared.lock();
        core.counters.damaged += survivor.members.len() as u64;
        core.suspect(segment, now);
        let unnamed = |(fingerprint, location)| (fingerprint, location, None);
        for frame in core.drop_lost(survivor.members.into_iter().map(unnamed)) {
            core.requeue_frame(FrameId(frame));
        }
    }

    fn append_ready(&mut self, cx: &mut LogContext, blocked: &mut BTreeSet<NamespaceId>) -> bool {
        let mut any = false;
        while cx.log.has_room() {
            let reading = self.reading.first_key_value().map(|(number, _)| *number);
            let Some((number, record)) = self.ready.pop_first() else { break };
            if reading.is_some_and(|reading| reading < number) {
                self.ready.insert(number, record);
                break;
            }
            let id = record.id;
            let members = cx.pending_records.moved_members(id).to_vec();
            let (alive, pinned) = {
                let core = cx.shared.lock();
                (all_in_place(&core, &members), members.iter().any(|m| core.pins.is_pinned(m.0)))
            };
            if !alive {
                // Removed, replaced or cleared since: a new copy would return after a crash.
                cx.pending_records.remove(id);
                any = true;
                continue;
            }
            let bytes = record.record_bytes();
            match cx.append(record) {
                Ok(()) => {
                    any = true;
                    self.in_log += 1;
                    let shared = cx.shared.clone();
                    let mut core = shared.lock();
                    core.counters.bytes_reinserted += bytes;
                    cx.note_appended(&mut core);
                }
                Err(record) if waits_for_segment(cx) => {
                    self.ready.insert(number, record);
                    return any;
                }
                Err(record) => {
                    any = true;
                    if members.is_empty() {
                        blocked.insert(record.namespace);
                    }
                    // No room will appear: drop the record if it may go, else defer the victim.
                    cx.pending_records.remove(id);
                    self.defer |= pinned || members.is_empty();
                }
            }
        }
        any
    }
}

/// Whether a segment is being prepared for the log, or can be.
fn waits_for_segment(cx: &LogContext) -> bool {
    let free = cx.shared.lock().ssd.as_ref().map_or(0, |s| s.segments.count(SegmentState::Free));
    cx.log.is_trusted() && (free > 0 || !cx.log.wants_segment())
}

/// A record was written at its new location: update the index. False if that location is not read
/// any more: the record stays where it was.
pub(crate) fn record_reinserted(
    cx: &mut LogContext,
    id: u64,
    members: Vec<(u128, SsdLocation)>,
    location: &RecordLocation,
) -> bool {
    let mut core = cx.shared.lock();
    let (mut now, mut from) = (Vec::new(), Vec::new());
    // A member that could not be read was dropped in the meantime, and takes the others along: a
    // group is visible as a whole or not at all.
    let whole =
        all_in_place(&core, &members) && !members.iter().any(|(_, old)| core.is_hidden_at(*old));
    if !whole {
        let mut frames = BTreeSet::new();
        for (fingerprint, old) in &members {
            let entry = core.index.find(*fingerprint).find(|e| e.ssd == Some(*old));
            frames.extend(entry.and_then(|e| e.frame));
            core.drop_ssd(*fingerprint, *old, None, Departure::Damaged);
        }
        core.events.forgot();
        // They were reported as durable, or will be, and only DRAM has them now.
        for frame in frames {
            core.requeue_frame(FrameId(frame));
        }
    } else if core.is_offline((location.identity.segment.0, 0)) {
        return false;
    }
    for (fingerprint, old) in members.iter().filter(|_| whole) {
        // A record is reinserted as a whole: its payloads keep their distance from its header.
        let (segment, record) = (location.identity.segment, location.offset);
        let new = SsdLocation {
            payload_sector: old.payload_sector,
            ..SsdLocation::at(segment, record, 0)
        };
        if core.set_ssd_location(*fingerprint, |e| e.ssd == Some(*old), new) {
            now.push((*fingerprint, new));
            from.push(*old);
        }
    }
    drop(core);
    // Without members no index entry depends on this record.
    if !now.is_empty() {
        cx.pending_records.reinserted(id, now, from, location.bytes);
    }
    true
}

/// Whether the index still finds every member where it was read; vacuously true for tombstones.
fn all_in_place(core: &Core, members: &[(u128, SsdLocation)]) -> bool {
    members.iter().all(|(fp, location)| core.index.find(*fp).any(|e| e.ssd == Some(*location)))
}

/// The record in `part`, to be appended again; `None` if any part fails verification.
fn decode_record(id: u64, part: Part, identity: SegmentIdentity, offset: u64) -> Option<NewRecord> {
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
    Some(NewRecord {
        id,
        kind: RecordKind::Data,
        group_kind: facts.group_kind,
        namespace: facts.namespace,
        generation: facts.generation,
        sequence: facts.sequence,
        group: facts.group,
        base_group: facts.base_group,
        depth: facts.depth,
        reinserted: true,
        members,
        payload: vec![payload],
    })
}
