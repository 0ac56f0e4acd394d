//! The choice of the I/O backend, found by trying each, logged, and never changed silently.
//!
//! A sysctl, a container's seccomp filter or an old kernel may disable io_uring, and a file system
//! may accept O_DIRECT at open without any effect (tmpfs since Linux 6.5). So each mechanism is
//! tried: a ring is created, and an aligned block is written and read back in every directory.

mod dir;
#[cfg(test)]
mod tests;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use self::dir::ProbeDir;
use crate::blocking::{BlockingQueue, Pool};
use crate::copy_on_write::{copies, write_in_place};
use crate::create::scratch;
use crate::disk::{Disk, IoBackend, Queue};
use crate::fault::{FaultKind, FaultOp, IoFault, show};
use crate::files::Files;
use crate::op_check::Alignment;
use crate::real_disk::{RealDisk, TransferBackend};
use crate::uring::{UringQueue, UringShared, try_two};

/// The backend that the configuration requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// io_uring with O_DIRECT if every directory takes it, else blocking; `DiskFacts::reason` says
    /// why.
    Auto,
    /// io_uring with O_DIRECT or an error.
    Uring,
    /// Helper threads, with O_DIRECT if every directory takes it, else through the page cache.
    Blocking,
}

/// Operations in flight while probing.
const PROBE_DEPTH: usize = 1;

/// Alignment required where transfers go through the page cache, which needs none: the smallest
/// sector, so that a correct caller nearly satisfies O_DIRECT too.
const BUFFERED: Alignment = Alignment { memory: 512, offset: 512 };

/// A disk over `dirs`, which need not exist yet: their nearest existing ancestors are probed, and
/// nothing is left in them. All directories use one backend.
///
/// Errors: kind `Unsupported` if `Uring` was requested and is refused, naming the reason;
/// `ReadOnly`, `NoSpace` or `Device` if a directory cannot be written. A full file system is no
/// error if the directory already holds files to read, since the store's own files may fill it.
pub fn open_disk(dirs: &[PathBuf], choice: BackendChoice) -> Result<Arc<dyn Disk>, IoFault> {
    Ok(Arc::new(real_disk(dirs, choice, 1)?))
}

/// As [`open_disk`], for queues of up to `depth` operations. io_uring is chosen if two such queues
/// can be created; with `Auto` a later queue that gets no ring uses the blocking backend. Once
/// `stop` is raised, creating a file fails soon and leaves nothing.
pub fn open_disk_with_stop(
    dirs: &[PathBuf],
    choice: BackendChoice,
    depth: usize,
    stop: Arc<AtomicBool>,
) -> Result<Arc<dyn Disk>, IoFault> {
    Ok(Arc::new(real_disk(dirs, choice, depth)?.with_stop(stop)))
}

/// Whether a store whose queues have up to `depth` operations can use io_uring: creates and drops
/// two rings. The fault names the limits that may have caused it.
pub fn try_io_uring(depth: usize) -> Result<(), IoFault> {
    try_two(depth)
}

/// Whether blocks of a store's new files in `dir` are copied on write. Found out with a temporary
/// file, which is removed.
pub fn copies_new_files(dir: &Path) -> Result<bool, IoFault> {
    let file = scratch(dir)
        .map_err(|e| IoFault::of_errno(FaultOp::Probe, show(dir), 0, e.raw_os_error()))?;
    write_in_place(&file);
    Ok(copies(&file))
}

fn real_disk(dirs: &[PathBuf], choice: BackendChoice, depth: usize) -> Result<RealDisk, IoFault> {
    if dirs.is_empty() {
        return Err(IoFault::found(
            FaultKind::Invalid,
            FaultOp::Probe,
            "",
            0,
            "no directory given",
        ));
    }
    let probes =
        dirs.iter().map(|d| ProbeDir::open(d)).collect::<Result<Vec<ProbeDir>, IoFault>>()?;
    // Both backends need the pool, so a failure to start it does not depend on the mechanism.
    let pool = Arc::new(Pool::start()?);
    let uring = || try_uring(&probes, depth, &pool);
    let chosen = decide(choice, uring, || try_direct(&probes, &pool))?;
    let mover = match chosen.backend {
        IoBackend::Uring => {
            TransferBackend::Uring { pool, may_do_without: choice == BackendChoice::Auto }
        }
        IoBackend::Blocking | IoBackend::Simulated => TransferBackend::Blocking(pool),
    };
    tracing::info!(
        backend = ?chosen.backend, direct = chosen.direct, reason = %chosen.reason, "disk opened"
    );
    Ok(RealDisk::new(dirs, mover, chosen.direct, chosen.align, chosen.reason))
}

#[derive(Debug, PartialEq, Eq)]
struct BackendDecision {
    backend: IoBackend,
    direct: bool,
    align: Alignment,
    reason: String,
}

/// Decide by the results of trying each mechanism. Only a refusal of the mechanism itself leads to
/// another one: a directory that cannot be written, or a failing device, is an error on any
/// backend.
fn decide(
    choice: BackendChoice,
    uring: impl FnOnce() -> Result<Alignment, IoFault>,
    direct: impl FnOnce() -> Result<Alignment, IoFault>,
) -> Result<BackendDecision, IoFault> {
    let mut reason = String::from("blocking is configured");
    if choice != BackendChoice::Blocking {
        match uring() {
            Ok(align) => {
                let reason = "io_uring and O_DIRECT work in every directory".to_owned();
                return Ok(BackendDecision {
                    backend: IoBackend::Uring,
                    direct: true,
                    align,
                    reason,
                });
            }
            Err(fault) if !refuses_mechanism(&fault) => return Err(fault),
            Err(mut fault) if choice == BackendChoice::Uring => {
                fault.kind = FaultKind::Unsupported;
                fault.detail =
                    format!("io_uring is configured and cannot be used: {}", why(&fault));
                return Err(fault);
            }
            Err(fault) => reason = format!("{}, using blocking", why(&fault)),
        }
    }
    match direct() {
        Ok(align) => {
            Ok(BackendDecision { backend: IoBackend::Blocking, direct: true, align, reason })
        }
        Err(fault) if !refuses_mechanism(&fault) => Err(fault),
        Err(fault) => {
            let reason = format!("{reason}; no O_DIRECT: {}", why(&fault));
            Ok(BackendDecision {
                backend: IoBackend::Blocking,
                direct: false,
                align: BUFFERED,
                reason,
            })
        }
    }
}

fn refuses_mechanism(fault: &IoFault) -> bool {
    match fault.kind {
        FaultKind::Unsupported | FaultKind::Invalid | FaultKind::Other | FaultKind::Exhausted => {
            true
        }
        // A short transfer inside the file: the file system violates its contract.
        FaultKind::Short => true,
        FaultKind::Device | FaultKind::NoSpace | FaultKind::ReadOnly => false,
        FaultKind::Locked | FaultKind::NotFound | FaultKind::Exists | FaultKind::Gone => false,
    }
}

fn why(fault: &IoFault) -> String {
    if fault.errno == 0 {
        return format!("{}: {}", fault.path, fault.detail);
    }
    let text = rustix::io::Errno::from_raw_os_error(fault.errno).to_string();
    // The standard library appends the number, which this message already contains.
    let text = text.split(" (os error").next().unwrap_or_default();
    let detail =
        if fault.detail.is_empty() { String::new() } else { format!(", {}", fault.detail) };
    format!("{}: errno={} ({text}){detail}", fault.path, fault.errno)
}

fn try_uring(probes: &[ProbeDir], depth: usize, pool: &Arc<Pool>) -> Result<Alignment, IoFault> {
    let files = Arc::new(Files::default());
    // The ring first: if both it and O_DIRECT are refused, the operator looks for the reason of the
    // ring.
    try_two(depth).map_err(setup_refused)?;
    let align = common_align(probes)?;
    let (registered, pool) = (Arc::default(), pool.clone());
    let common = UringShared { files: files.clone(), registered, align, pool };
    let mut queue = UringQueue::new(common, PROBE_DEPTH).map_err(setup_refused)?;
    try_dirs(&mut queue, &files, probes, align)?;
    Ok(align)
}

/// Treat every failure to create a ring, also lack of memory or descriptors, as `Unsupported`,
/// since the other backend works without a ring.
fn setup_refused(mut fault: IoFault) -> IoFault {
    fault.kind = FaultKind::Unsupported;
    fault
}

fn try_direct(probes: &[ProbeDir], pool: &Arc<Pool>) -> Result<Alignment, IoFault> {
    let align = common_align(probes)?;
    let files = Arc::new(Files::default());
    let mut queue = BlockingQueue::new(Arc::clone(&files), align, pool.clone(), PROBE_DEPTH);
    try_dirs(&mut queue, &files, probes, align)
}

fn try_dirs(
    queue: &mut dyn Queue,
    files: &Files,
    probes: &[ProbeDir],
    align: Alignment,
) -> Result<Alignment, IoFault> {
    for probe in probes {
        let id = files.insert(probe.direct_file()?);
        let mut trial = |writes| trial::round_trip(queue, id, writes, align, &probe.name());
        match trial(probe.may_write()) {
            // A copy-on-write file system may be full only at the overwrite; files that can be read
            // are still served.
            Err(fault) if fault.kind == FaultKind::NoSpace => trial(false)?,
            tried => tried?,
        }
    }
    Ok(align)
}

/// The strictest alignment of all directories.
fn common_align(probes: &[ProbeDir]) -> Result<Alignment, IoFault> {
    let mut all = Alignment { memory: 512, offset: 512 };
    for probe in probes {
        let one = probe.align()?;
        all.memory = all.memory.max(one.memory);
        all.offset = all.offset.max(one.offset);
    }
    Ok(all)
}
