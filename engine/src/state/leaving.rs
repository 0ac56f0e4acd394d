//! Objects that leave their tiers first: they are expected not to be requested again. Their next
//! request undoes it.

use pagelith_io::sync::{Mutex, MutexGuard, PoisonError};
use pagelith_layouts::ids::{PrefixHash, SegmentId};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::{FrameId, StateLookup, SupersededStates, TICKS_OF_LEAVING};

use crate::memory::frames::FrameState;
use crate::memory::index::{Entry, TICK_MODULUS};
use crate::state::core::Core;
use crate::state::ssd_admission::policy_key;

/// Recurrent states that longer prefixes have superseded. Its lock is a leaf.
pub(crate) struct Superseded(Mutex<SupersededStates<PrefixHash>>);

impl Superseded {
    /// For a store of at most `objects` objects.
    pub fn new(objects: u64) -> Superseded {
        Superseded(Mutex::new(SupersededStates::new(objects)))
    }

    /// A query was answered for a prompt of these pages, of which `usable` can be used. `states`
    /// tells which of the leading present pages have a state, the objects `state`. Returns the
    /// pages whose states should leave first.
    pub fn look_up(
        &self,
        state: &ObjectKey,
        pages: &[PrefixHash],
        states: &[bool],
        usable: usize,
    ) -> Vec<usize> {
        let Some(last) = pages.last() else { return Vec::new() };
        let hash = |page: &PrefixHash| policy_key(&state.on_page(*page)).0;
        // Before the lock is taken: those of the pages with states and of the page after them, and
        // of the last.
        let leading: Vec<u64> = pages.iter().take(states.len() + 1).map(hash).collect();
        let last = hash(last);
        self.lock().look_up(&StateLookup {
            hash: &|page| leading.get(page).copied().unwrap_or(last),
            name: &|page| pages[page],
            pages: pages.len(),
            states,
            usable,
        })
    }

    /// A state was put. Returns the page whose state it supersedes, if that should leave first.
    pub fn put(&self, state: &ObjectKey) -> Option<PrefixHash> {
        self.lock().put(policy_key(state).0)
    }

    fn lock(&self) -> MutexGuard<'_, SupersededStates<PrefixHash>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The tick of an object that leaves first, as the index stores it. Like those of requests it may
/// be from before the last wrap of the counter.
fn leaving_tick(now: u64) -> u32 {
    (now.wrapping_sub(TICKS_OF_LEAVING) % u64::from(TICK_MODULUS)) as u32
}

impl Core {
    /// An object leaves both tiers first, until its next request. Returns whether it is present.
    pub fn demote(&mut self, fingerprint: u128, is_match: impl Fn(&Entry) -> bool) -> bool {
        let Some((slot, entry)) = self.index.locate(fingerprint, is_match) else { return false };
        if let Some(frame) = entry.frame {
            self.demote_frame(FrameId(frame));
        }
        let tick = leaving_tick(self.now_tick());
        let before = self.index.replace_tick(slot, tick);
        let (before, after) = (self.full_tick(before), self.full_tick(tick));
        if let (Some(location), Some(ssd)) = (entry.ssd, self.ssd.as_mut()) {
            let segment = ssd.segments.get_mut(SegmentId(location.segment));
            segment.recency_sum = segment.recency_sum.saturating_sub(before) + after;
        }
        true
    }

    /// The frame of a state that is superseded leaves DRAM first, if it has only objects of the
    /// state's pool: others of the page are still of use.
    pub fn demote_state(&mut self, id: FrameId) {
        let Some(f) = self.dram.frames.get(id) else { return };
        if f.single_object().is_some() || f.data.has_one_pool() {
            self.demote_frame(id);
        }
    }

    /// A frame leaves DRAM first, until its next request.
    pub fn demote_frame(&mut self, id: FrameId) {
        let Some(f) = self.dram.frames.get(id).filter(|f| !f.is_dead()) else { return };
        self.dram.frames.last_requests().leave_first(id);
        // The others are inserted into the policy once they are written.
        if f.state == FrameState::Evictable {
            self.dram.policy.leave_first(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::index::{newest_tick, tick_age};

    #[test]
    fn object_that_leaves_first_is_old_also_after_a_wrap_of_the_counter() {
        let wrap = u64::from(TICK_MODULUS);
        for now in [TICKS_OF_LEAVING, wrap - 1, wrap, wrap + 100, 3 * wrap + 70_000] {
            let (newest, tick) = ((now % wrap) as u32, leaving_tick(now));
            assert_eq!(u64::from(tick_age(newest, tick)), TICKS_OF_LEAVING, "now={now}");
            // An open finds the newest tick in a checkpoint.
            assert_eq!(newest_tick([newest, tick].into_iter()), newest, "now={now}");
        }
    }
}
