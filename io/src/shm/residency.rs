//! Holes in memory that another process shares: pages that are not allocated yet, or no longer.
//! Reading a hole through a mapping allocates the page, charged to the reader's control group. So
//! residency is checked before a read, and ranges with holes are read by system calls, which return
//! zeros and allocate nothing.
//!
//! Invariant: if a range is recorded in `known`, each of its pages stays allocated, or an access
//! after it was removed is caught: by a seal against holes, or by [`userfault`](super::userfault).

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one bit of `known` covers.
const UNIT_BYTES: usize = 64 << 10;
/// Pages that one `mincore` call covers.
const PAGES: usize = 256;

/// The residency of a mapping.
#[derive(Debug)]
pub(super) struct PageResidency {
    from: usize,
    len: usize,
    page_bytes: usize,
    /// One bit for each unit: all its pages were resident. Empty if a page may be removed
    /// undetected.
    known: Box<[AtomicU64]>,
}

impl PageResidency {
    /// The state of the mapping of `len` bytes at `from`; with `stable` a resident page stays
    /// allocated, or an access after its removal is caught.
    pub fn of(from: *const u8, len: usize, stable: bool) -> PageResidency {
        let words = if stable { len.div_ceil(UNIT_BYTES).div_ceil(64) } else { 0 };
        let known = (0..words).map(|_| AtomicU64::new(0)).collect();
        PageResidency { from: from.addr(), len, page_bytes: rustix::param::page_size(), known }
    }

    /// Whether a page that was resident stays allocated, or an access after its removal is caught.
    #[cfg(test)]
    pub fn is_stable(&self) -> bool {
        !self.known.is_empty()
    }

    /// Whether all of these bytes are resident, so that the mapping may be read.
    pub fn all_resident(&self, at: usize, len: usize) -> bool {
        if self.known.is_empty() {
            return self.is_resident(at, len);
        }
        let (mut from, end) = (at, at + len);
        while from < end {
            let unit = from / UNIT_BYTES;
            let to = end.min((unit + 1) * UNIT_BYTES);
            if !self.unit_is_resident(unit) && !self.is_resident(from, to - from) {
                return false;
            }
            from = to;
        }
        true
    }

    fn unit_is_resident(&self, unit: usize) -> bool {
        let (word, bit) = (&self.known[unit / 64], 1 << (unit % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let from = unit * UNIT_BYTES;
        let all = self.is_resident(from, UNIT_BYTES.min(self.len - from));
        if all {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        all
    }

    /// Whether the pages of these bytes are in memory. A swapped-out page counts as a hole: it is
    /// read by a system call.
    fn is_resident(&self, at: usize, len: usize) -> bool {
        let mut from = (self.from + at) & !(self.page_bytes - 1);
        let end = (self.from + at + len).next_multiple_of(self.page_bytes);
        while from < end {
            let pages = ((end - from) / self.page_bytes).min(PAGES);
            let mut residency = [0u8; PAGES];
            // SAFETY: the call writes one byte for each page, and `residency` has at least `pages`
            // bytes. It reads no memory of the mapping, and reports an unmapped address as an
            // error.
            let failed = unsafe {
                libc::mincore(
                    std::ptr::without_provenance_mut(from),
                    pages * self.page_bytes,
                    residency.as_mut_ptr(),
                )
            };
            if failed != 0 || residency[..pages].iter().any(|page| page & 1 == 0) {
                return false;
            }
            from += pages * self.page_bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate,
        memfd_create,
    };
    use rustix::io::pwrite;

    use super::super::{PeerMemory, handle_truncation_sigbus};
    use super::*;

    const LEN: usize = 32 << 20;
    /// The written range: neither whole units nor whole words of bits.
    const WRITTEN: std::ops::Range<usize> = (3 << 20) + 4096..(9 << 20) + 8192;

    fn memory(seals: SealFlags) -> OwnedFd {
        let fd =
            memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, LEN as u64).expect("memory");
        let bytes: Vec<u8> = WRITTEN.map(byte).collect();
        assert_eq!(pwrite(&fd, &bytes, WRITTEN.start as u64), Ok(bytes.len()));
        fcntl_add_seals(&fd, seals).expect("sealed");
        fd
    }

    fn byte(at: usize) -> u8 {
        (at / 4096 % 251) as u8 + 1
    }

    fn guarded(fd: &OwnedFd) -> PeerMemory {
        PeerMemory::guarded(fd.as_fd().try_clone_to_owned().expect("a descriptor"), LEN)
            .expect("a view")
    }

    fn allocated_bytes(fd: &OwnedFd) -> u64 {
        u64::try_from(fstat(fd).expect("known").st_blocks).expect("no more") * 512
    }

    /// All bytes, in pieces of unaligned length.
    fn copied(view: &PeerMemory, range: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0xee; range.len()];
        for (piece, at) in bytes.chunks_mut(300_000).zip(range.step_by(300_000)) {
            view.copy_out(at as u64, piece);
        }
        bytes
    }

    #[test]
    fn guarded_view_keeps_requested_length() {
        let fd = memory(SealFlags::empty());
        ftruncate(&fd, 1 << 40).expect("longer");
        assert_eq!(guarded(&fd).len(), LEN);
        ftruncate(&fd, LEN as u64 - 1).expect("shorter");
        assert!(PeerMemory::guarded(fd, LEN).is_err());
    }

    #[test]
    fn reading_holes_returns_zeros_and_allocates_nothing() {
        handle_truncation_sigbus().expect("SIGBUS handler");
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK,
            SealFlags::SHRINK | SealFlags::FUTURE_WRITE,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        ] {
            let fd = memory(seals);
            let (view, before) = (guarded(&fd), allocated_bytes(&fd));
            assert!(view.is_mapped());
            for _ in 0..2 {
                let seen = copied(&view, 0..LEN);
                let wrong = seen
                    .iter()
                    .enumerate()
                    .find(|(at, seen)| **seen != if WRITTEN.contains(at) { byte(*at) } else { 0 });
                assert_eq!((wrong, allocated_bytes(&fd)), (None, before), "{seals:?}");
            }
        }
    }

    #[test]
    fn hole_punched_after_residency_check_is_not_allocated() {
        handle_truncation_sigbus().expect("SIGBUS handler");
        let fd = memory(SealFlags::SHRINK);
        let view = guarded(&fd);
        if view.guard_is_stable() != Some(true) {
            eprintln!("skipped: this system has no userfaultfd for this process");
            return;
        }
        // All units of the range are recorded as resident.
        assert_eq!(copied(&view, WRITTEN), WRITTEN.map(byte).collect::<Vec<u8>>());
        let (from, len) = (4 << 20, 2 << 20);
        fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, len)
            .expect("a hole");
        let (before, hole) = (allocated_bytes(&fd), from as usize..(from + len) as usize);
        let expected: Vec<u8> =
            WRITTEN.map(|at| if hole.contains(&at) { 0 } else { byte(at) }).collect();
        for _ in 0..2 {
            assert!(copied(&view, WRITTEN) == expected);
            assert_eq!(allocated_bytes(&fd), before);
        }
        // Bytes that the owner writes later are seen.
        assert_eq!(pwrite(&fd, &[7; 4096], from), Ok(4096));
        assert_eq!(copied(&view, hole)[..4097], [[7; 4096].as_slice(), &[0]].concat());
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "reads /proc of this process, no file of a store")]
    fn copy_over_many_holes_adds_one_mapping() {
        handle_truncation_sigbus().expect("SIGBUS handler");
        let fd = memory(SealFlags::empty());
        let view = guarded(&fd);
        if view.guard_is_stable() != Some(true) {
            eprintln!("skipped: this system has no userfaultfd for this process");
            return;
        }
        // Whole units, which are recorded as resident once they were read.
        let units = 4u64 << 20..9 << 20;
        let mut bytes = vec![0xee; (units.end - units.start) as usize];
        view.copy_out(units.start, &mut bytes);
        for at in units.clone().step_by(8192) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&fd, flags, at, 4096).expect("a hole");
        }
        let mappings =
            || std::fs::read_to_string("/proc/self/maps").expect("known").lines().count();
        let (before, allocated_before) = (mappings(), allocated_bytes(&fd));
        view.copy_out(units.start, &mut bytes);
        // Other tests run meanwhile, in threads of their own.
        assert!(mappings() < before + 200 && allocated_bytes(&fd) == allocated_before);
        assert!(bytes.iter().all(|byte| *byte == 0), "zeros from the first hole on");
    }

    #[test]
    fn residency_is_rechecked_without_trap() {
        let fd = memory(SealFlags::SHRINK);
        let map = memmap2::MmapOptions::new().len(LEN).map_raw_read_only(&fd).expect("mapped");
        let (unstable, stable) = (
            PageResidency::of(map.as_ptr(), LEN, false),
            PageResidency::of(map.as_ptr(), LEN, true),
        );
        for holes in [&unstable, &stable] {
            assert!(
                holes.all_resident(WRITTEN.start, WRITTEN.len()) && holes.all_resident(5 << 20, 1)
            );
            assert!(
                !holes.all_resident(WRITTEN.start - 1, 1) && !holes.all_resident(WRITTEN.end, 1)
            );
            assert!(
                !holes.all_resident(WRITTEN.start, WRITTEN.len() + 1)
                    && !holes.all_resident(LEN - 1, 1)
            );
        }
        fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 5 << 20, 4096)
            .expect("a hole");
        assert!(!unstable.all_resident(5 << 20, 1) && stable.all_resident(5 << 20, 1));
    }
}
