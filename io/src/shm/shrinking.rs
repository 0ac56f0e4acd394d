//! Looks at mapped memory that its owner may make shorter: of what is gone the system sends `SIGBUS`, which ends the process. A process that
//! serves others asks for these signals and survives them: where the memory was, zeros are from then on, and who looked hears of it.
//!
//! Invariants:
//! - A range is watched from before the first look at it until nobody looks any more, and is unmapped behind that: what is put in place of a page
//!   lies inside of a mapping of this module's user.
//! - Nothing but atomics and `mmap` is touched in the handler. What is not of a watched range, or is no end of a file (a page that the
//!   hardware lost), goes to whoever had the signal before.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::sync::{PoisonError, StaticMutex};

/// Ranges that are watched at a time, at most: 32 regions each of as many clients as a host has, and more.
const RANGES_MAX: usize = 1024;
/// An access behind the end of a file (`BUS_ADRERR` of asm-generic/siginfo.h).
const BEHIND_THE_END: c_int = 2;

struct Range {
    from: AtomicUsize,
    /// 0 where nothing is watched; written behind `from`.
    to: AtomicUsize,
    /// Something of it was gone when it was looked at.
    torn: AtomicBool,
}

static RANGES: [Range; RANGES_MAX] =
    [const { Range { from: AtomicUsize::new(0), to: AtomicUsize::new(0), torn: AtomicBool::new(false) } };
        RANGES_MAX];

/// Whoever takes a range does it alone.
static TAKING: StaticMutex<()> = StaticMutex::new(());

/// What was done about these signals before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Bytes of a page of this system.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// They come here.
static SURVIVES: AtomicBool = AtomicBool::new(false);

/// Survive memory that becomes shorter while it is looked at, from here on and for good: views map it then, and have to read it by calls
/// otherwise, at a third to a half of the speed. For a process whose signals are its own: this takes `SIGBUS`, and hands on what is not of such memory.
pub fn survive_shrinking() -> Result<()> {
    let _alone = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if SURVIVES.load(Ordering::Relaxed) {
        return Ok(());
    }
    PAGE.store(rustix::param::page_size(), Ordering::Relaxed);
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the structure is the call's to fill, and asking changes nothing.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) };
    if asked != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call succeeded and has filled it; zeros are a value of it besides.
    let before = BEFORE.get_or_init(|| unsafe { before.assume_init() });
    let mut own = *before;
    own.sa_sigaction = handler as *const () as usize;
    // On the stack that threads have for signals, if they have one: that of a thread may have overflown.
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler is of the kind that the flags say, and does what handlers may (the module's text).
    let taken = unsafe { libc::sigaction(libc::SIGBUS, &raw const own, ptr::null_mut()) };
    if taken != 0 {
        return Err(Error::last_os_error());
    }
    SURVIVES.store(true, Ordering::Release);
    Ok(())
}

/// A range that is watched, until it is dropped: before the memory is unmapped.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watch the `len` bytes at `from`. `None` if these signals were not asked for, or too much is watched.
    pub fn begin(from: *const u8, len: usize) -> Option<Watch> {
        if !SURVIVES.load(Ordering::Acquire) {
            return None;
        }
        let _alone = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let at = RANGES.iter().position(|range| range.to.load(Ordering::Relaxed) == 0)?;
        let range = &RANGES[at];
        range.torn.store(false, Ordering::Relaxed);
        range.from.store(from.addr(), Ordering::Relaxed);
        range.to.store(from.addr() + len, Ordering::Release);
        Some(Watch(at))
    }

    /// Whether something of it was gone when somebody looked: there are zeros now, whatever its owner has there.
    pub fn is_torn(&self) -> bool {
        RANGES[self.0].torn.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        RANGES[self.0].to.store(0, Ordering::Release);
    }
}

/// Put zeros where a watched range has lost a page, and behind it to the range's end: as many mappings as pages are lost would be more than a process may
/// have. Copies under way see them; what is torn is read by calls from then on. False if the address is of no range.
fn mend(address: usize) -> bool {
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
    // SAFETY: these pages are of a watched range, so of a mapping that is only read, through raw pointers, by who expects that its bytes
    // change; whoever watches unmaps it later, these pages among it.
    let mapped =
        unsafe { libc::mmap(ptr::without_provenance_mut(page), bytes, libc::PROT_READ, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

extern "C" fn handler(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler of this kind what it is to know, for as long as it runs; of this signal the address is there.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == BEHIND_THE_END && mend(address) {
        return;
    }
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // What faulted does so again, and ends the process as it would have.
            // SAFETY: the default is a value of the structure, and setting it is among what handlers may do.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        other if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: whoever set it said that it is of this kind.
            let other: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(other) };
            other(signal, info, context);
        }
        other => {
            // SAFETY: as above, of the other kind.
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

    use super::super::View;
    use super::*;

    const PAGE: usize = 64 << 10;
    const LEN: usize = 8 * PAGE;
    /// In the environment of a process that is to end.
    const ENDS: &str = "TEST_PAGELITH_ENDS_BY_SIGBUS";

    fn memory(byte: u8) -> OwnedFd {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, LEN as u64).expect("memory");
        pwrite(&fd, &[byte; LEN], 0).expect("written");
        fd
    }

    fn view(fd: &OwnedFd) -> View {
        View::of(fd.as_fd().try_clone_to_owned().expect("a descriptor")).expect("a view")
    }

    fn copied(view: &View) -> Vec<u8> {
        let mut bytes = vec![0xee; LEN];
        view.copy_out(0, &mut bytes);
        bytes
    }

    #[test]
    fn memory_that_becomes_shorter_is_zeros_and_is_read_as_it_is_from_then_on() {
        survive_shrinking().expect("asked for");
        survive_shrinking().expect("once more");
        let (fd, beside) = (memory(1), memory(2));
        let (short, whole) = (view(&fd), view(&beside));
        assert!(short.is_mapped() && short.mapped_at(0).is_none(), "nobody may keep a pointer to it");
        assert_eq!((copied(&short), copied(&whole)), (vec![1; LEN], vec![2; LEN]));
        ftruncate(&fd, 3 * PAGE as u64).expect("shorter");
        let left = [vec![1; 3 * PAGE], vec![0; LEN - 3 * PAGE]].concat();
        assert_eq!((copied(&short), copied(&whole)), (left, vec![2; LEN]));
        ftruncate(&fd, LEN as u64).expect("longer");
        pwrite(&fd, &[3; LEN], 0).expect("written");
        assert_eq!(copied(&short), vec![3; LEN], "the zeros are not what is there");
    }

    #[test]
    fn ranges_are_given_back() {
        survive_shrinking().expect("asked for");
        let fd = memory(4);
        for _ in 0..2 * RANGES_MAX {
            assert!(view(&fd).is_mapped());
        }
    }

    /// A process of its own: another one's end is what is looked at.
    #[test]
    fn other_memory_that_is_gone_ends_the_process_as_before() {
        if std::env::var_os(ENDS).is_some() {
            survive_shrinking().expect("asked for");
            let (fd, watched) = (memory(5), memory(6));
            let _watched = view(&watched);
            let map = MmapOptions::new().len(LEN).map_raw_read_only(&fd).expect("mapped");
            ftruncate(&fd, 0).expect("shorter");
            // SAFETY: inside of the mapping; that its memory is gone is what this is about.
            let byte = unsafe { ptr::read_volatile(map.as_ptr()) };
            panic!("the process goes on byte={byte}");
        }
        let mut again = Command::new(std::env::current_exe().expect("a path"));
        again
            .args(["--exact", "shm::shrinking::tests::other_memory_that_is_gone_ends_the_process_as_before"]);
        // A sanitizer has these signals before anybody, and would end the process its own way.
        let ended = again
            .env(ENDS, "1")
            .env("ASAN_OPTIONS", "handle_sigbus=0")
            .env("TSAN_OPTIONS", "handle_sigbus=0")
            .output()
            .expect("run");
        assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
    }
}
