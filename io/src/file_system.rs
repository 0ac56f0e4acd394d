//! Properties of the file system and limits of files, known before a file is created.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::fault::{FaultKind, FaultOp, IoFault, show};

// File system numbers of include/uapi/linux/magic.h.
pub(crate) const TMPFS: u64 = 0x0102_1994;
pub(crate) const RAMFS: u64 = 0x8584_58f6;

/// Whether the files of `dir` are in memory, charged to the control group of their writer; `dir`
/// need not exist yet.
pub fn is_memory(dir: &Path) -> bool {
    rustix::fs::statfs(nearest(dir))
        .is_ok_and(|found| matches!(found.f_type as u64 & 0xffff_ffff, TMPFS | RAMFS))
}

/// The directory itself, or its nearest existing ancestor, which is on the same file system.
pub(crate) fn nearest(dir: &Path) -> PathBuf {
    match dir.ancestors().find(|p| !p.as_os_str().is_empty() && p.exists()) {
        Some(p) => p.to_owned(),
        None => PathBuf::from("."),
    }
}

/// Bytes of the longest file that this process may write (`RLIMIT_FSIZE`); `None` if it is not
/// limited.
pub fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// The message for a file of `len` bytes that this process may not write; shared memory is such a
/// file, too. `None` if the length is allowed.
pub(crate) fn too_long(len: u64) -> Option<String> {
    let most = file_bytes_max().filter(|most| *most < len)?;
    Some(format!(
        "the file size limit is {most} bytes (RLIMIT_FSIZE, `ulimit -f`), and {len} are needed: raise it"
    ))
}

/// Return a fault instead of the signal (SIGXFSZ) that would end the process.
pub(crate) fn check_length(path: &Path, len: u64, op: FaultOp) -> Result<(), IoFault> {
    match too_long(len) {
        Some(detail) => Err(IoFault::found(FaultKind::NoSpace, op, show(path), 0, detail)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_file_system_is_detected_for_missing_directory() {
        assert!(is_memory(Path::new("/dev/shm/not/there/yet")));
        assert!(!is_memory(Path::new("/proc")));
        assert!(!is_memory(Path::new("/sys")));
    }
}
