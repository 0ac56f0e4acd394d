//! The operations of a run. Each has a random number that decides everything else about it, so that
//! it stays the same if others are left out.

/// One kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// A batch of gets, on a session.
    Get,
    /// Gets of all objects of a page in one batch.
    GetPage,
    /// Gets of ranges of objects.
    GetRange,
    /// Gets into memory borrowed for the call.
    GetLent,
    /// Puts a page's group or one of its singles.
    Put,
    /// Puts several pages in one batch.
    PutMany,
    /// Puts from memory borrowed for the call.
    PutLent,
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
    Hasty,
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
pub(super) const WEIGHTS: [(Verb, u32); 35] = [
    (Verb::Get, 220),
    (Verb::GetPage, 70),
    (Verb::GetRange, 60),
    (Verb::GetLent, 40),
    (Verb::Put, 170),
    (Verb::PutMany, 40),
    (Verb::PutLent, 30),
    (Verb::PutOther, 6),
    (Verb::Attach, 30),
    (Verb::Fill, 24),
    (Verb::Commit, 16),
    (Verb::Abort, 3),
    (Verb::Exists, 50),
    (Verb::ExistsGroups, 20),
    (Verb::View, 10),
    (Verb::Remove, 12),
    (Verb::Clear, 2),
    (Verb::Hasty, 2),
    (Verb::Pin, 8),
    (Verb::Unpin, 9),
    (Verb::Lease, 3),
    (Verb::Prefetch, 16),
    (Verb::Flush, 10),
    (Verb::Poll, 60),
    (Verb::Drain, 12),
    (Verb::Idle, 24),
    (Verb::Jump, 1),
    (Verb::NewSession, 2),
    (Verb::Scrub, 1),
    (Verb::Audit, 2),
    (Verb::Close, 1),
    (Verb::Abandon, 1),
    (Verb::Crash, 1),
    (Verb::CrashSoon, 1),
    (Verb::CrashTwice, 1),
];

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its kind.
    pub verb: Verb,
    /// Decides everything else about it.
    pub r: u64,
}
