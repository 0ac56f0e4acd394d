//! Finds the records of a segment without its footer. Every 4096-byte block is tried as the start
//! of a record; the scan does not stop at the first bad one. Writes to an open segment complete in
//! any order, so a torn record says nothing about the next one.

use crate::align::{ALIGN, align_down};
use crate::checksum::{BLOCK_BYTES_MAX, checksum};
use crate::error::FormatError;
use crate::record::{HEADER_BYTES_MAX, Record, RecordKind};
use crate::segment::SegmentIdentity;

/// The result at one offset of a segment.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives on the stack for the length of one call")]
pub enum ScanItem<'a> {
    /// An intact header that names this place, and the result of verifying its payload.
    Record {
        /// The header.
        record: Record<'a>,
        /// The number of the first member with a payload block that does not match, and the error.
        payload: Result<(), (usize, FormatError)>,
    },
    /// A block that begins like a header but is invalid, or names another place or incarnation.
    Unrecognized {
        /// Byte offset in the segment.
        offset: u64,
        /// Why it was refused.
        error: FormatError,
    },
}

/// Bytes of scratch memory that [`scan`] needs: twice the longest header or block, so that most are
/// read once.
pub const SCRATCH_BYTES: usize = 2 * HEADER_BYTES_MAX as usize;
const _: () = assert!(SCRATCH_BYTES >= BLOCK_BYTES_MAX as usize);

/// Reads from a byte offset of the segment into a buffer.
pub type ReadAt<'a, E> = dyn FnMut(u64, &mut [u8]) -> Result<(), E> + 'a;

/// A buffered window of a segment, refilled by `read`.
struct Window<'a, 'r, E> {
    scratch: &'a mut [u8],
    at: u64,
    len: usize,
    end: u64,
    read: &'a mut ReadAt<'r, E>,
}

impl<E> Window<'_, '_, E> {
    /// `need` bytes from `offset`, fewer only at the end of the segment; reads them if the window
    /// lacks them.
    fn get(&mut self, offset: u64, need: usize) -> Result<&[u8], E> {
        let need = need.min((self.end - offset) as usize).min(self.scratch.len());
        let inside = offset >= self.at && offset + need as u64 <= self.at + self.len as u64;
        if !inside {
            let from = align_down(offset);
            let len = self.scratch.len().min((self.end - from) as usize);
            // Invalidate the window first: a failed read leaves the scratch memory unspecified.
            self.len = 0;
            (self.read)(from, &mut self.scratch[..len])?;
            (self.at, self.len) = (from, len);
        }
        let start = (offset - self.at) as usize;
        Ok(&self.scratch[start..start + need])
    }
}

/// Scan a segment from the end of its header to byte `end` and report every record and every
/// damaged one to `found`. `read` is called with aligned offsets and lengths that are multiples of
/// 4096.
///
/// After a record with a valid payload the scan continues at the end of the record, so that payload
/// bytes that look like a record are not reported. Otherwise it continues at the next block.
///
/// # Panics
/// If `scratch` is shorter than both [`SCRATCH_BYTES`] and the segment: a record that does not fit
/// would be lost silently.
pub fn scan<E>(
    identity: SegmentIdentity,
    end: u64,
    scratch: &mut [u8],
    read: &mut ReadAt<'_, E>,
    found: &mut dyn FnMut(ScanItem<'_>),
) -> Result<(), E> {
    let end = align_down(end);
    let room = align_down(scratch.len() as u64);
    assert!(room >= end.min(SCRATCH_BYTES as u64), "scan needs more scratch have={room} end={end}");
    let scratch = &mut scratch[..room as usize];
    let mut window = Window { scratch, at: 0, len: 0, end, read };
    let mut offset = ALIGN;
    while offset + ALIGN <= end {
        let block = window.get(offset, ALIGN as usize)?;
        let header = match claim(block, identity) {
            Ok(None) => {
                offset += ALIGN;
                continue;
            }
            Ok(Some(header_bytes)) => Ok(window.get(offset, header_bytes as usize)?.to_vec()),
            Err(error) => Err(error),
        };
        let checked = header
            .as_ref()
            .map_err(FormatError::clone)
            .and_then(|h| placed(h, identity, offset, end));
        match checked {
            Ok(record) => {
                let payload = verify_payload(&record, offset, &mut window)?;
                let step = if payload.is_ok() { record.record_bytes() } else { ALIGN };
                found(ScanItem::Record { record, payload });
                offset += step;
            }
            Err(error) => {
                found(ScanItem::Unrecognized { offset, error });
                offset += ALIGN;
            }
        }
    }
    Ok(())
}

/// The claimed length of the header at the start of `block`, `None` if no header begins there.
fn claim(block: &[u8], identity: SegmentIdentity) -> Result<Option<u64>, FormatError> {
    let Some(header_bytes) = Record::claimed_header_bytes(block) else {
        return match Record::decode(block) {
            Err(FormatError::Empty { .. } | FormatError::Magic { .. }) | Ok(_) => Ok(None),
            Err(damaged) => Err(damaged),
        };
    };
    // Clients choose payload bytes. A forged header can claim 1 MiB and cost a megabyte of hashing,
    // so a header is hashed only if it has the store's random identifier.
    let store = Record::claimed_store(block).unwrap_or(identity.store);
    FormatError::same("record header", "store", store, identity.store)?;
    Ok(Some(header_bytes))
}

/// Decode `header` and check that it names `offset` and that the record ends inside the segment.
fn placed(
    header: &[u8],
    identity: SegmentIdentity,
    offset: u64,
    end: u64,
) -> Result<Record<'_>, FormatError> {
    let record = Record::decode(header)?;
    record.expect(identity, offset)?;
    if offset + record.record_bytes() > end {
        return Err(FormatError::field("record header", "record_bytes", record.record_bytes()));
    }
    Ok(record)
}

fn verify_payload<E>(
    record: &Record<'_>,
    offset: u64,
    window: &mut Window<'_, '_, E>,
) -> Result<Result<(), (usize, FormatError)>, E> {
    let facts = record.facts();
    if facts.kind == RecordKind::Tombstones {
        return Ok(Ok(()));
    }
    for (i, member) in record.members().enumerate() {
        let mut at = offset + member.payload_offset;
        let mut left = member.length;
        for (block, sum) in record.checksums(&member).enumerate() {
            let len = left.min(facts.block_bytes.into());
            // Never short: blocks have at most BLOCK_BYTES_MAX bytes and the record ends inside the
            // segment.
            let bytes = window.get(at, len as usize)?;
            if bytes.len() as u64 != len || checksum(bytes) != sum {
                return Ok(Err((i, FormatError::Payload { block: block as u64 })));
            }
            at += len;
            left -= len;
        }
    }
    Ok(Ok(()))
}
