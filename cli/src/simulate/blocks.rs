//! Where each block of a simulation is.

use pagelith_layouts::ids::SegmentId;

/// A position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLocation {
    pub(super) segment: SegmentId,
    pub(super) record: u32,
}

/// The state of a block, as in the index of the store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockState {
    /// Its frame in DRAM.
    pub(super) frame: Option<u32>,
    /// Its location on SSD.
    pub(super) location: Option<BlockLocation>,
    /// Tick of its last request.
    pub(super) tick: u64,
    /// Its position in the request that put it.
    pub(super) depth: u32,
}

impl BlockState {
    /// Whether it is in any tier.
    pub(super) fn is_resident(&self) -> bool {
        self.frame.is_some() || self.location.is_some()
    }
}
