//! The DRAM tier's part of the core.

use pagelith_tiers::dram::arena::ArenaSpace;
use pagelith_tiers::policy::FramePolicy;

use crate::memory::frames::Frames;
use crate::state::busy_puts::BusyPuts;

pub(crate) struct DramCore {
    pub frames: Frames,
    /// The allocator of the arena.
    pub space: ArenaSpace,
    pub policy: Box<dyn FramePolicy>,
    /// The arena is only a write buffer: frames are dropped as soon as they are written.
    pub write_buffer_only: bool,
    /// Bytes of buffers for objects that groups adopt, outside the arena.
    pub adopting_bytes: u64,
    /// Recent puts that were answered `Busy`.
    pub busy: BusyPuts,
}
