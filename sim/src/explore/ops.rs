//! The operations of a run. Each has a random number that decides everything else about it, so that
//! it stays the same if others are left out.

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// A batch of gets, on a session.
    Get,
    /// Gets of all objects of a page in one batch.
    GetPage,
    /// Gets of ranges of objects.
    GetRange,
    /// Gets into memory borrowed for the call.
    GetBorrowed,
    /// Puts a page's group or one of its singles.
    Put,
    /// Puts several pages in one batch.
    PutMany,
    /// Puts from memory borrowed for the call.
    PutBorrowed,
    /// A put with another length, or of a conflicting group.
    PutOther,
    /// Puts an attached group on a session.
    Attach,
    /// Begins a page's group, or joins it, and puts some of its objects.
    Fill,
    /// Commits it.
    Commit,
    /// Aborts it.
    Abort,
    /// Which of these objects exist, and how many before the first that does not.
    Exists,
    /// How long a prefix can be restored.
    ExistsGroups,
    /// Reads an object in place.
    View,
    /// Removes objects.
    Remove,
    /// Clears a namespace.
    Clear,
    /// Removes or clears with a zero timeout.
    HastyRemoval,
    /// Pins objects.
    Pin,
    /// Drops a pin.
    Unpin,
    /// Leases objects.
    Lease,
    /// Prefetches objects into memory.
    Prefetch,
    /// Flushes.
    Flush,
    /// Takes completions from a session.
    Poll,
    /// Waits for everything in flight.
    Drain,
    /// Lets time pass.
    Idle,
    /// Advances the clock in one step.
    Jump,
    /// Drops a session, perhaps with batches in flight, and opens another.
    NewSession,
    /// Verifies all sealed segments.
    Scrub,
    /// Checks the counters at a quiet moment.
    Audit,
    /// Closes and reopens.
    Close,
    /// Drops the store without a close and reopens.
    Abandon,
    /// The machine crashes now.
    Crash,
    /// The machine crashes during one of the next operations.
    CrashSoon,
    /// The machine crashes, and again while the store is opened.
    CrashTwice,
}

/// Relative frequencies.
pub(super) const WEIGHTS: [(OpKind, u32); 35] = [
    (OpKind::Get, 220),
    (OpKind::GetPage, 70),
    (OpKind::GetRange, 60),
    (OpKind::GetBorrowed, 40),
    (OpKind::Put, 170),
    (OpKind::PutMany, 40),
    (OpKind::PutBorrowed, 30),
    (OpKind::PutOther, 6),
    (OpKind::Attach, 30),
    (OpKind::Fill, 24),
    (OpKind::Commit, 16),
    (OpKind::Abort, 3),
    (OpKind::Exists, 50),
    (OpKind::ExistsGroups, 20),
    (OpKind::View, 10),
    (OpKind::Remove, 12),
    (OpKind::Clear, 2),
    (OpKind::HastyRemoval, 2),
    (OpKind::Pin, 8),
    (OpKind::Unpin, 9),
    (OpKind::Lease, 3),
    (OpKind::Prefetch, 16),
    (OpKind::Flush, 10),
    (OpKind::Poll, 60),
    (OpKind::Drain, 12),
    (OpKind::Idle, 24),
    (OpKind::Jump, 1),
    (OpKind::NewSession, 2),
    (OpKind::Scrub, 1),
    (OpKind::Audit, 2),
    (OpKind::Close, 1),
    (OpKind::Abandon, 1),
    (OpKind::Crash, 1),
    (OpKind::CrashSoon, 1),
    (OpKind::CrashTwice, 1),
];

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedOp {
    /// Its kind.
    pub verb: OpKind,
    /// Decides everything else about it.
    pub r: u64,
}
