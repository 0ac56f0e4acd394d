//! The ring itself: set up, entries made and pushed, the kernel entered. All unsafe code of this side is
//! here.

use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use rustix::io::Errno;

use super::fixed::Run;
use super::slots::{Held, IoVec};
use crate::buffer::Part;
use crate::calls;
use crate::disk::Op;
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::registered::Span;

const SETUP: &str = "io_uring_setup";

/// Longest single sleep in the kernel; longer waits come back and sleep again.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// A ring with at least one entry and about `entries`, clamped to what the kernel allows.
///
/// A queue may move between threads, which rules SINGLE_ISSUER and DEFER_TASKRUN out. COOP_TASKRUN
/// spares interrupts, and is too new (5.19) to insist on. It posts the completions of an operation when
/// the thread that submitted it next enters the kernel, so another thread may wait a timer tick longer.
pub(super) fn build(entries: u32) -> Result<IoUring, IoFault> {
    let mut wanted = IoUring::builder();
    wanted.setup_clamp().setup_coop_taskrun().setup_taskrun_flag();
    let ring = match wanted.build(entries) {
        Err(e) if errno(&e) == Errno::INVAL => IoUring::builder().setup_clamp().build(entries),
        ring => ring,
    };
    let ring = ring.map_err(|e| limits::named(mechanism_fault(SETUP, errno(&e))))?;
    let has = ring.params();
    if has.is_feature_ext_arg() && has.is_feature_nodrop() {
        return Ok(ring);
    }
    let detail = "kernel too old: io_uring lacks EXT_ARG or NODROP (5.11)";
    Err(IoFault::found(FaultKind::Unsupported, FaultOp::Queue, SETUP, 0, detail))
}

/// Have `ring` look up the pages of `spans`, for reads that name them by their place, and nothing else. `had`: it has looked up
/// others before, which no read under way names.
pub(super) fn register(ring: &IoUring, had: bool, spans: &[Span]) -> Result<(), Errno> {
    if had {
        ring.submitter().unregister_buffers().map_err(|e| errno(&e))?;
    }
    if spans.is_empty() {
        return Ok(());
    }
    let spans: Vec<IoVec> = spans.iter().map(|span| IoVec::new(span.base, span.len)).collect();
    // SAFETY: `IoVec` is the kernel's `struct iovec`, which the type of the slice here stands for, and the slice is of that many.
    let spans = unsafe { std::slice::from_raw_parts(spans.as_ptr().cast(), spans.len()) };
    // SAFETY: the kernel looks up pages, and keeps them from other use until the ring gives them up, whatever becomes of the
    // addresses meanwhile. It writes to them for entries alone, which `push` makes of parts.
    unsafe { ring.submitter().register_buffers(spans) }.map_err(|e| errno(&e))
}

/// Queue a run of the operation that is held under `id` for the kernel; false if the submission ring is full. The caller keeps
/// what is held in its slot until the kernel has completed every run of it, and takes it out only then.
pub(super) fn push(ring: &mut IoUring, held: &Held, id: u64, run: Run) -> bool {
    let entry = entry(held, run).user_data(id);
    // SAFETY: the entry points to the parts' memory and to `held.vectors`, and names `held.file`. Its slot
    // owns all three until `Slots::take`, which is called only for a number that came back in a completion
    // of each of its entries, or whose entries the kernel has not consumed and never will; a queue
    // dropped earlier leaks its slots. The parts of a read are exclusive (checked by `check`), so nobody
    // else looks at what the kernel writes. Where the entry names registered memory, the part lies in
    // it, by address: what the kernel writes are that part's pages, or if its owner has mapped others
    // there since, pages that nobody sees.
    unsafe { ring.submission().push(&entry).is_ok() }
}

fn entry(held: &Held, run: Run) -> squeue::Entry {
    let fd = Fd(held.file.fd.as_raw_fd());
    let vectors = || (held.vectors[run.first..][..run.count].as_ptr().cast(), run.count as u32);
    match &held.op {
        Op::Read { offset, parts, .. } => {
            let offset = offset + run.at;
            match (single(&parts[run.first..][..run.count]), run.fixed) {
                (Some((part, len)), Some(place)) => {
                    opcode::ReadFixed::new(fd, part.as_ptr(), len, place).offset(offset).build()
                }
                (Some((part, len)), None) => opcode::Read::new(fd, part.as_ptr(), len).offset(offset).build(),
                (None, _) => {
                    let (vectors, count) = vectors();
                    opcode::Readv::new(fd, vectors, count).offset(offset).build()
                }
            }
        }
        // Vectors that are cut are not the parts.
        Op::Write { offset, parts, .. } => match single(parts).filter(|_| !held.cut) {
            Some((part, len)) => opcode::Write::new(fd, part.as_ptr(), len).offset(*offset).build(),
            None => {
                let (vectors, count) = vectors();
                opcode::Writev::new(fd, vectors, count).offset(offset + run.at).build()
            }
        },
        Op::Sync { .. } => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

fn single(parts: &[Part]) -> Option<(&Part, u32)> {
    match parts {
        [part] => Some((part, u32::try_from(part.len()).ok()?)),
        _ => None,
    }
}

/// Hand the next `submit` queued entries to the kernel, let it post completions, and wait up to `timeout`
/// until `want` are there. `Ok` says nothing about how many entries were taken: see [`queued`].
pub(super) fn enter(ring: &IoUring, submit: u32, want: u32, timeout: Duration) -> Result<(), Errno> {
    let timeout = timeout.min(SLEEP_MAX);
    let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
    let args = SubmitArgs::new().timespec(&time);
    let flags = (EnterFlags::EXT_ARG | EnterFlags::GETEVENTS).bits();
    calls::count();
    // SAFETY: `args` is what EXT_ARG announces, and it and `time` outlive the call; the entries submitted were
    // pushed by `push`, whose proof covers what they point to.
    let entered = unsafe { ring.submitter().enter(submit, want, flags, Some(&args)) };
    match entered.map_err(|e| errno(&e)) {
        // Time is up, or a signal came: no fault, the caller looks at its clock.
        Ok(_) | Err(Errno::TIME | Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Entries pushed and not consumed by the kernel, which consumes them in order.
pub(super) fn queued(ring: &mut IoUring) -> usize {
    ring.submission().len()
}

/// Whether completions wait for somebody to enter the kernel.
pub(super) fn needs_enter(ring: &mut IoUring) -> bool {
    let entries = ring.submission();
    entries.taskrun() || entries.cq_overflow()
}

/// The fault of a refused setup or enter. EPERM and EACCES here speak of the mechanism (sysctl, seccomp, LSM), not
/// of a file.
pub(super) fn mechanism_fault(path: &str, e: Errno) -> IoFault {
    let mut fault = IoFault::of_errno(FaultOp::Queue, path, 0, e.raw_os_error());
    if fault.kind == FaultKind::ReadOnly {
        fault.kind = FaultKind::Unsupported;
    }
    fault
}

fn errno(e: &std::io::Error) -> Errno {
    Errno::from_raw_os_error(e.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}
