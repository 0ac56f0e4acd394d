//! Rings made as they were asked for.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use io_uring::IoUring;
use io_uring::squeue::Entry;
use rustix::io::Errno;

use super::ring::{Ring, errno, mechanism_fault};
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::limits;
use crate::rings::{RingKind, RingSetup};

const SETUP: &str = "io_uring_setup";

/// Entries that the ring has for each operation: room for some to be made in several.
const ENTRIES_EACH: u32 = 2;

/// Makes the rings of one disk.
pub(crate) struct Maker {
    setup: RingSetup,
    /// A ring that nothing goes through: the kernel's thread is its, and all others are attached to it.
    thread: Option<IoUring>,
}

impl Maker {
    /// One for these. Errors: of kind `Unsupported` if the kernel refuses them, and why.
    pub(crate) fn new(setup: RingSetup) -> Result<Maker, IoFault> {
        let thread = match setup.kind {
            RingKind::Sqpoll => Some(build(&sqpoll(setup.sqpoll_idle), 1, setup.kind)?),
            RingKind::Plain | RingKind::Deferred => None,
        };
        Ok(Maker { setup, thread })
    }

    /// How its rings are set up.
    pub(crate) fn setup(&self) -> RingSetup {
        self.setup
    }

    /// Make the rings of two queues of this depth at once, to see whether a store's log and a session can have theirs.
    pub(crate) fn try_two(&self, depth: usize) -> Result<(), IoFault> {
        let entries = entries_for(depth);
        let _log = self.ring(entries)?;
        self.ring(entries).map(drop)
    }

    /// Whether a ring is of the thread that it was made in.
    pub(super) fn binds(&self) -> bool {
        self.setup.kind == RingKind::Deferred
    }

    /// A ring with at least one entry and about so many, clamped to what the kernel allows.
    pub(super) fn ring(&self, entries: u32) -> Result<Ring, IoFault> {
        let kind = self.setup.kind;
        let mut wanted = match kind {
            RingKind::Plain => plain(),
            RingKind::Deferred => {
                let mut wanted = IoUring::builder();
                wanted.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
                wanted
            }
            RingKind::Sqpoll => sqpoll(self.setup.sqpoll_idle),
        };
        if let Some(thread) = &self.thread {
            wanted.setup_attach_wq(thread.as_raw_fd());
        }
        let uring = match build(&wanted, entries, kind) {
            // COOP_TASKRUN is too new (5.19) to insist on.
            Err(e) if kind == RingKind::Plain && e.errno == Errno::INVAL.raw_os_error() => {
                build(&IoUring::builder(), entries, kind)?
            }
            built => built?,
        };
        let end = match kind {
            RingKind::Plain => None,
            RingKind::Deferred | RingKind::Sqpoll => Some(give_end(&uring)?),
        };
        Ok(Ring { uring, end, sqpoll: kind == RingKind::Sqpoll })
    }
}

/// A ring that memory is tried on.
pub(super) fn build_plain(entries: u32) -> Result<Ring, IoFault> {
    Maker { setup: RingSetup::PLAIN, thread: None }.ring(entries)
}

/// Entries of the ring of a queue of this depth.
pub(super) fn entries_for(depth: usize) -> u32 {
    u32::try_from(depth.max(1)).unwrap_or(u32::MAX).saturating_mul(ENTRIES_EACH)
}

fn plain() -> io_uring::Builder<Entry> {
    // A queue may move between threads. COOP_TASKRUN spares interrupts.
    let mut wanted = IoUring::builder();
    wanted.setup_coop_taskrun().setup_taskrun_flag();
    wanted
}

fn sqpoll(idle: Duration) -> io_uring::Builder<Entry> {
    let mut wanted = IoUring::builder();
    // 0 would be the kernel's own, a second.
    wanted.setup_sqpoll(u32::try_from(idle.as_millis()).unwrap_or(u32::MAX).max(1));
    wanted
}

fn build(wanted: &io_uring::Builder<Entry>, entries: u32, kind: RingKind) -> Result<IoUring, IoFault> {
    let mut wanted = wanted.clone();
    let ring = wanted.setup_clamp().build(entries).map_err(|e| match (errno(&e), kind) {
        (Errno::INVAL, RingKind::Deferred) => {
            too_old("kernel too old: io_uring lacks SINGLE_ISSUER with DEFER_TASKRUN (6.1)")
        }
        (e, _) => limits::named(mechanism_fault(SETUP, e)),
    })?;
    let has = ring.params();
    if !has.is_feature_ext_arg() || !has.is_feature_nodrop() {
        return Err(too_old("kernel too old: io_uring lacks EXT_ARG or NODROP (5.11)"));
    }
    if kind == RingKind::Sqpoll && !has.is_feature_sqpoll_nonfixed() {
        return Err(too_old("kernel too old: io_uring's SQPOLL takes registered files alone (5.11)"));
    }
    Ok(ring)
}

fn too_old(detail: &str) -> IoFault {
    IoFault::found(FaultKind::Unsupported, FaultOp::Queue, SETUP, 0, detail)
}

/// Give a ring the only writer of a pipe, as a registered file that no entry names; the reader. The kernel lets go of it when it
/// is done with the ring, and with the last of its operations before that.
fn give_end(uring: &IoUring) -> Result<OwnedFd, IoFault> {
    let (reader, writer) = std::io::pipe().map_err(|e| limits::named(mechanism_fault("pipe", errno(&e))))?;
    let given = uring.submitter().register_files(&[writer.as_raw_fd()]);
    given.map_err(|e| mechanism_fault("io_uring_register", errno(&e)))?;
    Ok(reader.into())
}
