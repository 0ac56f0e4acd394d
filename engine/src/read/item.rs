//! One object of a batch of gets, and the states that it passes through:
//!
//! | from | to | when |
//! | --- | --- | --- |
//! | `Lookup` | `OnSsd` | the index has it on SSD, and its segment was entered |
//! | `OnSsd` | `Reading` | its reads are planned |
//! | `Reading` | `OnSsd` | the plan is discarded, to be made anew |
//! | `OnSsd`, `Reading` | `Lookup` | the record belongs to another key, or the lookup was invalid |
//! | any | `Done` | it has its outcome |
//! | `Done` | `Lookup` | its outcome is taken out; the object is not used again |
//!
//! Invariants:
//! - An object `OnSsd` or `Reading` is a reader of its segment. The caller that takes it out of
//!   these states leaves the segment.
//! - An object `Reading` is a user of its header, and, if staged, an object of its sub-batch
//!   without an outcome. [`ObjectRead::claims`] names both for the caller that ends the read.
//! - In any state, a read may have the caller's memory: then `destination` is `None`.

mod verify;

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_layouts::align::is_aligned;
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::{Generation, SegmentId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, RecordFacts};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::ssd::read::Expected;

pub(crate) use self::verify::{GetWants, NextStep, record_members};
use crate::api::error::{Error, Result};
use crate::api::outcome::{CompletedGet, GetOutcome, MissCause, ObjectMeta, Tier};
use crate::api::request::{Destination, Get};
use crate::memory::index::SsdLocation;
use crate::read::plan;
use crate::read::plan::ReadTarget;
use crate::state::reserve::ArenaReservation;
use crate::state::shared::Shared;

/// One object of a batch of gets.
#[derive(Debug)]
pub(crate) struct BatchItem {
    pub key: ObjectKey,
    pub purpose: Purpose,
    /// The memory for its bytes; `None` while a read has it.
    pub destination: Option<Destination>,
    /// Pages between the batch's first page and this object's page.
    pub depth_offset: u32,
    /// The key's fingerprint in the namespace's generation at the last lookup.
    pub fingerprint: u128,
    /// It was found in DRAM, and had no place on SSD.
    pub only_in_memory: bool,
    /// It is an attached object.
    pub attached: bool,
    /// It continues an object, and counts with its first part.
    pub is_continued: bool,
    pub attempts: Attempts,
    progress: Progress,
}

/// The purpose of a get.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// To deliver the object's bytes to the caller: all, or a range.
    Deliver(Option<Range<u64>>),
    /// To find out from the record's header whether the object is present, visible or not. No bytes
    /// are delivered.
    Probe,
    /// To keep the object in the arena memory that it is read into. `None` once a frame has it.
    Keep(Option<ArenaReservation>),
}

/// Counts over all plans for an object.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Number of the current plan, from 0: raised when a plan is discarded. Pieces of an earlier
    /// plan have a lower one.
    pub plan_number: u32,
    /// Reads that failed on the device.
    pub failed: u32,
    /// A read of its bytes was submitted.
    pub submitted: bool,
    pub staged_bytes: u64,
    /// SSD locations whose records belong to other keys.
    pub tried: Vec<SsdLocation>,
}

/// The state of an object.
#[derive(Debug)]
enum Progress {
    /// To be looked up in the index.
    Lookup,
    /// Located on SSD; no read is planned.
    OnSsd(SsdObject),
    /// Its reads are planned, in flight or in part complete.
    Reading(ObjectRead),
    Done(ItemOutcome),
}

/// An object on SSD, as the index has it, and the requested range.
#[derive(Clone, Debug)]
pub(crate) struct SsdObject {
    pub expected: Expected,
    /// Empty for a probe.
    pub want: Range<u64>,
}

/// The planned reads of an object.
#[derive(Debug)]
pub(crate) struct ObjectRead {
    pub object: SsdObject,
    /// Number of its header in the batch.
    pub header: usize,
    pub payload: PayloadRead,
    /// A read of this plan failed while another one had the caller's memory, or was to take it. The
    /// retry follows that read.
    pub retry_pending: bool,
}

/// How the payload is read.
#[derive(Debug)]
pub(crate) enum PayloadRead {
    /// Not at all: a probe needs only the header.
    Skipped,
    /// Into the caller's memory, by one read.
    Direct { arrived: bool },
    /// Into staging memory, chunk by chunk.
    Staged(StagedRead),
}

/// The chunks of a staged read.
#[derive(Debug)]
pub(crate) struct StagedRead {
    /// Its sub-batch of the staging budget, from 1 on.
    pub sub_batch: usize,
    /// Chunks that were not delivered yet.
    pub left: usize,
    /// Chunks that were read and wait for the header.
    pub arrived: Vec<(Range<u64>, Part)>,
}

/// The claims of a planned read on its batch: one user of a header, one object of a sub-batch.
pub(crate) struct ReadClaims {
    pub header: usize,
    pub sub_batch: Option<usize>,
}

/// The outcome of an object, and the data that the batch needs with it.
#[derive(Debug)]
pub(crate) enum ItemOutcome {
    Hit(Hit),
    Miss(MissCause),
    Failed(Error),
}

/// A hit.
#[derive(Debug)]
pub(crate) struct Hit {
    /// Length of the whole object.
    pub length: u64,
    /// Delivered bytes; for a probe the object's length.
    pub bytes: u64,
    /// Metadata, if it was requested.
    pub meta: Option<Box<ObjectMeta>>,
    pub source: HitSource,
}

/// The source of a hit.
#[derive(Debug)]
pub(crate) enum HitSource {
    /// Copied out of DRAM, or found there by a probe.
    Memory { verified: bool },
    /// Read from SSD. Has the record's contents if the object was read whole and may be kept in
    /// DRAM.
    Ssd { record: Option<Box<VerifiedRecord>>, staged_bytes: u64 },
    /// Found on SSD by a probe.
    Header(Box<ProbedHeader>),
}

/// The contents of a verified header, kept for a promotion.
#[derive(Debug)]
pub(crate) struct VerifiedRecord {
    pub facts: RecordFacts,
    pub member_count: usize,
    pub checksums: Checksums,
    /// The object's location.
    pub location: SsdLocation,
}

/// The contents of the header that a probe read.
#[derive(Debug)]
pub(crate) struct ProbedHeader {
    /// Every object of the record, and its location.
    pub members: Vec<(ObjectKey, SsdLocation)>,
    pub kind: GroupKind,
    /// Generation of the namespace.
    pub generation: Generation,
}

impl BatchItem {
    pub fn new(get: Get) -> BatchItem {
        let Get { key, range, destination } = get;
        BatchItem::of(key, Purpose::Deliver(range), destination)
    }

    /// A probe for the object's presence; the hit's `bytes` is its length.
    pub fn probe(key: ObjectKey) -> BatchItem {
        BatchItem::of(key, Purpose::Probe, Destination(Vec::new()))
    }

    /// An object that is kept in the arena memory that it is read into.
    pub fn prefetch(key: ObjectKey, reservation: ArenaReservation, part: Part) -> BatchItem {
        BatchItem::of(key, Purpose::Keep(Some(reservation)), Destination([part].into()))
    }

    fn of(key: ObjectKey, purpose: Purpose, destination: Destination) -> BatchItem {
        BatchItem {
            key,
            purpose,
            destination: Some(destination),
            depth_offset: 0,
            fingerprint: 0,
            only_in_memory: false,
            attached: false,
            is_continued: false,
            attempts: Attempts::default(),
            progress: Progress::Lookup,
        }
    }

    pub fn is_probe(&self) -> bool {
        matches!(self.purpose, Purpose::Probe)
    }

    /// Whether the object is kept in the arena memory that it is read into.
    pub fn keeps_in_arena(&self) -> bool {
        matches!(self.purpose, Purpose::Keep(_))
    }

    pub fn is_done(&self) -> bool {
        self.outcome().is_some()
    }

    pub fn outcome(&self) -> Option<&ItemOutcome> {
        if let Progress::Done(outcome) = &self.progress { Some(outcome) } else { None }
    }

    /// The object on SSD, while its segment is entered.
    pub fn on_ssd(&self) -> Option<&SsdObject> {
        match &self.progress {
            Progress::OnSsd(object) | Progress::Reading(ObjectRead { object, .. }) => Some(object),
            Progress::Lookup | Progress::Done(_) => None,
        }
    }

    pub fn reading(&self) -> Option<&ObjectRead> {
        if let Progress::Reading(read) = &self.progress { Some(read) } else { None }
    }

    pub fn reading_mut(&mut self) -> Option<&mut ObjectRead> {
        if let Progress::Reading(read) = &mut self.progress { Some(read) } else { None }
    }

    /// Whether a piece of this plan is still needed.
    pub fn needs_plan(&self, plan_number: u32) -> bool {
        !self.is_done() && self.attempts.plan_number == plan_number
    }

    /// `Lookup` to `OnSsd`. The caller has entered the object's segment.
    pub fn set_ssd_object(&mut self, object: SsdObject) {
        debug_assert!(matches!(self.progress, Progress::Lookup));
        self.progress = Progress::OnSsd(object);
    }

    /// `OnSsd` to `Reading`.
    pub fn begin_read(&mut self, header: usize, payload: PayloadRead) {
        debug_assert!(matches!(self.progress, Progress::OnSsd(_)));
        if let Some(object) = self.on_ssd().cloned() {
            let read = ObjectRead { object, header, payload, retry_pending: false };
            self.progress = Progress::Reading(read);
        }
    }

    /// `Reading` to `OnSsd`: discard the plan and the pieces that were read.
    pub fn discard_read(&mut self) -> Option<ReadClaims> {
        let read = self.reading()?;
        let (object, claims) = (read.object.clone(), read.claims());
        self.attempts.plan_number += 1;
        self.progress = Progress::OnSsd(object);
        Some(claims)
    }

    /// `OnSsd` or `Reading` to `Lookup`. The caller leaves the segment.
    pub fn take_off_ssd(&mut self) -> Option<SsdObject> {
        let object = self.on_ssd()?.clone();
        self.progress = Progress::Lookup;
        Some(object)
    }

    /// Any state to `Done`. Returns the segment that the caller leaves, and the claims that it
    /// releases.
    pub fn set_outcome(&mut self, outcome: ItemOutcome) -> (Option<SegmentId>, Option<ReadClaims>) {
        debug_assert!(!self.is_done());
        let segment = self.on_ssd().map(SsdObject::segment);
        let claims = self.reading().map(ObjectRead::claims);
        self.progress = Progress::Done(outcome);
        (segment, claims)
    }

    /// The requested range of an object of this length; empty for a probe. An error if the range or
    /// the destination does not fit the length.
    pub fn requested_range(&self, length: u64) -> Result<Range<u64>> {
        let want = match &self.purpose {
            Purpose::Probe => return Ok(0..0),
            Purpose::Deliver(range) => range.clone().unwrap_or(0..length),
            Purpose::Keep(_) => 0..length,
        };
        let key = &self.key;
        if want.start >= want.end || want.end > length {
            let Range { start, end } = want;
            let detail = format!(
                "range is empty or beyond the object key={key} range={start}..{end} length={length}"
            );
            return Err(Error::invalid(detail));
        }
        let (wanted, have) = (want.end - want.start, self.destination_bytes());
        if have != wanted {
            let relation = if have < wanted { "shorter" } else { "longer" };
            let detail = format!(
                "destination is {relation} than the object key={key} destination={have} \
                 object={wanted}"
            );
            return Err(Error::invalid(detail));
        }
        Ok(want)
    }

    /// Length of the destination in bytes; 0 while a read has it.
    pub fn destination_bytes(&self) -> u64 {
        self.destination.as_ref().map_or(0, Destination::len)
    }

    /// The record's location, if its header may come from the header cache. Probes and later
    /// attempts read the header from the device.
    pub fn header_location(&self) -> Option<(SegmentIdentity, u64)> {
        let object =
            self.on_ssd().filter(|_| !self.is_probe() && self.attempts.plan_number == 0)?;
        Some((object.expected.identity, object.expected.offset))
    }

    /// The record's header, if the header cache has it.
    pub fn find_cached_header(&self, shared: &Shared) -> Option<Box<[u8]>> {
        self.header_location()
            .and_then(|(identity, offset)| shared.ssd.headers.get(identity, offset))
    }

    /// The object's part of the read plan; `None` unless it is on SSD.
    pub fn target(
        &self,
        item: usize,
        align: usize,
        parts_max: usize,
        staged_only: bool,
    ) -> Option<ReadTarget> {
        let SsdObject { expected, want } = self.on_ssd()?;
        let (parts, probe) = (&self.destination.as_ref()?.0, self.is_probe());
        let direct = !staged_only
            && plan::is_whole_blocks(want, expected.length)
            && are_parts_aligned(parts, align);
        let unaligned_tail = !is_aligned(want.end - want.start);
        let parts = parts.len() + usize::from(unaligned_tail);
        Some(ReadTarget {
            item,
            plan_number: self.attempts.plan_number,
            segment: expected.identity.segment,
            record: expected.offset,
            payload_offset: expected.payload_offset,
            chunks: (!probe)
                .then(|| plan::widen_to_blocks(want, expected.length))
                .into_iter()
                .collect(),
            direct_parts: Some(parts).filter(|p| probe || (direct && p + 1 < parts_max)),
            unaligned_tail,
            sub_batch: 0,
            header_cached: false,
        })
    }

    /// Take the caller's memory for a read.
    pub fn take_parts(&mut self) -> Vec<Part> {
        self.attempts.submitted = true;
        self.destination.take().map(|destination| destination.0).unwrap_or_default()
    }

    /// Return the caller's memory from a direct read of this plan. Bytes of an earlier
    /// plan are not taken for those of the current one.
    pub fn return_parts(&mut self, plan_number: u32, parts: Vec<Part>, succeeded: bool) {
        self.destination = Some(Destination(parts));
        let is_current = self.attempts.plan_number == plan_number;
        if let Some(ObjectRead { payload: PayloadRead::Direct { arrived }, .. }) =
            self.reading_mut().filter(|_| is_current)
        {
            *arrived = succeeded;
        }
    }

    /// Keep a staged chunk until it is verified.
    pub fn add_staged(&mut self, chunk: Range<u64>, part: Part) {
        if let Some(ObjectRead { payload: PayloadRead::Staged(staged), .. }) = self.reading_mut() {
            staged.arrived.push((chunk, part));
        }
    }

    /// `Done` to `Lookup`.
    pub fn take_outcome(&mut self) -> Option<ItemOutcome> {
        match std::mem::replace(&mut self.progress, Progress::Lookup) {
            Progress::Done(outcome) => Some(outcome),
            Progress::Lookup | Progress::OnSsd(_) | Progress::Reading(_) => None,
        }
    }

    /// The result. It is moved out of the item, which is many times as large.
    pub fn take_done(&mut self) -> CompletedGet {
        let destination = self.destination.take().unwrap_or(Destination(Vec::new()));
        let outcome = self.take_outcome().unwrap_or(ItemOutcome::Miss(MissCause::Late));
        let (outcome, length, meta) = match outcome {
            ItemOutcome::Hit(hit) => (Ok(hit.outcome()), hit.length, hit.meta),
            ItemOutcome::Miss(cause) => (Ok(GetOutcome::Miss(cause)), 0, None),
            ItemOutcome::Failed(error) => (Err(error), 0, None),
        };
        CompletedGet::of(outcome, destination, length, meta)
    }
}

/// Whether the disk can read directly into these parts; only the end of the last one may be
/// unaligned.
fn are_parts_aligned(parts: &[Part], align: usize) -> bool {
    let inner = parts.len().saturating_sub(1);
    parts.iter().all(|p| p.addr() % align == 0)
        && parts[..inner].iter().all(|p| p.len() % align == 0)
}

impl SsdObject {
    pub fn segment(&self) -> SegmentId {
        self.expected.identity.segment
    }

    /// The location at which the index has the object.
    pub fn ssd_location(&self) -> SsdLocation {
        SsdLocation::at(self.segment(), self.expected.offset, self.expected.payload_offset)
    }
}

impl ObjectRead {
    pub fn claims(&self) -> ReadClaims {
        let sub_batch = match &self.payload {
            PayloadRead::Staged(staged) => Some(staged.sub_batch),
            PayloadRead::Skipped | PayloadRead::Direct { .. } => None,
        };
        ReadClaims { header: self.header, sub_batch }
    }
}

impl Hit {
    pub fn outcome(&self) -> GetOutcome {
        GetOutcome::Hit { tier: self.tier(), bytes: self.bytes }
    }

    pub fn tier(&self) -> Tier {
        match self.source {
            HitSource::Memory { .. } => Tier::Memory,
            HitSource::Ssd { .. } | HitSource::Header(_) => Tier::Ssd,
        }
    }

    /// The record's contents, if the object may be kept in DRAM.
    pub fn record(&self) -> Option<&VerifiedRecord> {
        match &self.source {
            HitSource::Ssd { record, .. } => record.as_deref(),
            HitSource::Memory { .. } | HitSource::Header(_) => None,
        }
    }
}
