//! Which operations go wrong, and how.

use crate::killed::content::Rng;

/// An operation on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// fsync, fdatasync.
    Sync,
}

/// What happens instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It fails with EIO.
    Eio,
    /// It fails with ENOSPC.
    NoSpace,
    /// A write that claims success and does nothing.
    Lost,
    /// A write that claims success and leaves out some sectors.
    Torn,
    /// A write or read of another place, 4096 bytes or much more away.
    Misdirected,
    /// One bit of what is read, or of what is written, is another.
    Flip,
    /// Half of it is done, and said so.
    Short,
    /// It is answered so many milliseconds late.
    Late(u32),
}

/// A rule: of the operations on files whose names begin with `file`, one in `one_in` goes wrong.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Which operations.
    pub on: On,
    /// Which files.
    pub file: &'static str,
    /// How often.
    pub one_in: u64,
    /// How.
    pub fault: Fault,
}

/// The fault that an operation meets.
pub fn meets(rules: &[Rule], rng: &mut Rng, on: On, file: &str) -> Option<Fault> {
    let meant = |rule: &&Rule| rule.on == on && file.starts_with(rule.file) && rng.below(rule.one_in) == 0;
    rules.iter().find(meant).map(|rule| rule.fault)
}
