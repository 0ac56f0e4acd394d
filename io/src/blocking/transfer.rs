//! One operation as one system call on the calling thread.

use std::io::{IoSlice, IoSliceMut};

use rustix::io::{Errno, preadv, pwritev, retry_on_intr};

use crate::disk::Op;
use crate::fault::IoFault;
use crate::files::DataFile;
use crate::op_check::verdict;
use crate::syscall_count;

/// Perform `op`. A transfer that ends early is not resumed: on a regular file it means the end of
/// the file or of the device, and the rest may no longer be aligned.
pub(super) fn run(op: &mut Op, file: &DataFile) -> Result<(), IoFault> {
    syscall_count::count();
    let moved = match op {
        Op::Read { offset, parts, .. } => {
            let mut slices: Vec<IoSliceMut<'_>> =
                parts.iter_mut().filter_map(|p| p.bytes_mut()).map(IoSliceMut::new).collect();
            retry_on_intr(|| preadv(&file.fd, &mut slices, *offset))
        }
        Op::Write { offset, parts, .. } => {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p.bytes())).collect();
            retry_on_intr(|| pwritev(&file.fd, &slices, *offset))
        }
        Op::Sync { .. } => sync(file),
    };
    verdict(op, &file.path, moved.map(|n| n as u64))
}

fn sync(file: &DataFile) -> Result<usize, Errno> {
    // An interrupted sync has reported nothing yet; a failed one is not retried.
    retry_on_intr(|| rustix::fs::fdatasync(&file.fd)).map(|()| 0)
}
