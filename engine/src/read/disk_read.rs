//! Executes planned reads: the memory for each piece, the submission, and the completion.

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::disk::{Completion, Op};
use pagelith_io::fault::IoFault;
use pagelith_layouts::align::ALIGN;

use crate::api::outcome::Ticket;
use crate::read::plan::{Piece, PlannedRead};
use crate::read::tail::UnalignedTail;
use crate::state::scratch::Scratch;
use crate::state::session_io::SessionIo;

/// The parts of the operation that one piece uses.
#[derive(Debug)]
struct PieceParts {
    /// Number of parts of the operation.
    parts: usize,
    unaligned_tail: Option<Box<UnalignedTail>>,
}

/// A read in flight.
#[derive(Debug)]
pub(crate) struct InFlightRead {
    pub read: PlannedRead,
    /// When it was submitted.
    pub submitted_at: Mono,
    /// The memory of each piece.
    taken: Vec<PieceParts>,
}

/// One completed piece of a read.
#[derive(Debug)]
pub(crate) enum CompletedPiece {
    Header { header: usize, part: Part },
    Direct { item: usize, plan_number: u32, parts: Vec<Part> },
    Staged { item: usize, plan_number: u32, chunk: std::ops::Range<u64>, part: Part },
}

/// Why a read cannot be submitted now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// The queue is full.
    Queue,
    /// All staging memory is in use.
    Staging,
    /// All scratch memory is in use.
    Scratch,
}

/// Submit a read. `take` yields the caller's memory of an item. On `Err` no memory was taken.
pub(crate) fn submit(
    io: &mut SessionIo,
    ticket: Ticket,
    read: PlannedRead,
    mut take: impl FnMut(usize) -> Vec<Part>,
) -> Result<(u64, InFlightRead), (Blocked, PlannedRead)> {
    let Some((queue, facts)) = io.queue.as_mut().zip(io.facts.as_ref()) else {
        return Err((Blocked::Queue, read));
    };
    if queue.room() == 0 {
        return Err((Blocked::Queue, read));
    }
    let align = facts.memory_align.max(facts.offset_align);
    let Some((file, offset)) =
        io.shared.ssd.volume.as_ref().map(|v| v.file_offset(read.segment, read.offset))
    else {
        return Err((Blocked::Queue, read));
    };
    // The store's memory is allocated first; if that fails, the caller's memory is untouched.
    let mut own_parts = Vec::new();
    for piece in &read.pieces {
        let (part, blocked) = match piece {
            Piece::Header { bytes, .. } => (io.scratch.take(*bytes as usize), Blocked::Scratch),
            Piece::Staged { chunk, .. } => (
                io.shared.ssd.staging.try_part((chunk.end - chunk.start) as usize),
                Blocked::Staging,
            ),
            // An unaligned tail always fits into one alignment unit.
            Piece::Direct { unaligned_tail: true, .. } => {
                (io.scratch.take(ALIGN as usize), Blocked::Scratch)
            }
            Piece::Direct { unaligned_tail: false, .. } => continue,
        };
        match part {
            Some(part) => own_parts.push(part),
            // Dropping `own_parts` returns the memory to its owners, the staging pool among them.
            None => return Err((blocked, read)),
        }
    }
    let mut own_parts = own_parts.into_iter();
    let mut parts = Vec::new();
    let mut taken = Vec::with_capacity(read.pieces.len());
    for piece in &read.pieces {
        let before = parts.len();
        let mut tail = None;
        match piece {
            Piece::Header { .. } | Piece::Staged { .. } => {
                parts.extend(own_parts.next().map(|p| truncate(p, piece.bytes())));
            }
            Piece::Direct { item, bytes, unaligned_tail, .. } => {
                match parts.is_empty() {
                    // Reuse the vector that holds the parts.
                    true => parts = take(*item),
                    false => parts.append(&mut take(*item)),
                }
                if *unaligned_tail && let Some((last, buffer)) = parts.pop().zip(own_parts.next()) {
                    tail = Some(Box::new(UnalignedTail::detach(
                        &mut parts, before, last, buffer, *bytes, align,
                    )));
                }
            }
        }
        taken.push(PieceParts { parts: parts.len() - before, unaligned_tail: tail });
    }
    let token = io.token(ticket);
    let op = Op::Read { file, offset, parts };
    match io.queue.as_mut().map(|q| q.submit(token, op)) {
        Some(Ok(())) => Ok((token, InFlightRead { read, submitted_at: io.shared.now(), taken })),
        // Room was checked above, and this thread is the queue's only user.
        _ => unreachable!("a queue with room took no operation"),
    }
}

/// The first `bytes` bytes of `part`.
fn truncate(part: Part, bytes: u64) -> Part {
    if part.len() as u64 == bytes { part } else { part.split(bytes as usize).0 }
}

/// Split a completed read into its pieces; each part of the caller's memory is whole again.
pub(crate) fn complete(
    scratch: &mut Scratch,
    flight: InFlightRead,
    completion: Completion,
) -> (Vec<CompletedPiece>, Result<(), IoFault>, PlannedRead) {
    let InFlightRead { read, taken, .. } = flight;
    let succeeded = completion.result.is_ok();
    let mut parts = completion.op.into_parts().into_iter();
    let mut pieces = Vec::with_capacity(read.pieces.len());
    for (piece, taken) in read.pieces.iter().zip(taken) {
        match piece {
            Piece::Header { header, .. } => {
                pieces.extend(
                    parts.next().map(|part| CompletedPiece::Header { header: *header, part }),
                );
            }
            Piece::Staged { item, plan_number, chunk } => {
                let (item, plan_number, chunk) = (*item, *plan_number, chunk.clone());
                pieces.extend(parts.next().map(|part| CompletedPiece::Staged {
                    item,
                    plan_number,
                    chunk,
                    part,
                }));
            }
            Piece::Direct { item, plan_number, .. } => {
                let mut piece_parts: Vec<Part> = match parts.len() == taken.parts {
                    // Reuse the vector that holds the parts.
                    true => std::mem::take(&mut parts).collect(),
                    false => parts.by_ref().take(taken.parts).collect(),
                };
                if let Some(tail) = taken.unaligned_tail {
                    tail.restore(&mut piece_parts, succeeded)
                        .into_iter()
                        .for_each(|buffer| scratch.give_back(buffer));
                }
                pieces.push(CompletedPiece::Direct {
                    item: *item,
                    plan_number: *plan_number,
                    parts: piece_parts,
                });
            }
        }
    }
    (pieces, completion.result, read)
}
