//! Operations that the kernel may be working on, found again by the number it hands back. A number is used
//! once: it names a slot and the slot's generation, so that a late or foreign completion finds nothing.

use rustix::io::Errno;

use crate::buffer::Part;
use crate::disk::Op;
use crate::files::CachedFile;
use pagelith_layouts::mutant::{self, Mutant};

/// A write of twice as many bytes or more is made in entries of so many, the last with what is left over, each begun by itself: a
/// disk takes several of them at a time, and a longer one as one (docs/decisions/0031).
pub(super) const ENTRY_BYTES: u64 = 1 << 20;

/// How many entries a write of so many bytes is. One that is a header longer than an entry is one: a short one more would cost
/// more than it spares.
pub(super) fn entries(bytes: u64) -> usize {
    (bytes / ENTRY_BYTES).max(1) as usize
}

/// The kernel's `struct iovec` (include/uapi/linux/uio.h). The address is a number here, so that the array
/// may move between threads with its queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IoVec {
    base: usize,
    len: usize,
}

impl IoVec {
    /// Of so many bytes at this address.
    pub(super) fn new(base: usize, len: usize) -> IoVec {
        IoVec { base, len }
    }

    /// Its length in bytes.
    pub(super) fn len(self) -> usize {
        self.len
    }
}

/// An operation and all that the kernel reads while it works on it. Dropping it early would free memory
/// under the kernel's hands.
#[derive(Debug)]
pub(super) struct Held {
    /// The submitter's name for it.
    pub(super) token: u64,
    /// The operation with its parts.
    pub(super) op: Op,
    /// Keeps file and lock.
    pub(super) file: CachedFile,
    /// The parts as the kernel wants them; on the heap, so its address stays when the slot moves.
    pub(super) vectors: Box<[IoVec]>,
    /// Whether the vectors are cut where entries end, so that there may be more of them than parts.
    pub(super) cut: bool,
    /// Entries of it that have not completed.
    pub(super) left: usize,
    /// How many of all its entries name registered memory.
    pub(super) fixed: usize,
    /// What the entries that completed moved, in bytes, and the first failure of one.
    pub(super) moved: Result<u64, Errno>,
}

impl Held {
    /// Hold `op`, with the vectors of its parts.
    pub(super) fn new(token: u64, op: Op, file: CachedFile) -> Held {
        let vectors = match &op {
            Op::Read { parts, .. } | Op::Write { parts, .. } => vectors(parts),
            Op::Sync { .. } => Box::default(),
        };
        Held { token, op, file, vectors, cut: false, left: 1, fixed: 0, moved: Ok(0) }
    }
}

impl Held {
    /// Cut its vectors where entries end; before any entry of it is made, and only if each has its own: all of them may be more than
    /// the kernel takes in one.
    pub(super) fn cut(&mut self) {
        if let Op::Read { parts, .. } | Op::Write { parts, .. } = &self.op {
            (self.vectors, self.cut) = (vectors_cut(parts), true);
        }
    }

    /// An entry completed, or never will be begun. True if it was the last.
    pub(super) fn ended(&mut self, moved: Result<u64, Errno>) -> bool {
        self.left = self.left.saturating_sub(1);
        self.moved = self.moved.and_then(|before| moved.map(|now| before + now));
        self.left == 0
    }
}

/// One part is handed over as it is.
fn vectors(parts: &[Part]) -> Box<[IoVec]> {
    if parts.len() == 1 {
        return Box::default();
    }
    parts.iter().map(|p| IoVec::new(p.addr(), p.len())).collect()
}

/// The same, cut at each multiple of [`ENTRY_BYTES`] of all of them together at which an entry ends.
fn vectors_cut(parts: &[Part]) -> Box<[IoVec]> {
    let mut vectors = Vec::with_capacity(parts.len());
    let mut more = entries(parts.iter().map(|part| part.len() as u64).sum()) - 1;
    let mut room = ENTRY_BYTES as usize;
    for part in parts {
        let (mut base, mut left) = (part.addr(), part.len());
        while left > 0 {
            let len = if more > 0 { left.min(room) } else { left };
            vectors.push(IoVec::new(base, len));
            (base, left, room) = (base + len, left - len, room.saturating_sub(len));
            if room == 0 && more > 0 {
                (more, room) = (more - 1, ENTRY_BYTES as usize);
            }
        }
    }
    vectors.into()
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    held: Option<Held>,
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
        let slots = (0..depth).map(|_| Slot { generation: 0, held: None }).collect();
        Slots { slots, free: (0..depth).rev().collect() }
    }

    /// How many operations are held.
    pub(super) fn live(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Hold an operation under a number that was not used before (in 2^32 uses of its slot). It is handed
    /// back if there is no room.
    pub(super) fn insert(&mut self, held: Held) -> Result<u64, Held> {
        let Some(index) = self.free.pop() else { return Err(held) };
        let slot = &mut self.slots[index as usize];
        // 0 is never a generation in use, so that no zeroed completion names an operation.
        slot.generation = slot.generation.wrapping_add(1).max(1);
        slot.held = Some(held);
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    /// The operation of a number, while it is held.
    pub(super) fn get(&self, id: u64) -> Option<&Held> {
        let slot = self.slots.get(id as u32 as usize)?;
        if u64::from(slot.generation) != id >> 32 && !mutant::on(Mutant::StaleCompletion) {
            return None;
        }
        slot.held.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Held> {
        self.get(id)?;
        self.slots[id as u32 as usize].held.as_mut()
    }

    /// Take the operation of a number out; `None` if the number is stale or was never given.
    pub(super) fn take(&mut self, id: u64) -> Option<Held> {
        self.get(id)?;
        let index = id as u32;
        let held = self.slots[index as usize].held.take();
        self.free.push(index);
        held
    }
}
