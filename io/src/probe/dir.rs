//! A directory to probe: a temporary file in it, and the alignment that its file system requires.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::create::{scratch, set_direct};
use crate::fault::{FaultKind, FaultOp, IoFault, show};
use crate::file_system::nearest;
pub(super) use crate::file_system::{RAMFS, TMPFS};
use crate::files::DataFile;
use crate::op_check::Alignment;
use crate::real_disk::list;
use crate::regular_file::{Access, open_store_file};

/// Bytes of the temporary file: two blocks of the largest accepted alignment.
const PROBE_BYTES: u64 = 2 * ALIGN_MAX as u64;

/// The smallest alignment used: the smallest sector.
const ALIGN_MIN: usize = 512;

/// The largest accepted alignment; above it O_DIRECT is refused, since extents and buffers of the
/// store are aligned to 4096.
pub(super) const ALIGN_MAX: usize = 4096;

// As `TMPFS`.
pub(super) const OVERLAYFS: u64 = 0x794c_7630;

/// An open file in a directory, or in its nearest existing ancestor.
pub(super) struct ProbeDir {
    path: PathBuf,
    fd: OwnedFd,
    may_write: bool,
    align: Result<Alignment, String>,
}

impl ProbeDir {
    /// Open a probe for `dir`. Errors as `open_disk`.
    pub(super) fn open(dir: &Path) -> Result<ProbeDir, IoFault> {
        let path = nearest(dir);
        let fault = |e: Errno| {
            let mut fault = IoFault::of_errno(FaultOp::Probe, show(&path), 0, e.raw_os_error());
            if path != dir {
                // The message's reader knows the configured directory, not the ancestor in which it
                // would be created.
                fault.detail = format!("dir={} would be created there", show(dir));
            }
            fault
        };
        let (fd, may_write) = match scratch(&path).and_then(|fd| fill(&fd).map(|()| fd)) {
            Ok(fd) => (fd, true),
            Err(e @ (Errno::NOSPC | Errno::DQUOT)) => match existing(dir)? {
                Some(fd) => (fd, false),
                None => return Err(fault(e)),
            },
            Err(e) => return Err(fault(e)),
        };
        let fs_type = rustix::fs::fstatfs(&fd).map_err(fault)?.f_type as u64;
        let align = alignment(fs_type, direct_alignment(&fd));
        Ok(ProbeDir { path, fd, may_write, align })
    }

    /// Whether the file may be written; otherwise it is one of the store's own files.
    pub(super) fn may_write(&self) -> bool {
        self.may_write
    }

    /// The directory's name for messages.
    pub(super) fn name(&self) -> String {
        show(&self.path)
    }

    /// The alignment that O_DIRECT requires in this directory, or the reason for not using it.
    pub(super) fn align(&self) -> Result<Alignment, IoFault> {
        self.align.clone().map_err(|why| {
            IoFault::found(FaultKind::Unsupported, FaultOp::Probe, show(&self.path), 0, why)
        })
    }

    /// The file with O_DIRECT set.
    pub(super) fn direct_file(&self) -> Result<DataFile, IoFault> {
        let fault = |e: i32| IoFault::of_errno(FaultOp::Probe, show(&self.path), 0, e);
        set_direct(&self.fd, true).map_err(|e| fault(e.raw_os_error()))?;
        let fd = self.fd.try_clone().map_err(|e| fault(e.raw_os_error().unwrap_or(0)))?;
        Ok(DataFile { fd, path: show(&self.path), dir: 0, name: String::new(), len: PROBE_BYTES })
    }
}

/// The alignment by the file system's type and the answer of statx (memory, offset; zeros if
/// O_DIRECT does not work, `None` if statx does not report it).
pub(super) fn alignment(fs_type: u64, reported: Option<(u32, u32)>) -> Result<Alignment, String> {
    match (fs_type, reported) {
        // Linux 6.5 and later accept O_DIRECT on tmpfs, without effect.
        (TMPFS, _) => Err("tmpfs has no device".to_owned()),
        (RAMFS, _) => Err("ramfs has no device".to_owned()),
        (_, Some((0, _) | (_, 0))) => {
            Err("statx reports no support for direct i/o on the file".to_owned())
        }
        (OVERLAYFS, None) => Err("overlayfs does not report the file system below it".to_owned()),
        (_, None) => Ok(Alignment { memory: ALIGN_MAX, offset: ALIGN_MAX }),
        (_, Some((memory, offset))) => {
            Ok(Alignment { memory: accept(memory)?, offset: accept(offset)? })
        }
    }
}

fn accept(reported: u32) -> Result<usize, String> {
    let reported = reported as usize;
    if reported > ALIGN_MAX || !reported.is_power_of_two() {
        return Err(format!(
            "direct i/o needs an alignment that is not supported: align={reported} most={ALIGN_MAX}"
        ));
    }
    Ok(reported.max(ALIGN_MIN))
}

/// The answer of statx about direct I/O on a file: STATX_DIOALIGN, since Linux 6.1.
fn direct_alignment(fd: &OwnedFd) -> Option<(u32, u32)> {
    let stat = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let supported = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    supported.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Write the file's blocks, so that a full file system is detected now and not as a failed trial.
fn fill(fd: &OwnedFd) -> Result<(), Errno> {
    let zeros = [0; PROBE_BYTES as usize];
    let mut at = 0;
    while at < PROBE_BYTES {
        match retry_on_intr(|| rustix::io::pwrite(fd, &zeros[at as usize..], at))? {
            0 => return Err(Errno::NOSPC),
            n => at += n as u64,
        }
    }
    retry_on_intr(|| rustix::fs::fdatasync(fd))
}

/// A file of `dir` that is long enough for a trial read.
fn existing(dir: &Path) -> Result<Option<OwnedFd>, IoFault> {
    let Some((name, _)) = list(dir)?.into_iter().find(|(_, len)| *len >= PROBE_BYTES) else {
        return Ok(None);
    };
    open_store_file(&dir.join(name), Access::Read).map(Some)
}
