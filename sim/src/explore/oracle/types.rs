//! Input and output types of the oracle.

/// The possible effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// A read failed or returned other bytes: objects may be dropped, and are found again by the
    /// next process.
    Read,
    /// A block is unreadable until it is written again: its contents may be lost for good.
    Rot,
    /// A write or sync returned an error: objects not covered by an earlier flush may be lost.
    Write,
    /// The device lost or changed acknowledged data: any object may be lost, and removed objects
    /// may come back, because the lost data may be their tombstones.
    Lie,
}

/// A violation by an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Bytes that were not put under this key, or were replaced, removed or cleared.
    Bytes(String),
    /// A miss of an object that a flush had covered.
    SyncedLost(String),
    /// A miss of an object that was put and not removed.
    Lost(String),
}

/// The version that a get returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedVersion {
    /// The put number.
    pub no: u32,
    /// The version had been removed or cleared, and a lying device brought it back.
    pub returned: bool,
    /// The bytes suffice to identify the put.
    pub sure: bool,
}
