//! DRAM without bytes: which object is in which frame.

use std::sync::Arc;

use anyhow::Context;
use pagelith_tiers::policy::{FrameId, FramePolicy, LastRequests, Recency};

use super::blocks::{BlockState, Objects};

/// Bytes of a block, for the policy. Only ratios of it matter.
const FRAME_BYTES: u64 = 4096;

/// The DRAM tier.
pub(super) struct Dram {
    policy: Box<dyn FramePolicy>,
    touches: Arc<LastRequests>,
    objects: Objects,
    /// The object in each frame.
    frames: Vec<Option<u32>>,
    unused: Vec<u32>,
    /// Blocks that no frame takes.
    free_blocks: usize,
}

impl Dram {
    /// An empty tier of `blocks` blocks.
    ///
    /// # Errors
    /// The system has no memory, or the policy is unknown.
    pub(super) fn new(
        blocks: usize,
        objects: Objects,
        policy: impl FnOnce(&Arc<LastRequests>) -> Option<Box<dyn FramePolicy>>,
    ) -> anyhow::Result<Dram> {
        let touches = Arc::new(LastRequests::new(blocks)?);
        let policy = policy(&touches).context("the DRAM policy is unknown")?;
        let unused = (0..blocks as u32).rev().collect();
        let (frames, free_blocks) = (vec![None; blocks], blocks);
        Ok(Dram { policy, touches, objects, frames, unused, free_blocks })
    }

    /// Its capacity.
    pub(super) fn blocks(&self) -> usize {
        self.frames.len()
    }

    /// Evict until an object fits; false if it cannot.
    fn make_room(&mut self, object: u32, states: &mut [BlockState]) -> bool {
        while self.free_blocks < self.objects.blocks(object) {
            let Some(FrameId(frame)) = self.policy.victim(&mut |_| true) else { return false };
            if let Some(left) = self.frames[frame as usize].take() {
                states[left as usize].frame = None;
                self.free_blocks += self.objects.blocks(left);
            }
            self.unused.push(frame);
        }
        true
    }

    /// Insert an object that is in no frame.
    pub(super) fn insert(&mut self, object: u32, at: Recency, states: &mut [BlockState]) {
        if !self.make_room(object, states) {
            return;
        }
        let Some(frame) = self.unused.pop() else { return };
        self.free_blocks -= self.objects.blocks(object);
        self.frames[frame as usize] = Some(object);
        states[object as usize].frame = Some(frame);
        let bytes = self.objects.blocks(object) as u64 * FRAME_BYTES;
        self.touches.set(FrameId(frame), at);
        self.policy.insert(FrameId(frame), bytes, fingerprint(object), at);
    }

    /// Record a request.
    pub(super) fn touch(&mut self, frame: u32, at: Recency) {
        self.touches.raise(FrameId(frame), at);
    }

    /// The object in this frame leaves first, until its next request.
    pub(super) fn demote(&mut self, frame: u32) {
        self.touches.leave_first(FrameId(frame));
        self.policy.leave_first(FrameId(frame));
    }
}

/// The fingerprint of an object: any function of it that scatters.
pub(super) fn fingerprint(object: u32) -> u128 {
    let low = crate::rng::mix(u64::from(object) + 1);
    u128::from(crate::rng::mix(low)) << 64 | u128::from(low)
}
