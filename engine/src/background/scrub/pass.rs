//! One pass over the sealed segments, without I/O: it returns the next read and receives its
//! completion. The driver decides the pace.
//!
//! A reader of a segment is counted only while a read is in flight, so a slow pass never delays its
//! reclaim. A segment reclaimed in the meantime is skipped.

use std::collections::{HashSet, VecDeque};

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::Checksum;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::read::Verifier;
use pagelith_tiers::ssd::segment_walk::HeaderWalk;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::memory::index::{SlotContent, SsdLocation};
use crate::memory::visibility::VisibilityFilter;
use crate::state::shared::Shared;

/// Result of a scrub. Damaged objects were dropped: the next `exists` returns false for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Segments of which every record was checked.
    pub segments: u64,
    /// Objects of which every byte was verified.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Objects that failed verification.
    pub damaged: u64,
    /// Objects that could not be read; each read was tried twice.
    pub unreadable: u64,
    /// Of the damaged and unreadable objects, those that DRAM also held, and that are being written
    /// to SSD again.
    pub repaired_from_dram: u64,
}

/// Bytes of a payload per read.
const CHUNK: u64 = 256 * 1024;
/// Home slots visited in one critical section: some 100 us.
const HOMES: u64 = 4096;

/// A member of a record: its index entry, its position, and the checksums of its bytes.
struct Member {
    fingerprint: u128,
    location: SsdLocation,
    /// Byte offset in the record, and length.
    offset: u64,
    length: u64,
    checksums: Vec<Checksum>,
    block_bytes: u32,
}

/// A record of which the index finds at least one member.
struct LiveRecord {
    offset: u64,
    bytes: u64,
    members: Vec<Member>,
    /// Members that the index found when the header was read.
    live: u32,
}

/// A record whose payload is being read.
struct Verifying {
    record: LiveRecord,
    /// Byte offset in the record of the next read.
    at: u64,
    verifiers: Vec<Verifier<std::vec::IntoIter<Checksum>>>,
    /// Verification failed once and is repeated: a single read may have returned the wrong bytes.
    retried: bool,
}

struct SegmentPass {
    identity: SegmentIdentity,
    /// End of the segment's records.
    end: u64,
    walk: HeaderWalk,
    /// First sectors of records with a valid header.
    seen: HashSet<u16>,
    /// Objects of those records that the index finds.
    live: u32,
    found: VecDeque<LiveRecord>,
    verifying: Option<Verifying>,
    /// The last read failed and is being retried.
    retrying: bool,
    /// The headers are being read a second time.
    second_scan: bool,
}

/// A pass under way.
pub(crate) struct ScrubPass {
    pending_segments: VecDeque<SegmentId>,
    current: Option<SegmentPass>,
    pub report: ScrubReport,
}

impl ScrubPass {
    /// A pass over the segments that are sealed now, oldest first.
    pub fn new(shared: &Shared) -> ScrubPass {
        let core = shared.lock();
        let mut sealed: Vec<_> = core.ssd.iter().flat_map(|s| s.segments.sealed()).collect();
        sealed.sort_by_key(|s| s.order);
        let pending_segments = sealed.into_iter().map(|s| s.segment).collect();
        ScrubPass { pending_segments, current: None, report: ScrubReport::default() }
    }

    /// The next read; `None` at the end of the pass. Call [`ScrubPass::ended`] before calling this
    /// again.
    pub fn next_op(&mut self, shared: &Shared) -> Option<Op> {
        let volume = shared.ssd.volume.as_ref()?;
        loop {
            if self.current.is_none() && !self.begin_segment(shared) {
                return None;
            }
            let Some(current) = self.current.as_mut() else { continue };
            let Some((at, len)) = current.next_read() else {
                self.end_segment(shared);
                continue;
            };
            let segment = current.identity.segment;
            let buf = AlignedBuf::new(len as usize)
                .ok()
                .filter(|_| enter_segment(shared, current.identity));
            let Some(buf) = buf else {
                // Reclaimed or quarantined since, or no memory: the next pass covers it.
                self.current = None;
                continue;
            };
            let (file, offset) = volume.file_offset(segment, at);
            return Some(Op::Read { file, offset, parts: vec![buf.into_part()] });
        }
    }

    fn begin_segment(&mut self, shared: &Shared) -> bool {
        let Some(segment) = self.pending_segments.pop_front() else { return false };
        let Some(volume) = shared.ssd.volume.as_ref() else { return false };
        let core = shared.lock();
        let Some(s) = core.ssd.as_ref().map(|s| *s.segments.get(segment)) else { return false };
        let identity = SegmentIdentity { store: volume.store, segment, incarnation: s.incarnation };
        let end = if s.data_end > 0 { s.data_end } else { volume.geometry.segment_bytes };
        self.current = Some(SegmentPass {
            identity,
            end,
            walk: HeaderWalk::new(identity, end),
            seen: HashSet::new(),
            live: 0,
            found: VecDeque::new(),
            verifying: None,
            retrying: false,
            second_scan: false,
        });
        true
    }

    /// The read from [`ScrubPass::next_op`] ended, or was never submitted (`None`).
    pub fn ended(&mut self, shared: &Shared, completion: Option<Completion>) {
        let Some(current) = self.current.as_mut() else { return };
        crate::state::session_io::release_segment(shared, current.identity.segment);
        let Some(completion) = completion else { return };
        if completion.result.is_err() {
            if !std::mem::replace(&mut current.retrying, true) {
                return;
            }
            current.retrying = false;
            shared.lock().counters.read_errors += 1;
            match current.verifying.take() {
                Some(v) => {
                    self.report.unreadable += v.record.members.len() as u64;
                    current.live = current.live.saturating_sub(v.record.live);
                    self.drop_record(shared, &v.record.members);
                }
                None => {
                    current.walk.skip();
                    let segment = current.identity.segment;
                    shared.lock().suspect(segment, shared.now());
                }
            }
            return;
        }
        current.retrying = false;
        let Some(part) = completion.op.into_parts().pop() else { return };
        self.report.bytes += part.len() as u64;
        shared.lock().counters.scrubbed_bytes += part.len() as u64;
        match current.verifying.take() {
            None => current.feed(shared, part.bytes()),
            Some(mut v) => match v.feed(part.bytes()) {
                Ok(true) => {
                    let objects = v.record.members.len() as u64;
                    self.report.objects += objects;
                    shared.lock().counters.scrubbed_objects += objects;
                }
                Ok(false) => current.verifying = Some(v),
                Err(()) if !v.retried => {
                    current.verifying =
                        Some(Verifying { retried: true, ..Verifying::new(v.record) });
                }
                Err(()) => {
                    self.report.damaged += v.record.members.len() as u64;
                    // `end_segment` compares this with the segment's count, from which `lost`
                    // removes them too.
                    current.live = current.live.saturating_sub(v.record.live);
                    self.drop_record(shared, &v.record.members);
                }
            },
        }
    }

    /// A record cannot be read or is damaged: drop its entries, and queue the copies in DRAM.
    fn drop_record(&mut self, shared: &Shared, members: &[Member]) {
        let Some(segment) = members.first().map(|m| SegmentId(m.location.segment)) else { return };
        tracing::warn!(
            segment = segment.0,
            block = members[0].location.record_sector,
            "scrub: record is lost"
        );
        let now = shared.now();
        let mut core = shared.lock();
        core.counters.damaged += members.len() as u64;
        let pages = core.drop_lost(members.iter().map(|m| (m.fingerprint, m.location, None)));
        for id in pages.into_iter().map(FrameId) {
            let objects = core.dram.frames.get(id).map_or(0, |f| f.data.members.len() as u64);
            if core.requeue_frame(id) {
                self.report.repaired_from_dram += objects;
                core.counters.scrub_repaired += objects;
            }
        }
        core.suspect(segment, now);
        drop(core);
        shared.signals.flusher.raise();
    }

    /// Every header was read. Entries whose record has no valid header are lost if a second read of
    /// the headers finds none either. They are sought, by a walk over the index, only if the
    /// segment has more live objects than were met.
    fn end_segment(&mut self, shared: &Shared) {
        let Some(mut current) = self.current.take() else { return };
        let segment = current.identity.segment;
        let (homes, live) = {
            let core = shared.lock();
            let live = core.ssd.as_ref().map_or(0, |s| s.segments.get(segment).live_objects);
            (core.index.home_slots(), live)
        };
        if current.live < live && !current.second_scan {
            current.second_scan = true;
            current.walk = HeaderWalk::new(current.identity, current.end);
            self.current = Some(current);
            return;
        }
        self.report.segments += 1;
        if current.live >= live {
            return;
        }
        let mut unseen: Vec<Member> = Vec::new();
        for from in (0..homes).step_by(HOMES as usize) {
            let core = shared.lock();
            let same = core.ssd.as_ref().is_some_and(|s| {
                let s = s.segments.get(segment);
                s.state() == SegmentState::Sealed && s.incarnation == current.identity.incarnation
            });
            if !same {
                return;
            }
            core.index.visit_homes(from, from + HOMES, |visited| {
                let SlotContent::Object(e) = visited else { return };
                let Some(location) = e.ssd.filter(|p| p.segment == segment.0) else { return };
                if !current.seen.contains(&location.record_sector) && !core.is_hidden_at(location) {
                    let (fingerprint, length) = (e.fingerprint, u64::from(e.length));
                    let checksums = Vec::new();
                    unseen.push(Member {
                        fingerprint,
                        location,
                        offset: 0,
                        length,
                        checksums,
                        block_bytes: 0,
                    });
                }
            });
        }
        unseen.sort_by_key(|m| m.location.record_sector);
        for record in unseen.chunk_by(|a, b| a.location.record_sector == b.location.record_sector) {
            self.report.damaged += record.len() as u64;
            self.drop_record(shared, record);
        }
    }
}

impl SegmentPass {
    /// Byte offset in the segment and length of the next read.
    fn next_read(&mut self) -> Option<(u64, u64)> {
        if self.verifying.is_none() {
            self.verifying = self.found.pop_front().map(Verifying::new);
        }
        match &self.verifying {
            Some(v) => Some((v.record.offset + v.at, CHUNK.min(v.record.bytes - v.at))),
            None => self.walk.next_read(),
        }
    }

    /// Process headers: queue the records with live members for verification.
    fn feed(&mut self, shared: &Shared, bytes: &[u8]) {
        let mut records = Vec::new();
        let (seen, segment) = (&mut self.seen, self.identity.segment);
        self.walk.feed(bytes, &mut |record| {
            let facts = record.facts();
            let new = seen.insert(SsdLocation::at(segment, facts.offset, 0).record_sector);
            if new && facts.kind == RecordKind::Data {
                records.push(live_record(shared, segment, record));
            }
        });
        let core = shared.lock();
        let alive = |m: &Member| core.index.find(m.fingerprint).any(|e| e.ssd == Some(m.location));
        for mut record in records {
            record.live = record.members.iter().filter(|m| alive(m)).count() as u32;
            self.live += record.live;
            self.found.extend(Some(record).filter(|record| record.live > 0));
        }
    }
}

fn live_record(shared: &Shared, segment: SegmentId, record: &Record<'_>) -> LiveRecord {
    let facts = record.facts();
    let member = |m: pagelith_layouts::record::Member| Member {
        fingerprint: shared.fingerprint(&m.key, facts.generation),
        location: SsdLocation::at(segment, facts.offset, m.payload_offset),
        offset: m.payload_offset,
        length: m.length,
        checksums: record.checksums(&m).collect(),
        block_bytes: facts.block_bytes,
    };
    LiveRecord {
        offset: facts.offset,
        bytes: record.record_bytes(),
        members: record.members().map(member).collect(),
        live: 0,
    }
}

impl Verifying {
    fn new(record: LiveRecord) -> Verifying {
        let verifier = |m: &Member| Verifier::new(m.checksums.clone(), 0, m.length, m.block_bytes);
        let at = record.members.iter().map(|m| m.offset).min().unwrap_or(record.bytes);
        Verifying {
            at,
            verifiers: record.members.iter().map(verifier).collect(),
            record,
            retried: false,
        }
    }

    /// Verify the next bytes of the record; true once all of it is verified.
    fn feed(&mut self, bytes: &[u8]) -> Result<bool, ()> {
        let (from, to) = (self.at, self.at + bytes.len() as u64);
        for (m, verifier) in self.record.members.iter().zip(&mut self.verifiers) {
            let (lo, hi) = (m.offset.max(from), (m.offset + m.length).min(to));
            if lo < hi {
                verifier
                    .update(&bytes[(lo - from) as usize..(hi - from) as usize])
                    .map_err(|_| ())?;
            }
        }
        self.at = align_up(to);
        if self.at < self.record.bytes {
            return Ok(false);
        }
        self.verifiers.iter().all(Verifier::is_complete).then_some(true).ok_or(())
    }
}

/// Pin the segment (count a reader), if it is still the same incarnation.
fn enter_segment(shared: &Shared, identity: SegmentIdentity) -> bool {
    let core = shared.lock();
    let Some(ssd) = core.ssd.as_ref().filter(|s| s.health.reads()) else { return false };
    let s = ssd.segments.get(identity.segment);
    let same = s.state() == SegmentState::Sealed && s.incarnation == identity.incarnation;
    same && ssd.guards.enter(identity.segment).is_some()
}
