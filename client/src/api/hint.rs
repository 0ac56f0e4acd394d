//! What a caller knows of the future use of objects.

use std::time::Duration;

/// A hint. It changes which objects leave first, never what a get returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The session that used these objects, given from the head of its prompt, has ended: they
    /// leave first, until their next request. It is followed while few such hints of the namespace
    /// turn out wrong (setting `hints.trust`).
    SessionEnded,
    /// The objects leave DRAM first, until their next request. SSD keeps them. Without an SSD tier
    /// it is as [`Hint::SessionEnded`].
    Demote,
    /// The present objects stay for this duration, like leased ones. All objects that are retained
    /// take at most a quarter of the arena's bytes and of the index's objects; beyond it the hint
    /// is refused as `Busy`.
    Retain(Duration),
}
