//! What was asked for, noted where that takes no lock, and in the index where it has to be.

use pagelith_tiers::policy::{FrameId, Recency};

use crate::memory::index::Entry;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// In no frame.
const NO_FRAME: u32 = u32::MAX;

/// An object that was found: a thousand of them are to fit into a core's own cache.
pub(crate) struct Touched {
    fingerprint: u128,
    frame: u32,
    depth: u32,
    /// The index has an older tick of it.
    late: bool,
}

impl Touched {
    /// What an entry says; `tick` counts as now, as the index has it.
    #[inline]
    pub fn new(entry: &Entry, depth: u32, tick: u32) -> Touched {
        let (fingerprint, frame) = (entry.fingerprint, entry.frame.unwrap_or(NO_FRAME));
        Touched { fingerprint, frame, depth, late: entry.tick != tick }
    }

    /// Note it under the lock.
    pub fn note_in(&self, core: &mut Core, at: Recency) {
        let same = |e: &Entry| e.frame.unwrap_or(NO_FRAME) == self.frame;
        core.touch(self.fingerprint, same, Recency { depth: self.depth, ..at });
    }
}

/// Bring where it will be noted under way into the cache.
pub(crate) fn prefetch(shared: &Shared, touched: &[Touched]) {
    let in_memory = touched.iter().filter(|touched| touched.frame != NO_FRAME);
    shared.read_view.touches.prefetch(in_memory.map(|touched| touched.frame));
}

/// Note what was found without the lock, and take it for what is to be noted in the index itself: when an object was asked
/// for, in laps of the log. That changes 4096 times a lap.
pub(crate) fn note(shared: &Shared, touched: &[Touched], at: Recency) {
    let touches = &shared.read_view.touches;
    let in_memory = touched.iter().filter(|touched| touched.frame != NO_FRAME);
    in_memory.for_each(|t| touches.raise(FrameId(t.frame), Recency { depth: t.depth, ..at }));
    let mut late = touched.iter().filter(|touched| touched.late).peekable();
    if late.peek().is_some() {
        let mut core = shared.lock();
        late.for_each(|touched| touched.note_in(&mut core, at));
    }
}
