//! Creation of a data file: directories, name, lock, every block, and all of it durable. A failure
//! leaves nothing. Also temporary files without a name.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};

use crate::copy_on_write;
use crate::fault::{FaultKind, FaultOp, IoFault, show};
use crate::file_system::check_length;

/// Bytes of zeros in one write, where the file system cannot allocate.
const ZERO_WRITE_BYTES: usize = 1 << 20;
/// Bytes of zeros between syncs, so that a stop does not wait for all of them.
const ZERO_SYNC_BYTES: u64 = 64 << 20;

/// A name must be one plain path component.
pub(crate) fn check_name(dir: &Path, name: &str, op: FaultOp) -> Result<(), IoFault> {
    if Path::new(name).file_name() == Some(OsStr::new(name)) && !name.contains('\0') {
        return Ok(());
    }
    let detail = format!("not a plain file name: name={name:?}");
    Err(IoFault::found(FaultKind::Invalid, op, show(dir), 0, detail))
}

/// Create and lock `dir/name` with `len` allocated bytes that read as zeros; `dir` must exist.
/// `direct` sets O_DIRECT. If `stop` is raised meanwhile, it fails soon and leaves nothing. If
/// another opener locks the new file first, or has removed it, the fault is of kind `Locked`, and
/// the file is left to that opener.
pub(crate) fn create(
    dir: &Path,
    name: &str,
    len: u64,
    direct: bool,
    stop: &AtomicBool,
) -> Result<OwnedFd, IoFault> {
    check_name(dir, name, FaultOp::Create)?;
    let path = dir.join(name);
    check_length(&path, len, FaultOp::Create)?;
    let fault = |e: Errno| IoFault::of_errno(FaultOp::Create, show(&path), 0, e.raw_os_error());
    // O_DIRECT is set later: an open that refuses it with EINVAL has already created the file.
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let fd =
        retry_on_intr(|| rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)).map_err(fault)?;
    let filled = lock(&fd, &path, FaultOp::Create).and_then(|()| {
        if retry_on_intr(|| rustix::fs::fstat(&fd)).map_err(fault)?.st_nlink == 0 {
            let detail = "another opener has removed the new file";
            let path = show(&path);
            return Err(IoFault::found(FaultKind::Locked, FaultOp::Create, path, 0, detail));
        }
        copy_on_write::write_in_place(&fd);
        allocate(&fd, len, &path, stop).map_err(|e| match e {
            Errno::CANCELED => {
                let detail = "stop requested before the file was fully allocated";
                IoFault::found(FaultKind::Other, FaultOp::Create, show(&path), 0, detail)
            }
            e => fault(e),
        })?;
        retry_on_intr(|| rustix::fs::fsync(&fd)).map_err(fault)?;
        sync_dir(dir, FaultOp::Create)?;
        set_direct(&fd, direct).map_err(fault)
    });
    match filled {
        Ok(()) => Ok(fd),
        // The opener that has locked the new file may have replaced it by another one.
        Err(e) if e.kind == FaultKind::Locked => Err(e),
        Err(e) => {
            roll_back(&fd, dir, &path);
            Err(e)
        }
    }
}

/// Lock the open file description `fd` for one writer.
pub(crate) fn lock(fd: &OwnedFd, path: &Path, op: FaultOp) -> Result<(), IoFault> {
    retry_on_intr(|| flock(fd, FlockOperation::NonBlockingLockExclusive)).map_err(|e| {
        let mut fault = IoFault::of_errno(op, show(path), 0, e.raw_os_error());
        if e == Errno::WOULDBLOCK {
            fault.kind = FaultKind::Locked;
            fault.detail =
                "another process, or an unfinished transfer of an ended one, holds the file's lock"
                    .to_owned();
        }
        fault
    })
}

/// Make transfers on `fd` bypass the page cache, or fail with EINVAL.
pub(crate) fn set_direct(fd: &OwnedFd, direct: bool) -> Result<(), Errno> {
    if !direct {
        return Ok(());
    }
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT)
}

/// Make a directory's entries durable.
pub(crate) fn sync_dir(dir: &Path, op: FaultOp) -> Result<(), IoFault> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(dir, flags, Mode::empty()))
        .and_then(|fd| retry_on_intr(|| rustix::fs::fsync(&fd)))
        .map_err(|e| IoFault::of_errno(op, show(dir), 0, e.raw_os_error()))
}

/// The owner of a file that this process creates in `dir`; `None` if it cannot create one.
pub(crate) fn owner_of_new_files(dir: &Path) -> Option<u32> {
    let stat = scratch(dir).and_then(|fd| rustix::fs::fstat(&fd)).ok()?;
    Some(stat.st_uid)
}

/// An unnamed file in `dir`.
pub(crate) fn scratch(dir: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match retry_on_intr(|| rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)) {
        // The errors of file systems without O_TMPFILE (open(2)); EINVAL from some network file
        // systems.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => named_scratch(dir),
        answer => answer,
    }
}

/// As `scratch`, for file systems where every file has a name: it is unlinked at once.
fn named_scratch(dir: &Path) -> Result<OwnedFd, Errno> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!(".pagelith-probe-{}-{n}", std::process::id()));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = retry_on_intr(|| rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR))?;
    rustix::fs::unlink(&path)?;
    Ok(fd)
}

/// `CANCELED` if `stop` was raised.
fn allocate(fd: &OwnedFd, len: u64, path: &Path, stop: &AtomicBool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    if i64::try_from(len).is_err() {
        return Err(Errno::FBIG);
    }
    loop {
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, len) {
            // On a memory file system a signal ends a long allocation.
            Err(Errno::INTR) if stop.load(Ordering::Relaxed) => return Err(Errno::CANCELED),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                if len > ZERO_WRITE_BYTES as u64 {
                    tracing::warn!(
                        path = %show(path),
                        bytes = len,
                        "the file system does not allocate (fallocate): writing zeros instead, once; this takes \
                         as long as the drive needs to write all bytes"
                    );
                }
                return write_zeros(fd, len, stop);
            }
            answer => return answer,
        }
    }
}

fn write_zeros(fd: &OwnedFd, len: u64, stop: &AtomicBool) -> Result<(), Errno> {
    // Checked beforehand, so that the file system is not filled for all other users.
    let room = rustix::fs::fstatvfs(fd)?;
    if room.f_bavail.saturating_mul(room.f_frsize) < len {
        return Err(Errno::NOSPC);
    }
    let zeros = vec![0; ZERO_WRITE_BYTES];
    let mut at = 0;
    while at < len {
        if stop.load(Ordering::Relaxed) {
            return Err(Errno::CANCELED);
        }
        if at > 0 && at.is_multiple_of(ZERO_SYNC_BYTES) {
            retry_on_intr(|| rustix::fs::fdatasync(fd))?;
        }
        let n = usize::try_from(len - at).unwrap_or(ZERO_WRITE_BYTES).min(ZERO_WRITE_BYTES);
        match retry_on_intr(|| rustix::io::pwrite(fd, &zeros[..n], at))? {
            0 => return Err(Errno::NOSPC),
            n => at += n as u64,
        }
    }
    Ok(())
}

/// Undo a failed creation. A failed fallocate keeps the blocks that it allocated (seen on ext4: the
/// file system stays full), so the file is truncated before it is unlinked: the descriptor may stay
/// open.
fn roll_back(fd: &OwnedFd, dir: &Path, path: &Path) {
    let undone = rustix::fs::ftruncate(fd, 0).and(rustix::fs::unlink(path));
    if let Err(e) = undone {
        tracing::error!(path = %show(path), errno = e.raw_os_error(), "could not undo a failed creation");
    }
    if let Err(fault) = sync_dir(dir, FaultOp::Create) {
        tracing::warn!(%fault, "directory not synced after a failed creation");
    }
}

/// Create `dir` and its missing ancestors, each entry durable; returns the created ones, outermost
/// first.
pub(crate) fn make_dirs(dir: &Path) -> Result<Vec<PathBuf>, IoFault> {
    let missing: Vec<&Path> =
        dir.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.is_dir()).collect();
    let mut made = Vec::new();
    for path in missing.into_iter().rev() {
        let result = make_dir(path, &mut made);
        if let Err(fault) = result {
            remove_dirs(&made);
            return Err(fault);
        }
    }
    Ok(made)
}

fn make_dir(path: &Path, made: &mut Vec<PathBuf>) -> Result<(), IoFault> {
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) => made.push(path.to_owned()),
        // Another store of the same process may be creating the same parent.
        Err(Errno::EXIST) => {}
        Err(e) => return Err(IoFault::of_errno(FaultOp::Create, show(path), 0, e.raw_os_error())),
    }
    sync_dir(&parent(path), FaultOp::Create)
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Remove those of `made` (outermost first) that are empty.
pub(crate) fn remove_dirs(made: &[PathBuf]) {
    for path in made.iter().rev() {
        // A directory that is not empty is in use, which is no error.
        let _ = rustix::fs::rmdir(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir) -> OwnedFd {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(dir.path().join("a"), flags, Mode::RUSR | Mode::WUSR).unwrap()
    }

    #[test]
    fn written_zeros_allocate_blocks() {
        let dir = tempfile::TempDir::new().unwrap();
        let (fd, bytes) = (file(&dir), ZERO_WRITE_BYTES as i64 + 4096);
        write_zeros(&fd, bytes as u64, &AtomicBool::new(false)).unwrap();
        rustix::fs::fsync(&fd).unwrap();
        let found = rustix::fs::fstat(&fd).unwrap();
        assert!(found.st_size == bytes && found.st_blocks * 512 >= bytes, "{found:?}");
    }

    #[test]
    fn stop_flag_ends_zero_writes() {
        let dir = tempfile::TempDir::new().unwrap();
        let fd = file(&dir);
        assert_eq!(write_zeros(&fd, 1 << 30, &AtomicBool::new(true)), Err(Errno::CANCELED));
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 0);
    }
}
