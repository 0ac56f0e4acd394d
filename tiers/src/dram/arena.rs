//! The arena's memory: one mapping, private or shared with other processes. Frames are filled in
//! it, read from it, and written to SSD from it without another copy. This is the only file of this
//! crate with `unsafe`.
//!
//! Memory and allocation are separate. [`ArenaSpace`] records which 4 KiB units are allocated, and
//! is protected by the store's lock. [`ArenaMemory`] is shared without a lock and tracks nothing.
//! For each [`ExtentWriter`], slice and part, the caller promises that a writer has exclusive
//! access and that nothing is written while it is read. The safety of these three types rests on
//! that promise.
//!
//! Extents are not zeroed when they are freed: [`ExtentWriter::fill`] overwrites every byte of an
//! extent, padding included, so that no byte of an earlier owner reaches a reader or the SSD.
//! Memory pages become resident when they are first filled.

use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapRaw};
use pagelith_io::buffer::{KeepAlive, Part};
use pagelith_io::hashed_copy::{Copier, CopyMode, SourcePiece};
use pagelith_io::shm::SharedRegion;
use pagelith_io::verbs::DeviceMemory;
use pagelith_layouts::align::{ALIGN, is_aligned};
use pagelith_layouts::checksum::{Checksum, Checksums, block_count, block_lengths};

pub use super::space::{ArenaSpace, Extent};

/// Arenas of at least this size request huge pages: fewer TLB misses in copies, fewer page faults
/// while the arena fills. It is the size of a huge page on x86-64 and most arm64.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Longest arena in bytes: numbers of 4 KiB units have 32 bits.
pub const ARENA_BYTES_MAX: u64 = u32::MAX as u64 * ALIGN;

/// The arena could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// Not a positive multiple of 4096, or more than 2^32 - 1 units of 4 KiB (16 TiB).
    #[error("an arena has a whole number of 4096-byte pages, from 1 to 2^32 - 1 bytes={bytes}")]
    Capacity {
        /// Requested size in bytes.
        bytes: u64,
    },
    /// The system cannot provide the memory.
    #[error("no memory for the arena: {source} bytes={bytes}")]
    Map {
        /// Requested size in bytes.
        bytes: u64,
        /// The system's error.
        source: std::io::Error,
    },
}

/// An extent was not filled; its content is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The parts' lengths do not add up to the extent's.
    #[error(
        "parts are not as long as the extent they fill parts_bytes={parts_bytes} extent_bytes={extent_bytes}"
    )]
    Length {
        /// Sum of the parts' lengths.
        parts_bytes: u64,
        /// Length of the extent without padding.
        extent_bytes: u64,
    },
    /// The block size is 0.
    #[error("a block has at least one byte block_bytes=0")]
    Block,
}

/// A new arena: its memory, to be shared among threads, and its allocator, to be owned by the
/// store's core.
#[derive(Debug)]
pub struct Arena {
    /// The memory.
    pub memory: Arc<ArenaMemory>,
    /// The allocator of its 4 KiB units.
    pub space: ArenaSpace,
}

impl Arena {
    /// Map `capacity_bytes` zeroed bytes, a multiple of 4096. From 2 MiB up, huge pages are
    /// requested; if the system declines them, that is not an error (see
    /// [`ArenaMemory::huge_pages_advised`]).
    pub fn new(capacity_bytes: u64) -> Result<Arena, ArenaError> {
        Arena::of(capacity_bytes, false)
    }

    /// As [`Arena::new`], with memory that can be shared with other processes
    /// ([`ArenaMemory::region`]).
    pub fn shared(capacity_bytes: u64) -> Result<Arena, ArenaError> {
        Arena::of(capacity_bytes, true)
    }

    fn of(bytes: u64, shared: bool) -> Result<Arena, ArenaError> {
        let units =
            u32::try_from(bytes / ALIGN).ok().filter(|units| *units > 0 && is_aligned(bytes));
        let (Some(units), Ok(len)) = (units, usize::try_from(bytes)) else {
            return Err(ArenaError::Capacity { bytes });
        };
        let failed = |source| ArenaError::Map { bytes, source };
        let memory = if shared {
            let region = Arc::new(SharedRegion::new(len).map_err(failed)?);
            region.exclude_from_fork();
            ArenaMemory { map: Map::Shared(region), huge_pages_advised: bytes >= HUGE_PAGE_BYTES }
        } else {
            let map = MmapMut::map_anon(len).map_err(failed)?;
            // Without this, puts of a process with a forked child would copy the arena page by
            // page.
            let _ = map.advise(Advice::DontFork);
            let huge_pages_advised =
                bytes >= HUGE_PAGE_BYTES && map.advise(Advice::HugePage).is_ok();
            ArenaMemory { map: Map::Own(MmapRaw::from(map)), huge_pages_advised }
        };
        let memory = Arc::new(memory);
        Ok(Arena { memory, space: ArenaSpace::new(units) })
    }
}

/// The mapping. It is unmapped when its last writer, borrower and part are dropped.
#[derive(Debug)]
pub struct ArenaMemory {
    map: Map,
    huge_pages_advised: bool,
}

#[derive(Debug)]
enum Map {
    Own(MmapRaw),
    Shared(Arc<SharedRegion>),
}

impl ArenaMemory {
    /// Size in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        match &self.map {
            Map::Own(map) => map.len() as u64,
            Map::Shared(region) => region.len() as u64,
        }
    }

    /// The memory as a region to share with other processes, if it was created by
    /// [`Arena::shared`].
    pub fn region(&self) -> Option<&Arc<SharedRegion>> {
        match &self.map {
            Map::Own(_) => None,
            Map::Shared(region) => Some(region),
        }
    }

    fn base(&self) -> *mut u8 {
        match &self.map {
            Map::Own(map) => map.as_mut_ptr(),
            Map::Shared(region) => region.base(),
        }
    }

    /// Populate every page now, so that no put waits for the kernel to clear a page. Runs in the
    /// calling thread. Fails if the system does not support it (Linux before 5.14) or does not have
    /// enough memory.
    pub fn prefault(&self) -> std::io::Result<()> {
        match &self.map {
            Map::Own(map) => map.advise(Advice::PopulateWrite),
            Map::Shared(region) => region.prefault(),
        }
    }

    /// Whether the system accepted the advice to use huge pages. It may still have found none.
    pub fn huge_pages_advised(&self) -> bool {
        self.huge_pages_advised
    }

    /// Access to fill an extent.
    ///
    /// # Safety
    /// Until the writer is dropped, nothing else reads or writes the extent's 4 KiB units: there
    /// is no slice, no other writer and no part of an extent that shares a unit with it.
    ///
    /// # Panics
    /// If the extent is not inside this arena.
    pub unsafe fn writer(&self, extent: Extent) -> ExtentWriter<'_> {
        self.start(extent);
        ExtentWriter { memory: self, extent }
    }

    /// An extent's bytes, without the padding.
    ///
    /// # Safety
    /// While the slice is used, nothing writes the extent's 4 KiB units: there is no writer of an
    /// extent that shares a unit with it.
    ///
    /// # Panics
    /// If the extent is not inside this arena.
    pub unsafe fn bytes(&self, extent: Extent) -> &[u8] {
        pagelith_io::sync::step();
        let start = self.start(extent);
        // SAFETY: `start` checked that the extent is inside the mapping, which is initialised and
        // stays mapped while `self` is borrowed; the caller promises that nothing writes it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), extent.bytes as usize) }
    }

    /// The extent as a shared part of a disk operation, aligned to 4096. With `padded` it includes
    /// the padding, so that the length is a multiple of 4096 too. The part keeps the arena mapped.
    ///
    /// # Safety
    /// As for [`ArenaMemory::bytes`], until the part is dropped.
    ///
    /// # Panics
    /// If the extent is not inside this arena.
    pub unsafe fn part(self: &Arc<Self>, extent: Extent, padded: bool) -> Part {
        let start = self.start(extent);
        let bytes = if padded { extent.padded_bytes() } else { extent.bytes };
        let keep: KeepAlive = Arc::clone(self) as KeepAlive;
        // SAFETY: `start` checked that the padded extent is inside the mapping, which is
        // initialised (new memory reads as zeros) and stays mapped while `keep` lives; the caller
        // promises that nothing writes it.
        unsafe { Part::shared(start, bytes as usize, Some(keep)) }
    }

    /// The extent and its padding as the exclusive destination of a transfer. `keep` is dropped
    /// with the part.
    ///
    /// # Safety
    /// As for [`ArenaMemory::writer`], until the part is dropped; and `keep` keeps the arena
    /// mapped.
    ///
    /// # Panics
    /// If the extent is not inside this arena.
    pub unsafe fn exclusive_part(&self, extent: Extent, keep: KeepAlive) -> Part {
        let start = self.start(extent);
        // SAFETY: `start` checked that the padded extent is inside the mapping, which is
        // initialised and stays mapped while `keep` lives; the caller promises that nothing else
        // reads or writes it.
        unsafe { Part::exclusive(start, extent.padded_bytes() as usize, Some(keep)) }
    }

    /// Address of the extent. Panics unless the extent and its padding are inside the mapping. The
    /// check runs in release builds too: its cost is negligible against a copy of the extent, and a
    /// bug in other code must not produce a wild pointer.
    fn start(&self, extent: Extent) -> NonNull<u8> {
        let end = extent.offset().checked_add(extent.padded_bytes());
        assert!(
            extent.bytes > 0 && end.is_some_and(|end| end <= self.capacity_bytes()),
            "extent outside the arena first_unit={} bytes={} arena_bytes={}",
            extent.first_unit,
            extent.bytes,
            self.capacity_bytes()
        );
        // SAFETY: the offset was just checked to be inside the mapping, and a mapping never starts
        // at null.
        unsafe { NonNull::new_unchecked(self.base().add(extent.offset() as usize)) }
    }
}

// SAFETY: both functions return constants of the mapping, which lives as long as the value. A
// device writes only extents that an exclusive part covers, and nothing else accesses those.
unsafe impl DeviceMemory for ArenaMemory {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.base()).expect("no mapping begins at address 0")
    }

    fn bytes(&self) -> usize {
        // A mapping's length fits.
        self.capacity_bytes() as usize
    }
}

/// The right to fill an extent. If it is dropped without a fill, the extent has bytes of an earlier
/// owner and must not be read.
#[derive(Debug)]
pub struct ExtentWriter<'a> {
    memory: &'a ArenaMemory,
    extent: Extent,
}

impl ExtentWriter<'_> {
    /// The extent.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// Copy `parts` in order into the extent with non-temporal stores, and zero its padding.
    /// Returns the checksum of every block of `block_bytes` (the last may be shorter), computed
    /// over the copied bytes.
    pub fn fill(&mut self, parts: &[&[u8]], block_bytes: u32) -> Result<Checksums, FillError> {
        let mut sums = Checksums::new();
        if block_bytes > 0 {
            sums.reserve(block_count(self.extent.bytes, block_bytes) as usize);
        }
        self.fill_by(&mut Copier::new(CopyMode::NonTemporal), parts, block_bytes, |sum| {
            sums.push(sum)
        })?;
        Ok(sums)
    }

    /// As [`ExtentWriter::fill`], with a copier that the caller reuses; `sum` is called with each
    /// checksum.
    pub fn fill_by(
        &mut self,
        copier: &mut Copier,
        parts: &[&[u8]],
        block_bytes: u32,
        sum: impl FnMut(Checksum),
    ) -> Result<(), FillError> {
        let extent_bytes = self.extent.bytes;
        let parts_bytes =
            parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.len() as u64));
        if parts_bytes != extent_bytes {
            return Err(FillError::Length { parts_bytes, extent_bytes });
        }
        if block_bytes == 0 {
            return Err(FillError::Block);
        }
        let lengths = block_lengths(0..extent_bytes, block_bytes);
        let copied = self.fill_with(|to| {
            copier.copy([to], parts.iter().map(|part| SourcePiece::Private(part)), lengths, sum)
        });
        assert!(copied, "the lengths of the parts were checked against the extent");
        Ok(())
    }

    /// Zero the padding and let `copy` write all of the extent.
    pub fn fill_with<T>(&mut self, copy: impl FnOnce(&mut [u8]) -> T) -> T {
        pagelith_io::sync::step();
        let bytes = self.extent.bytes as usize;
        let (payload, padding) = self.padded_mut().split_at_mut(bytes);
        padding.fill(0);
        copy(payload)
    }

    fn padded_mut(&mut self) -> &mut [u8] {
        let start = self.memory.start(self.extent);
        // SAFETY: `start` checked that the padded extent is inside the mapping, which is
        // initialised and which `memory` keeps mapped; the contract of `writer` makes this the only
        // access to it, and the borrow of `self` the only one through this writer.
        unsafe {
            std::slice::from_raw_parts_mut(start.as_ptr(), self.extent.padded_bytes() as usize)
        }
    }
}

#[cfg(test)]
mod tests;
