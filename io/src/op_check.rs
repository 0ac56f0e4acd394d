//! Checks of an operation before the system call, and its result after it: the same for every real
//! backend, in release builds too.

use std::ops::Deref;

use rustix::io::Errno;

use crate::disk::{Completion, FileId, Op};
use crate::fault::{FaultKind, FaultOp, IoFault};
use crate::files::DataFile;
use pagelith_mutants::{self as mutant, Mutant};

/// Most parts of one operation: the kernel's UIO_MAXIOV (include/uapi/linux/uio.h).
pub(crate) const PARTS_MAX: usize = 1024;

/// Most bytes of one operation: the kernel's MAX_RW_COUNT (include/linux/fs.h), INT_MAX rounded
/// down to a page. The kernel truncates longer transfers without an error.
pub(crate) const BYTES_MAX: u64 = 0x7fff_f000;

/// Alignment in bytes that transfers must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// For a part's address and length.
    pub(crate) memory: usize,
    /// For offsets and total lengths.
    pub(crate) offset: usize,
}

/// The file of `op`, looked up by number with `find`, if `op` passes every check.
pub(crate) fn check<F: Deref<Target = DataFile>>(
    find: impl FnOnce(FileId) -> Option<F>,
    align: Alignment,
    op: &Op,
) -> Result<F, IoFault> {
    let (id, offset) = target(op);
    let kind = FaultKind::Invalid;
    let Some(file) = find(id) else {
        return Err(IoFault::found(
            kind,
            fault_op(op),
            "",
            offset,
            format!("no such file is open: id={}", id.0),
        ));
    };
    match broken_rule(&file, align, op) {
        None => Ok(file),
        Some(rule) => Err(IoFault::found(kind, fault_op(op), file.path.clone(), offset, rule)),
    }
}

fn broken_rule(file: &DataFile, align: Alignment, op: &Op) -> Option<String> {
    let (offset, parts, reads) = match op {
        Op::Read { offset, parts, .. } => (*offset, parts, true),
        Op::Write { offset, parts, .. } => (*offset, parts, false),
        Op::Sync { .. } => return None,
    };
    if parts.len() > PARTS_MAX {
        return Some(format!("too many parts: parts={} most={PARTS_MAX}", parts.len()));
    }
    for part in parts {
        if !part.addr().is_multiple_of(align.memory) || !part.len().is_multiple_of(align.memory) {
            let (addr, len) = (part.addr(), part.len());
            return Some(format!(
                "part not aligned: addr={addr:#x} len={len} align={}",
                align.memory
            ));
        }
        if reads && !part.is_exclusive() {
            return Some("a read needs exclusive parts".to_owned());
        }
    }
    let bytes = op.bytes();
    let unit = align.offset as u64;
    if !offset.is_multiple_of(unit) || !bytes.is_multiple_of(unit) {
        return Some(format!("range not aligned: bytes={bytes} align={unit}"));
    }
    if bytes > BYTES_MAX {
        return Some(format!("too long for one operation: bytes={bytes} most={BYTES_MAX}"));
    }
    // Offsets are signed in the kernel, and io_uring interprets -1 as the current file position.
    let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
    match end {
        None => Some(format!("range beyond any file: bytes={bytes}")),
        // The file was allocated as a whole; a write past its end would take space that is not
        // accounted for.
        Some(end) if !reads && end > file.len => {
            Some(format!("write past the allocated end: bytes={bytes} len={}", file.len))
        }
        Some(_) => None,
    }
}

/// The result of an operation for which the kernel reported `moved` bytes.
pub(crate) fn verdict(op: &Op, path: &str, moved: Result<u64, Errno>) -> Result<(), IoFault> {
    let (_, offset) = target(op);
    let wanted = op.bytes();
    match moved {
        Ok(n) if n == wanted || mutant::on(Mutant::ShortTransferAccepted) => Ok(()),
        Ok(n) => {
            let detail = format!("moved={n} wanted={wanted}");
            Err(IoFault::found(FaultKind::Short, fault_op(op), path, offset, detail))
        }
        Err(e) => Err(IoFault::of_errno(fault_op(op), path, offset, e.raw_os_error())),
    }
}

/// The completion of an operation that was refused before it was submitted.
pub(crate) fn refused(token: u64, op: Op, fault: IoFault) -> Completion {
    Completion { token, result: Err(fault), op }
}

fn target(op: &Op) -> (FileId, u64) {
    match op {
        Op::Read { file, offset, .. } | Op::Write { file, offset, .. } => (*file, *offset),
        Op::Sync { file } => (*file, 0),
    }
}

fn fault_op(op: &Op) -> FaultOp {
    match op {
        Op::Read { .. } => FaultOp::Read,
        Op::Write { .. } => FaultOp::Write,
        Op::Sync { .. } => FaultOp::Sync,
    }
}
