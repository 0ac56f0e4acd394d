//! The ring itself: set-up, entries, submission, and the system calls. All unsafe code of the
//! io_uring backend but the drop of a queue is in this file.

use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use rustix::io::Errno;

use super::entries::EntryRange;
use super::slots::{InFlightOp, IoVec};
use crate::buffer::Part;
use crate::disk::Op;
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::registered::MemoryRange;
use crate::syscall_count;

const SETUP: &str = "io_uring_setup";

/// Longest single sleep in the kernel; a longer wait sleeps several times.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// A ring with at least one entry and about `entries`, clamped to the kernel's limit.
///
/// A queue may move between threads, which excludes SINGLE_ISSUER and DEFER_TASKRUN. COOP_TASKRUN
/// saves interrupts, but is too new (5.19) to require. With it the completions of an operation are
/// posted when the thread that submitted it next enters the kernel, so another thread may wait a
/// timer tick longer.
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

/// Register `spans` with `ring`: the kernel looks their pages up, for reads that name them by
/// index. With `had` it first unregisters the previous list, which no read in flight may name.
pub(super) fn register(ring: &IoUring, had: bool, spans: &[MemoryRange]) -> Result<(), Errno> {
    if had {
        ring.submitter().unregister_buffers().map_err(|e| errno(&e))?;
    }
    if spans.is_empty() {
        return Ok(());
    }
    let spans: Vec<IoVec> = spans.iter().map(|span| IoVec::new(span.base, span.len)).collect();
    // SAFETY: `IoVec` is the kernel's `struct iovec`, which the slice's element type represents,
    // and the slice has the vector's length.
    let spans = unsafe { std::slice::from_raw_parts(spans.as_ptr().cast(), spans.len()) };
    // SAFETY: the kernel looks pages up and pins them until the ring unregisters them, whatever is
    // mapped at the addresses meanwhile. It writes to them only for entries, which `push` makes of
    // parts.
    unsafe { ring.submitter().register_buffers(spans) }.map_err(|e| errno(&e))
}

/// Push an entry of the in-flight operation `id`; false if the submission ring is full. The caller
/// keeps the operation in its slot until the kernel has completed every entry of it, and removes it
/// only then.
pub(super) fn push(ring: &mut IoUring, inflight: &InFlightOp, id: u64, range: EntryRange) -> bool {
    let entry = entry(inflight, range).user_data(id);
    // SAFETY: the entry points to the parts' memory and to `inflight.vectors`, and names
    // `inflight.file`. Its slot owns all three until `Slots::take`, which is called only for a
    // number that came back in a completion of each of its entries, or whose entries the kernel has
    // not consumed and never will; a queue dropped earlier leaves its slots to a thread that does
    // the same. The parts of a read are exclusive (checked by `check`), so no other code reads what
    // the kernel writes. If the entry names registered memory, the part is inside it, by address.
    // The kernel then writes to that part's pages, or, if the owner has mapped others there since,
    // to pages that are mapped nowhere.
    unsafe { ring.submission().push(&entry).is_ok() }
}

fn entry(inflight: &InFlightOp, range: EntryRange) -> squeue::Entry {
    let fd = Fd(inflight.file.fd.as_raw_fd());
    let vectors =
        || (inflight.vectors[range.first..][..range.count].as_ptr().cast(), range.count as u32);
    match &inflight.op {
        Op::Read { offset, parts, .. } => {
            let offset = offset + range.at;
            match (single(&parts[range.first..][..range.count]), range.fixed) {
                (Some((part, len)), Some(buffer)) => {
                    opcode::ReadFixed::new(fd, part.as_ptr(), len, buffer).offset(offset).build()
                }
                (Some((part, len)), None) => {
                    opcode::Read::new(fd, part.as_ptr(), len).offset(offset).build()
                }
                (None, _) => {
                    let (vectors, count) = vectors();
                    opcode::Readv::new(fd, vectors, count).offset(offset).build()
                }
            }
        }
        // Split vectors differ from the parts.
        Op::Write { offset, parts, .. } => {
            match single(parts).filter(|_| !inflight.vectors_split) {
                Some((part, len)) => {
                    opcode::Write::new(fd, part.as_ptr(), len).offset(*offset).build()
                }
                None => {
                    let (vectors, count) = vectors();
                    opcode::Writev::new(fd, vectors, count).offset(offset + range.at).build()
                }
            }
        }
        Op::Sync { .. } => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

fn single(parts: &[Part]) -> Option<(&Part, u32)> {
    match parts {
        [part] => Some((part, u32::try_from(part.len()).ok()?)),
        _ => None,
    }
}

/// Submit the next `submit` queued entries, let the kernel post completions, and wait up to
/// `timeout` until `want` are posted. `Ok` does not tell how many entries were consumed: see
/// [`queued`].
pub(super) fn enter(
    ring: &IoUring,
    submit: u32,
    want: u32,
    timeout: Duration,
) -> Result<(), Errno> {
    let timeout = timeout.min(SLEEP_MAX);
    let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
    let args = SubmitArgs::new().timespec(&time);
    let flags = (EnterFlags::EXT_ARG | EnterFlags::GETEVENTS).bits();
    syscall_count::count();
    // SAFETY: `args` is the argument that EXT_ARG requires, and it and `time` outlive the call. The
    // submitted entries were pushed by `push`, whose proof covers their pointers.
    let entered = unsafe { ring.submitter().enter(submit, want, flags, Some(&args)) };
    match entered.map_err(|e| errno(&e)) {
        // The timeout passed or a signal arrived, which is no fault; the caller checks its clock.
        Ok(_) | Err(Errno::TIME | Errno::INTR) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Entries that were pushed and not yet consumed by the kernel, which consumes them in order.
pub(super) fn queued(ring: &mut IoUring) -> usize {
    ring.submission().len()
}

/// Whether completions are pending until a thread enters the kernel.
pub(super) fn needs_enter(ring: &mut IoUring) -> bool {
    let entries = ring.submission();
    entries.taskrun() || entries.cq_overflow()
}

/// The fault of a refused setup or enter. In this case EPERM and EACCES concern the mechanism
/// (sysctl, seccomp, LSM), not a file.
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
