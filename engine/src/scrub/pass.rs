//! One pass over the sealed segments, without I/O: it says what to read next and is told what came. Whoever drives it
//! decides how fast.
//!
//! A segment is held (a reader counted) only while a read is under way, so a slow pass never keeps reclaim from it; one
//! that was reclaimed meanwhile is left.

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
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::walk::Walk;

use super::ScrubReport;
use crate::index::{SsdPlace, Visited};
use crate::shared::Shared;
use crate::visibility::Sight;

/// Bytes of a payload that are read at a time.
const CHUNK: u64 = 256 * 1024;
/// Home slots looked at in one critical section: some 100 us.
const HOMES: u64 = 4096;

/// A member of a record: what the index knows it by, where, and what its bytes must be.
struct Member {
    fingerprint: u128,
    place: SsdPlace,
    /// Byte offset in the record, and length.
    offset: u64,
    length: u64,
    checksums: Vec<Checksum>,
    block_bytes: u32,
}

/// A record that the index finds something in.
struct Live {
    offset: u64,
    bytes: u64,
    members: Vec<Member>,
    /// Members that the index found when it was met.
    live: u32,
}

/// A record whose payload is being read.
struct Verifying {
    record: Live,
    /// Byte offset in the record of what is read next.
    at: u64,
    verifiers: Vec<Verifier<std::vec::IntoIter<Checksum>>>,
    /// It was not intact once: one read may have brought what lies elsewhere.
    again: bool,
}

struct Current {
    identity: SegmentIdentity,
    /// Where the segment's records end.
    end: u64,
    walk: Walk,
    /// Records with a header, by block.
    seen: HashSet<u16>,
    /// Objects of them that the index finds.
    live: u32,
    found: VecDeque<Live>,
    verifying: Option<Verifying>,
    /// The last read failed and is tried again.
    tried: bool,
    /// The headers are looked at a second time.
    again: bool,
}

/// A pass under way.
pub(crate) struct Pass {
    todo: VecDeque<SegmentId>,
    current: Option<Current>,
    pub report: ScrubReport,
}

impl Pass {
    /// Over the segments that are sealed now, the oldest first.
    pub fn new(shared: &Shared) -> Pass {
        let core = shared.lock();
        let mut sealed: Vec<_> = core.ssd.iter().flat_map(|s| s.segments.sealed()).collect();
        sealed.sort_by_key(|s| s.order);
        let todo = sealed.into_iter().map(|s| s.segment).collect();
        Pass { todo, current: None, report: ScrubReport::default() }
    }

    /// What to read next; `None` when all is read. Until [`Pass::ended`] is called nothing else may be asked.
    pub fn next_op(&mut self, shared: &Shared) -> Option<Op> {
        let volume = shared.volume.as_ref()?;
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
            let buf = AlignedBuf::new(len as usize).ok().filter(|_| hold(shared, current.identity));
            let Some(buf) = buf else {
                // Reclaimed or quarantined meanwhile, or no memory: the next pass comes.
                self.current = None;
                continue;
            };
            let (file, offset) = volume.place(segment, at);
            return Some(Op::Read { file, offset, parts: vec![buf.into_part()] });
        }
    }

    fn begin_segment(&mut self, shared: &Shared) -> bool {
        let Some(segment) = self.todo.pop_front() else { return false };
        let Some(volume) = shared.volume.as_ref() else { return false };
        let core = shared.lock();
        let Some(s) = core.ssd.as_ref().map(|s| *s.segments.get(segment)) else { return false };
        let identity = SegmentIdentity { store: volume.store, segment, incarnation: s.incarnation };
        let end = if s.data_end > 0 { s.data_end } else { volume.geometry.segment_bytes };
        self.current = Some(Current {
            identity,
            end,
            walk: Walk::new(identity, end),
            seen: HashSet::new(),
            live: 0,
            found: VecDeque::new(),
            verifying: None,
            tried: false,
            again: false,
        });
        true
    }

    /// The read of [`Pass::next_op`] ended, or was never submitted (`None`).
    pub fn ended(&mut self, shared: &Shared, completion: Option<Completion>) {
        let Some(current) = self.current.as_mut() else { return };
        crate::session::release_segment(shared, current.identity.segment);
        let Some(completion) = completion else { return };
        if completion.result.is_err() {
            if !std::mem::replace(&mut current.tried, true) {
                return;
            }
            current.tried = false;
            shared.lock().counters.read_errors += 1;
            match current.verifying.take() {
                Some(v) => {
                    self.report.unreadable += v.record.members.len() as u64;
                    current.live = current.live.saturating_sub(v.record.live);
                    self.lost(shared, &v.record.members);
                }
                None => {
                    current.walk.skip();
                    let segment = current.identity.segment;
                    shared.lock().suspect(segment, shared.now());
                }
            }
            return;
        }
        current.tried = false;
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
                Err(()) if !v.again => {
                    current.verifying = Some(Verifying { again: true, ..Verifying::new(v.record) });
                }
                Err(()) => {
                    self.report.damaged += v.record.members.len() as u64;
                    // The segment has so many less too.
                    current.live = current.live.saturating_sub(v.record.live);
                    self.lost(shared, &v.record.members);
                }
            },
        }
    }

    /// A record cannot be read or is not intact: nothing of it is found any more, and what DRAM has is written again.
    fn lost(&mut self, shared: &Shared, members: &[Member]) {
        let Some(segment) = members.first().map(|m| SegmentId(m.place.segment)) else { return };
        tracing::warn!(segment = segment.0, block = members[0].place.record_block, "scrub: record is lost");
        let now = shared.now();
        let mut core = shared.lock();
        core.counters.damaged += members.len() as u64;
        let pages = core.drop_lost(members.iter().map(|m| (m.fingerprint, m.place, None)));
        for id in pages.into_iter().map(FrameId) {
            let objects = core.frames.get(id).map_or(0, |f| f.data.members.len() as u64);
            if core.requeue_frame(id) {
                self.report.repaired_from_dram += objects;
                core.counters.scrub_repaired += objects;
            }
        }
        core.suspect(segment, now);
        drop(core);
        shared.work.raise();
    }

    /// Every header was looked at. What the index finds in a record without one is lost, if a second look does not find the
    /// header either; it is looked for only if the segment has more than was met, since that is a walk over the index.
    fn end_segment(&mut self, shared: &Shared) {
        let Some(mut current) = self.current.take() else { return };
        let segment = current.identity.segment;
        let (homes, live) = {
            let core = shared.lock();
            let live = core.ssd.as_ref().map_or(0, |s| s.segments.get(segment).live_objects);
            (core.index.home_slots(), live)
        };
        if current.live < live && !current.again {
            current.again = true;
            current.walk = Walk::new(current.identity, current.end);
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
                let Visited::Object(e) = visited else { return };
                let Some(place) = e.ssd.filter(|p| p.segment == segment.0) else { return };
                if !current.seen.contains(&place.record_block) && !core.is_hidden_at(place) {
                    let (fingerprint, length) = (e.fingerprint, u64::from(e.length));
                    let checksums = Vec::new();
                    unseen.push(Member { fingerprint, place, offset: 0, length, checksums, block_bytes: 0 });
                }
            });
        }
        unseen.sort_by_key(|m| m.place.record_block);
        for record in unseen.chunk_by(|a, b| a.place.record_block == b.place.record_block) {
            self.report.damaged += record.len() as u64;
            self.lost(shared, record);
        }
    }
}

impl Current {
    /// Byte offset in the segment and length of what is to be read next.
    fn next_read(&mut self) -> Option<(u64, u64)> {
        if self.verifying.is_none() {
            self.verifying = self.found.pop_front().map(Verifying::new);
        }
        match &self.verifying {
            Some(v) => Some((v.record.offset + v.at, CHUNK.min(v.record.bytes - v.at))),
            None => self.walk.next_read(),
        }
    }

    /// Headers came: those that the index finds something of are verified next.
    fn feed(&mut self, shared: &Shared, bytes: &[u8]) {
        let mut records = Vec::new();
        let (seen, segment) = (&mut self.seen, self.identity.segment);
        self.walk.feed(bytes, &mut |record| {
            let facts = record.facts();
            let new = seen.insert(SsdPlace::at(segment, facts.offset, 0).record_block);
            if new && facts.kind == RecordKind::Data {
                records.push(live(shared, segment, record));
            }
        });
        let core = shared.lock();
        let alive = |m: &Member| core.index.find(m.fingerprint).any(|e| e.ssd == Some(m.place));
        for mut record in records {
            record.live = record.members.iter().filter(|m| alive(m)).count() as u32;
            self.live += record.live;
            self.found.extend(Some(record).filter(|record| record.live > 0));
        }
    }
}

fn live(shared: &Shared, segment: SegmentId, record: &Record<'_>) -> Live {
    let facts = record.facts();
    let member = |m: pagelith_layouts::record::Member| Member {
        fingerprint: shared.fingerprint(&m.key, facts.generation),
        place: SsdPlace::at(segment, facts.offset, m.payload_offset),
        offset: m.payload_offset,
        length: m.length,
        checksums: record.checksums(&m).collect(),
        block_bytes: facts.block_bytes,
    };
    Live {
        offset: facts.offset,
        bytes: record.record_bytes(),
        members: record.members().map(member).collect(),
        live: 0,
    }
}

impl Verifying {
    fn new(record: Live) -> Verifying {
        let verifier = |m: &Member| Verifier::new(m.checksums.clone(), 0, m.length, m.block_bytes);
        let at = record.members.iter().map(|m| m.offset).min().unwrap_or(record.bytes);
        Verifying { at, verifiers: record.members.iter().map(verifier).collect(), record, again: false }
    }

    /// The next bytes of the record; true once all of it verified.
    fn feed(&mut self, bytes: &[u8]) -> Result<bool, ()> {
        let (from, to) = (self.at, self.at + bytes.len() as u64);
        for (m, verifier) in self.record.members.iter().zip(&mut self.verifiers) {
            let (lo, hi) = (m.offset.max(from), (m.offset + m.length).min(to));
            if lo < hi {
                verifier.update(&bytes[(lo - from) as usize..(hi - from) as usize]).map_err(|_| ())?;
            }
        }
        self.at = align_up(to);
        if self.at < self.record.bytes {
            return Ok(false);
        }
        self.verifiers.iter().all(Verifier::is_complete).then_some(true).ok_or(())
    }
}

/// Count a reader in, if the segment is still what it was.
fn hold(shared: &Shared, identity: SegmentIdentity) -> bool {
    let core = shared.lock();
    let Some(ssd) = core.ssd.as_ref().filter(|s| s.health.reads()) else { return false };
    let s = ssd.segments.get(identity.segment);
    let same = s.state() == SegmentState::Sealed && s.incarnation == identity.incarnation;
    same && ssd.guards.enter(identity.segment).is_some()
}
