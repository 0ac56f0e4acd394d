//! A cache of views, so that memory that another process shares is mapped once: a client process
//! has a link for each of its threads, and passes the same file on each.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{fcntl_get_seals, fstat};

use super::region::PeerMemory;
use crate::sync::{LOCK_TRIES, StaticMutex, try_lock_static};

/// The identity of a file. It is unambiguous while the file exists, and a cached view keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    number: u64,
}

static MAPPED: StaticMutex<Vec<Mapped>> = StaticMutex::new(Vec::new());

struct Mapped {
    file: File,
    view: Weak<PeerMemory>,
    peer: i32,
    len: u64,
}

/// Limits on mapped memory of other processes; memory beyond them is read by system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// The limit of all peers together, in bytes.
    pub all: u64,
    /// The limit of one peer, in bytes.
    pub of_peer: u64,
    /// The process id of the peer; 0 for all peers whose id is not visible in this pid namespace,
    /// which count as one.
    pub peer: i32,
}

/// Most mapped regions of one peer: half of those that can be watched.
const REGIONS_OF_PEER_MAX: usize = 512;

impl MapLimits {
    fn has_room(&self, mapped: &[Mapped], len: u64) -> bool {
        let all: u64 = mapped.iter().map(|other| other.len).sum();
        let own = || mapped.iter().filter(|other| other.peer == self.peer);
        let (own, regions): (u64, usize) = (own().map(|other| other.len).sum(), own().count());
        regions < REGIONS_OF_PEER_MAX
            && all.saturating_add(len) <= self.all
            && own.saturating_add(len) <= self.of_peer
    }
}

impl PeerMemory {
    /// As [`PeerMemory::of`], but returns the existing mapping if this process has mapped the
    /// memory already at its current length. Memory of an untrusted process is viewed as by
    /// [`PeerMemory::guarded`], within `bound`.
    pub fn shared(fd: OwnedFd, bound: Option<&MapLimits>) -> std::io::Result<Arc<PeerMemory>> {
        // First: see `length_in_memory`.
        fcntl_get_seals(&fd)?;
        let stat = fstat(fd.as_fd())?;
        let file = File { device: stat.st_dev, number: stat.st_ino };
        let Some(mut mapped) = try_lock_static(&MAPPED, LOCK_TRIES) else {
            let view = if bound.is_none() { PeerMemory::of(fd) } else { PeerMemory::unmapped(fd) };
            return view.map(Arc::new);
        };
        mapped.retain(|other| other.view.strong_count() > 0);
        let same = mapped
            .iter()
            .filter(|other| other.file == file)
            .filter_map(|other| other.view.upgrade());
        let same = same.into_iter().find(|view| view.len() as i64 == stat.st_size);
        if let Some(view) = same {
            return Ok(view);
        }
        // The file's length may change at any time: the mapping covers the length that was checked
        // against the bound.
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let view = Arc::new(match bound {
            None => PeerMemory::of(fd)?,
            Some(bound) if bound.has_room(&mapped, len) => PeerMemory::guarded(fd, len as usize)?,
            Some(_) => PeerMemory::unmapped(fd)?,
        });
        // Memory that is not mapped is read through its own descriptor.
        if view.is_mapped() {
            let peer = bound.map_or(0, |bound| bound.peer);
            mapped.push(Mapped { file, view: Arc::downgrade(&view), peer, len });
        }
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::SharedRegion;
    use super::*;

    fn descriptor(region: &SharedRegion) -> OwnedFd {
        region.as_fd().try_clone_to_owned().expect("a descriptor")
    }

    #[test]
    fn same_memory_is_mapped_once_while_viewed() {
        let (region, other) =
            (SharedRegion::new(8192).expect("memory"), SharedRegion::new(8192).expect("memory"));
        let view = PeerMemory::shared(descriptor(&region), None).expect("a view");
        let again = PeerMemory::shared(descriptor(&region), None).expect("a view");
        assert!(Arc::ptr_eq(&view, &again));
        assert!(
            !Arc::ptr_eq(&view, &PeerMemory::shared(descriptor(&other), None).expect("a view")),
            "other memory"
        );
        let gone = Arc::downgrade(&view);
        drop((view, again));
        assert!(gone.upgrade().is_none(), "the cache keeps no view");
        let remapped = PeerMemory::shared(descriptor(&region), None).expect("a view");
        assert_eq!(remapped.len(), 8192);
    }

    #[test]
    fn grown_memory_is_mapped_again() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        let fd =
            memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, 4096).expect("memory");
        fcntl_add_seals(&fd, SealFlags::SHRINK).expect("seals");
        let short =
            PeerMemory::shared(fd.try_clone().expect("a descriptor"), None).expect("a view");
        ftruncate(&fd, 8192).expect("memory");
        let long = PeerMemory::shared(fd, None).expect("a view");
        assert_eq!((short.len(), long.len()), (4096, 8192));
    }

    /// A memory file of this length without pages, which a peer can create at no cost.
    fn sparse(bytes: u64) -> OwnedFd {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let fd =
            memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&fd, bytes).expect("memory");
        fd
    }

    #[test]
    fn memory_beyond_limit_is_not_mapped() {
        const MIB: u64 = 1 << 20;
        // A peer id of its own: other tests map memory meanwhile.
        let of = |peer, of_peer| MapLimits { all: u64::MAX, of_peer, peer };
        let (own, other) = (of(-7, 10 * MIB), of(-8, 10 * MIB));
        let shared = |fd: &OwnedFd, bound: &MapLimits| {
            let fd = fd.try_clone().expect("a descriptor");
            PeerMemory::shared(fd, Some(bound)).expect("a view")
        };
        super::super::handle_truncation_sigbus().expect("SIGBUS handler");
        let fds: Vec<OwnedFd> = [6 * MIB, 4 * MIB, 1, 64 << 40].map(sparse).into();
        let mapped = |views: &[Arc<PeerMemory>]| {
            views.iter().map(|view| view.is_mapped()).collect::<Vec<_>>()
        };
        let views: Vec<Arc<PeerMemory>> = fds.iter().map(|fd| shared(fd, &own)).collect();
        assert_eq!(mapped(&views), [true, true, false, false]);
        // The same memory over another link, and memory of another process.
        let again: Vec<Arc<PeerMemory>> = fds[..2].iter().map(|fd| shared(fd, &own)).collect();
        assert!(again.iter().zip(&views).all(|(again, view)| Arc::ptr_eq(again, view)));
        assert_eq!(mapped(&[shared(&sparse(MIB), &other)]), [true]);
        let nothing = MapLimits { all: 0, ..other };
        assert_eq!(mapped(&[shared(&sparse(1), &nothing)]), [false]);
        let mut bytes = [0xee; 100];
        views[3].copy_out((64 << 40) - 100, &mut bytes);
        assert_eq!(bytes, [0; 100]);
        // Dropped views no longer count.
        drop((views, again));
        assert_eq!(mapped(&[shared(&sparse(10 * MIB), &own)]), [true]);
    }

    #[test]
    fn descriptor_without_memory_file_is_refused() {
        let (pipe, _other) = std::io::pipe().expect("a pipe");
        let (file, dir) =
            (tempfile::tempfile().expect("a file"), tempfile::tempdir().expect("a directory"));
        let refused = |fd: OwnedFd| {
            let bound = MapLimits { all: u64::MAX, of_peer: u64::MAX, peer: -9 };
            PeerMemory::shared(fd, Some(&bound)).err().and_then(|e| e.raw_os_error())
        };
        let invalid = Some(rustix::io::Errno::INVAL.raw_os_error());
        assert_eq!((refused(pipe.into()), refused(file.into())), (invalid, invalid));
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
        let path = rustix::fs::open(dir.path(), flags, rustix::fs::Mode::empty()).expect("a path");
        assert!(refused(path).is_some());
    }
}
