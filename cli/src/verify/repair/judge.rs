//! Whether a record that a whole footer lists is what was written there: read where the footer says, and nowhere
//! else, so that no bytes of a client can be taken for it.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::checksum;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::manifest::Superblock;
use pagelith_layouts::record::{Record, RecordKind};

use crate::on_disk::OnDisk;
use crate::on_disk::segment::Segment;

/// How a listed record was found.
pub(super) enum Judged {
    /// As it was written.
    Whole,
    /// Damaged; the footer says what it held.
    Damaged,
    /// A whole header, and not the one that the footer lists.
    Another,
}

/// Judge the record that these entries list. An error is a file that cannot be read.
pub(super) fn judge(
    disk: &OnDisk,
    superblock: &Superblock,
    segment: &Segment,
    entries: &[FooterEntry],
) -> anyhow::Result<Judged> {
    let first = &entries[0];
    let (offset, bytes) = (u64::from(first.record_block) * ALIGN, u64::from(first.record_blocks) * ALIGN);
    let read = |at: u64, buf: &mut [u8]| disk.read_segment(segment.identity.segment, superblock, at, buf);
    let mut header = vec![0; ALIGN as usize];
    read(offset, &mut header)?;
    let Some(claimed) = Record::claimed_header_bytes(&header).filter(|claimed| *claimed <= bytes) else {
        return Ok(Judged::Damaged);
    };
    header.resize(claimed as usize, 0);
    read(offset, &mut header)?;
    let Ok(record) = Record::decode(&header) else { return Ok(Judged::Damaged) };
    if record.expect(segment.identity, offset).is_err() {
        // A misdirected write: this place's own record is lost.
        return Ok(Judged::Damaged);
    }
    if !footer::entries_of(&record).eq(entries.iter().copied()) {
        return Ok(if is_replacement(&record, entries) { Judged::Damaged } else { Judged::Another });
    }
    let mut block = Vec::new();
    for member in record.members() {
        let (mut at, mut left) = (offset + member.payload_offset, member.length);
        for sum in record.checksums(&member) {
            block.resize(left.min(record.facts().block_bytes.into()) as usize, 0);
            read(at, &mut block)?;
            if checksum(&block) != sum {
                return Ok(Judged::Damaged);
            }
            (at, left) = (at + block.len() as u64, left - block.len() as u64);
        }
    }
    Ok(Judged::Whole)
}

/// Whether a record is what a repair puts in the place of a damaged one: it ended before it wrote the footer.
fn is_replacement(record: &Record<'_>, entries: &[FooterEntry]) -> bool {
    let facts = record.facts();
    let keys = record.members().map(|m| m.key);
    facts.kind == RecordKind::Tombstones
        && entries.iter().all(|e| e.sequence == facts.sequence.0 + 1 && e.kind == RecordKind::Data as u8)
        && keys.eq(entries.iter().map(|e| e.key))
}
