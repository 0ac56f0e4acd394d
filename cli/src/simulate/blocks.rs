//! Where each object of a simulation is, and how large it is.

use pagelith_layouts::ids::SegmentId;

/// A position in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockLocation {
    pub(super) segment: SegmentId,
    pub(super) record: u32,
}

/// The state of an object: what the index of the store has.
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

/// The objects: a block of each page, and after them a recurrent state of each page, if there are
/// states. A state takes as much as several blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Objects {
    /// Number of pages.
    pub(super) pages: usize,
    /// Blocks of a state; 0 if there are none.
    pub(super) state_blocks: usize,
}

impl Objects {
    /// Number of objects.
    pub(super) fn count(self) -> usize {
        if self.state_blocks > 0 { 2 * self.pages } else { self.pages }
    }

    /// The state of a page.
    pub(super) fn state(self, page: u32) -> u32 {
        self.pages as u32 + page
    }

    /// Whether an object is a state.
    pub(super) fn is_state(self, object: u32) -> bool {
        object as usize >= self.pages
    }

    /// The page of an object.
    pub(super) fn page(self, object: u32) -> u32 {
        if self.is_state(object) { object - self.pages as u32 } else { object }
    }

    /// Blocks of an object.
    pub(super) fn blocks(self, object: u32) -> usize {
        if self.is_state(object) { self.state_blocks } else { 1 }
    }
}
