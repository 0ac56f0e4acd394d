//! What the oracle is told, and what it says.

/// What a fault may have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Struck {
    /// A read brought nothing or other bytes: objects may be dropped, and are found again by the next process.
    Read,
    /// A block cannot be read until it is written again: what lies there may be lost for good.
    Rot,
    /// A write or sync failed aloud: what no flush covered, or no flush will, may be lost.
    Write,
    /// The device lost or changed what it had acknowledged: anything may be lost, and what was removed may be
    /// back, since its tombstone may be what was lost.
    Lie,
}

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Bytes that were not put under this key, or were replaced, removed or cleared.
    Bytes(String),
    /// A miss of what a flush had covered.
    SyncedLost(String),
    /// A miss of what was put and nothing took.
    Lost(String),
}

/// What a get may have brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The version.
    pub no: u32,
    /// It had been removed or cleared, and a device that lies brought it back.
    pub returned: bool,
    /// The bytes are enough to tell one put from another.
    pub sure: bool,
}
