//! One object of a batch of gets: its request, its plan, and the verification of its bytes.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::{Copier, StoreKind};
use pagelith_layouts::align::is_aligned;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, Record, RecordFacts};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::read::{Expected, Verdict, Verifier, judge};

use crate::api::error::{Error, Result};
use crate::api::group_info::GroupInfo;
use crate::api::outcome::{GetDone, GetOutcome, MissCause, ObjectMeta, Tier};
use crate::api::request::{Destination, Get};
use crate::memory::index::SsdPlace;
use crate::read::get::Header;
use crate::read::plan;
use crate::read::plan::ReadTarget;
use crate::rpc::scatter;
use crate::state::frame_access::FrameReader;
use crate::state::reserve::ArenaReservation;
use crate::state::shared::Shared;

/// The next step for an object after a part of it was read.
#[derive(Debug)]
pub(crate) enum SlotStep {
    /// More pieces have to be read.
    Wait,
    /// The header is longer than the bytes that were read; its length.
    LongerHeader(u64),
    /// The record belongs to another key with an equal fingerprint.
    NextCandidate,
    /// The object has its outcome.
    Done(Result<GetOutcome>),
}

/// The contents of a verified header, kept for a promotion.
#[derive(Debug)]
pub(crate) struct VerifiedRecord {
    pub facts: RecordFacts,
    pub member_count: usize,
    pub checksums: Checksums,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub get: Get,
    /// The requested range and the object's length; known once the object was located.
    pub want: Range<u64>,
    pub length: u64,
    pub fingerprint: u128,
    pub expected: Option<Expected>,
    pub place: Option<SsdPlace>,
    pub header: Option<usize>,
    /// The record's header, if the header cache has it; moved to the batch's headers by the plan.
    pub cached_header: Option<Box<[u8]>>,
    /// Pages between the batch's first page and this object's page.
    pub depth_offset: u32,
    pub stage: usize,
    pub pieces_left: usize,
    pub attempts: u32,
    pub round: u32,
    pub retry_pending: bool,
    pub submitted: bool,
    /// The payload is read directly into the caller's memory.
    pub direct: bool,
    /// It was copied out of DRAM without verification.
    pub unverified: bool,
    /// Only the object's presence is requested, visible or not; no bytes are delivered.
    pub probe: bool,
    parts_in_read: bool,
    /// The record's contents, if the object may be kept in DRAM.
    pub verified: Option<Box<VerifiedRecord>>,
    /// Metadata returned with the outcome, if it was requested.
    pub meta: Option<Box<ObjectMeta>>,
    pub cold: Option<Box<SlotCold>>,
    pub outcome: Option<Result<GetOutcome>>,
}

/// Fields that few objects use. They are stored apart, so that the fields of all objects are
/// adjacent: between two accesses to an object, the bytes of its batch pass through the CPU cache.
#[derive(Debug, Default)]
pub(crate) struct SlotCold {
    /// SSD places whose records belong to other keys.
    pub tried: Vec<SsdPlace>,
    pub staged: Vec<(Range<u64>, Part)>,
    pub staged_bytes: u64,
    /// Arena memory that is the destination, and in which the object is to be kept.
    pub reservation: Option<ArenaReservation>,
    /// For a probe: every member of the record and its place, and the kind of the group.
    pub members: Vec<(ObjectKey, SsdPlace)>,
    pub kind: Option<GroupKind>,
}

/// Which data of an object on SSD is returned along with its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GetWants {
    /// Its [`ObjectMeta`].
    pub meta: bool,
    /// The record's contents, to keep the object in DRAM.
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
            meta: None,
            cold: None,
            outcome: None,
        }
    }

    /// A probe for the object's presence; the outcome's `bytes` is its length.
    pub fn probe(key: ObjectKey) -> Slot {
        let get = Get { key, range: None, destination: Destination(Vec::new()) };
        Slot { probe: true, ..Slot::new(get) }
    }

    /// An object that is kept in the arena memory that it is read into.
    pub fn prefetch(key: ObjectKey, reservation: ArenaReservation, part: Part) -> Slot {
        let get = Get { key, range: None, destination: Destination([part].into()) };
        let cold = SlotCold { reservation: Some(reservation), ..SlotCold::default() };
        Slot { cold: Some(Box::new(cold)), ..Slot::new(get) }
    }

    /// Set the object's length and the requested range. An error if the range or the destination
    /// does not fit the length.
    pub fn set_length(&mut self, length: u64) -> Result<()> {
        if self.probe {
            self.length = length;
            return Ok(());
        }
        let key = &self.get.key;
        let want = self.get.range.clone().unwrap_or(0..length);
        if want.start >= want.end || want.end > length {
            let Range { start, end } = want;
            let detail = format!(
                "range is empty or beyond the object key={key} range={start}..{end} length={length}"
            );
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

    /// The SSD place at which the index has the object.
    pub fn ssd_place(&self) -> Option<SsdPlace> {
        self.expected.map(|e| SsdPlace::at(e.identity.segment, e.offset, e.payload_delta))
    }

    /// The record's place, if its header may come from the header cache. Probes and retries read
    /// the header from the device.
    pub fn header_place(&self) -> Option<(SegmentIdentity, u64)> {
        let expected = self.expected.filter(|_| !self.probe && self.round == 0)?;
        Some((expected.identity, expected.offset))
    }

    /// The record's header, if the header cache has it.
    pub fn find_cached_header(&self, shared: &Shared) -> Option<Box<[u8]>> {
        self.header_place().and_then(|(identity, offset)| shared.ssd.headers.get(identity, offset))
    }

    /// The object's part of the read plan.
    pub fn target(
        &self,
        slot: usize,
        align: usize,
        parts_max: usize,
        stages: bool,
    ) -> Option<ReadTarget> {
        let expected = self.expected.as_ref()?;
        let direct =
            !stages && plan::is_whole_blocks(&self.want, self.length) && self.is_aligned(align);
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

    /// Whether the disk can read directly into the destination; only the end of its last part may
    /// be unaligned.
    fn is_aligned(&self, align: usize) -> bool {
        let parts = &self.get.destination.0;
        let inner = parts.len().saturating_sub(1);
        parts.iter().all(|p| p.addr() % align == 0)
            && parts[..inner].iter().all(|p| p.len() % align == 0)
    }

    /// Take the caller's memory for a read.
    pub fn take_parts(&mut self) -> Vec<Part> {
        self.parts_in_read = true;
        self.submitted = true;
        std::mem::take(&mut self.get.destination.0)
    }

    /// Return the caller's memory from a read.
    pub fn return_parts(&mut self, parts: Vec<Part>) {
        self.parts_in_read = false;
        self.get.destination.0 = parts;
    }

    /// Whether a read has the caller's memory.
    pub fn has_parts_in_read(&self) -> bool {
        self.parts_in_read
    }

    /// Discard the pieces that were read; the next attempt is planned anew.
    pub fn reset_for_retry(&mut self) {
        self.round += 1;
        self.header = None;
        self.drop_staged();
    }

    pub fn cold_mut(&mut self) -> &mut SlotCold {
        self.cold.get_or_insert_default()
    }

    /// Whether the object is kept in the arena memory that it is read into.
    pub fn keeps_in_arena(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.reservation.is_some())
    }

    /// Whether the record at this place is known to belong to another key.
    pub fn has_tried(&self, place: &SsdPlace) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.tried.contains(place))
    }

    /// Return the staged chunks' memory.
    pub fn drop_staged(&mut self) {
        self.cold.iter_mut().for_each(|cold| cold.staged.clear());
    }

    /// Copy a member of a frame into the destination. With `verify`, each block is verified from
    /// the copied bytes, or in the arena if only a part of the block is requested.
    pub fn copy_out(
        &mut self,
        shared: &Shared,
        entered: &FrameReader<'_>,
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
        for at in
            plan::split_at_blocks(&self.want, self.length).into_iter().filter(|at| !at.is_empty())
        {
            let bytes = &stored[at.start as usize..at.end as usize];
            let offset = at.start;
            if self.deliver(at, bytes, checksums, copier).is_err() {
                copier.wait();
                scatter::zero(&mut self.get.destination.0);
                tracing::error!(key = %self.get.key, offset, "dram block is damaged");
                return Ok(GetOutcome::Miss(MissCause::Damaged));
            }
        }
        Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: self.want.end - self.want.start })
    }

    /// Copy the requested part of the object's bytes `at`, which are whole blocks, and verify them:
    /// during the copy, unless only a part of a block is requested.
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
            // Every checksum must have been compared.
            let right = copied && right && sums.next().is_none();
            return (right || mutant::on(Mutant::PayloadUnchecked)).then_some(()).ok_or(());
        }
        let mut verifier = Verifier::new(sums.iter().copied(), 0, at.end - at.start, BLOCK_BYTES);
        scatter::copy_in(pieces, target.start, &bytes[inside], copier.stores());
        verifier.update(bytes).map_err(|_| ())?;
        verifier.is_complete().then_some(()).ok_or(())
    }

    /// Verify the pieces that were read from SSD.
    pub fn step(&mut self, header: &Header, wants: GetWants) -> SlotStep {
        let (Some(bytes), Some(expected), false) =
            (&header.bytes, self.expected, self.parts_in_read)
        else {
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
        if wants.meta {
            let group = GroupInfo::of_record(&record.facts(), record.member_count());
            self.meta = Some(Box::new(ObjectMeta { checksums: checksums.clone(), group }));
        }
        if wants.record {
            let (facts, member_count) = (record.facts(), record.member_count());
            self.verified = Some(Box::new(VerifiedRecord { facts, member_count, checksums }));
        }
        SlotStep::Done(Ok(GetOutcome::Hit {
            tier: Tier::Ssd,
            bytes: self.want.end - self.want.start,
        }))
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

    /// Verify the staged chunks and copy them to the destination.
    fn take_staged(
        &mut self,
        checksums: &[Checksum],
    ) -> std::result::Result<(), pagelith_layouts::error::FormatError> {
        let staged =
            self.cold.as_mut().map(|cold| std::mem::take(&mut cold.staged)).unwrap_or_default();
        for (chunk, part) in staged {
            let end = chunk.end.min(self.length);
            let bytes = &part.bytes()[..(end - chunk.start) as usize];
            self.cold_mut().staged_bytes += chunk.end - chunk.start;
            self.pieces_left -= 1;
            let block = chunk.start / u64::from(BLOCK_BYTES);
            self.deliver(chunk.start..end, bytes, checksums, &mut Copier::new(StoreKind::Cached))
                .map_err(|()| pagelith_layouts::error::FormatError::Payload { block })?;
            if mutant::on(Mutant::StagingLeak) {
                std::mem::forget(part);
            }
        }
        Ok(())
    }

    fn damaged(&mut self, error: &pagelith_layouts::error::FormatError) -> SlotStep {
        let (segment, offset) = self.expected.map_or((0, 0), |e| (e.identity.segment.0, e.offset));
        tracing::warn!(key = %self.get.key, segment, offset, %error, "ssd record is damaged");
        scatter::zero(&mut self.get.destination.0);
        SlotStep::Done(Ok(GetOutcome::Miss(MissCause::Damaged)))
    }

    /// The result. It is moved out of the slot, which is many times as large.
    pub fn take_done(&mut self) -> GetDone {
        let outcome = self.outcome.take().unwrap_or(Ok(GetOutcome::Miss(MissCause::Late)));
        let destination = Destination(std::mem::take(&mut self.get.destination.0));
        GetDone { outcome, destination, length: self.length, meta: self.meta.take() }
    }
}

/// Every member of a record, and the SSD place by which the index has it.
pub(crate) fn record_members(record: &Record<'_>) -> Vec<(ObjectKey, SsdPlace)> {
    let facts = record.facts();
    let place = |payload| SsdPlace::at(facts.identity.segment, facts.offset, payload);
    record.members().map(|m| (m.key, place(m.payload_offset))).collect()
}
