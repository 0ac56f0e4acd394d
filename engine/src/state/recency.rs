//! Recency of requested objects: recorded for frames without the lock, and in the index under it.

use pagelith_tiers::policy::{FrameId, Recency, RecordRequest};

use crate::memory::index::Entry;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// Frame number of an object that is in no frame.
const NO_FRAME: u32 = u32::MAX;

/// An object that a lookup found. Kept small: a thousand of them must fit into a CPU core's private
/// cache.
pub(crate) struct FoundObject {
    fingerprint: u128,
    frame: u32,
    depth: u32,
    /// Its tick in the index is older than the current one.
    tick_is_stale: bool,
}

impl FoundObject {
    /// The object of an index entry; `tick` is the current tick, modulo the index's tick modulus.
    #[inline]
    pub fn new(entry: &Entry, depth: u32, tick: u32) -> FoundObject {
        let (fingerprint, frame) = (entry.fingerprint, entry.frame.unwrap_or(NO_FRAME));
        FoundObject { fingerprint, frame, depth, tick_is_stale: entry.tick != tick }
    }

    /// Record the request under the lock.
    fn record_in(&self, core: &mut Core, at: Recency, how: RecordRequest) {
        let same_frame = |e: &Entry| e.frame.unwrap_or(NO_FRAME) == self.frame;
        core.record_request(self.fingerprint, same_frame, Recency { depth: self.depth, ..at }, how);
    }

    /// Let this state leave DRAM first, under the lock.
    pub fn demote_in(&self, core: &mut Core) {
        let in_frame = |e: Entry| e.frame == Some(self.frame);
        if core.index.find(self.fingerprint).any(in_frame) {
            core.demote_state(FrameId(self.frame));
        }
    }
}

/// Prefetch the memory that [`record`] will write.
pub(crate) fn prefetch(shared: &Shared, found: &[FoundObject]) {
    let in_memory = found.iter().filter(|object| object.frame != NO_FRAME);
    shared.read_view.last_requests.prefetch(in_memory.map(|object| object.frame));
}

/// Record requests under the lock.
pub(crate) fn record_locked(
    shared: &Shared,
    core: &mut Core,
    found: &[FoundObject],
    at: Recency,
    how: RecordRequest,
) {
    shared.hints.requested(found.iter().map(|object| object.fingerprint), || shared.now());
    found.iter().for_each(|object| object.record_in(core, at, how));
}

/// Record requests without the lock. The lock is taken only for objects whose tick in the index is
/// stale; the current tick changes 4096 times per lap of the log.
pub(crate) fn record(shared: &Shared, found: &[FoundObject], at: Recency, how: RecordRequest) {
    let found_now = found.iter().map(|object| object.fingerprint);
    shared.hints.requested(found_now, || shared.now());
    let last_requests = &shared.read_view.last_requests;
    let in_memory = found.iter().filter(|object| object.frame != NO_FRAME);
    in_memory.for_each(|object| {
        how(last_requests, FrameId(object.frame), Recency { depth: object.depth, ..at });
    });
    let mut stale = found.iter().filter(|object| object.tick_is_stale).peekable();
    if stale.peek().is_some() {
        let mut core = shared.lock();
        stale.for_each(|object| object.record_in(&mut core, at, how));
    }
}
