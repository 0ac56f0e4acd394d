//! What a store holds after any end: a checkpoint, if there is a whole one, and then every segment opened
//! since, by footer, or record by record where there is none.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::fault::IoFault;
use pagelith_layouts::align::{ALIGN, align_up};
use pagelith_layouts::checkpoint::{
    self, CHUNK_BYTES, CheckpointEntry, CheckpointFacts, ChunkKind, SegmentMark,
};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder, Sequence};
use pagelith_layouts::manifest::Manifest;
use pagelith_layouts::record::Record;
use pagelith_layouts::scan;
use pagelith_layouts::segment::{self, SegmentIdentity};
use pagelith_mutants::{self as mutant, Mutant};

use super::scanned::Scanned;
use super::segments::{Segment, SegmentState, SegmentTable};
use super::serial::{Serial, no_memory};
use super::unused::{disown, keep_incarnations};
use super::volume::{Full, Volume};

/// More sequences than were given since any segment was opened.
pub(super) const UNREADABLE_SEQUENCES: u64 = 1 << 40;

/// How often a segment is looked at that may not be what the device brought: what a crash left looks like it too, so there
/// is an end to it.
const LOOKS: u32 = 4;

/// Who learns what was found.
pub trait Sink {
    /// An object of the checkpoint whose segment still has the same incarnation. It counts as put before
    /// everything the log says with a sequence of the checkpoint's or later.
    fn checkpoint_entry(&mut self, facts: &CheckpointFacts, entry: &CheckpointEntry);
    /// The checkpoint was not whole after all: forget what came from it.
    fn forget_checkpoint(&mut self);
    /// A segment cannot be read, nor the tombstones in it: forget every object found so far.
    fn forget_all(&mut self);
    /// A member of a record found in the log, tombstones included.
    fn log_entry(&mut self, segment: SegmentId, entry: &FooterEntry);
}

/// What was found.
#[derive(Debug)]
pub struct Recovered {
    /// Every segment, sealed or free.
    pub segments: SegmentTable,
    /// First order not yet given.
    pub next_order: SegmentOrder,
    /// First sequence not yet given.
    pub next_sequence: Sequence,
    /// Number of the checkpoint used.
    pub checkpoint: Option<u64>,
    /// The store was closed: the checkpoint has all of it.
    pub clean: bool,
    /// Checkpoints that say they are whole and are not, other than by being written over: only damage at rest
    /// makes one.
    pub refused_checkpoints: u32,
    /// Largest number of any checkpoint seen.
    pub last_serial: u64,
    /// Footers read.
    pub footers: u32,
    /// Segments without a footer, read whole.
    pub scanned: u32,
    /// Records that were begun and not whole: torn by the crash, no flush covered them.
    pub torn: u64,
    /// Segments that the device would not read; what they held is forgotten.
    pub unreadable: u32,
    /// Bytes written to seal what was open.
    pub bytes_written: u64,
    /// A full file system kept the manifest from being written.
    pub full: Option<Full>,
}

/// Find out what the store holds. Segments without a footer are sealed on the way, so that afterwards all
/// are sealed or free, and the incarnation of those in which nothing was found is raised. `behind` says that a copy of the
/// manifest could not be brought up to date: neither is written then.
pub fn recover(
    volume: &Volume,
    (manifest, behind): (&mut Manifest, bool),
    serial: &mut Serial,
    use_checkpoint: bool,
    sink: &mut dyn Sink,
) -> Result<Recovered, IoFault> {
    let count = volume.geometry.segment_count;
    let mut found = Recovered {
        segments: SegmentTable::new(count),
        next_order: SegmentOrder(1),
        next_sequence: Sequence(1),
        checkpoint: None,
        clean: false,
        refused_checkpoints: 0,
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
                // Nothing was ever appended under this incarnation that counts, so it is free.
                let empty = mark.data_end == 0;
                (s.min_sequence, s.data_end) = (Sequence(mark.min_sequence), mark.data_end);
                let state = if empty { SegmentState::Free } else { SegmentState::Sealed };
                found.segments.set_state(id, state);
            }
            _ => replay.push((order, id)),
        }
    }
    // In log order, so that a later fact about a key meets the earlier ones already known.
    replay.sort();
    let mut unused = Vec::new();
    for (_, id) in replay {
        replay_segment(volume, serial, id, sink, &mut found)?;
        if found.segments.get(id).state() == SegmentState::Free {
            unused.push(id);
        }
    }
    found.clean &= found.footers + found.scanned + found.unreadable == 0;
    match behind {
        true => keep_incarnations(&unused, &mut found),
        false => disown(volume, manifest, serial, &unused, &mut found)?,
    }
    Ok(found)
}

/// Load the newest whole checkpoint; returns the marks of the segments that it speaks for.
fn newest_checkpoint(
    volume: &Volume,
    manifest: &Manifest,
    serial: &mut Serial,
    use_it: bool,
    sink: &mut dyn Sink,
    found: &mut Recovered,
) -> Result<Vec<SegmentMark>, IoFault> {
    let mut heads = Vec::new();
    for file in volume.checkpoints {
        // The chunks of one that was not finished have its number, too, and it must not be given again: a head
        // that was torn can become whole when the next one is torn over it, and would then vouch for chunks
        // that are not its own.
        let chunk = serial.read(file, checkpoint::chunk_offset(0), CHUNK_BYTES).ok();
        let begun = chunk.and_then(|bytes| checkpoint::chunk_serial(&bytes, volume.store));
        found.last_serial = found.last_serial.max(begun.unwrap_or(0));
        let Ok(block) = serial.read(file, 0, ALIGN as usize) else { continue };
        if let Ok(facts) = checkpoint::decode_head(&block, volume.store) {
            found.last_serial = found.last_serial.max(facts.serial);
            // Also of one that is not used: what was given must not be given again.
            found.next_sequence = found.next_sequence.max(facts.next_sequence);
            heads.push((facts.serial, file, facts));
        }
    }
    heads.sort_by_key(|(serial, ..)| std::cmp::Reverse(*serial));
    for (number, file, facts) in heads.into_iter().filter(|_| use_it) {
        match load_checkpoint(volume, manifest, serial, file, &facts, sink) {
            Ok(marks) => {
                (found.checkpoint, found.clean) = (Some(number), facts.clean);
                // The next one, by its number, goes into the other file.
                found.last_serial += (found.last_serial ^ number) & 1;
                // Its head may not be durable yet, and the next checkpoint is written over the older one.
                serial.sync(file)?;
                return Ok(marks);
            }
            Err(Refusal::WrittenOver) => {
                tracing::info!(serial = number, "checkpoint was being replaced, going without it");
                sink.forget_checkpoint();
            }
            Err(Refusal::Damaged(reason)) => {
                tracing::warn!(serial = number, reason, "checkpoint is not whole, going without it");
                found.refused_checkpoints += 1;
                sink.forget_checkpoint();
            }
        }
    }
    Ok(Vec::new())
}

/// Why a checkpoint is not used.
enum Refusal {
    /// A later one was on its way into its file.
    WrittenOver,
    Damaged(String),
}

impl Refusal {
    fn damaged(error: impl std::fmt::Display) -> Refusal {
        Refusal::Damaged(error.to_string())
    }
}

fn load_checkpoint(
    volume: &Volume,
    manifest: &Manifest,
    serial: &mut Serial,
    file: pagelith_io::disk::FileId,
    facts: &CheckpointFacts,
    sink: &mut dyn Sink,
) -> Result<Vec<SegmentMark>, Refusal> {
    let room = (volume.geometry.checkpoint_bytes() - checkpoint::chunk_offset(0)) / CHUNK_BYTES as u64;
    if facts.chunk_count > room || facts.segment_count != volume.geometry.segment_count {
        let (chunks, segments) = (facts.chunk_count, facts.segment_count);
        return Err(Refusal::Damaged(format!("chunk_count={chunks} segment_count={segments}")));
    }
    let mut buf = AlignedBuf::new(CHUNK_BYTES).map_err(Refusal::damaged)?;
    let mut marks: Vec<SegmentMark> = Vec::new();
    let mut entries = 0;
    for index in 0..facts.chunk_count {
        buf = serial.read_into(file, checkpoint::chunk_offset(index), buf).map_err(Refusal::damaged)?;
        if checkpoint::chunk_serial(&buf, facts.store).is_some_and(|other| other > facts.serial) {
            return Err(Refusal::WrittenOver);
        }
        let (kind, items) = checkpoint::decode_chunk(&buf, facts, index).map_err(Refusal::damaged)?;
        match kind {
            ChunkKind::Segments => {
                marks.extend(
                    items.chunks_exact(SegmentMark::BYTES).map(bytemuck::pod_read_unaligned::<SegmentMark>),
                );
            }
            ChunkKind::Entries => {
                for item in items.chunks_exact(CheckpointEntry::BYTES) {
                    let entry: CheckpointEntry = bytemuck::pod_read_unaligned(item);
                    entries += 1;
                    let now =
                        manifest.segment(SegmentId(entry.segment)).map(|(incarnation, _)| incarnation.0);
                    let then = marks.get(entry.segment as usize).map(|m| m.incarnation);
                    if entry.link().is_some()
                        || (now.is_some() && (now == then || mutant::on(Mutant::IncarnationUnchecked)))
                    {
                        sink.checkpoint_entry(facts, &entry);
                    }
                }
            }
        }
    }
    if entries != facts.entry_count || marks.len() != facts.segment_count as usize {
        let (said, marks) = (facts.entry_count, marks.len());
        return Err(Refusal::Damaged(format!("entry_count={said} found={entries} marks={marks}")));
    }
    // Segments opened at or after the log position say for themselves what they hold.
    for mark in &mut marks {
        if mark.order >= facts.replay_from.0 {
            mark.incarnation = 0;
        }
    }
    Ok(marks)
}

fn replay_segment(
    volume: &Volume,
    serial: &mut Serial,
    id: SegmentId,
    sink: &mut dyn Sink,
    found: &mut Recovered,
) -> Result<(), IoFault> {
    let &Segment { incarnation, order, .. } = found.segments.get(id);
    let identity = SegmentIdentity { store: volume.store, segment: id, incarnation };
    // Twice: of a segment that is not used the incarnation is raised, and what a device brought instead of its blocks
    // must not decide that.
    if is_unused(volume, serial, identity)? && is_unused(volume, serial, identity)? {
        return Ok(());
    }
    let footer = match read_footer(volume, serial, identity) {
        Ok(footer) => footer.ok(),
        Err(fault) => {
            on_time(serial, fault)?;
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
                    // What was read is there, footer or not; the next open reads the segment again.
                    Err(fault) => {
                        on_time(serial, fault.clone())?;
                        tracing::warn!(segment = id.0, %fault, "segment cannot be sealed");
                    }
                }
                scanned
            }
            Ok(None) => return Ok(()),
            Err(fault) => {
                on_time(serial, fault.clone())?;
                // Its tombstones are lost with it, and what they shadow lies before it in the log.
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

/// Whether a segment was only kept ready. The head goes first into a segment: while it is another life's, or nothing,
/// nothing was ever synced under this incarnation. Unless the device acked it and lost it: then a footer or a record
/// says so. A ruined head says nothing; footer and records do.
fn is_unused(volume: &Volume, serial: &mut Serial, identity: SegmentIdentity) -> Result<bool, IoFault> {
    let (file, start) = volume.place(identity.segment, 0);
    let block = match serial.read(file, start, ALIGN as usize) {
        Ok(block) => block,
        Err(fault) => return on_time(serial, fault).map(|()| false),
    };
    let headless = match segment::decode_head(&block, volume.store, identity.segment) {
        Ok((in_head, ..)) => in_head != identity.incarnation,
        Err(error) => matches!(error, FormatError::Empty { .. }),
    };
    Ok(headless && !was_used(volume, serial, identity))
}

/// Whether something was written to a segment that has no head of its life: a footer, or its first record. What else
/// might lie in it is not looked for: most segments without a head were only kept ready.
fn was_used(volume: &Volume, serial: &mut Serial, identity: SegmentIdentity) -> bool {
    let footer = read_footer(volume, serial, identity).is_ok_and(|f| f.is_ok());
    let (file, at) = volume.place(identity.segment, ALIGN);
    let first =
        |bytes: &AlignedBuf| Record::decode(bytes).is_ok_and(|record| record.expect(identity, ALIGN).is_ok());
    let used = footer || serial.read(file, at, ALIGN as usize).is_ok_and(|bytes| first(&bytes));
    if used {
        tracing::warn!(segment = identity.segment.0, "segment has no head, what is in it is looked for");
    }
    used
}

/// A device that does not answer at all says nothing about the store: it is not opened. One that fails a read
/// has lost what lies there.
fn on_time(serial: &Serial, fault: IoFault) -> Result<(), IoFault> {
    if serial.is_late() { Err(fault) } else { Ok(()) }
}

fn unreadable(
    found: &mut Recovered,
    id: SegmentId,
    segment_bytes: u64,
    fault: &IoFault,
) -> Result<(), IoFault> {
    tracing::warn!(segment = id.0, %fault, "segment cannot be read, what it held is forgotten");
    found.unreadable += 1;
    found.segments.set_state(id, SegmentState::Sealed);
    let s = found.segments.get_mut(id);
    // What is in it is unknown, so every tombstone is kept, and no sequence in it is given again: should it be
    // readable at a later open, what it holds is older than what comes now.
    s.min_sequence = Sequence(0);
    // All of it, for all that is known: a checkpoint must not say that it is free, as long as an open without one would
    // replay what is older.
    s.data_end = segment_bytes;
    found.next_sequence = Sequence(found.next_sequence.0.saturating_add(UNREADABLE_SEQUENCES));
    Ok(())
}

/// A segment's footer, as [`footer::decode`] returns it.
pub type Footer = (FooterFacts, Vec<FooterEntry>);

/// Read a segment's footer. The outer error is the device's, the inner one says why it is no footer.
pub fn read_footer(
    volume: &Volume,
    serial: &mut Serial,
    identity: SegmentIdentity,
) -> Result<Result<Footer, FormatError>, IoFault> {
    let segment_bytes = volume.geometry.segment_bytes;
    // Enough for the footer of a segment of 64 KiB objects at the default sizes; longer ones take two reads.
    let first = (64 * 1024).min(segment_bytes) as usize;
    let tail_at = segment_bytes - first as u64;
    let (file, at) = volume.place(identity.segment, tail_at);
    let tail = serial.read(file, at, first)?;
    let Some(bytes) = footer::claimed_bytes(&tail, segment_bytes) else {
        return Ok(footer::decode(&tail, identity, segment_bytes));
    };
    if bytes <= first as u64 {
        return Ok(footer::decode(&tail[first - bytes as usize..], identity, segment_bytes));
    }
    let (file, at) = volume.place(identity.segment, segment_bytes - bytes);
    let whole = serial.read(file, at, bytes as usize)?;
    Ok(footer::decode(&whole, identity, segment_bytes))
}

/// Read a segment record by record: what a footer of it would say. `None` if nothing in it verified.
fn scan_segment(
    volume: &Volume,
    serial: &mut Serial,
    identity: SegmentIdentity,
    order: SegmentOrder,
    found: &mut Recovered,
) -> Result<Option<Footer>, IoFault> {
    found.scanned += 1;
    let segment_bytes = volume.geometry.segment_bytes;
    let (file, start) = volume.place(identity.segment, 0);
    let len = scan::SCRATCH_BYTES.min(segment_bytes as usize);
    let mut scratch = AlignedBuf::new(len).map_err(|e| no_memory(len, &e))?;
    let mut seen = Scanned::default();
    // A device may bring the bytes of another place, or older ones, and the right ones after: what was removed would come
    // back with the tombstones that were not seen, and what a flush covered would be sealed out. So what looks like that
    // is looked at again, and all looks count, since every record says for itself where it belongs.
    for _ in 0..LOOKS {
        (seen.torn, seen.misplaced) = (0, false);
        scan::scan(
            identity,
            segment_bytes,
            &mut scratch,
            &mut |offset, out: &mut [u8]| {
                out.copy_from_slice(&serial.read(file, start + offset, out.len())?);
                Ok(())
            },
            &mut |what| seen.take(what),
        )?;
        if !seen.is_doubtful() && !goes_on(volume, serial, identity, seen.end()) {
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

/// Whether a record begins where a scan found the end. A footer ends the segment for ever, so the end is looked at twice.
fn goes_on(volume: &Volume, serial: &mut Serial, identity: SegmentIdentity, end: u64) -> bool {
    if end + ALIGN > volume.geometry.segment_bytes {
        return false;
    }
    let (file, at) = volume.place(identity.segment, end);
    let begins =
        |bytes: &AlignedBuf| Record::decode(bytes).is_ok_and(|record| record.expect(identity, end).is_ok());
    let Ok(block) = serial.read(file, at, ALIGN as usize) else { return false };
    // Also of an earlier life, whose records end where this one's do if the objects are of one length.
    match Record::claimed_header_bytes(&block).filter(|need| end + need <= volume.geometry.segment_bytes) {
        Some(need) if need > ALIGN => {
            serial.read(file, at, align_up(need) as usize).is_ok_and(|bytes| begins(&bytes))
        }
        _ => begins(&block),
    }
}

/// Write the footer of what a scan found; returns its length in bytes.
fn seal(volume: &Volume, serial: &mut Serial, (facts, entries): &Footer) -> Result<u64, IoFault> {
    let (file, start) = volume.place(facts.identity.segment, 0);
    // The records were read, which does not make them durable: the footer waits for that here too.
    serial.sync(file)?;
    let bytes = footer::encode(facts, entries);
    serial.write(file, start + volume.geometry.segment_bytes - bytes.len() as u64, &bytes)?;
    serial.sync(file)?;
    Ok(bytes.len() as u64)
}
