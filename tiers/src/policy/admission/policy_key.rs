//! Names of pages.

/// A hash of a page's key, all 64 bits of which scatter. The lowest bits are its tag in the
/// history, the highest choose a place there, and those between choose a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyKey(pub u64);
