//! Whether a base group survives a restart: what is attached to it is durable only then.

use pagelith_tiers::policy::FrameId;

use crate::memory::frames::FrameState;
use crate::memory::index::{Entry, SsdLocation};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;

/// Where a base group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BasePlace {
    /// On SSD, where one of its objects is here.
    Ssd(SsdLocation),
    /// Only in DRAM, and a write or a flush decides whether it will be on SSD.
    Undecided,
    /// Absent, or in DRAM only, and not to be written.
    Nowhere,
}

impl Core {
    /// Where the base group of this name is.
    pub fn base_place(&self, name: u64) -> BasePlace {
        let is_read = |location: &SsdLocation| !self.is_hidden_at(*location);
        let bases = || self.index.find_named(name).filter(|e| !e.attached);
        if let Some(location) = bases().filter_map(|e| e.ssd).find(is_read) {
            return BasePlace::Ssd(location);
        }
        let is_undecided = |e: Entry| {
            let frame = e.frame.and_then(|frame| self.dram.frames.get(FrameId(frame)));
            frame.is_some_and(|f| match f.state {
                FrameState::Unwritten | FrameState::Writing => true,
                // A flush queues what admission has refused. A location that is hidden is dropped
                // by the purge, which queues the frame.
                FrameState::Evictable => f.refused || e.ssd.is_some(),
                FrameState::Dead => false,
            })
        };
        match bases().any(is_undecided) {
            true => BasePlace::Undecided,
            false => BasePlace::Nowhere,
        }
    }
}
