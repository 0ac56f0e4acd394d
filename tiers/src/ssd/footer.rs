//! Reading of a segment's footer from the device.

use pagelith_io::fault::IoFault;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::segment::SegmentIdentity;

use super::segment_walk::HeaderWalk;
use super::serial_queue::SerialQueue;
use super::volume::Volume;

/// A segment's footer, as returned by [`footer::decode`].
pub(super) type Footer = (FooterFacts, Vec<FooterEntry>);

/// The entries of a segment's footer; without a valid one, of its record headers before `data_end`.
/// Fails if the device does.
pub fn footer_entries(
    volume: &Volume,
    serial: &mut SerialQueue,
    identity: SegmentIdentity,
    data_end: u64,
) -> Result<Vec<FooterEntry>, IoFault> {
    if let Ok((_, entries)) = read_footer(volume, serial, identity)? {
        return Ok(entries);
    }
    let end = if data_end > 0 { data_end } else { volume.geometry.segment_bytes };
    let (mut walk, mut entries) = (HeaderWalk::new(identity, end), Vec::new());
    while let Some((at, bytes)) = walk.next_read() {
        let (file, offset) = volume.file_offset(identity.segment, at);
        let read = serial.read(file, offset, bytes as usize)?;
        walk.feed(&read, &mut |record| entries.extend(footer::entries_of(record)));
    }
    Ok(entries)
}

/// Read a segment's footer. The outer error is a device fault, the inner one means that there is no
/// valid footer.
pub(super) fn read_footer(
    volume: &Volume,
    serial: &mut SerialQueue,
    identity: SegmentIdentity,
) -> Result<Result<Footer, FormatError>, IoFault> {
    let segment_bytes = volume.geometry.segment_bytes;
    // Enough for the footer of a segment with 64 KiB objects at the default sizes; longer footers
    // take two reads.
    let first = (64 * 1024).min(segment_bytes) as usize;
    let tail_at = segment_bytes - first as u64;
    let (file, at) = volume.file_offset(identity.segment, tail_at);
    let tail = serial.read(file, at, first)?;
    let Some(bytes) = footer::claimed_bytes(&tail, segment_bytes) else {
        return Ok(footer::decode(&tail, identity, segment_bytes));
    };
    if bytes <= first as u64 {
        return Ok(footer::decode(&tail[first - bytes as usize..], identity, segment_bytes));
    }
    let (file, at) = volume.file_offset(identity.segment, segment_bytes - bytes);
    let whole = serial.read(file, at, bytes as usize)?;
    Ok(footer::decode(&whole, identity, segment_bytes))
}
