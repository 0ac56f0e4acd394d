//! I/O faults: kind, operation, place, and the errno as the kernel gave it.

use std::fmt;
use std::path::Path;

/// The kinds of fault that the store must tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The device failed the transfer (EIO and its kin).
    Device,
    /// Fewer bytes were transferred than requested.
    Short,
    /// No room on the device or the file system (ENOSPC, EDQUOT).
    NoSpace,
    /// The file system is mounted read-only (EROFS) or the file may not be written (EACCES, EPERM).
    ReadOnly,
    /// The operation broke an alignment or range rule (EINVAL, or detected before the system call).
    Invalid,
    /// The kernel or container refuses the mechanism (ENOSYS, EPERM of io_uring_setup, EOPNOTSUPP).
    Unsupported,
    /// Another process holds the lock.
    Locked,
    /// No such file or directory.
    NotFound,
    /// The file exists already.
    Exists,
    /// The name of an open file no longer refers to it, or the file is shorter: it was removed,
    /// replaced or truncated.
    Gone,
    /// A resource of the process ran out (EMFILE, ENOMEM, EAGAIN).
    Exhausted,
    /// Anything else; see the errno.
    Other,
}

impl FaultKind {
    /// The kind of an errno.
    pub fn of_errno(errno: i32) -> FaultKind {
        use rustix::io::Errno as E;
        match E::from_raw_os_error(errno) {
            E::IO | E::NXIO | E::NODEV | E::REMOTEIO | E::TIMEDOUT => FaultKind::Device,
            E::NOSPC | E::DQUOT | E::FBIG => FaultKind::NoSpace,
            E::ROFS | E::ACCESS | E::PERM => FaultKind::ReadOnly,
            E::INVAL => FaultKind::Invalid,
            E::NOSYS | E::OPNOTSUPP => FaultKind::Unsupported,
            E::NOENT | E::NOTDIR => FaultKind::NotFound,
            E::EXIST => FaultKind::Exists,
            E::MFILE | E::NFILE | E::NOMEM | E::AGAIN => FaultKind::Exhausted,
            _ => FaultKind::Other,
        }
    }

    /// Whether a retry of the same operation may succeed. This does not apply to syncs: a failed
    /// sync is never retried, whatever its kind.
    pub fn retryable(self) -> bool {
        matches!(self, FaultKind::Device | FaultKind::Short | FaultKind::Exhausted)
    }
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A data sync.
    Sync,
    /// Creating or allocating a file.
    Create,
    /// Opening or locking a file.
    Open,
    /// Removing a file.
    Remove,
    /// Listing a directory.
    List,
    /// Making a queue.
    Queue,
    /// Registering memory.
    Register,
    /// Starting a thread.
    Spawn,
    /// Probing a directory or the system for its limits.
    Probe,
}

impl fmt::Display for FaultOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultOp::Read => "read",
            FaultOp::Write => "write",
            FaultOp::Sync => "sync",
            FaultOp::Create => "create",
            FaultOp::Open => "open",
            FaultOp::Remove => "remove",
            FaultOp::List => "list",
            FaultOp::Queue => "queue",
            FaultOp::Register => "register",
            FaultOp::Spawn => "spawn",
            FaultOp::Probe => "probe",
        })
    }
}

/// A failed operation. The errno stays a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoFault {
    /// The kind, for code that reacts to the fault.
    pub kind: FaultKind,
    /// Which operation.
    pub op: FaultOp,
    /// File or directory, as far as known.
    pub path: String,
    /// Byte offset in the file; 0 where there is none.
    pub offset: u64,
    /// The kernel's errno; 0 if no system call failed, or the transfer was short.
    pub errno: i32,
    /// Further detail for the message; may be empty.
    pub detail: String,
}

impl IoFault {
    /// A failure that the kernel reported; the kind follows from the errno.
    pub fn of_errno(op: FaultOp, path: impl Into<String>, offset: u64, errno: i32) -> IoFault {
        let (path, kind) = (path.into(), FaultKind::of_errno(errno));
        IoFault { kind, op, path, offset, errno, detail: String::new() }
    }

    /// A failure detected without a system call; `detail` names the broken rule.
    pub fn found(
        kind: FaultKind,
        op: FaultOp,
        path: impl Into<String>,
        offset: u64,
        detail: impl Into<String>,
    ) -> IoFault {
        IoFault { kind, op, path: path.into(), offset, errno: 0, detail: detail.into() }
    }
}

impl fmt::Display for IoFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed", self.op)?;
        if self.errno != 0 {
            write!(f, ": {}", std::io::Error::from_raw_os_error(self.errno))?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        write!(
            f,
            " kind={:?} path={} offset={} errno={}",
            self.kind, self.path, self.offset, self.errno
        )
    }
}

impl std::error::Error for IoFault {}

/// A path as text for messages.
pub(crate) fn show(path: &Path) -> String {
    path.display().to_string()
}
