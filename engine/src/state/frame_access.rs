//! The bytes of frames. The only place in the engine that reaches into the arena; why that is safe hangs on
//! the core's bookkeeping, so it is said once, here.

use std::ops::Deref;
use std::sync::Arc;

use pagelith_io::buffer::{Keep, Part};
use pagelith_io::fused::Copier;
use pagelith_io::kept::Inside;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_tiers::dram::arena::{ArenaMemory, Extent, ExtentWriter};

use crate::memory::frames::FrameData;

/// Memory that was allocated for an object and that nobody else has seen yet. Only [`crate::write::put`] makes one,
/// from what the allocator has just handed out, and publishes the extent after it was filled.
pub(crate) struct Unpublished(Extent);

impl Unpublished {
    /// An extent fresh from the allocator.
    pub fn new(extent: Extent) -> Unpublished {
        Unpublished(extent)
    }

    /// Copy `parts` in; the checksum of each block.
    pub fn fill(&self, memory: &ArenaMemory, parts: &[&[u8]]) -> Option<Checksums> {
        self.writer(memory).fill(parts, BLOCK_BYTES).ok()
    }

    /// The same by a copier that copies more, behind the checksums that are there. False if they are of another length.
    pub fn fill_by(
        &self,
        memory: &ArenaMemory,
        copier: &mut Copier,
        parts: &[&[u8]],
        sums: &mut Checksums,
    ) -> bool {
        self.writer(memory).fill_by(copier, parts, BLOCK_BYTES, |sum| sums.push(sum)).is_ok()
    }

    /// Let `copy` write all of it.
    pub fn fill_with<T>(&self, memory: &ArenaMemory, copy: impl FnOnce(&mut [u8]) -> T) -> T {
        self.writer(memory).fill_with(copy)
    }

    fn writer<'a>(&self, memory: &'a ArenaMemory) -> ExtentWriter<'a> {
        // SAFETY: the allocator gives a page to one extent at a time, and the extent is in no frame, so no
        // reader, part or other writer of its pages exists.
        unsafe { memory.writer(self.0) }
    }

    /// The memory, padding and all, for bytes to arrive in. `keep` owns the extent, and keeps the arena.
    pub fn into_part(self, memory: &ArenaMemory, keep: Keep) -> Part {
        // SAFETY: as in `writer`, and whoever owns the extent gives it to a frame or back to the allocator only when `keep` was
        // dropped, which the part holds.
        unsafe { memory.exclusive_part(self.0, keep) }
    }
}

/// Proof that a frame is counted as read: made under the core's lock together with `readers += 1`, and given
/// back through [`crate::state::core::Core::release_frame`] after everything made from it is gone.
pub(crate) struct Held {
    pub frame: crate::memory::frames::FrameRef,
    pub data: Arc<FrameData>,
}

impl Held {
    /// Count a reader in. `None` if the frame is gone.
    pub fn new(core: &mut crate::state::core::Core, frame: crate::memory::frames::FrameRef) -> Option<Held> {
        let f = core.frames.get_ref(frame)?;
        f.readers += 1;
        Some(Held { frame, data: f.data.clone() })
    }

    /// A member's bytes.
    pub fn bytes<'a>(&'a self, memory: &'a ArenaMemory, member: usize) -> &'a [u8] {
        // SAFETY: extents of a frame with readers are neither freed nor given to another, and filled extents
        // are never written: nothing writes these pages while `self` is held, which the slice borrows.
        unsafe { memory.bytes(self.data.members[member].extent) }
    }

    /// A member's bytes as a part of something that is sent; whoever holds `self` drops it first.
    pub fn part(&self, memory: &Arc<ArenaMemory>, member: usize) -> Part {
        // SAFETY: as in `bytes`; the writer to peers holds the frame until a reply has brought every part back, a server until its
        // link has handed the push back.
        unsafe { memory.part(self.data.members[member].extent, false) }
    }

    /// Every member's padded bytes as parts of a write.
    pub fn parts(&self, memory: &Arc<ArenaMemory>) -> Vec<Part> {
        let part = |extent| {
            // SAFETY: as in `bytes`; the flusher holds the frame until the write's completion has handed
            // the parts back.
            unsafe { memory.part(extent, true) }
        };
        self.data.members.iter().map(|m| part(m.extent)).collect()
    }
}

/// A frame that somebody without the core's lock is inside of, by its number: what it holds stays until they leave
/// ([`crate::read::locate::leave_frame`]).
pub(crate) struct Entered<'a>(Inside<'a, FrameData>);

impl<'a> Entered<'a> {
    /// Of the table that frames are freed by.
    pub fn new(inside: Inside<'a, FrameData>) -> Entered<'a> {
        Entered(inside)
    }

    /// A member's bytes.
    pub fn bytes<'b>(&'b self, memory: &'b ArenaMemory, member: usize) -> &'b [u8] {
        // SAFETY: `Frames::free` gives extents back only with the frame's value, which is not taken while anybody is
        // inside; filled extents are never written. So nothing writes these pages while `self` is, which the slice borrows.
        unsafe { memory.bytes(self.0.members[member].extent) }
    }

    /// Leave. True if the frame was dropped meanwhile and is to be freed now ([`crate::state::core::Core::free_if_unread`]).
    pub fn leave(self) -> bool {
        self.0.leave()
    }
}

impl Deref for Entered<'_> {
    type Target = FrameData;
    fn deref(&self) -> &FrameData {
        &self.0
    }
}
