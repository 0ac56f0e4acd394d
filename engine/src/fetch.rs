//! Carrying out planned reads: memory for each piece, the operation, and what came back.

use pagelith_io::buffer::Part;
use pagelith_io::disk::{Completion, Op};
use pagelith_io::fault::IoFault;

use crate::outcome::Ticket;
use crate::plan::{Fetch, Piece};
use crate::session::SessionIo;

/// The caller's memory of one object while it is away in an operation.
#[derive(Debug, Default)]
pub(crate) struct Ragged {
    /// The end of the last part that is too short to be read into.
    end: Option<Part>,
    /// Whether that part has a front that was read into.
    has_front: bool,
}

/// A read under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub fetch: Fetch,
    /// Number of parts that each piece took.
    counts: Vec<usize>,
    ragged: Vec<Ragged>,
}

/// What a read brought for one piece.
#[derive(Debug)]
pub(crate) enum Landed {
    Header { header: usize, part: Part },
    Direct { slot: usize, parts: Vec<Part> },
    Staged { slot: usize, round: u32, chunk: std::ops::Range<u64>, part: Part },
}

/// Why a read could not be submitted now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The queue is full.
    Queue,
    /// Staging memory is lent out.
    Staging,
    /// Scratch is lent out.
    Scratch,
}

/// Submit a fetch. `take` hands over the caller's memory of a slot. On `Err` nothing was taken.
pub(crate) fn submit(
    io: &mut SessionIo,
    ticket: Ticket,
    fetch: Fetch,
    mut take: impl FnMut(usize) -> Vec<Part>,
) -> Result<(u64, Flight), (Held, Fetch)> {
    let Some((queue, facts)) = io.queue.as_mut().zip(io.facts.as_ref()) else {
        return Err((Held::Queue, fetch));
    };
    if queue.room() == 0 {
        return Err((Held::Queue, fetch));
    }
    let align = facts.memory_align.max(facts.offset_align);
    let Some(volume) = io.shared.volume.clone() else { return Err((Held::Queue, fetch)) };
    // All memory of the store's own first: without it nothing of the caller's is touched.
    let mut own = Vec::new();
    for piece in &fetch.pieces {
        let (part, held) = match piece {
            Piece::Header { bytes, .. } => (io.scratch.try_part(*bytes as usize), Held::Scratch),
            Piece::Staged { chunk, .. } => {
                (io.shared.staging.try_part((chunk.end - chunk.start) as usize), Held::Staging)
            }
            // A ragged end always fits into one alignment unit.
            Piece::Direct { .. } => {
                (io.scratch.try_part(pagelith_layouts::align::ALIGN as usize), Held::Scratch)
            }
        };
        match part {
            Some(part) => own.push(Some(part)),
            None => return Err((held, fetch)),
        }
    }
    let (mut parts, mut counts, mut ragged) = (Vec::new(), Vec::new(), Vec::new());
    for (piece, own) in fetch.pieces.iter().zip(own) {
        let before = parts.len();
        let mut rag = Ragged::default();
        match piece {
            Piece::Header { bytes, .. } => parts.extend(own.map(|p| p.split(*bytes as usize).0)),
            Piece::Staged { chunk, .. } => {
                parts.extend(own.map(|p| p.split((chunk.end - chunk.start) as usize).0));
            }
            Piece::Direct { slot, bytes, .. } => {
                let mut theirs = take(*slot);
                let have: u64 = theirs.iter().map(|p| p.len() as u64).sum();
                if let Some(last) = theirs.pop() {
                    let (whole, end) = {
                        let keep = last.len() / align * align;
                        last.split(keep)
                    };
                    let short = bytes - (have - end.len() as u64);
                    rag.has_front = !whole.is_empty();
                    theirs.extend(Some(whole).filter(|w| !w.is_empty()));
                    parts.append(&mut theirs);
                    if short > 0 {
                        parts.extend(own.map(|p| p.split(short as usize).0));
                        rag.end = Some(end);
                    }
                }
            }
        }
        counts.push(parts.len() - before);
        ragged.push(rag);
    }
    let (file, offset) = volume.place(fetch.segment, fetch.offset);
    let token = io.token(ticket);
    let op = Op::Read { file, offset, parts };
    match io.queue.as_mut().map(|q| q.submit(token, op)) {
        Some(Ok(())) => Ok((token, Flight { fetch, counts, ragged })),
        // Room was checked above, and this thread is the queue's only user.
        _ => unreachable!("a queue with room took no operation"),
    }
}

/// Take a read apart again: the caller's memory back in one piece a part, everything by piece.
pub(crate) fn land(flight: Flight, completion: Completion) -> (Vec<Landed>, Result<(), IoFault>, Fetch) {
    let Flight { fetch, counts, ragged } = flight;
    let mut parts = completion.op.into_parts().into_iter();
    let mut landed = Vec::new();
    for ((piece, count), rag) in fetch.pieces.iter().zip(counts).zip(ragged) {
        let mut mine: Vec<Part> = parts.by_ref().take(count).collect();
        match piece {
            Piece::Header { header, .. } => {
                landed.extend(mine.pop().map(|part| Landed::Header { header: *header, part }));
            }
            Piece::Staged { slot, round, chunk } => {
                let (slot, round, chunk) = (*slot, *round, chunk.clone());
                landed.extend(mine.pop().map(|part| Landed::Staged { slot, round, chunk, part }));
            }
            Piece::Direct { slot, .. } => {
                if let Some(mut end) = rag.end {
                    if let (Some(tail), Some(target)) = (mine.pop(), end.bytes_mut()) {
                        target.copy_from_slice(&tail.bytes()[..target.len()]);
                    }
                    // Without a front the end is a part of its own, perhaps the only one.
                    let joined = match mine.pop_if(|_| rag.has_front) {
                        Some(front) => front.join(end),
                        None => Ok(end),
                    };
                    match joined {
                        Ok(part) => mine.push(part),
                        Err((front, end)) => mine.extend([front, end]),
                    }
                }
                landed.push(Landed::Direct { slot: *slot, parts: mine });
            }
        }
    }
    (landed, completion.result, fetch)
}
