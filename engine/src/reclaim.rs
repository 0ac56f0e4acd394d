//! Reclaim: emptying a sealed segment so that it can be used again.
//!
//! 1. The policy picks a victim; its footer says what was in it.
//! 2. Records that the index still finds there, and that are pinned or recent enough for the budget, are
//!    read, verified and appended again, and so are tombstones that may still shadow something.
//! 3. A sync covers them. Only then does the index forget the rest, and only when the last reader has left
//!    is the segment free. Without the sync a crash could take both copies: the new one because it was not
//!    durable, the old one because the segment was written over.

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::checksum::Checksum;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::ids::{Generation, SegmentId, Sequence};
use pagelith_layouts::record::{MEMBERS_MAX, Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::policy::ExtentFacts;
use pagelith_tiers::ssd::append::{RecordPlace, Unit, UnitMember};
use pagelith_tiers::ssd::read::Verifier;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::core::{Core, SsdHealth};
use crate::flusher::{Appended, Flusher, Purpose, Written};
use crate::index::SsdPlace;

/// Tags of reclaim's operations in the log's queue; below them are the numbers of checkpoints.
pub(crate) const TAG_FOOTER: u64 = 1 << 32;
pub(crate) const TAG_RECORD: u64 = 2 << 32;
/// Bytes of a segment's end that are read at first.
const TAIL_BYTES: u64 = 64 * 1024;
/// Records read and not yet appended.
const READS_MAX: usize = 4;
/// How long a victim that could not be emptied is left alone: pins end, and room comes, without a signal.
const KEPT: Duration = Duration::from_secs(1);

/// A record of the victim that is to survive.
#[derive(Clone, Debug)]
struct Survivor {
    record: u64,
    bytes: u64,
    pinned: bool,
    members: Vec<(u128, SsdPlace)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Footer,
    Moving,
    Syncing,
    Leaving,
}

/// A reclaim under way.
pub(crate) struct Reclaim {
    segment: SegmentId,
    identity: SegmentIdentity,
    stage: Stage,
    /// Every member of the victim: fingerprint and place.
    members: Vec<(u128, SsdPlace)>,
    to_read: Vec<Survivor>,
    reading: BTreeMap<u64, Survivor>,
    next_tag: u64,
    /// Units that wait for room in the log, and how many are in it.
    ready: Vec<Unit>,
    in_log: usize,
    tombstones: Vec<(Generation, Sequence, Vec<pagelith_layouts::key::ObjectKey>)>,
    /// Something that must survive could not be moved: the victim is kept.
    kept: bool,
}

impl Reclaim {
    /// Whether something of the victim is, or may be once its footer was read, still to be appended.
    pub fn needs_room(&self) -> bool {
        match self.stage {
            Stage::Footer | Stage::Moving => true,
            Stage::Syncing | Stage::Leaving => false,
        }
    }
}

impl Flusher {
    /// Free segments below which a victim is looked for: one to be prepared and, in a store with many, one
    /// in reserve.
    fn low_water(&self) -> usize {
        let count = self.shared.volume.as_ref().map_or(0, |v| v.geometry.segment_count);
        if count >= 16 { 2 } else { 1 }
    }

    /// Begin or go on with a reclaim; true if anything was done.
    pub(crate) fn step_reclaim(&mut self) -> bool {
        if self.reclaim.is_some() && self.is_read_only() {
            self.stop_moving();
        }
        let Some(stage) = self.reclaim.as_ref().map(|r| &r.stage) else { return self.begin_reclaim() };
        match stage {
            Stage::Footer | Stage::Syncing => false,
            Stage::Moving => self.move_records(),
            Stage::Leaving => self.leave(),
        }
    }

    fn begin_reclaim(&mut self) -> bool {
        if self.closing.is_some() || !self.log.is_trusted() {
            return false;
        }
        let low = self.low_water();
        let Some(volume) = self.shared.volume.clone() else { return false };
        let mut core = self.shared.lock();
        let index_full = core.index.len() * 100 > core.index.capacity() * 95;
        let now = self.shared.now();
        self.quarantined.retain(|_, until| *until > now);
        let Some(ssd) = core.ssd.as_mut().filter(|s| s.health == SsdHealth::On) else { return false };
        if ssd.segments.count(SegmentState::Free) >= low && !index_full {
            return false;
        }
        let mut sealed = ssd.segments.sealed();
        sealed.retain(|s| !self.quarantined.contains_key(&s.segment));
        let Some(victim) = ssd.policy.victim(&sealed).map(|i| sealed[i].segment) else {
            let refused = core.counters.puts_refused;
            drop(core);
            return index_full && self.seal_for_room(refused);
        };
        let s = ssd.segments.get_mut(victim);
        s.state = SegmentState::Reclaiming;
        let identity = SegmentIdentity { store: volume.store, segment: victim, incarnation: s.incarnation };
        drop(core);
        self.reclaim = Some(Reclaim {
            segment: victim,
            identity,
            stage: Stage::Footer,
            members: Vec::new(),
            to_read: Vec::new(),
            reading: BTreeMap::new(),
            next_tag: 0,
            ready: Vec::new(),
            in_log: 0,
            tombstones: Vec::new(),
            kept: false,
        });
        tracing::debug!(segment = victim.0, "reclaim");
        self.read_footer(TAIL_BYTES.min(volume.geometry.segment_bytes));
        true
    }

    /// The index is full of what lies in the open segment: that becomes a victim once it is sealed. Only after
    /// another put was refused, else what is pinned would be written again and again.
    fn seal_for_room(&mut self, puts_refused: u64) -> bool {
        if self.refused_seen == puts_refused {
            return false;
        }
        self.refused_seen = puts_refused;
        self.log.seal_open();
        true
    }

    fn read_footer(&mut self, bytes: u64) {
        let (Some(volume), Some(r)) = (self.shared.volume.clone(), self.reclaim.as_ref()) else { return };
        let (file, offset) = volume.place(r.segment, volume.geometry.segment_bytes - bytes);
        let submitted = match pagelith_io::buffer::AlignedBuf::new(bytes as usize) {
            Ok(buf) => {
                self.log.submit(TAG_FOOTER, Op::Read { file, offset, parts: vec![buf.into_part()] }).is_ok()
            }
            Err(_) => false,
        };
        if !submitted {
            self.keep_victim(KEPT);
        }
    }

    /// An operation that reclaim or a checkpoint submitted came back.
    pub(crate) fn other(&mut self, tag: u64, completion: Completion) {
        if tag == TAG_FOOTER {
            self.footer_read(completion);
        } else if tag >= TAG_RECORD {
            self.record_read(tag, completion);
        } else {
            self.checkpoint_ended(tag, completion.result);
        }
    }

    fn footer_read(&mut self, completion: Completion) {
        let Some(volume) = self.shared.volume.clone() else { return };
        let Some(identity) = self.reclaim.as_ref().map(|r| r.identity) else { return };
        let failed = completion.result.is_err();
        let Some(part) = completion.op.into_parts().pop() else { return };
        let segment_bytes = volume.geometry.segment_bytes;
        let claimed = footer::claimed_bytes(part.bytes(), segment_bytes);
        if let Some(more) = claimed.filter(|n| !failed && *n > part.len() as u64) {
            return self.read_footer(more);
        }
        let from = part.len() - claimed.unwrap_or(0).min(part.len() as u64) as usize;
        match footer::decode(&part.bytes()[from..], identity, segment_bytes) {
            Ok((_, entries)) if !failed => self.choose(&entries),
            _ => {
                tracing::warn!(
                    segment = identity.segment.0,
                    "segment has no readable footer, it is not reused before the next open"
                );
                self.keep_victim(Duration::MAX);
            }
        }
    }

    /// Decide what survives.
    fn choose(&mut self, entries: &[FooterEntry]) {
        let shared = self.shared.clone();
        let Some(mut r) = self.reclaim.take() else { return };
        let mut records: BTreeMap<u32, (Survivor, u64, usize, u32)> = BTreeMap::new();
        let core = shared.lock();
        for e in entries {
            let fingerprint = shared.fingerprint(&e.key, Generation(e.generation));
            if e.kind == RecordKind::Tombstones as u8 {
                let needed = core
                    .ssd
                    .as_ref()
                    .is_some_and(|s| s.segments.tombstone_needed(r.segment, Sequence(e.sequence)));
                let current = core.generation(e.key.namespace()) == Generation(e.generation);
                if needed && current {
                    r.tombstones.push((Generation(e.generation), Sequence(e.sequence), vec![e.key]));
                }
                continue;
            }
            let place = SsdPlace {
                segment: r.segment.0,
                record_block: e.record_block as u16,
                payload_delta: e.payload_delta as u16,
            };
            r.members.push((fingerprint, place));
            if core.generation(e.key.namespace()) != Generation(e.generation) {
                continue;
            }
            let found = core.index.find(fingerprint).find(|i| i.ssd == Some(place));
            let Some(found) = found else { continue };
            let tick = core.full_tick(found.tick);
            let pinned = core.pins.is_pinned(fingerprint);
            let record = records.entry(e.record_block).or_insert_with(|| {
                let bytes = u64::from(e.record_blocks) * 4096;
                let record = u64::from(e.record_block) * 4096;
                (Survivor { record, bytes, pinned: false, members: Vec::new() }, 0, 0, e.member_count)
            });
            record.0.members.push((fingerprint, place));
            record.0.pinned |= pinned;
            record.1 = record.1.max(tick);
            record.2 += 1;
        }
        // A group of which a member is gone is invisible, and not worth moving.
        let whole: Vec<_> =
            records.into_values().filter(|(.., live, count)| *live == *count as usize).collect();
        let facts: Vec<_> = whole
            .iter()
            .map(|(s, tick, ..)| ExtentFacts { bytes: s.bytes, tick: *tick, pinned: s.pinned })
            .collect();
        let segment_bytes = shared.volume.as_ref().map_or(0, |v| v.geometry.segment_bytes);
        if let Some(ssd) = core.ssd.as_ref() {
            let budget = (segment_bytes as f64 * ssd.policy.reinsert_ratio()) as u64;
            let chosen = ssd.policy.reinsert(&facts, ssd.segments.mean_tick(), budget);
            r.to_read = chosen.into_iter().rev().map(|i| whole[i].0.clone()).collect();
        }
        drop(core);
        r.tombstones = joined(std::mem::take(&mut r.tombstones));
        for (generation, sequence, keys) in std::mem::take(&mut r.tombstones) {
            r.ready.push(self.tombstone_unit(generation, sequence, &keys, None));
        }
        r.stage = Stage::Moving;
        self.reclaim = Some(r);
    }

    /// Read, append, and finish once everything is written.
    fn move_records(&mut self) -> bool {
        let mut moved = self.append_ready();
        moved |= self.read_records();
        let Some(r) = self.reclaim.as_mut() else { return moved };
        if r.to_read.is_empty() && r.reading.is_empty() && r.ready.is_empty() && r.in_log == 0 {
            if r.kept {
                self.keep_victim(KEPT);
                return true;
            }
            r.stage = Stage::Syncing;
            // Step 3: also when nothing was moved, because what the index lost to newer records in other
            // segments may be no more durable there.
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

    fn record_read(&mut self, tag: u64, completion: Completion) {
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
                let mut core = self.shared.lock();
                core.counters.damaged += survivor.members.len() as u64;
                survivor.members.iter().for_each(|(fp, place)| {
                    core.drop_ssd(*fp, *place);
                });
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
                    self.shared.lock().counters.bytes_reinserted += bytes;
                }
                Err(unit) if self.waits_for_segment() => {
                    if let Some(r) = self.reclaim.as_mut() {
                        r.ready.push(unit);
                    }
                    return any;
                }
                Err(_) => {
                    any = true;
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
        let places = Self::moved_places(&members, place);
        let mut core = self.shared.lock();
        let mut now = Vec::new();
        for ((fingerprint, old), new) in members.iter().zip(places) {
            if core.place_ssd(*fingerprint, |e| e.ssd == Some(*old), new) {
                now.push((*fingerprint, new));
            }
        }
        drop(core);
        self.written.insert(id, Written { members: now, bytes: place.bytes, first_time: false });
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

    pub(crate) fn reclaim_synced(&mut self, ok: bool) {
        let Some(r) = self.reclaim.as_mut() else { return };
        if !ok {
            return self.keep_victim(Duration::MAX);
        }
        let members = std::mem::take(&mut r.members);
        r.stage = Stage::Leaving;
        let mut core = self.shared.lock();
        for (fingerprint, place) in members {
            core.drop_ssd(fingerprint, place);
        }
    }

    fn leave(&mut self) -> bool {
        let Some(segment) = self.reclaim.as_ref().map(|r| r.segment) else { return false };
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return false };
        let s = ssd.segments.get_mut(segment);
        if s.readers > 0 {
            return false;
        }
        s.state = SegmentState::Free;
        core.counters.segments_reclaimed += 1;
        drop(core);
        self.reclaim = None;
        self.shared.progress.raise();
        true
    }

    /// Nothing more is written: what was to be moved stays where it is, and so does the victim.
    fn stop_moving(&mut self) {
        let Some(r) = self.reclaim.as_mut().filter(|r| r.needs_room()) else { return };
        r.kept = true;
        r.to_read.clear();
        for unit in r.ready.drain(..) {
            self.units.remove(&unit.id);
        }
    }

    /// Give up on this victim for `duration`.
    fn keep_victim(&mut self, duration: Duration) {
        let Some(r) = self.reclaim.take() else { return };
        self.quarantined.insert(r.segment, self.shared.now().after(duration));
        if let Some(ssd) = self.shared.lock().ssd.as_mut() {
            ssd.segments.get_mut(r.segment).state = SegmentState::Sealed;
        }
    }
}

/// Whether the index still finds every member where it was read from; tombstones always are.
fn is_alive(core: &Core, members: &[(u128, SsdPlace)]) -> bool {
    members.iter().all(|(fp, place)| core.index.find(*fp).any(|e| e.ssd == Some(*place)))
}

/// Tombstones of one namespace, generation and sequence in one record each.
fn joined(
    tombstones: Vec<(Generation, Sequence, Vec<pagelith_layouts::key::ObjectKey>)>,
) -> Vec<(Generation, Sequence, Vec<pagelith_layouts::key::ObjectKey>)> {
    let mut out: Vec<(Generation, Sequence, Vec<pagelith_layouts::key::ObjectKey>)> = Vec::new();
    for (generation, sequence, keys) in tombstones {
        match out.last_mut() {
            Some((g, s, k))
                if (*g, *s) == (generation, sequence)
                    && k[0].namespace() == keys[0].namespace()
                    && k.len() < MEMBERS_MAX =>
            {
                k.extend(keys);
            }
            _ => out.push((generation, sequence, keys)),
        }
    }
    out
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
        let checksums: Vec<Checksum> = record.checksums(&m).collect();
        let from = m.payload_offset as usize;
        let bytes = part.bytes().get(from..from + m.length as usize)?;
        let mut verifier = Verifier::new(checksums.clone(), 0, m.length, facts.block_bytes);
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
