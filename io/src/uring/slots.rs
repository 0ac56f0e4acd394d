//! In-flight operations of a ring, found by the number that a completion carries. A number names a
//! slot and the slot's generation and is used once, so a late or foreign completion matches
//! nothing.

use rustix::io::Errno;

use crate::buffer::Part;
use crate::disk::Op;
use crate::files::CachedFile;
use pagelith_mutants::{self as mutant, Mutant};

/// Bytes per entry of a long write. A write of at least twice as many bytes is split into such
/// entries, the last with the remainder, and each is submitted by itself: a disk processes several
/// of them at a time, and a longer one as one (docs/decisions/0007-flusher-and-log.md).
pub(super) const ENTRY_BYTES: u64 = 1 << 20;

/// The number of entries of a write of `bytes` bytes. A write that is longer than an entry only by
/// a header stays one entry: a second, short one would cost more than it saves.
pub(super) fn entry_count(bytes: u64) -> usize {
    (bytes / ENTRY_BYTES).max(1) as usize
}

/// The kernel's `struct iovec` (include/uapi/linux/uio.h). The address is an integer, so that the
/// array may move between threads with its queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IoVec {
    base: usize,
    len: usize,
}

impl IoVec {
    /// The vector of `len` bytes at address `base`.
    pub(super) fn new(base: usize, len: usize) -> IoVec {
        IoVec { base, len }
    }

    /// Length in bytes.
    pub(super) fn len(self) -> usize {
        self.len
    }
}

/// An operation and all memory that the kernel reads while it performs it. Dropping it early would
/// free memory that the kernel still uses.
#[derive(Debug)]
pub(super) struct InFlightOp {
    /// The submitter's number for it.
    pub(super) token: u64,
    /// The operation with its parts.
    pub(super) op: Op,
    /// Keeps the file open and locked.
    pub(super) file: CachedFile,
    /// The parts as the kernel's vectors; on the heap, so their address is stable when the slot
    /// moves.
    pub(super) vectors: Box<[IoVec]>,
    /// Whether the vectors are split at the ends of entries, so that there may be more vectors than
    /// parts.
    pub(super) vectors_split: bool,
    /// Entries that have not completed.
    pub(super) entries_left: usize,
    /// Entries that name registered memory.
    pub(super) fixed_entries: usize,
    /// Bytes that the completed entries transferred, or the first failure of one.
    pub(super) moved: Result<u64, Errno>,
}

impl InFlightOp {
    /// Create the in-flight state of `op`, with the vectors of its parts.
    pub(super) fn new(token: u64, op: Op, file: CachedFile) -> InFlightOp {
        let vectors = match &op {
            Op::Read { parts, .. } | Op::Write { parts, .. } => vectors(parts),
            Op::Sync { .. } => Box::default(),
        };
        InFlightOp {
            token,
            op,
            file,
            vectors,
            vectors_split: false,
            entries_left: 1,
            fixed_entries: 0,
            moved: Ok(0),
        }
    }
}

impl InFlightOp {
    /// Split the vectors at the ends of entries. Call it before any entry is made, and only if each
    /// entry gets its own vectors: all of them may be more than the kernel accepts in one entry.
    pub(super) fn split_vectors(&mut self) {
        if let Op::Read { parts, .. } | Op::Write { parts, .. } = &self.op {
            (self.vectors, self.vectors_split) = (split_vectors(parts), true);
        }
    }

    /// Count an entry that completed, or that will never be submitted. True if it was the last.
    pub(super) fn complete_entry(&mut self, moved: Result<u64, Errno>) -> bool {
        self.entries_left = self.entries_left.saturating_sub(1);
        self.moved = self.moved.and_then(|before| moved.map(|now| before + now));
        self.entries_left == 0
    }
}

/// The vectors of the parts; none for a single part, which needs no vector.
fn vectors(parts: &[Part]) -> Box<[IoVec]> {
    if parts.len() == 1 {
        return Box::default();
    }
    parts.iter().map(|p| IoVec::new(p.addr(), p.len())).collect()
}

/// The vectors of the parts, split at each multiple of [`ENTRY_BYTES`] of their total length at
/// which an entry ends.
fn split_vectors(parts: &[Part]) -> Box<[IoVec]> {
    let mut vectors = Vec::with_capacity(parts.len());
    let mut splits_left = entry_count(parts.iter().map(|part| part.len() as u64).sum()) - 1;
    let mut room = ENTRY_BYTES as usize;
    for part in parts {
        let (mut base, mut left) = (part.addr(), part.len());
        while left > 0 {
            let len = if splits_left > 0 { left.min(room) } else { left };
            vectors.push(IoVec::new(base, len));
            (base, left, room) = (base + len, left - len, room.saturating_sub(len));
            if room == 0 && splits_left > 0 {
                (splits_left, room) = (splits_left - 1, ENTRY_BYTES as usize);
            }
        }
    }
    vectors.into()
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    op: Option<InFlightOp>,
}

/// A fixed number of slots.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Room for `depth` operations.
    pub(super) fn new(depth: u32) -> Slots {
        let slots = (0..depth).map(|_| Slot { generation: 0, op: None }).collect();
        Slots { slots, free: (0..depth).rev().collect() }
    }

    /// How many operations are in flight.
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Store an operation under a number that was not used before (within 2^32 uses of its slot).
    /// It is handed back if no slot is free.
    pub(super) fn insert(&mut self, op: InFlightOp) -> Result<u64, InFlightOp> {
        let Some(index) = self.free.pop() else { return Err(op) };
        let slot = &mut self.slots[index as usize];
        // Generation 0 is never used, so that no zeroed completion names an operation.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.op = Some(op);
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// The operation of a number, while it is in flight.
    pub(super) fn get(&self, id: u64) -> Option<&InFlightOp> {
        let slot = self.slots.get(id as u32 as usize)?;
        if u64::from(slot.generation) != id >> 32 && !mutant::on(Mutant::StaleCompletion) {
            return None;
        }
        slot.op.as_ref()
    }

    /// As [`Slots::get`], mutable.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut InFlightOp> {
        self.get(id)?;
        self.slots[id as u32 as usize].op.as_mut()
    }

    /// Remove the operation of a number; `None` if the number is stale or was never given.
    pub(super) fn take(&mut self, id: u64) -> Option<InFlightOp> {
        self.get(id)?;
        let index = id as u32;
        let op = self.slots[index as usize].op.take();
        self.free.push(index);
        op
    }
}
