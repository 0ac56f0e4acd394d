//! Delivers and verifies an object's bytes: copied out of a DRAM frame, copied from staging memory,
//! or read from SSD into the destination.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::{Copier, CopyMode};
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::Record;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::read::{HeaderCheck, Verifier, check_header};

use super::{
    BatchItem, Hit, HitSource, ItemOutcome, ObjectRead, PayloadRead, ProbedHeader, Progress,
    SsdObject, StagedRead, VerifiedRecord,
};
use crate::api::error::{Error, ErrorKind};
use crate::api::group_info::GroupInfo;
use crate::api::outcome::{MissCause, ObjectMeta};
use crate::memory::index::SsdLocation;
use crate::read::get::Header;
use crate::read::plan;
use crate::rpc::scatter;
use crate::state::frame_access::FrameReadGuard;
use crate::state::shared::Shared;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The next step for an object after a part of it was read.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// More pieces have to be read.
    Wait,
    /// The header is longer than the bytes that were read; its length.
    ReadLongerHeader(u64),
    /// The record belongs to another key with an equal fingerprint.
    TryNextLocation,
    /// The object has its outcome.
    Outcome(ItemOutcome),
}

/// Which data of an object on SSD is returned along with its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GetWants {
    /// Its [`ObjectMeta`].
    pub meta: bool,
    /// The record's contents, to keep the object in DRAM.
    pub record_contents: bool,
}

impl BatchItem {
    /// Copy the range `want` of a frame's member into the destination. With `verify`, each block is
    /// verified from the copied bytes, or in the arena if only a part of the block is requested.
    pub fn copy_out(
        &mut self,
        shared: &Shared,
        entered: &FrameReadGuard<'_>,
        member: usize,
        want: &Range<u64>,
        verify: bool,
        copier: &mut Copier,
    ) -> ItemOutcome {
        let length = entered.members[member].extent.bytes;
        let hit = |verified, bytes| {
            ItemOutcome::Hit(Hit {
                length,
                bytes,
                meta: None,
                source: HitSource::Memory { verified },
            })
        };
        if self.is_probe() {
            return hit(true, length);
        }
        let Some(destination) = self.destination.as_mut() else {
            let lent = "memory of the get is lent to a read";
            let detail = format!("a bug in Pagelith, please report it: {lent} key={}", self.key);
            return ItemOutcome::Failed(Error::new(ErrorKind::Internal, detail));
        };
        let parts = &mut destination.0;
        let stored = entered.bytes(&shared.memory, member);
        if !verify {
            let wanted = &stored[want.start as usize..want.end as usize];
            scatter::copy_in(parts, 0, wanted, copier.stores());
            return hit(false, wanted.len() as u64);
        }
        let checksums = &entered.members[member].checksums;
        for at in plan::split_at_blocks(want, length).into_iter().filter(|at| !at.is_empty()) {
            let bytes = &stored[at.start as usize..at.end as usize];
            let offset = at.start;
            if deliver(parts, want, at, bytes, checksums, copier).is_err() {
                copier.wait();
                scatter::zero(parts);
                tracing::error!(key = %self.key, offset, "dram block is damaged; test this machine's memory");
                return ItemOutcome::Miss(MissCause::Damaged);
            }
        }
        hit(true, want.end - want.start)
    }

    /// Verify the pieces that were read from SSD.
    pub fn verify(&mut self, header: &Header, wants: GetWants) -> NextStep {
        let BatchItem { key, destination, attempts, progress, .. } = self;
        let (Progress::Reading(read), Some(destination), Some(bytes)) =
            (progress, destination, &header.bytes)
        else {
            return NextStep::Wait;
        };
        if let Some(claimed) = bytes.longer_claimed_bytes() {
            return NextStep::ReadLongerHeader(claimed);
        }
        let parts = &mut destination.0;
        let verified = bytes.record().and_then(|record| {
            verify_read(key, read, record, parts, &mut attempts.staged_bytes, wants)
        });
        verified.unwrap_or_else(|error| {
            let (segment, offset) = (read.object.segment().0, read.object.expected.offset);
            tracing::warn!(%key, segment, offset, %error, "ssd record is damaged; check the drive");
            scatter::zero(parts);
            NextStep::Outcome(ItemOutcome::Miss(MissCause::Damaged))
        })
    }
}

/// Verify the header and the payload that was read; `staged_bytes` counts the staged chunks.
fn verify_read(
    key: &ObjectKey,
    read: &mut ObjectRead,
    record: Record<'_>,
    parts: &mut [Part],
    staged_bytes: &mut u64,
    wants: GetWants,
) -> Result<NextStep, FormatError> {
    let ObjectRead { object, payload, .. } = read;
    let (record, member) = match check_header(record, key, &object.expected) {
        HeaderCheck::Match(record, member) => (record, member),
        HeaderCheck::OtherKey => {
            scatter::zero(parts);
            return Ok(NextStep::TryNextLocation);
        }
        HeaderCheck::Damaged(error) => return Err(error),
    };
    let facts = record.facts();
    if facts.block_bytes != BLOCK_BYTES {
        return Err(FormatError::Field {
            structure: "record header",
            field: "block_bytes",
            value: facts.block_bytes.to_string(),
        });
    }
    let length = object.expected.length;
    let hit = |bytes, meta, source| {
        Ok(NextStep::Outcome(ItemOutcome::Hit(Hit { length, bytes, meta, source })))
    };
    let checksums = match payload {
        PayloadRead::Skipped => {
            let header = ProbedHeader {
                members: record_members(&record),
                kind: facts.group_kind,
                generation: object.expected.generation,
            };
            return hit(length, None, HitSource::Header(Box::new(header)));
        }
        PayloadRead::Direct { arrived: false } => return Ok(NextStep::Wait),
        PayloadRead::Direct { arrived: true } => {
            let checksums: Checksums = record.checksums(&member).collect();
            verify_direct(parts, &object.want, &checksums)?;
            checksums
        }
        PayloadRead::Staged(staged) => {
            let checksums: Checksums = record.checksums(&member).collect();
            take_staged(staged, parts, object, &checksums, staged_bytes)?;
            if staged.left > 0 && !mutant::on(Mutant::SkipAndComplete) {
                return Ok(NextStep::Wait);
            }
            checksums
        }
    };
    let meta = wants.meta.then(|| {
        let group = GroupInfo::of_record(&facts, record.member_count());
        Box::new(ObjectMeta { checksums: checksums.clone(), group })
    });
    let is_whole = object.want == (0..length);
    let record = (wants.record_contents && is_whole).then(|| {
        let (member_count, location) = (record.member_count(), object.ssd_location());
        Box::new(VerifiedRecord { facts, member_count, checksums, location })
    });
    let source = HitSource::Ssd { record, staged_bytes: *staged_bytes };
    hit(object.want.end - object.want.start, meta, source)
}

/// Verify the bytes that were read into the destination.
fn verify_direct(
    parts: &[Part],
    want: &Range<u64>,
    checksums: &[Checksum],
) -> Result<(), FormatError> {
    let (first, length) = (want.start / BLOCK, want.end - want.start);
    let mut verifier = Verifier::new(checksums.iter().copied(), first, length, BLOCK_BYTES);
    scatter::visit(parts, 0..length, |bytes| verifier.update(bytes))?;
    if verifier.is_complete() { Ok(()) } else { Err(FormatError::Payload { block: first }) }
}

/// Verify the staged chunks and copy them to the destination.
fn take_staged(
    staged: &mut StagedRead,
    parts: &mut [Part],
    object: &SsdObject,
    checksums: &[Checksum],
    staged_bytes: &mut u64,
) -> Result<(), FormatError> {
    for (chunk, part) in std::mem::take(&mut staged.arrived) {
        let end = chunk.end.min(object.expected.length);
        let bytes = &part.bytes()[..(end - chunk.start) as usize];
        *staged_bytes += chunk.end - chunk.start;
        staged.left -= 1;
        let (block, copier) = (chunk.start / BLOCK, &mut Copier::new(CopyMode::Cached));
        deliver(parts, &object.want, chunk.start..end, bytes, checksums, copier)
            .map_err(|Mismatch| FormatError::Payload { block })?;
        if mutant::on(Mutant::StagingLeak) {
            std::mem::forget(part);
        }
    }
    Ok(())
}

/// A block does not match its checksum.
struct Mismatch;

/// Copy the part of an object's bytes `at`, which are whole blocks, that is in the range `want`,
/// and verify them: during the copy, or after it if only a part of `bytes` is requested. The
/// destination then has bytes that are not verified; the caller zeroes it on a mismatch.
fn deliver(
    parts: &mut [Part],
    want: &Range<u64>,
    at: Range<u64>,
    bytes: &[u8],
    checksums: &[Checksum],
    copier: &mut Copier,
) -> Result<(), Mismatch> {
    let (lo, hi) = (want.start.max(at.start), want.end.min(at.end));
    let inside = (lo - at.start) as usize..(hi - at.start) as usize;
    let target = lo - want.start;
    let (first, last) = ((at.start / BLOCK) as usize, at.end.div_ceil(BLOCK) as usize);
    let sums = checksums.get(first..last).ok_or(Mismatch)?;
    if (lo, hi) == (at.start, at.end) {
        let (mut sums, mut right) = (sums.iter(), true);
        let compare = |sum| right &= sums.next() == Some(&sum);
        let copied = scatter::copy_blocks_in(parts, target, bytes, copier, compare);
        // Every checksum must have been compared.
        let right = copied && right && sums.next().is_none();
        return (right || mutant::on(Mutant::PayloadUnchecked)).then_some(()).ok_or(Mismatch);
    }
    let mut verifier = Verifier::new(sums.iter().copied(), 0, at.end - at.start, BLOCK_BYTES);
    scatter::copy_in(parts, target, &bytes[inside], copier.stores());
    verifier.update(bytes).map_err(|_| Mismatch)?;
    verifier.is_complete().then_some(()).ok_or(Mismatch)
}

/// Every member of a record, and the SSD location by which the index has it.
pub(crate) fn record_members(record: &Record<'_>) -> Vec<(ObjectKey, SsdLocation)> {
    let facts = record.facts();
    let location = |payload| SsdLocation::at(facts.identity.segment, facts.offset, payload);
    record.members().map(|m| (m.key, location(m.payload_offset))).collect()
}
