//! Recovery: finds the content of a store after a clean close or a crash. It loads the newest
//! intact checkpoint, if any, and replays every segment opened since, by its footer, or record by
//! record if it has no footer.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::fault::IoFault;
use pagelith_layouts::align::{ALIGN, align_up};
use pagelith_layouts::checkpoint::{
    self, CHUNK_BYTES, CheckpointEntry, CheckpointFacts, ChunkKind, SegmentMark,
};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder, Sequence};
use pagelith_layouts::learned::{self, LEARNED_BYTES, Learned};
use pagelith_layouts::manifest::Manifest;
use pagelith_layouts::record::Record;
use pagelith_layouts::scan;
use pagelith_layouts::segment::{self, SegmentIdentity};
use pagelith_mutants::{self as mutant, Mutant};

use super::footer::{Footer, read_footer};
use super::incarnations::{keep_incarnations, raise_incarnations};
pub use super::recovered::Recovered;
use super::recovered::UNREADABLE_SEQUENCES;
use super::scan_result::ScanResult;
use super::segments::{Segment, SegmentState, SegmentTable};
use super::serial_queue::{SerialQueue, no_memory};
use super::volume::Volume;

/// Most scans of a segment whose reads may have returned wrong data. A crash leaves the same signs,
/// so the number is bounded.
const SCANS_MAX: u32 = 4;

/// Receives the entries that recovery finds.
pub trait RecoverySink {
    /// An entry of the checkpoint whose segment still has the same incarnation. It is older than
    /// every log entry with a sequence of the checkpoint's or later.
    fn checkpoint_entry(&mut self, facts: &CheckpointFacts, entry: &CheckpointEntry);
    /// The checkpoint is not intact: drop its entries.
    fn forget_checkpoint(&mut self);
    /// A segment, and with it its tombstones, cannot be read: drop every object found so far.
    fn forget_all(&mut self);
    /// A member of a record in the log, tombstones included.
    fn log_entry(&mut self, segment: SegmentId, entry: &FooterEntry);
}

/// Recover the content of a store. Segments without a footer are sealed, so that afterwards every
/// segment is sealed or free. The incarnation of segments without any record is raised.
/// `manifest_stale` means that a copy of the manifest could not be updated; in this case neither
/// copy is written.
pub fn recover(
    volume: &Volume,
    (manifest, manifest_stale): (&mut Manifest, bool),
    serial: &mut SerialQueue,
    use_checkpoint: bool,
    sink: &mut dyn RecoverySink,
) -> Result<Recovered, IoFault> {
    let count = volume.geometry.segment_count;
    let mut found = Recovered {
        segments: SegmentTable::new(count),
        next_order: SegmentOrder(1),
        next_sequence: Sequence(1),
        checkpoint: None,
        clean: false,
        refused_checkpoints: 0,
        learned: None,
        last_serial: 0,
        footers: 0,
        scanned: 0,
        torn: 0,
        unreadable: 0,
        bytes_written: 0,
        full: None,
    };
    let marks = newest_checkpoint(volume, manifest, serial, use_checkpoint, sink, &mut found)?;
    let mut replay = Vec::new();
    for id in (0..count).map(SegmentId) {
        let Some((incarnation, order)) = manifest.segment(id) else { continue };
        let s = found.segments.get_mut(id);
        (s.incarnation, s.order) = (incarnation, order);
        found.next_order = found.next_order.max(SegmentOrder(order.0 + 1));
        match marks.get(id.0 as usize) {
            _ if incarnation == Incarnation(0) => {}
            Some(mark) if mark.incarnation == incarnation.0 => {
                // Nothing that counts was appended under this incarnation, so the segment is free.
                let empty = mark.data_end == 0;
                (s.min_sequence, s.data_end) = (Sequence(mark.min_sequence), mark.data_end);
                let state = if empty { SegmentState::Free } else { SegmentState::Sealed };
                found.segments.set_state(id, state);
            }
            _ => replay.push((order, id)),
        }
    }
    // In log order, so that the sink sees the facts about a key from older to newer.
    replay.sort();
    let mut unused = Vec::new();
    for (_, id) in replay {
        replay_segment(volume, serial, id, sink, &mut found)?;
        if found.segments.get(id).state() == SegmentState::Free {
            unused.push(id);
        }
    }
    found.clean &= found.footers + found.scanned + found.unreadable == 0;
    match manifest_stale {
        true => keep_incarnations(&unused, &mut found),
        false => raise_incarnations(volume, manifest, serial, &unused, &mut found)?,
    }
    Ok(found)
}

/// Load the newest intact checkpoint; returns its segment marks.
fn newest_checkpoint(
    volume: &Volume,
    manifest: &Manifest,
    serial: &mut SerialQueue,
    use_it: bool,
    sink: &mut dyn RecoverySink,
    found: &mut Recovered,
) -> Result<Vec<SegmentMark>, IoFault> {
    let mut heads = Vec::new();
    for file in volume.checkpoints {
        // The serial of an unfinished checkpoint must not be reused. Its torn header can become
        // intact when the next header is torn over it, and would then name chunks of another
        // checkpoint. Its chunks have the serial too.
        let chunk = serial.read(file, checkpoint::chunk_offset(0), CHUNK_BYTES).ok();
        let begun = chunk.and_then(|bytes| checkpoint::chunk_serial(&bytes, volume.store));
        found.last_serial = found.last_serial.max(begun.unwrap_or(0));
        let Ok(block) = serial.read(file, 0, ALIGN as usize) else { continue };
        if let Ok(facts) = checkpoint::decode_head(&block, volume.store) {
            found.last_serial = found.last_serial.max(facts.serial);
            // Even if the checkpoint is not used: sequences must not be assigned twice.
            found.next_sequence = found.next_sequence.max(facts.next_sequence);
            heads.push((facts.serial, file, facts));
        }
    }
    heads.sort_by_key(|(serial, ..)| std::cmp::Reverse(*serial));
    for (number, file, facts) in heads.into_iter().filter(|_| use_it) {
        match load_checkpoint(volume, manifest, serial, file, &facts, sink) {
            Ok(marks) => {
                (found.checkpoint, found.clean) = (Some(number), facts.clean);
                found.learned = load_learned(volume, serial, file, &facts);
                // The parity of the serial selects the file: the next checkpoint must go into the
                // other one.
                found.last_serial += (found.last_serial ^ number) & 1;
                // The header may not be durable yet, and the next checkpoint overwrites the older
                // one.
                serial.sync(file)?;
                return Ok(marks);
            }
            Err(CheckpointRefusal::WrittenOver) => {
                tracing::info!(
                    serial = number,
                    "checkpoint is partly overwritten by a newer one, it is not used"
                );
                sink.forget_checkpoint();
            }
            Err(CheckpointRefusal::Damaged(reason)) => {
                tracing::warn!(serial = number, reason, "checkpoint is incomplete, it is not used");
                found.refused_checkpoints += 1;
                sink.forget_checkpoint();
            }
        }
    }
    Ok(Vec::new())
}

/// Reason why a checkpoint is not used.
enum CheckpointRefusal {
    /// A newer checkpoint was being written to its file.
    WrittenOver,
    Damaged(String),
}

impl CheckpointRefusal {
    fn damaged(error: impl std::fmt::Display) -> CheckpointRefusal {
        CheckpointRefusal::Damaged(error.to_string())
    }
}

fn load_checkpoint(
    volume: &Volume,
    manifest: &Manifest,
    serial: &mut SerialQueue,
    file: pagelith_io::disk::FileId,
    facts: &CheckpointFacts,
    sink: &mut dyn RecoverySink,
) -> Result<Vec<SegmentMark>, CheckpointRefusal> {
    let room = chunks_max(volume);
    if facts.chunk_count > room || facts.segment_count != volume.geometry.segment_count {
        let (chunks, segments) = (facts.chunk_count, facts.segment_count);
        return Err(CheckpointRefusal::Damaged(format!(
            "chunk_count={chunks} segment_count={segments}"
        )));
    }
    let mut buf = AlignedBuf::new(CHUNK_BYTES).map_err(CheckpointRefusal::damaged)?;
    let mut marks: Vec<SegmentMark> = Vec::new();
    let mut entries = 0;
    for index in 0..facts.chunk_count {
        buf = serial
            .read_into(file, checkpoint::chunk_offset(index), buf)
            .map_err(CheckpointRefusal::damaged)?;
        if checkpoint::chunk_serial(&buf, facts.store).is_some_and(|other| other > facts.serial) {
            return Err(CheckpointRefusal::WrittenOver);
        }
        let (kind, items) =
            checkpoint::decode_chunk(&buf, facts, index).map_err(CheckpointRefusal::damaged)?;
        match kind {
            ChunkKind::Segments => {
                marks.extend(
                    items
                        .chunks_exact(SegmentMark::BYTES)
                        .map(bytemuck::pod_read_unaligned::<SegmentMark>),
                );
            }
            ChunkKind::Entries => {
                for item in items.chunks_exact(CheckpointEntry::BYTES) {
                    let entry: CheckpointEntry = bytemuck::pod_read_unaligned(item);
                    entries += 1;
                    let now = manifest
                        .segment(SegmentId(entry.segment))
                        .map(|(incarnation, _)| incarnation.0);
                    let then = marks.get(entry.segment as usize).map(|m| m.incarnation);
                    if entry.link().is_some()
                        || (now.is_some()
                            && (now == then || mutant::on(Mutant::IncarnationUnchecked)))
                    {
                        sink.checkpoint_entry(facts, &entry);
                    }
                }
            }
        }
    }
    if entries != facts.entry_count || marks.len() != facts.segment_count as usize {
        let (expected, marks) = (facts.entry_count, marks.len());
        let reason = format!("entry_count={expected} found={entries} marks={marks}");
        return Err(CheckpointRefusal::Damaged(reason));
    }
    // Segments opened at or after `replay_from` are replayed, so their marks are not used.
    for mark in &mut marks {
        if mark.order >= facts.replay_from.0 {
            mark.incarnation = 0;
        }
    }
    Ok(marks)
}

/// Most chunks of a checkpoint.
fn chunks_max(volume: &Volume) -> u64 {
    (volume.geometry.checkpoint_bytes() - checkpoint::chunk_offset(0)) / CHUNK_BYTES as u64
}

/// What admission had learned, if it was written with the checkpoint and is whole. Nothing depends
/// on it, so a fault is no error.
fn load_learned(
    volume: &Volume,
    serial: &mut SerialQueue,
    file: pagelith_io::disk::FileId,
    facts: &CheckpointFacts,
) -> Option<Learned> {
    let last = chunks_max(volume).checked_sub(1).filter(|last| facts.chunk_count <= *last)?;
    let bytes = serial.read(file, checkpoint::chunk_offset(last), LEARNED_BYTES).ok()?;
    learned::decode(&bytes, facts.store, facts.serial).ok()
}

fn replay_segment(
    volume: &Volume,
    serial: &mut SerialQueue,
    id: SegmentId,
    sink: &mut dyn RecoverySink,
    found: &mut Recovered,
) -> Result<(), IoFault> {
    let &Segment { incarnation, order, .. } = found.segments.get(id);
    let identity = SegmentIdentity { store: volume.store, segment: id, incarnation };
    // Checked twice: the incarnation of an unused segment is raised, and one read that returned
    // wrong sectors must not cause that.
    if is_unused(volume, serial, identity)? && is_unused(volume, serial, identity)? {
        return Ok(());
    }
    let footer = match read_footer(volume, serial, identity) {
        Ok(footer) => footer.ok(),
        Err(fault) => {
            fail_if_late(serial, fault)?;
            None
        }
    };
    let (facts, entries) = match footer {
        Some(footer) => {
            found.footers += 1;
            footer
        }
        None => match scan_segment(volume, serial, identity, order, found) {
            Ok(Some(scanned)) => {
                match seal(volume, serial, &scanned) {
                    Ok(bytes) => found.bytes_written += bytes,
                    // The records are usable without a footer; the next open scans the segment
                    // again.
                    Err(fault) => {
                        fail_if_late(serial, fault.clone())?;
                        tracing::warn!(segment = id.0, %fault, "segment cannot be sealed");
                    }
                }
                scanned
            }
            Ok(None) => return Ok(()),
            Err(fault) => {
                fail_if_late(serial, fault.clone())?;
                // Its tombstones are lost, and the records that they shadow precede them in the
                // log.
                sink.forget_all();
                return unreadable(found, id, volume.geometry.segment_bytes, &fault);
            }
        },
    };
    for entry in &entries {
        sink.log_entry(id, entry);
    }
    found.segments.set_state(id, SegmentState::Sealed);
    let s = found.segments.get_mut(id);
    (s.min_sequence, s.data_end) = (facts.min_sequence, facts.data_end);
    found.next_sequence = found.next_sequence.max(Sequence(facts.max_sequence.0 + 1));
    Ok(())
}

/// Whether a segment was only prepared as a spare one. The header is the first thing written to a
/// segment: if it is empty or of another incarnation, nothing was synced under this incarnation.
/// The exception is a device that acknowledged the header and lost it; then a footer or a record
/// proves the use. A damaged header proves nothing, and footer and records decide.
fn is_unused(
    volume: &Volume,
    serial: &mut SerialQueue,
    identity: SegmentIdentity,
) -> Result<bool, IoFault> {
    let (file, start) = volume.file_offset(identity.segment, 0);
    let block = match serial.read(file, start, ALIGN as usize) {
        Ok(block) => block,
        Err(fault) => return fail_if_late(serial, fault).map(|()| false),
    };
    let headless = match segment::decode_head(&block, volume.store, identity.segment) {
        Ok((in_head, ..)) => in_head != identity.incarnation,
        Err(error) => matches!(error, FormatError::Empty { .. }),
    };
    Ok(headless && !was_used(volume, serial, identity))
}

/// Whether a segment without a header of its incarnation has a footer or a first record. Other
/// content is not searched for, because most segments without a header were only prepared as spare
/// ones.
fn was_used(volume: &Volume, serial: &mut SerialQueue, identity: SegmentIdentity) -> bool {
    let footer = read_footer(volume, serial, identity).is_ok_and(|f| f.is_ok());
    let used = footer || record_begins(volume, serial, identity, ALIGN);
    if used {
        tracing::warn!(
            segment = identity.segment.0,
            "segment has no header, it is scanned for records"
        );
    }
    used
}

/// An error if an operation timed out: a device that does not respond says nothing about the store,
/// so the store is not opened. After a failed read, only the data at that place is lost.
fn fail_if_late(serial: &SerialQueue, fault: IoFault) -> Result<(), IoFault> {
    if serial.is_late() { Err(fault) } else { Ok(()) }
}

fn unreadable(
    found: &mut Recovered,
    id: SegmentId,
    segment_bytes: u64,
    fault: &IoFault,
) -> Result<(), IoFault> {
    tracing::warn!(segment = id.0, %fault, "segment cannot be read, its records are dropped");
    found.unreadable += 1;
    found.segments.set_state(id, SegmentState::Sealed);
    let s = found.segments.get_mut(id);
    // Its content is unknown. All tombstones are kept, and none of its sequences is assigned again:
    // if a later open can read it, its records must be older than those put from now on.
    s.min_sequence = Sequence(0);
    // Assume that it is full. A checkpoint must not mark it free while an open without that
    // checkpoint would replay older records.
    s.data_end = segment_bytes;
    found.next_sequence = Sequence(found.next_sequence.0.saturating_add(UNREADABLE_SEQUENCES));
    Ok(())
}

/// Scan a segment record by record; returns its footer, or `None` if no record is valid.
fn scan_segment(
    volume: &Volume,
    serial: &mut SerialQueue,
    identity: SegmentIdentity,
    order: SegmentOrder,
    found: &mut Recovered,
) -> Result<Option<Footer>, IoFault> {
    found.scanned += 1;
    let segment_bytes = volume.geometry.segment_bytes;
    let (file, start) = volume.file_offset(identity.segment, 0);
    let len = scan::SCRATCH_BYTES.min(segment_bytes as usize);
    let mut scratch = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
    let mut seen = ScanResult::default();
    // A device may return bytes of another place, or old bytes, and the right ones later. Missed
    // tombstones would bring removed objects back, and missed records, though flushed, would be
    // left out of the footer. So a doubtful segment is scanned again. The records of all scans are
    // used, since each record names its own place.
    for _ in 0..SCANS_MAX {
        (seen.torn, seen.misplaced) = (0, false);
        scan::scan(
            identity,
            segment_bytes,
            &mut scratch,
            &mut |offset, out: &mut [u8]| {
                out.copy_from_slice(&serial.read(file, start + offset, out.len())?);
                Ok(())
            },
            &mut |item| seen.add(item),
        )?;
        if !seen.is_doubtful() && !record_begins(volume, serial, identity, seen.end()) {
            break;
        }
    }
    found.torn += seen.torn;
    if seen.is_empty() {
        return Ok(None);
    }
    let (facts, entries) = seen.footer(identity, order);
    Ok(Some((facts, entries)))
}

/// Whether a record of this incarnation begins at an offset.
fn record_begins(
    volume: &Volume,
    serial: &mut SerialQueue,
    identity: SegmentIdentity,
    offset: u64,
) -> bool {
    if offset + ALIGN > volume.geometry.segment_bytes {
        return false;
    }
    let (file, at) = volume.file_offset(identity.segment, offset);
    let begins = |bytes: &AlignedBuf| {
        Record::decode(bytes).is_ok_and(|record| record.expect(identity, offset).is_ok())
    };
    let Ok(block) = serial.read(file, at, ALIGN as usize) else { return false };
    // The sector may also have a header of an earlier incarnation: with objects of equal length,
    // records of both incarnations end at the same offsets.
    match Record::claimed_header_bytes(&block)
        .filter(|need| offset + need <= volume.geometry.segment_bytes)
    {
        Some(need) if need > ALIGN => {
            serial.read(file, at, align_up(need) as usize).is_ok_and(|bytes| begins(&bytes))
        }
        _ => begins(&block),
    }
}

/// Write the footer of a scanned segment; returns its length in bytes.
fn seal(
    volume: &Volume,
    serial: &mut SerialQueue,
    (facts, entries): &Footer,
) -> Result<u64, IoFault> {
    let (file, start) = volume.file_offset(facts.identity.segment, 0);
    // The scan read the records, but they may not be durable; a footer is written only after a
    // sync.
    serial.sync(file)?;
    let bytes = footer::encode(facts, entries);
    serial.write(file, start + volume.geometry.segment_bytes - bytes.len() as u64, &bytes)?;
    serial.sync(file)?;
    Ok(bytes.len() as u64)
}
