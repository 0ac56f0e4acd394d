//! Frames leave DRAM: what the index and the policy know of one, and then its memory.

use pagelith_layouts::key::ObjectKey;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::FrameId;

use crate::api::outcome::Tier;
use crate::memory::frames::{FrameRef, FrameState, Vacated};
use crate::memory::index::Entry;
use crate::state::core::Core;

impl Core {
    /// Take a frame's objects out of the index's DRAM side, and the frame out of the policy. What is on SSD
    /// stays found unless `everywhere`.
    pub fn unlink_frame(&mut self, id: FrameId, everywhere: bool) {
        let Some(frame) = self.frames.get_mut(id) else { return };
        self.policy.remove(id);
        match frame.sole().filter(|_| !self.events.is_on()) {
            Some((fingerprint, _)) => self.unlink(id, fingerprint, None, everywhere),
            None => {
                let data = frame.data.clone();
                data.members.iter().for_each(|m| self.unlink(id, m.fingerprint, Some(&m.key), everywhere));
            }
        }
    }

    /// The same of one of its objects; `key` is its key, for events.
    fn unlink(&mut self, id: FrameId, fingerprint: u128, key: Option<&ObjectKey>, everywhere: bool) {
        let here = |e: &Entry| e.frame == Some(id.0);
        let on_ssd = self.index.find(fingerprint).any(|e| here(&e) && e.ssd.is_some());
        if on_ssd && !everywhere {
            let with_ssd = |e: &Entry| here(e) && e.ssd.is_some();
            let left = self.index.update(fingerprint, with_ssd, |e| e.frame = None).unwrap_or(false);
            if let Some(key) = key.filter(|_| left) {
                self.events.removed(Tier::Memory, key, false);
            }
        } else if let (Some(entry), Some(key)) = (self.remove_entry(fingerprint, here), key) {
            self.emit_removed(key, &entry);
        }
    }

    /// Drop a frame: unlink it, and free it now or when its last reader is done.
    pub fn drop_frame(&mut self, id: FrameId, everywhere: bool) {
        self.drop_frame_for(id, everywhere, None);
    }

    /// The same for who wants memory; what it leaves is as [`crate::memory::frames::Frames::free`] has it.
    fn drop_frame_for(&mut self, id: FrameId, everywhere: bool, wanted: Option<u64>) -> Option<Vacated> {
        self.unlink_frame(id, everywhere);
        let frame = self.frames.get_mut(id)?;
        frame.dead = true;
        if frame.state == FrameState::Queued {
            frame.state = FrameState::Clean;
            let bytes = frame.data.bytes();
            if let Some(ssd) = self.ssd.as_mut() {
                ssd.unflushed_bytes = ssd.unflushed_bytes.saturating_sub(bytes);
            }
        }
        // Behind the change of the index: who enters later looked it up before, and finds that it does not hold.
        if self.frames.close(id) || mutant::on(Mutant::HeldFrameFreed) {
            return self.frames.free(id, &mut self.space, wanted);
        }
        None
    }

    /// Free a frame that was dropped and that nobody reads any more; nothing happens if it is another by now.
    pub fn free_if_unread(&mut self, id: FrameId) {
        if self.frames.get(id).is_some_and(|f| f.dead) && !self.frames.is_read(id) {
            self.frames.free(id, &mut self.space, None);
        }
    }

    /// A reader of a frame is done.
    pub fn release_frame(&mut self, frame: FrameRef) {
        let Some(f) = self.frames.get_ref(frame) else { return };
        f.readers -= 1;
        self.free_if_unread(frame.id);
    }

    /// Evict one frame, with `everywhere` its objects on SSD too; false if none may go now.
    pub fn evict_one(&mut self, everywhere: bool) -> bool {
        self.evict(everywhere, None).is_some()
    }

    /// Evict one frame for who wants memory of `bytes` bytes: `None` if none may go now, and what it leaves if its extent is as long.
    pub fn evict_for(&mut self, bytes: u64) -> Option<Option<Vacated>> {
        self.evict(false, Some(bytes))
    }

    fn evict(&mut self, everywhere: bool, wanted: Option<u64>) -> Option<Option<Vacated>> {
        let (frames, pins) = (&self.frames, &self.pins);
        let mut evictable = |id: FrameId| {
            frames.get(id).is_some_and(|f| {
                let free = !frames.is_read(id) && f.state == FrameState::Clean;
                free && !(pins.any() && f.any_fingerprint(|fingerprint| pins.is_pinned(fingerprint)))
            })
        };
        let id = self.policy.victim(&mut evictable)?;
        self.counters.frames_evicted += 1;
        Some(self.drop_frame_for(id, everywhere, wanted))
    }
}
