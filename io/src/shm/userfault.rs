//! Catches accesses to holes of shared memory (`userfaultfd(2)`): instead of allocating a page that
//! this process pays for, the access raises `SIGBUS` in its thread, as after the end of a file, and
//! [`truncation`](super::truncation) maps zeros there.
//!
//! Without it a process that removes pages while its memory is copied can make this process pay for
//! as many pages as it had itself. This is the case on systems that deny userfaultfd to
//! unprivileged processes (such as a seccomp profile of containers).

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

use rustix::mm::{UserfaultfdFlags, userfaultfd};

/// `UFFD_USER_MODE_ONLY` (linux/userfaultfd.h): the mode that an unprivileged process may use.
const USER_MODE_ONLY: u32 = 1;
/// `UFFD_API`, `UFFD_FEATURE_MISSING_SHMEM` and `UFFD_FEATURE_SIGBUS`, and
/// `UFFDIO_REGISTER_MODE_MISSING`, from the same header.
const API: u64 = 0xaa;
const FEATURES: u64 = 1 << 5 | 1 << 7;
const MISSING: u64 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `_IOWR(UFFDIO, number, T)` of asm-generic/ioctl.h.
const fn request<T>(number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

/// One descriptor for the process: unmapping a range ends its registration.
static TRAP: OnceLock<Option<OwnedFd>> = OnceLock::new();

fn open() -> Option<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: only this module uses the descriptor to affect this process's memory.
    let fd =
        unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY)) }.ok()?;
    let mut api = Api { api: API, features: FEATURES, ioctls: 0 };
    // SAFETY: the request takes this structure, and the kernel writes no more than it.
    let failed =
        unsafe { libc::ioctl(fd.as_raw_fd(), request::<Api>(0x3f) as libc::Ioctl, &raw mut api) };
    (failed == 0).then_some(fd)
}

/// Catch accesses to holes of the `len` bytes at `from`, which begin at a page of a mapping whose
/// ranges are watched; returns whether this works.
pub(super) fn set(from: *const u8, len: usize) -> bool {
    let Some(fd) = TRAP.get_or_init(open) else { return false };
    let len = len.next_multiple_of(rustix::param::page_size()) as u64;
    let mut register = Register { start: from.addr() as u64, len, mode: MISSING, ioctls: 0 };
    // SAFETY: as above. An access to a hole of the range ends in a signal that the process handles,
    // and nothing else changes.
    let failed = unsafe {
        libc::ioctl(fd.as_raw_fd(), request::<Register>(0) as libc::Ioctl, &raw mut register)
    };
    failed == 0
}
