//! Access to the bytes of frames. No other file of the engine accesses arena memory. The proofs of
//! its `unsafe` blocks rest on the core's bookkeeping:
//!
//! - The allocator gives each 4 KiB unit to at most one extent at a time.
//! - An extent belongs to no frame until it is filled, and is never written after that.
//! - The extents of a frame are freed only when it has neither counted readers nor lock-free
//!   readers.

use std::ops::Deref;
use std::sync::Arc;

use pagelith_io::buffer::{KeepAlive, Part};
use pagelith_io::guarded_table::ReadGuard;
use pagelith_io::hashed_copy::Copier;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums};
use pagelith_tiers::dram::arena::{ArenaMemory, Extent, ExtentWriter};

use crate::memory::frames::FrameData;

/// An allocated extent that belongs to no frame yet. It is created from an extent that the
/// allocator has just returned, and the extent is published only after it was filled.
pub(crate) struct UnpublishedExtent(Extent);

impl UnpublishedExtent {
    /// `extent` must come from the allocator and belong to no frame.
    pub fn new(extent: Extent) -> UnpublishedExtent {
        UnpublishedExtent(extent)
    }

    /// Copy `parts` into it, and return the checksum of each block. `None` if the lengths differ.
    pub fn fill(&self, memory: &ArenaMemory, parts: &[&[u8]]) -> Option<Checksums> {
        self.writer(memory).fill(parts, BLOCK_BYTES).ok()
    }

    /// As [`UnpublishedExtent::fill`], with a copier shared by several copies. Appends the
    /// checksums to `sums`. False if the lengths differ.
    pub fn fill_by(
        &self,
        memory: &ArenaMemory,
        copier: &mut Copier,
        parts: &[&[u8]],
        sums: &mut Checksums,
    ) -> bool {
        self.writer(memory).fill_by(copier, parts, BLOCK_BYTES, |sum| sums.push(sum)).is_ok()
    }

    /// Let `copy` write the whole extent.
    pub fn fill_with<T>(&self, memory: &ArenaMemory, copy: impl FnOnce(&mut [u8]) -> T) -> T {
        self.writer(memory).fill_with(copy)
    }

    fn writer<'a>(&self, memory: &'a ArenaMemory) -> ExtentWriter<'a> {
        // SAFETY: the allocator gives a 4 KiB unit to one extent at a time, and the extent is in no
        // frame, so no reader, part or other writer of its units exists.
        unsafe { memory.writer(self.0) }
    }

    /// The memory with its padding, to receive bytes. `keep` owns the extent and keeps the arena
    /// mapped.
    pub fn into_part(self, memory: &ArenaMemory, keep: KeepAlive) -> Part {
        // SAFETY: as in `writer`. The part holds `keep`, and the owner of the extent moves it to a
        // frame or returns it to the allocator only after `keep` was dropped.
        unsafe { memory.exclusive_part(self.0, keep) }
    }
}

/// A guard of a frame: a reader that is counted under the lock. Created under the core's lock
/// together with `readers += 1`, and released with [`crate::state::core::Core::release_frame`]
/// after all slices and parts made from it are gone.
pub(crate) struct FrameGuard {
    pub frame: crate::memory::frames::FrameRef,
    pub data: Arc<FrameData>,
}

impl FrameGuard {
    /// Add a reader. `None` if the frame does not exist any more.
    pub fn new(
        core: &mut crate::state::core::Core,
        frame: crate::memory::frames::FrameRef,
    ) -> Option<FrameGuard> {
        let f = core.dram.frames.get_ref(frame)?;
        f.readers += 1;
        Some(FrameGuard { frame, data: f.data.clone() })
    }

    /// A member's bytes.
    pub fn bytes<'a>(&'a self, memory: &'a ArenaMemory, member: usize) -> &'a [u8] {
        // SAFETY: extents of a frame with readers are neither freed nor reused, and filled extents
        // are never written: nothing writes these units while `self`, which the slice borrows,
        // exists.
        unsafe { memory.bytes(self.data.members[member].extent) }
    }

    /// A member's bytes as a part to be sent. The part must be dropped before `self` is released.
    pub fn part(&self, memory: &Arc<ArenaMemory>, member: usize) -> Part {
        // SAFETY: as in `bytes`. The peer writer keeps the guard until the response has returned
        // all parts, a server until its link has returned the push.
        unsafe { memory.part(self.data.members[member].extent, false) }
    }

    /// All members' padded bytes, as the parts of a write.
    pub fn parts(&self, memory: &Arc<ArenaMemory>) -> Vec<Part> {
        let part = |extent| {
            // SAFETY: as in `bytes`. The flusher keeps the guard until the write's completion has
            // returned the parts.
            unsafe { memory.part(extent, true) }
        };
        self.data.members.iter().map(|m| part(m.extent)).collect()
    }
}

/// A guard of a frame that was entered without the lock, by the frame's number. The frame keeps its
/// extents until [`crate::read::locate::leave_frame`].
pub(crate) struct FrameReadGuard<'a>(ReadGuard<'a, FrameData>);

impl<'a> FrameReadGuard<'a> {
    /// `inside` must come from the table that frees the frames.
    pub fn new(inside: ReadGuard<'a, FrameData>) -> FrameReadGuard<'a> {
        FrameReadGuard(inside)
    }

    /// A member's bytes.
    pub fn bytes<'b>(&'b self, memory: &'b ArenaMemory, member: usize) -> &'b [u8] {
        // SAFETY: `Frames::free` frees extents only with the frame's value, which the table does
        // not return while it has readers. Filled extents are never written. So nothing writes
        // these units while `self`, which the slice borrows, exists.
        unsafe { memory.bytes(self.0.members[member].extent) }
    }

    /// End the access. True if the frame was dropped meanwhile: the caller must then free it with
    /// [`crate::state::core::Core::free_if_unused`].
    pub fn leave(self) -> bool {
        self.0.leave()
    }
}

impl Deref for FrameReadGuard<'_> {
    type Target = FrameData;
    fn deref(&self) -> &FrameData {
        &self.0
    }
}
