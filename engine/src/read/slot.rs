//! One object of a batch of gets: what is known of it, and what its bytes turn out to be.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::fused::{Copier, Stores};
use pagelith_layouts::align::is_aligned;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, Record, RecordFacts};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::read::{Expected, Verdict, Verifier, judge};

use crate::api::error::{Error, Result};
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Proof, Tier};
use crate::api::request::{Destination, Get};
use crate::memory::index::SsdPlace;
use crate::read::get::Header;
use crate::read::plan;
use crate::read::plan::ReadTarget;
use crate::rpc::scatter;
use crate::state::frame_access::Entered;
use crate::state::group_info::Together;
use crate::state::reserve::Arriving;
use crate::state::shared::Shared;

/// What is next for an object after something of it arrived.
#[derive(Debug)]
pub(crate) enum SlotStep {
    /// More has to arrive.
    Wait,
    /// The header is this long, longer than what was read.
    LongerHeader(u64),
    /// The record is another key's with an equal fingerprint.
    NextCandidate,
    /// That is it.
    Done(Result<GetOutcome>),
}

/// What a verified header said; kept for a promotion.
#[derive(Debug)]
pub(crate) struct VerifiedRecord {
    pub facts: RecordFacts,
    pub member_count: usize,
    pub checksums: Checksums,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub get: Get,
    /// The range wanted, and the object's length; known once it was located.
    pub want: Range<u64>,
    pub length: u64,
    pub fingerprint: u128,
    pub expected: Option<Expected>,
    pub place: Option<SsdPlace>,
    pub header: Option<usize>,
    /// Its header, if that need not be read; on its way to the batch's headers.
    pub cached_header: Option<Box<[u8]>>,
    /// Pages that it lies behind the batch's first.
    pub depth_offset: u32,
    pub stage: usize,
    pub pieces_left: usize,
    pub attempts: u32,
    pub round: u32,
    pub retry_pending: bool,
    pub submitted: bool,
    /// Whether the payload goes straight into the caller's memory.
    pub direct: bool,
    /// It was copied out of DRAM as it lay there.
    pub unverified: bool,
    /// Only whether the object is here, seen or not, is asked; nothing is delivered.
    pub probe: bool,
    parts_in_read: bool,
    /// What the record says, where it may be kept.
    pub verified: Option<Box<VerifiedRecord>>,
    /// What is said of it beside its outcome, where that is asked for.
    pub proof: Option<Box<Proof>>,
    pub cold: Option<Box<SlotCold>>,
    pub outcome: Option<Result<GetOutcome>>,
}

/// What few objects have. Apart from the rest, so that what all have lies together: between two looks at an object its batch's bytes go
/// through the cache.
#[derive(Debug, Default)]
pub(crate) struct SlotCold {
    /// Places that turned out to be other keys'.
    pub tried: Vec<SsdPlace>,
    pub staged: Vec<(Range<u64>, Part)>,
    pub staged_bytes: u64,
    /// Its destination is memory of the arena, where it is to stay.
    pub reservation: Option<Arriving>,
    /// What a probe found in the record: every member and its place, and how they belong together.
    pub members: Vec<(ObjectKey, SsdPlace)>,
    pub kind: Option<GroupKind>,
}

/// What is to be told of an object on SSD beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GetWants {
    /// A [`Proof`].
    pub proof: bool,
    /// What its record says, for who keeps it.
    pub record: bool,
}

impl Slot {
    pub fn new(get: Get) -> Slot {
        Slot {
            get,
            want: 0..0,
            length: 0,
            fingerprint: 0,
            expected: None,
            place: None,
            header: None,
            cached_header: None,
            depth_offset: 0,
            stage: 0,
            pieces_left: 0,
            attempts: 0,
            round: 0,
            retry_pending: false,
            submitted: false,
            direct: false,
            unverified: false,
            probe: false,
            parts_in_read: false,
            verified: None,
            proof: None,
            cold: None,
            outcome: None,
        }
    }

    /// A question whether an object is here; the outcome's bytes are its length.
    pub fn probe(key: ObjectKey) -> Slot {
        let get = Get { key, range: None, destination: Destination(Vec::new()) };
        Slot { probe: true, ..Slot::new(get) }
    }

    /// An object that is to stay in the memory that it is read into.
    pub fn prefetch(key: ObjectKey, reservation: Arriving, part: Part) -> Slot {
        let get = Get { key, range: None, destination: Destination([part].into()) };
        let cold = SlotCold { reservation: Some(reservation), ..SlotCold::default() };
        Slot { cold: Some(Box::new(cold)), ..Slot::new(get) }
    }

    /// Settle what is wanted of an object of `length` bytes; an error if range or destination do not fit it.
    pub fn set_length(&mut self, length: u64) -> Result<()> {
        if self.probe {
            self.length = length;
            return Ok(());
        }
        let key = &self.get.key;
        let want = self.get.range.clone().unwrap_or(0..length);
        if want.start >= want.end || want.end > length {
            let Range { start, end } = want;
            let detail =
                format!("range is empty or beyond the object key={key} range={start}..{end} length={length}");
            return Err(Error::invalid(detail));
        }
        let (wanted, have) = (want.end - want.start, self.get.destination.len());
        if have != wanted {
            let relation = if have < wanted { "shorter" } else { "longer" };
            let detail = format!(
                "destination is {relation} than the object key={key} destination={have} object={wanted}"
            );
            return Err(Error::invalid(detail));
        }
        (self.want, self.length) = (want, length);
        Ok(())
    }

    /// Where the object was found on SSD.
    pub fn found(&self) -> Option<SsdPlace> {
        self.expected.map(|e| SsdPlace::at(e.identity.segment, e.offset, e.payload_delta))
    }

    /// Its record, if that may be one whose header is known: what is only asked for is answered by what the device has, and so is
    /// what is tried again.
    pub fn header_place(&self) -> Option<(SegmentIdentity, u64)> {
        let expected = self.expected.filter(|_| !self.probe && self.round == 0)?;
        Some((expected.identity, expected.offset))
    }

    /// Its record's header, if it is known.
    pub fn find_cached_header(&self, shared: &Shared) -> Option<Box<[u8]>> {
        self.header_place().and_then(|(identity, offset)| shared.headers.get(identity, offset))
    }

    /// How to read the object from SSD.
    pub fn target(&self, slot: usize, align: usize, parts_max: usize, stages: bool) -> Option<ReadTarget> {
        let expected = self.expected.as_ref()?;
        let direct = !stages && plan::is_whole_blocks(&self.want, self.length) && self.is_aligned(align);
        let unaligned_tail = !is_aligned(self.want.end - self.want.start);
        let parts = self.get.destination.0.len() + usize::from(unaligned_tail);
        Some(ReadTarget {
            slot,
            round: self.round,
            segment: expected.identity.segment,
            record: expected.offset,
            payload_delta: expected.payload_delta,
            chunks: (!self.probe)
                .then(|| plan::widen_to_blocks(&self.want, self.length))
                .into_iter()
                .collect(),
            direct_parts: Some(parts).filter(|p| self.probe || (direct && p + 1 < parts_max)),
            unaligned_tail,
            stage: 0,
            header_cached: false,
        })
    }

    /// Whether the disk can read straight into the destination; the end of its last part may be ragged.
    fn is_aligned(&self, align: usize) -> bool {
        let parts = &self.get.destination.0;
        let inner = parts.len().saturating_sub(1);
        parts.iter().all(|p| p.addr() % align == 0) && parts[..inner].iter().all(|p| p.len() % align == 0)
    }

    /// The caller's memory, on its way into a read.
    pub fn take_parts(&mut self) -> Vec<Part> {
        self.parts_in_read = true;
        self.submitted = true;
        std::mem::take(&mut self.get.destination.0)
    }

    /// The caller's memory, back.
    pub fn return_parts(&mut self, parts: Vec<Part>) {
        self.parts_in_read = false;
        self.get.destination.0 = parts;
    }

    /// Whether the caller's memory is in a read.
    pub fn has_parts_in_read(&self) -> bool {
        self.parts_in_read
    }

    /// Forget what arrived; the next try is planned anew.
    pub fn reset_for_retry(&mut self) {
        self.round += 1;
        self.header = None;
        self.drop_staged();
    }

    /// What it has that few have.
    pub fn cold_mut(&mut self) -> &mut SlotCold {
        self.cold.get_or_insert_default()
    }

    /// Whether it is to stay in the memory that it is read into.
    pub fn keeps_in_arena(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.reservation.is_some())
    }

    /// Whether it is known to be another key's that lies there.
    pub fn has_tried(&self, place: &SsdPlace) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.tried.contains(place))
    }

    /// What was staged is not needed any more.
    pub fn drop_staged(&mut self) {
        self.cold.iter_mut().for_each(|cold| cold.staged.clear());
    }

    /// Copy a member of a frame out. With `verify` each block is verified where it landed (or where it lies, if only
    /// part of it is wanted).
    pub fn copy_out(
        &mut self,
        shared: &Shared,
        entered: &Entered<'_>,
        member: usize,
        verify: bool,
        copier: &mut Copier,
    ) -> Result<GetOutcome> {
        if self.probe {
            return Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: self.length });
        }
        let stored = entered.bytes(&shared.memory, member);
        if !verify {
            self.unverified = true;
            let wanted = &stored[self.want.start as usize..self.want.end as usize];
            scatter::copy_in(&mut self.get.destination.0, 0, wanted, copier.stores());
            return Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: wanted.len() as u64 });
        }
        let checksums = &entered.members[member].checksums;
        for at in plan::split_at_blocks(&self.want, self.length).into_iter().filter(|at| !at.is_empty()) {
            let bytes = &stored[at.start as usize..at.end as usize];
            let offset = at.start;
            if self.deliver(at, bytes, checksums, copier).is_err() {
                copier.wait();
                scatter::zero(&mut self.get.destination.0);
                tracing::error!(key = %self.get.key, offset, "memory does not hold what was put");
                return Ok(GetOutcome::Miss(MissCause::Damaged));
            }
        }
        Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: self.want.end - self.want.start })
    }

    /// Copy what is wanted of the object's bytes `at`, whole blocks, and verify them: as they are copied, unless only a part of
    /// a block is wanted.
    fn deliver(
        &mut self,
        at: Range<u64>,
        bytes: &[u8],
        checksums: &[Checksum],
        copier: &mut Copier,
    ) -> std::result::Result<(), ()> {
        let (lo, hi) = (self.want.start.max(at.start), self.want.end.min(at.end));
        let inside = (lo - at.start) as usize..(hi - at.start) as usize;
        let target = lo - self.want.start..hi - self.want.start;
        let block = u64::from(BLOCK_BYTES);
        let (first, last) = ((at.start / block) as usize, at.end.div_ceil(block) as usize);
        let sums = checksums.get(first..last).ok_or(())?;
        let pieces = &mut self.get.destination.0;
        if (lo, hi) == (at.start, at.end) {
            let (mut sums, mut right) = (sums.iter(), true);
            let compare = |sum| right &= sums.next() == Some(&sum);
            let copied = scatter::copy_blocks_in(pieces, target.start, bytes, copier, compare);
            // None that nothing was compared with.
            let right = copied && right && sums.next().is_none();
            return (right || mutant::on(Mutant::PayloadUnchecked)).then_some(()).ok_or(());
        }
        let mut verifier = Verifier::new(sums.iter().copied(), 0, at.end - at.start, BLOCK_BYTES);
        scatter::copy_in(pieces, target.start, &bytes[inside], copier.stores());
        verifier.update(bytes).map_err(|_| ())?;
        verifier.is_complete().then_some(()).ok_or(())
    }

    /// Judge what has arrived from SSD.
    pub fn step(&mut self, header: &Header, wants: GetWants) -> SlotStep {
        let (Some(bytes), Some(expected), false) = (&header.bytes, self.expected, self.parts_in_read) else {
            return SlotStep::Wait;
        };
        if let Some(claimed) = bytes.longer_claim() {
            return SlotStep::LongerHeader(claimed);
        }
        let record = match bytes.record() {
            Ok(record) => record,
            Err(error) => return self.damaged(&error),
        };
        let (record, member) = match judge(record, &self.get.key, &expected) {
            Verdict::Match(record, member) => (record, member),
            Verdict::OtherKey => {
                scatter::zero(&mut self.get.destination.0);
                let place = self.place;
                self.cold_mut().tried.extend(place);
                return SlotStep::NextCandidate;
            }
            Verdict::Damaged(error) => return self.damaged(&error),
        };
        if record.facts().block_bytes != BLOCK_BYTES {
            return self.damaged(&pagelith_layouts::error::FormatError::Field {
                structure: "record header",
                field: "block_bytes",
                value: record.facts().block_bytes.to_string(),
            });
        }
        if self.probe {
            let cold = self.cold_mut();
            (cold.members, cold.kind) = (record_members(&record), Some(record.facts().group_kind));
            return SlotStep::Done(Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: self.length }));
        }
        let checksums: Checksums = record.checksums(&member).collect();
        if let Err(error) = self.take_staged(&checksums) {
            return self.damaged(&error);
        }
        if self.pieces_left > 0 && (self.direct || !mutant::on(Mutant::SkipAndComplete)) {
            return SlotStep::Wait;
        }
        if self.direct
            && let Err(error) = self.verify_direct(&checksums)
        {
            return self.damaged(&error);
        }
        if wants.proof {
            let with = Together::of_record(&record.facts(), record.member_count());
            self.proof = Some(Box::new(Proof { checksums: checksums.clone(), with }));
        }
        if wants.record {
            let (facts, member_count) = (record.facts(), record.member_count());
            self.verified = Some(Box::new(VerifiedRecord { facts, member_count, checksums }));
        }
        SlotStep::Done(Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: self.want.end - self.want.start }))
    }

    fn verify_direct(
        &self,
        checksums: &[Checksum],
    ) -> std::result::Result<(), pagelith_layouts::error::FormatError> {
        let first = self.want.start / u64::from(BLOCK_BYTES);
        let length = self.want.end - self.want.start;
        let mut verifier = Verifier::new(checksums.iter().copied(), first, length, BLOCK_BYTES);
        scatter::visit(&self.get.destination.0, 0..length, |b| verifier.update(b))?;
        if verifier.is_complete() {
            return Ok(());
        }
        Err(pagelith_layouts::error::FormatError::Payload { block: first })
    }

    /// Hand the staged chunks on.
    fn take_staged(
        &mut self,
        checksums: &[Checksum],
    ) -> std::result::Result<(), pagelith_layouts::error::FormatError> {
        let staged = self.cold.as_mut().map(|cold| std::mem::take(&mut cold.staged)).unwrap_or_default();
        for (chunk, part) in staged {
            let end = chunk.end.min(self.length);
            let bytes = &part.bytes()[..(end - chunk.start) as usize];
            self.cold_mut().staged_bytes += chunk.end - chunk.start;
            self.pieces_left -= 1;
            let block = chunk.start / u64::from(BLOCK_BYTES);
            self.deliver(chunk.start..end, bytes, checksums, &mut Copier::new(Stores::Cached))
                .map_err(|()| pagelith_layouts::error::FormatError::Payload { block })?;
            if mutant::on(Mutant::StagingLeak) {
                std::mem::forget(part);
            }
        }
        Ok(())
    }

    fn damaged(&mut self, error: &pagelith_layouts::error::FormatError) -> SlotStep {
        let (segment, offset) = self.expected.map_or((0, 0), |e| (e.identity.segment.0, e.offset));
        tracing::warn!(key = %self.get.key, segment, offset, %error, "damaged");
        scatter::zero(&mut self.get.destination.0);
        SlotStep::Done(Ok(GetOutcome::Miss(MissCause::Damaged)))
    }

    /// What became of it. Taken out of where it lies: it is many times as long, and would be moved for that.
    pub fn take_done(&mut self) -> GetDone {
        let outcome = self.outcome.take().unwrap_or(Ok(GetOutcome::Miss(MissCause::Late)));
        let destination = Destination(std::mem::take(&mut self.get.destination.0));
        GetDone { outcome, destination, length: self.length, proof: self.proof.take() }
    }
}

/// Every member of a record, and where the index has it.
pub(crate) fn record_members(record: &Record<'_>) -> Vec<(ObjectKey, SsdPlace)> {
    let facts = record.facts();
    let place = |payload| SsdPlace::at(facts.identity.segment, facts.offset, payload);
    record.members().map(|m| (m.key, place(m.payload_offset))).collect()
}
