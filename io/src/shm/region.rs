//! Memory regions that one process owns and others view.
//!
//! The owner writes the memory; seals ensure that no other process can map it writable, and that it
//! never becomes shorter. A viewer copies bytes out before it interprets them, since the owner may
//! change them at any time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{
    FileType, MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::{Errno, pread};

use super::mapping::Mapping;
use super::residency::PageResidency;
use super::truncation::WatchedRange;
use super::userfault;
use crate::file_system::too_long;
use crate::fork;
use crate::hashed_copy::BlockCopy;

/// The `statfs` type of a memory file system (`TMPFS_MAGIC` of linux/magic.h); memfds are files of
/// one.
const TMPFS: i64 = 0x0102_1994;

const SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE).union(SealFlags::SEAL);

/// Memory of this process that can be shared with others.
#[derive(Debug)]
pub struct SharedRegion {
    memory: Memory,
    fd: Arc<OwnedFd>,
}

#[derive(Debug)]
enum Memory {
    Own(Mapping),
    /// A mapping of another owner: its address and length. The address is only compared, never
    /// dereferenced.
    Mapped(usize, usize),
}

impl SharedRegion {
    /// `bytes` zeroed bytes, at least 1. Pages become resident as they are used. Fails if the
    /// system has no memory, or cannot seal it against writes by others (Linux before 5.1).
    pub fn new(bytes: usize) -> std::io::Result<SharedRegion> {
        if let Some(why) = too_long(bytes as u64) {
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, why));
        }
        let fd = memfd_create("pagelith-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, bytes as u64)?;
        let map = Mapping::new(fd.as_fd(), bytes)?;
        fcntl_add_seals(&fd, SEALS)?;
        Ok(SharedRegion { memory: Memory::Own(map), fd: Arc::new(fd) })
    }

    /// Memory that this process has mapped at `address` already: the first `bytes` of the memfd, or
    /// of the file in a memory file system, that `fd` refers to. Viewers map the file, so the
    /// mapping must be a shared one of it. The file is sealed against shrinking ([`seal_length`])
    /// if `fd` is writable. Fails if `fd` refers to neither, or is shorter.
    pub fn mapped(fd: OwnedFd, address: usize, bytes: usize) -> std::io::Result<SharedRegion> {
        if bytes == 0 || bytes > length_in_memory(&fd)? {
            return Err(Errno::INVAL.into());
        }
        seal_length(fd.as_fd());
        Ok(SharedRegion { memory: Memory::Mapped(address, bytes), fd: Arc::new(fd) })
    }

    /// Make every page resident now, in huge pages where the system has them. Memory that another
    /// owner mapped is left as it is. Fails if the system does not support this (Linux before 5.14)
    /// or has not enough memory.
    pub fn prefault(&self) -> std::io::Result<()> {
        match &self.memory {
            Memory::Own(map) => map.prefault(),
            Memory::Mapped(..) => Ok(()),
        }
    }

    /// Exclude mapping and descriptor from forked children, which would keep the memory after this
    /// process has ended.
    pub fn exclude_from_fork(&self) {
        if let Memory::Own(map) = &self.memory {
            map.exclude_from_fork();
            fork::track_descriptor(&self.fd);
        }
    }

    /// The address of its first byte.
    pub fn base(&self) -> *mut u8 {
        match &self.memory {
            Memory::Own(map) => map.base(),
            Memory::Mapped(address, _) => *address as *mut u8,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.memory {
            Memory::Own(map) => map.len(),
            Memory::Mapped(_, bytes) => *bytes,
        }
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offset of the `len` bytes at address `addr`; `None` if they are not inside.
    pub fn offset_of(&self, addr: usize, len: usize) -> Option<u64> {
        let at = addr.checked_sub(self.base() as usize)?;
        (at.checked_add(len)? <= self.len()).then_some(at as u64)
    }
}

impl AsFd for SharedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Seal a memfd against shrinking, if it was created with `MFD_ALLOW_SEALING` and `fd` is writable.
/// A viewer then maps it. Otherwise the viewer must read it by system calls, at a third of the
/// speed, unless its process handles memory that becomes shorter
/// ([`handle_truncation_sigbus`](super::survive_shrinking)), as `pagelith serve` does.
pub fn seal_length(fd: BorrowedFd<'_>) {
    // Unsealed memory works too.
    let _ = fcntl_add_seals(fd, SealFlags::SHRINK);
}

/// A read-only view of another process's memory.
#[derive(Debug)]
pub struct PeerMemory {
    bytes: Bytes,
    /// For memory of an untrusted owner: which pages are holes, to be read through this descriptor.
    guard: Option<(PageResidency, Arc<OwnedFd>)>,
}

#[derive(Debug)]
enum Bytes {
    Mapped(MmapRaw),
    /// Memory that can become shorter, in a process that handles this: mapped until it has shrunk.
    /// The watch is dropped before the mapping.
    MayShrink(WatchedRange, MmapRaw, Arc<OwnedFd>),
    /// The same in a process that does not: a mapping would end the process at the next access, so
    /// the memory is read by system calls.
    Read(Arc<OwnedFd>, u64),
}

/// The way to read bytes.
enum ReadFrom<'a> {
    Mapping(*const u8),
    Descriptor(&'a OwnedFd),
}

impl PeerMemory {
    /// View memory that another process passed: a memfd, or a file of a memory file system. Other
    /// files are refused, since an access to them may take as long as their owner likes.
    pub fn of(fd: OwnedFd) -> std::io::Result<PeerMemory> {
        let len = length_in_memory(&fd)?;
        let is_sealed = fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let map = || MmapOptions::new().len(len).map_raw_read_only(&fd);
        if is_sealed {
            return Ok(PeerMemory { bytes: Bytes::Mapped(map()?), guard: None });
        }
        let watched =
            map().ok().and_then(|map| Some((WatchedRange::begin(map.as_ptr(), len)?, map)));
        let bytes = match watched {
            Some((watch, map)) => Bytes::MayShrink(watch, map, Arc::new(fd)),
            None => Bytes::Read(Arc::new(fd), len as u64),
        };
        Ok(PeerMemory { bytes, guard: None })
    }

    /// As [`PeerMemory::of`], for the first `len` bytes of memory of an untrusted process, which
    /// might make this one pay for its memory, or read its holes. Pages without memory are read by
    /// system calls, never through the mapping. Where the owner can remove pages, accesses to them
    /// are caught if this process handles the signal. The file may have another length by now; this
    /// fails if it is shorter than `len`.
    pub fn guarded(fd: OwnedFd, len: usize) -> std::io::Result<PeerMemory> {
        // Read before the length: the length of memory that is sealed against shrinking is then
        // final.
        let seals = fcntl_get_seals(&fd)?;
        if len > length_in_memory(&fd)? {
            return Err(Errno::INVAL.into());
        }
        let Ok(map) = MmapOptions::new().len(len).map_raw_read_only(&fd) else {
            return Ok(PeerMemory { bytes: Bytes::Read(Arc::new(fd), len as u64), guard: None });
        };
        let from = map.as_ptr();
        let fd = Arc::new(fd);
        let guard = |stable| Some((PageResidency::of(from, len, stable), fd.clone()));
        let stays_long = seals.contains(SealFlags::SHRINK);
        if stays_long && seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Ok(PeerMemory { bytes: Bytes::Mapped(map), guard: guard(true) });
        }
        match WatchedRange::begin(from, len) {
            Some(watch) => {
                let guard = guard(userfault::set(from, len));
                Ok(PeerMemory { bytes: Bytes::MayShrink(watch, map, fd), guard })
            }
            None if stays_long => Ok(PeerMemory { bytes: Bytes::Mapped(map), guard: guard(false) }),
            None => Ok(PeerMemory { bytes: Bytes::Read(fd, len as u64), guard: None }),
        }
    }

    /// As [`PeerMemory::guarded`], read by system calls only: for memory beyond the limit on
    /// mappings.
    pub fn unmapped(fd: OwnedFd) -> std::io::Result<PeerMemory> {
        let len = length_in_memory(&fd)? as u64;
        Ok(PeerMemory { bytes: Bytes::Read(Arc::new(fd), len), guard: None })
    }

    /// Length in bytes at the time of creation.
    pub fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Mapped(map) | Bytes::MayShrink(_, map, _) => map.len(),
            Bytes::Read(_, len) => *len as usize,
        }
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these bytes are inside.
    pub fn has(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len() as u64)
    }

    /// Whether it is mapped.
    pub fn is_mapped(&self) -> bool {
        !matches!(self.bytes, Bytes::Read(..))
    }

    /// Whether the recorded residency stays valid.
    #[cfg(test)]
    pub(super) fn guard_is_stable(&self) -> Option<bool> {
        self.guard.as_ref().map(|(holes, _)| holes.is_stable())
    }

    fn read_from(&self, at: u64, len: usize) -> ReadFrom<'_> {
        if let Some((holes, fd)) = &self.guard
            && !holes.all_resident(at as usize, len)
        {
            return ReadFrom::Descriptor(fd);
        }
        match &self.bytes {
            Bytes::MayShrink(watch, map, _) if !watch.was_truncated() => {
                ReadFrom::Mapping(map.as_ptr().wrapping_add(at as usize))
            }
            Bytes::Mapped(map) => ReadFrom::Mapping(map.as_ptr().wrapping_add(at as usize)),
            Bytes::MayShrink(_, _, fd) | Bytes::Read(fd, _) => ReadFrom::Descriptor(fd),
        }
    }

    /// The address of the bytes from `at` on, for reading while they are not written; `None` if
    /// they are not mapped, do not exist, or may disappear.
    pub fn mapped_at(&self, at: u64) -> Option<*const u8> {
        match &self.bytes {
            Bytes::Mapped(map) => {
                (at < map.len() as u64).then(|| map.as_ptr().wrapping_add(at as usize))
            }
            Bytes::MayShrink(..) | Bytes::Read(..) => None,
        }
    }

    /// Copy the bytes from `at` on out. The copy is the owner's data, or a mixture of it and a
    /// concurrent write; zeros where the memory has become shorter.
    ///
    /// # Panics
    /// If there are no such bytes.
    pub fn copy_out(&self, at: u64, to: &mut [u8]) {
        assert!(self.has(at, to.len() as u64), "beyond the memory of the view");
        let from = match self.read_from(at, to.len()) {
            ReadFrom::Mapping(from) => from,
            ReadFrom::Descriptor(fd) => return read_out(fd, at, to),
        };
        // SAFETY: inside of the mapping, which lives as long as `self` and cannot become shorter,
        // or is watched. The two do not overlap: one is a private borrow, the other a mapping that
        // this process does not write. Another process may write these bytes meanwhile, which is
        // outside of this process's memory model; only the copy is ever read as bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// As [`PeerMemory::copy_out`], as the next piece of `block`, whose checksum is of the copy.
    ///
    /// # Panics
    /// If there are no such bytes, or they are more than the rest of the block.
    pub(crate) fn copy_block(&self, at: u64, to: &mut [u8], block: &mut BlockCopy) {
        assert!(self.has(at, to.len() as u64), "beyond the memory of the view");
        match self.read_from(at, to.len()) {
            // SAFETY: inside of the mapping, as in `copy_out`; only other processes write there.
            ReadFrom::Mapping(from) => unsafe { block.copy_shared(to, from) },
            ReadFrom::Descriptor(fd) => {
                read_out(fd, at, to);
                block.hash_in_place(to);
            }
        }
    }
}

/// Length in bytes of a memfd, or of a file of a memory file system; an error for other
/// descriptors, and for length 0.
fn length_in_memory(fd: &OwnedFd) -> std::io::Result<usize> {
    // First: for a descriptor that is no memory file this fails without a call into its file
    // system, which may never answer.
    fcntl_get_seals(fd)?;
    let stat = fstat(fd)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let in_memory = is_file && fstatfs(fd)?.f_type == TMPFS;
    let len = usize::try_from(stat.st_size).ok().filter(|len| *len > 0 && in_memory);
    len.ok_or_else(|| Errno::INVAL.into())
}

fn read_out(fd: &OwnedFd, at: u64, to: &mut [u8]) {
    let mut done = 0;
    while done < to.len() {
        match pread(fd, &mut to[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    to[done..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(region: &SharedRegion) -> OwnedFd {
        region.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    fn write(region: &SharedRegion, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= region.len());
        // SAFETY: inside of the mapping, which no reference of this process points into.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.base().add(at), bytes.len()) }
    }

    #[test]
    fn view_sees_writes_of_owner() {
        let region = SharedRegion::new(3 * 4096).expect("memory");
        let view = PeerMemory::of(descriptor(&region)).expect("sealed");
        assert_eq!((view.len(), view.is_empty(), region.is_empty()), (3 * 4096, false, false));
        let mut seen = [9u8; 5];
        view.copy_out(4094, &mut seen);
        assert_eq!(seen, [0; 5]);
        write(&region, 4094, b"after");
        view.copy_out(4094, &mut seen);
        assert_eq!(&seen, b"after");
    }

    #[test]
    fn region_excluded_from_children_has_its_descriptor_released_there() {
        let region = SharedRegion::new(4096).expect("memory");
        assert!(!fork::is_tracked(region.as_fd()));
        region.exclude_from_fork();
        assert!(fork::is_tracked(region.as_fd()));
    }

    #[test]
    fn region_is_sealed_against_writes_and_truncation() {
        let region = SharedRegion::new(4096).expect("memory");
        let fd = descriptor(&region);
        assert!(MmapOptions::new().len(4096).map_raw(&fd).is_err(), "mapped to be written");
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&fd, 0), Err(Errno::PERM));
        assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM), "more seals");
    }

    #[test]
    fn view_of_empty_or_disk_file_is_refused() {
        let memory = |seals: SealFlags, len| {
            let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
            ftruncate(&fd, len).expect("memory");
            fcntl_add_seals(&fd, seals).expect("seals");
            fd
        };
        assert!(PeerMemory::of(memory(SealFlags::SHRINK, 0)).is_err());
        assert!(PeerMemory::of(memory(SealFlags::SHRINK, 1)).is_ok());
        let on_disk = rustix::fs::open(
            "/proc/self/exe",
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        );
        assert!(PeerMemory::of(on_disk.expect("a file")).is_err());
        let (pipe, _other) = std::io::pipe().expect("a pipe");
        assert!(PeerMemory::of(pipe.into()).is_err());
    }

    #[test]
    fn truncated_memory_reads_as_zeros() {
        let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, 3 * 4096).expect("memory");
        assert_eq!(rustix::io::pwrite(&fd, &[7; 8192], 0), Ok(8192));
        let view = PeerMemory::of(fd.try_clone().expect("a descriptor")).expect("in memory");
        let mut seen = [9u8; 8192];
        view.copy_out(1000, &mut seen);
        assert!(
            seen[..7192].iter().all(|byte| *byte == 7)
                && seen[7192..].iter().all(|byte| *byte == 0)
        );
        ftruncate(&fd, 1001).expect("shorter");
        view.copy_out(1000, &mut seen);
        assert!(seen[0] == 7 && seen[1..].iter().all(|byte| *byte == 0));
        assert_eq!(view.len(), 3 * 4096);
    }

    #[test]
    fn premapped_memory_is_viewed_through_its_file() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, 8192).expect("memory");
        let map = MmapOptions::new().len(8192).map_raw(&fd).expect("mapped");
        let other = fd.try_clone().expect("a descriptor");
        assert!(
            SharedRegion::mapped(other, map.as_ptr() as usize, 8193).is_err(),
            "longer than the file"
        );
        let region = SharedRegion::mapped(fd, map.as_ptr() as usize, 8192).expect("in memory");
        assert_eq!(
            (region.offset_of(map.as_ptr() as usize + 5, 10), region.len()),
            (Some(5), 8192)
        );
        assert_eq!(region.offset_of(map.as_ptr() as usize + 5, 8192), None);
        write(&region, 100, b"there");
        let mut seen = [0; 5];
        PeerMemory::of(descriptor(&region)).expect("in memory").copy_out(100, &mut seen);
        assert_eq!(&seen, b"there");
    }

    #[test]
    fn offsets_outside_region_are_none() {
        let region = SharedRegion::new(8192).expect("memory");
        let base = region.base() as usize;
        for (addr, len, place) in [
            (base, 8192, Some(0)),
            (base + 8191, 1, Some(8191)),
            (base + 8192, 0, Some(8192)),
            (base + 1, 8192, None),
            (base - 1, 1, None),
            (base, usize::MAX, None),
        ] {
            assert_eq!(region.offset_of(addr, len), place, "{addr:#x} {len}");
        }
        let view = PeerMemory::of(descriptor(&region)).expect("sealed");
        assert!(view.has(8191, 1) && view.has(8192, 0));
        assert!(!view.has(8192, 1) && !view.has(u64::MAX, 2));
    }

    #[test]
    #[should_panic(expected = "beyond the memory")]
    fn copy_beyond_view_panics() {
        let region = SharedRegion::new(4096).expect("memory");
        PeerMemory::of(descriptor(&region)).expect("sealed").copy_out(4095, &mut [0; 2]);
    }

    #[test]
    fn mapped_region_is_sealed_against_truncation_if_allowed() {
        for (flags, sealed) in [(MemfdFlags::ALLOW_SEALING, true), (MemfdFlags::CLOEXEC, false)] {
            let fd = memfd_create("test", flags | MemfdFlags::CLOEXEC).expect("memory");
            ftruncate(&fd, 8192).expect("memory");
            let map = MmapOptions::new().len(8192).map_raw(&fd).expect("mapped");
            let region = SharedRegion::mapped(
                fd.try_clone().expect("a descriptor"),
                map.as_mut_ptr() as usize,
                8192,
            );
            let view = PeerMemory::of(descriptor(&region.expect("in memory"))).expect("memory");
            assert_eq!(view.mapped_at(0).is_some(), sealed);
            assert_eq!(ftruncate(&fd, 4096).is_err(), sealed, "truncation");
            assert_eq!(ftruncate(&fd, 16384), Ok(()), "the owner may extend it");
        }
    }
}
