//! Memory that two processes share, and rings of bytes in it.
//!
//! The other process is not trusted: it may write anything anywhere in this memory at any time. So
//! the memory is never borrowed as bytes, positions that the peer wrote are checked against this
//! side's own, and bytes are copied out once before they are interpreted. Seals ensure that the
//! memory cannot shrink under the mapping.

mod mapping;
mod memory_cache;
mod region;
mod residency;
mod ring;
mod truncation;
mod userfault;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU8;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io::Errno;

pub use memory_cache::MapLimits;
pub use region::{PeerMemory, SharedRegion, seal_length};
pub use ring::{
    InvalidRingCount, PAIR_MEMORY_BYTES, RING_BYTES, RING_MEMORY_BYTES, RingReader, RingWriter,
    pair,
};
pub use truncation::handle_truncation_sigbus;

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// A mapping of memory that another process maps too.
pub struct SharedMemory {
    map: MmapRaw,
    fd: OwnedFd,
}

impl SharedMemory {
    /// New memory of `bytes` zeroed bytes, to be passed to another process.
    pub fn new(bytes: usize) -> std::io::Result<SharedMemory> {
        let fd = memfd_create("pagelith-link", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        fcntl_add_seals(&fd, SEALS)?;
        SharedMemory::map(fd, bytes)
    }

    /// Map memory of `bytes` bytes that another process made. Memory of another length, or that is
    /// not sealed against shrinking, is refused.
    pub fn of(fd: OwnedFd, bytes: usize) -> std::io::Result<SharedMemory> {
        // The seals are read first: for a descriptor that is no memfd this fails without a call
        // into its file system.
        let sealed = fcntl_get_seals(&fd)?.contains(SEALS);
        if !sealed || u64::try_from(fstat(&fd)?.st_size) != Ok(bytes as u64) {
            return Err(Errno::INVAL.into());
        }
        SharedMemory::map(fd, bytes)
    }

    fn map(fd: OwnedFd, bytes: usize) -> std::io::Result<SharedMemory> {
        let map = MmapOptions::new().len(bytes).map_raw(&fd)?;
        Ok(SharedMemory { map, fd })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes `at..at + len`, as atomics, since they may change at any time.
    fn cells(&self, at: usize, len: usize) -> &[AtomicU8] {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.map.len()),
            "beyond the shared memory"
        );
        // SAFETY: inside of the mapping, which lives as long as `self`. Atomics may be written by
        // others under a shared borrow, also by another process, and have the size and alignment of
        // a byte.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(at).cast::<AtomicU8>(), len) }
    }

    /// Copy bytes out, from `at` on.
    fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.cells(at, to.len()).as_ptr().cast::<u8>();
        // SAFETY: `cells` checked the bounds, and the two do not overlap: one is a private borrow,
        // the other the mapping. Another process may write these bytes meanwhile, which is outside
        // of this process's memory model; the copy is then garbage, and only the copy is ever read
        // as bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copy bytes in, from `at` on.
    fn copy_in(&self, at: usize, from: &[u8]) {
        let to = self.cells(at, from.len()).as_ptr().cast::<u8>().cast_mut();
        // SAFETY: as in `copy_out`; the mapping is writable, and is accessed through atomics and
        // raw pointers only.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
