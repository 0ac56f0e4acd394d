//! Faults that a test plans, and the log of executed operations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pagelith_io::fault::{FaultKind, FaultOp, IoFault};

use super::fault_rates::DiskFault;

/// One fault, given to [`super::SimDisk::inject`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultPlan {
    /// Fails the `nth` next operation of kind `op` (1 is the very next) with `kind`, once. Counted
    /// over all queues and processes. A failed write leaves each sector old or new. A failed read
    /// has filled a part of its memory. A failed sync makes nothing durable, and no later sync
    /// covers the data that was dirty then. A failed control operation changes nothing.
    Fail {
        /// Which operations to count; any kind.
        op: FaultOp,
        /// Which of them fails, from 1.
        nth: u64,
        /// How it fails.
        kind: FaultKind,
    },
    /// Makes a fault strike the `nth` next operation that it can strike (1 is the very next), once,
    /// on any file. It is logged like random faults ([`super::SimDisk::struck`]). Previous block
    /// contents are recorded from this call on.
    Strike {
        /// The fault.
        fault: DiskFault,
        /// Which operation, from 1.
        nth: u64,
    },
    /// Unlinks a file at once: processes that have it open keep it, and it cannot be opened any
    /// more.
    Unlink {
        /// Directory number.
        dir: usize,
        /// File name.
        name: String,
    },
    /// Flips one bit at rest, at once.
    FlipBit {
        /// Directory number.
        dir: usize,
        /// File name.
        name: String,
        /// Byte offset in the file.
        offset: u64,
        /// Bit number, 0 (least significant) to 7.
        bit: u8,
    },
    /// Replaces bytes at rest, at once.
    Overwrite {
        /// Directory number.
        dir: usize,
        /// File name.
        name: String,
        /// Byte offset in the file; any alignment.
        offset: u64,
        /// The new bytes.
        bytes: Vec<u8>,
    },
    /// Limits the device to this many bytes of files; a create that needs more fails with `NoSpace`
    /// and leaves nothing. `u64::MAX`, the initial value, is no limit.
    Capacity {
        /// Sum of the lengths of all files, in bytes.
        bytes: u64,
    },
}

/// One executed operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedOp {
    /// Changes done so far, this one included. Passing it to [`super::SimDisk::stop_after`] on a
    /// fresh disk stops right after this operation.
    pub n: u64,
    /// The kind of operation.
    pub kind: FaultOp,
    /// Directory and file name, as in faults.
    pub file: Arc<str>,
    /// Byte offset; 0 for a sync and for control operations.
    pub offset: u64,
    /// Bytes moved or allocated; 0 for a sync, a remove and an open.
    pub len: u64,
    /// How it failed, if an injected fault made it fail.
    pub fault: Option<FaultKind>,
    /// The fault that struck it, through [`super::SimDisk::set_faults`] or [`FaultPlan::Strike`];
    /// not delays.
    pub struck: Option<DiskFault>,
}

impl fmt::Display for LoggedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "n={} {} file={} offset={} len={}",
            self.n, self.kind, self.file, self.offset, self.len
        )?;
        if let Some(kind) = self.fault {
            write!(f, " fault={kind:?}")?;
        }
        match self.struck {
            Some(fault) => write!(f, " struck={fault}"),
            None => Ok(()),
        }
    }
}

/// Planned failures that wait for their operation.
#[derive(Debug, Default)]
pub(crate) struct PlannedFailures {
    /// By kind of operation: how many operations remain (1 if the next one fails), and how it
    /// fails.
    waiting: BTreeMap<u8, Vec<(u64, FaultKind)>>,
}

impl PlannedFailures {
    /// Fails the `nth` next `op`.
    pub(crate) fn add(&mut self, op: FaultOp, nth: u64, kind: FaultKind) {
        assert!(nth > 0, "faults are counted from 1 op={op}");
        self.waiting.entry(op as u8).or_default().push((nth, kind));
    }

    /// Counts one `op`; returns how it fails.
    pub(crate) fn draw(&mut self, op: FaultOp) -> Option<FaultKind> {
        if self.waiting.is_empty() {
            return None;
        }
        let waiting = self.waiting.get_mut(&(op as u8))?;
        waiting.iter_mut().for_each(|(left, _)| *left -= 1);
        let due = waiting.iter().position(|(left, _)| *left == 0)?;
        let kind = waiting.swap_remove(due).1;
        waiting.retain(|(left, _)| *left > 0);
        Some(kind)
    }
}

/// A simulated fault, with Linux's errno for well-known kinds.
pub(crate) fn fault(
    kind: FaultKind,
    op: FaultOp,
    path: &str,
    offset: u64,
    detail: &str,
) -> IoFault {
    let errno = match kind {
        FaultKind::Device => 5,   // EIO
        FaultKind::NoSpace => 28, // ENOSPC
        _ => 0,
    };
    IoFault { kind, op, path: path.to_string(), offset, errno, detail: detail.to_string() }
}
