//! Access to mapped memory that its owner may make shorter. An access after its end raises
//! `SIGBUS`, which ends the process. A process that serves others installs this handler and
//! survives: the missing memory is replaced by zeros from then on, and the view learns of it.
//!
//! Invariants:
//! - A range is watched from before the first access to it until after the last one, and unmapped
//!   after that: a page that the handler replaces is inside of a mapping of this module's user.
//! - The handler uses only atomics and `mmap`. A fault outside of watched ranges, or that is not
//!   after the end of a file (a page that the hardware lost), goes to the previous handler of the
//!   signal.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::sync::{PoisonError, StaticMutex};

/// Most watched ranges at a time: 32 regions for each of as many clients as a host has, and more.
const RANGES_MAX: usize = 1024;
/// An access after the end of a file (`BUS_ADRERR` of asm-generic/siginfo.h).
const AFTER_THE_END: c_int = 2;

struct Range {
    from: AtomicUsize,
    /// 0 if the entry is unused; written after `from`.
    to: AtomicUsize,
    /// A part of it was missing at an access.
    torn: AtomicBool,
}

static RANGES: [Range; RANGES_MAX] = [const {
    Range { from: AtomicUsize::new(0), to: AtomicUsize::new(0), torn: AtomicBool::new(false) }
}; RANGES_MAX];

/// Serialises the allocation of ranges.
static ALLOCATING: StaticMutex<()> = StaticMutex::new(());

/// The previous action of the signal.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// Bytes of a page of this system.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// Whether the handler is installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Handle memory that becomes shorter while it is accessed, from now on and permanently. Views then
/// map such memory; otherwise they must read it by system calls, at a third to a half of the speed.
/// For a process that controls its signal handlers: this takes `SIGBUS`, and forwards faults in
/// other memory.
pub fn handle_truncation_sigbus() -> Result<()> {
    let _guard = ALLOCATING.lock().unwrap_or_else(PoisonError::into_inner);
    if INSTALLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call fills the structure, and without a new action it changes nothing.
    let queried = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) };
    if queried != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call succeeded and filled the structure; all zeros is a valid value of it too.
    let before = PREVIOUS.get_or_init(|| unsafe { before.assume_init() });
    let mut own = *before;
    own.sa_sigaction = handler as *const () as usize;
    // On the thread's alternate signal stack, if it has one: its ordinary stack may have
    // overflowed.
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that the flags declare, and does only what a handler
    // may do (see the head of the module).
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const own, ptr::null_mut()) };
    if installed != 0 {
        return Err(Error::last_os_error());
    }
    INSTALLED.store(true, Ordering::Release);
    Ok(())
}

/// A watched range, until it is dropped, which must be before the memory is unmapped.
#[derive(Debug)]
pub(super) struct WatchedRange(usize);

impl WatchedRange {
    /// Watch the `len` bytes at `from`. `None` if the handler is not installed, or too many ranges
    /// are watched.
    pub fn begin(from: *const u8, len: usize) -> Option<WatchedRange> {
        if !INSTALLED.load(Ordering::Acquire) {
            return None;
        }
        let _guard = ALLOCATING.lock().unwrap_or_else(PoisonError::into_inner);
        let at = RANGES.iter().position(|range| range.to.load(Ordering::Relaxed) == 0)?;
        let range = &RANGES[at];
        range.torn.store(false, Ordering::Relaxed);
        range.from.store(from.addr(), Ordering::Relaxed);
        range.to.store(from.addr() + len, Ordering::Release);
        Some(WatchedRange(at))
    }

    /// Whether a part of it was missing at an access: zeros are mapped there now, whatever the
    /// owner's file contains.
    pub fn was_truncated(&self) -> bool {
        RANGES[self.0].torn.load(Ordering::Acquire)
    }
}

impl Drop for WatchedRange {
    fn drop(&mut self) {
        RANGES[self.0].to.store(0, Ordering::Release);
    }
}

/// Map zeros from the missing page to the end of its watched range: one mapping for each missing
/// page could exceed the process's limit. Copies in progress see zeros; a torn range is read by
/// system calls from then on. False if the address is in no watched range.
fn map_zeros(address: usize) -> bool {
    let has = |range: &&Range| {
        let to = range.to.load(Ordering::Acquire);
        range.from.load(Ordering::Relaxed) <= address && address < to
    };
    let Some(range) = RANGES.iter().find(has) else { return false };
    range.torn.store(true, Ordering::Release);
    let page_bytes = PAGE.load(Ordering::Relaxed);
    let (page, flags) = (
        address & !(page_bytes - 1),
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
    );
    let bytes = range.to.load(Ordering::Acquire).saturating_sub(page);
    // SAFETY: these pages are in a watched range, so in a mapping that is only read, through raw
    // pointers, by code that expects its bytes to change. The watch's user unmaps it later,
    // including these pages.
    let mapped = unsafe {
        libc::mmap(ptr::without_provenance_mut(page), bytes, libc::PROT_READ, flags, -1, 0)
    };
    mapped != libc::MAP_FAILED
}

extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a handler of this signature a valid `info` while it runs, and sets
    // the address for this signal.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == AFTER_THE_END && map_zeros(address) {
        return;
    }
    let Some(previous) = PREVIOUS.get() else { return };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access faults again, and ends the process as it would have without this handler.
            // SAFETY: the default action is valid, and a handler may set it.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        other if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the flags of the previous handler declare this signature.
            let other: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(other) };
            other(signal, info, context);
        }
        other => {
            // SAFETY: as above, for the other signature.
            let other: extern "C" fn(c_int) = unsafe { std::mem::transmute(other) };
            other(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use memmap2::MmapOptions;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pwrite;

    use super::super::PeerMemory;
    use super::*;

    const PAGE: usize = 64 << 10;
    const LEN: usize = 8 * PAGE;
    /// Set in the environment of the process that must end.
    const ENDS: &str = "TEST_PAGELITH_ENDS_BY_SIGBUS";

    fn memory(byte: u8) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, LEN as u64).expect("memory");
        pwrite(&fd, &[byte; LEN], 0).expect("written");
        fd
    }

    fn view(fd: &OwnedFd) -> PeerMemory {
        PeerMemory::of(fd.as_fd().try_clone_to_owned().expect("a descriptor")).expect("a view")
    }

    fn copied(view: &PeerMemory) -> Vec<u8> {
        let mut bytes = vec![0xee; LEN];
        view.copy_out(0, &mut bytes);
        bytes
    }

    #[test]
    fn truncated_mapping_reads_zeros_then_file_contents() {
        handle_truncation_sigbus().expect("SIGBUS handler");
        handle_truncation_sigbus().expect("once more");
        let (fd, other) = (memory(1), memory(2));
        let (short, whole) = (view(&fd), view(&other));
        assert!(short.is_mapped() && short.mapped_at(0).is_none(), "no pointer to it may be kept");
        assert_eq!((copied(&short), copied(&whole)), (vec![1; LEN], vec![2; LEN]));
        ftruncate(&fd, 3 * PAGE as u64).expect("shorter");
        let left = [vec![1; 3 * PAGE], vec![0; LEN - 3 * PAGE]].concat();
        assert_eq!((copied(&short), copied(&whole)), (left, vec![2; LEN]));
        ftruncate(&fd, LEN as u64).expect("longer");
        pwrite(&fd, &[3; LEN], 0).expect("written");
        assert_eq!(copied(&short), vec![3; LEN], "the zeros are not the file's bytes");
    }

    #[test]
    fn watched_ranges_are_reused() {
        handle_truncation_sigbus().expect("SIGBUS handler");
        let fd = memory(4);
        for _ in 0..2 * RANGES_MAX {
            assert!(view(&fd).is_mapped());
        }
    }

    /// Runs in a child process, whose end is checked.
    #[test]
    fn sigbus_outside_watched_ranges_ends_process() {
        if std::env::var_os(ENDS).is_some() {
            handle_truncation_sigbus().expect("SIGBUS handler");
            let (fd, watched) = (memory(5), memory(6));
            let _watched = view(&watched);
            let map = MmapOptions::new().len(LEN).map_raw_read_only(&fd).expect("mapped");
            ftruncate(&fd, 0).expect("shorter");
            // SAFETY: inside of the mapping; its memory is missing, which is what the test is
            // about.
            let byte = unsafe { ptr::read_volatile(map.as_ptr()) };
            panic!("the process survived byte={byte}");
        }
        let mut again = Command::new(std::env::current_exe().expect("a path"));
        again.args([
            "--exact",
            "shm::truncation::tests::sigbus_outside_watched_ranges_ends_process",
        ]);
        // A sanitizer handles these signals first, and would end the process in its own way.
        let ended = again
            .env(ENDS, "1")
            .env("ASAN_OPTIONS", "handle_sigbus=0")
            .env("TSAN_OPTIONS", "handle_sigbus=0")
            .output()
            .expect("run");
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
