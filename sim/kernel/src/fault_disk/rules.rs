//! Rules that decide which operations fail, and how.

use crate::killed::content::Rng;

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// fsync, fdatasync.
    Sync,
}

/// A fault of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with EIO.
    Eio,
    /// It fails with ENOSPC.
    NoSpace,
    /// A write that is acknowledged and does nothing.
    Lost,
    /// A write that is acknowledged and leaves out some sectors.
    Torn,
    /// A write or read at another offset, 4096 bytes or much more away.
    Misdirected,
    /// One bit of the data read or written is flipped.
    Flip,
    /// Half of it is transferred, with a short count.
    Short,
    /// The reply is late by this many milliseconds.
    Late(u32),
}

/// A rule: of the operations on files whose names begin with `file`, one in `one_in` fails.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Kind of operation.
    pub on: FileOp,
    /// Prefix of the file name.
    pub file: &'static str,
    /// One in this many operations.
    pub one_in: u64,
    /// The fault.
    pub fault: Fault,
}

/// The fault that strikes an operation.
pub fn draw_fault(rules: &[Rule], rng: &mut Rng, on: FileOp, file: &str) -> Option<Fault> {
    let applies =
        |rule: &&Rule| rule.on == on && file.starts_with(rule.file) && rng.below(rule.one_in) == 0;
    rules.iter().find(applies).map(|rule| rule.fault)
}
