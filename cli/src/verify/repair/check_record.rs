//! Check of a record that an intact footer lists. It is read only at the offset in the footer, so
//! that no payload of a client can be taken for a record.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::checksum;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{Record, RecordKind};

use crate::on_disk::OnDisk;
use crate::on_disk::segment::Segment;

/// State of a listed record.
pub(super) enum RecordState {
    Intact,
    /// Damaged; the footer has its keys.
    Damaged,
    /// An intact header that differs from the footer.
    Different,
}

/// Check the record of these footer entries. An error if a file cannot be read.
pub(super) fn check_record(
    disk: &OnDisk,
    superblock: &Superblock,
    segment: &Segment,
    entries: &[FooterEntry],
) -> anyhow::Result<RecordState> {
    let first = &entries[0];
    let (offset, bytes) =
        (u64::from(first.record_sector) * ALIGN, u64::from(first.record_sectors) * ALIGN);
    let read =
        |at: u64, buf: &mut [u8]| disk.read_segment(segment.identity.segment, superblock, at, buf);
    let mut header = vec![0; ALIGN as usize];
    read(offset, &mut header)?;
    let Some(claimed) = Record::claimed_header_bytes(&header).filter(|claimed| *claimed <= bytes)
    else {
        return Ok(RecordState::Damaged);
    };
    header.resize(claimed as usize, 0);
    read(offset, &mut header)?;
    let Ok(record) = Record::decode(&header) else { return Ok(RecordState::Damaged) };
    if record.expect(segment.identity, offset).is_err() {
        // A misdirected write: the record of this offset is lost.
        return Ok(RecordState::Damaged);
    }
    if !footer::entries_of(&record).eq(entries.iter().copied()) {
        return Ok(if is_replacement(&record, entries) {
            RecordState::Damaged
        } else {
            RecordState::Different
        });
    }
    let mut block = Vec::new();
    for member in record.members() {
        let (mut at, mut left) = (offset + member.payload_offset, member.length);
        for sum in record.checksums(&member) {
            block.resize(left.min(record.facts().block_bytes.into()) as usize, 0);
            read(at, &mut block)?;
            if checksum(&block) != sum {
                return Ok(RecordState::Damaged);
            }
            (at, left) = (at + block.len() as u64, left - block.len() as u64);
        }
    }
    Ok(RecordState::Intact)
}

/// Whether a record is the replacement of a damaged one, by a repair that ended before it wrote the
/// footer.
fn is_replacement(record: &Record<'_>, entries: &[FooterEntry]) -> bool {
    let facts = record.facts();
    let keys = record.members().map(|m| m.key);
    facts.kind == RecordKind::Tombstones
        && entries
            .iter()
            .all(|e| e.sequence == facts.sequence.0 + 1 && e.kind == RecordKind::Data as u8)
        && keys.eq(entries.iter().map(|e| e.key))
}
