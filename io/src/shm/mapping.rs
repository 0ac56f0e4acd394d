//! The owner's mapping of a memory file that others may view. It begins at a multiple of the huge
//! page size.

use std::os::fd::BorrowedFd;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Bytes of a huge page on x86-64, and on ARM with pages of 4096 bytes.
const HUGE: usize = 2 << 20;

/// A whole memory file, mapped for reading and writing.
#[derive(Debug)]
pub(super) struct Mapping {
    /// The reserved addresses that contain the mapping; they are unmapped together.
    reserved: MmapRaw,
    /// The offset of the mapping in them.
    skip: usize,
    len: usize,
}

impl Mapping {
    /// Map the first `len` bytes of `fd`, which must have as many.
    pub fn new(fd: BorrowedFd<'_>, len: usize) -> std::io::Result<Mapping> {
        let room = len.checked_add(HUGE).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let reserved = MmapRaw::from(MmapOptions::new().len(room).no_reserve_swap().map_anon()?);
        let skip = reserved.as_ptr().align_offset(HUGE);
        let mapping = Mapping { reserved, skip, len };
        let (access, how) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: these addresses are of the reservation, which nothing has used yet, and go with
        // it.
        unsafe { mmap(mapping.base().cast(), len, access, how, fd, 0)? };
        // This takes effect if `shmem_enabled` allows it, which is not the default.
        let _ = mapping.reserved.advise_range(Advice::HugePage, skip, len);
        Ok(mapping)
    }

    /// The address of its first byte.
    pub fn base(&self) -> *mut u8 {
        self.reserved.as_mut_ptr().wrapping_add(self.skip)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Make every page resident now, in huge pages where the system has them. Fails if the system
    /// does not support this (Linux before 5.14) or has not enough memory.
    pub fn prefault(&self) -> std::io::Result<()> {
        for at in (0..self.len / HUGE).map(|page| page * HUGE) {
            // A huge page that has no memory at all is left as it is.
            self.reserved.advise_range(Advice::PopulateWrite, self.skip + at, 1)?;
            // Whatever `shmem_enabled` says, but `deny`; refused before Linux 6.1. Pages of 4096
            // bytes do as well. SAFETY: inside of the mapping, whose contents and access stay as
            // they are.
            let _ = unsafe {
                libc::madvise(self.base().wrapping_add(at).cast(), HUGE, libc::MADV_COLLAPSE)
            };
        }
        self.reserved.advise_range(Advice::PopulateWrite, self.skip, self.len)
    }

    /// Exclude it from forked children.
    pub fn exclude_from_fork(&self) {
        // If the system declines, the cost is memory after a fork, nothing else.
        let _ = self.reserved.advise(Advice::DontFork);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pread;

    use super::*;

    #[test]
    fn prefaulted_mapping_keeps_its_bytes_and_begins_where_a_huge_page_may() {
        for len in [1, 4096, HUGE, 2 * HUGE + 4096] {
            let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
            ftruncate(&fd, len as u64).expect("memory");
            let mapping = Mapping::new(fd.as_fd(), len).expect("mapped");
            assert_eq!((mapping.base() as usize % HUGE, mapping.len()), (0, len));
            // SAFETY: the last byte of the mapping, which no reference points into.
            unsafe { mapping.base().wrapping_add(len - 1).write(7) };
            mapping.prefault().expect("memory");
            mapping.exclude_from_fork();
            let mut seen = vec![1; len];
            assert_eq!(pread(&fd, &mut seen, 0), Ok(len));
            assert!(
                seen[..len - 1].iter().all(|byte| *byte == 0) && seen[len - 1] == 7,
                "len={len}"
            );
        }
    }

    #[test]
    fn mapping_longer_than_all_addresses_is_an_error() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        assert!(Mapping::new(fd.as_fd(), usize::MAX).is_err());
        assert!(Mapping::new(fd.as_fd(), 1 << 60).is_err());
        assert!(Mapping::new(fd.as_fd(), 0).is_err());
    }
}
