//! Counts of a simulation, in blocks.

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Blocks of all requests.
    pub(super) requested: u64,
    /// Blocks of leading resident runs that came from DRAM, and from SSD.
    pub(super) hits_dram: u64,
    pub(super) hits_ssd: u64,
    /// Requested blocks that were resident after an absent block of their prefix.
    pub(super) orphans: u64,
    /// Blocks offered to SSD, and those of them that admission refused.
    pub(super) offered: u64,
    pub(super) refused: u64,
    /// Blocks written to SSD, and those of them that reclaim reinserted.
    pub(super) written: u64,
    pub(super) moved: u64,
}
