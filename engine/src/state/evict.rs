//! Eviction of frames from DRAM: removal from the index and the policy, then release of the memory.

use pagelith_layouts::key::ObjectKey;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::FrameId;

use crate::api::outcome::Tier;
use crate::memory::departed::Departure;
use crate::memory::frames::{Frame, FrameRef, FrameState, Frames, FreedFrame};
use crate::memory::index::Entry;
use crate::memory::pins::Pins;
use crate::state::core::Core;

impl Core {
    /// Remove a frame from the policy, and its objects' frame numbers from the index. Objects that
    /// are also on SSD keep their entries unless `everywhere`.
    fn unlink_frame(&mut self, id: FrameId, everywhere: bool, departure: Departure) {
        let Some(frame) = self.dram.frames.get_mut(id) else { return };
        self.dram.policy.remove(id);
        match frame.single_object().filter(|_| !self.events.is_on()) {
            Some((fingerprint, _)) => self.unlink(id, fingerprint, None, everywhere, departure),
            None => {
                let data = frame.data.clone();
                data.members.iter().for_each(|m| {
                    self.unlink(id, m.fingerprint, Some(&m.key), everywhere, departure);
                });
            }
        }
    }

    /// [`Core::unlink_frame`] for one object; `key` is its key, for events.
    fn unlink(
        &mut self,
        id: FrameId,
        fingerprint: u128,
        key: Option<&ObjectKey>,
        everywhere: bool,
        departure: Departure,
    ) {
        // Meanwhile the entry is loaded.
        self.departed.prefetch(fingerprint);
        let in_frame = |e: &Entry| e.frame == Some(id.0);
        let on_ssd = self.index.find(fingerprint).any(|e| in_frame(&e) && e.ssd.is_some());
        if on_ssd && !everywhere {
            let with_ssd = |e: &Entry| in_frame(e) && e.ssd.is_some();
            let updated =
                self.index.update(fingerprint, with_ssd, |e| e.frame = None).unwrap_or(false);
            if let Some(key) = key.filter(|_| updated) {
                self.events.removed(Tier::Memory, key, false);
            }
        } else if let (Some(entry), Some(key)) =
            (self.remove_entry(fingerprint, in_frame, departure), key)
        {
            self.emit_removed(key, &entry);
        }
    }

    /// Drop a frame: unlink it, and free it now or when its last reader releases it.
    pub fn drop_frame(&mut self, id: FrameId, everywhere: bool, departure: Departure) {
        self.drop_frame_for(id, everywhere, departure, None);
    }

    /// [`Core::drop_frame`] for an allocation of `wanted` bytes; the result is that of
    /// [`crate::memory::frames::Frames::free`].
    fn drop_frame_for(
        &mut self,
        id: FrameId,
        everywhere: bool,
        departure: Departure,
        wanted: Option<u64>,
    ) -> Option<FreedFrame> {
        self.unlink_frame(id, everywhere, departure);
        let serial = self.dram.frames.get(id)?.serial;
        self.end_refusal(FrameRef { id, serial });
        let frame = self.dram.frames.get_mut(id)?;
        frame.state = FrameState::Dead;
        // After the change of the index: a reader that enters the frame later has looked it up
        // before, and its snapshot fails validation.
        if self.dram.frames.close(id) || mutant::on(Mutant::PinnedFrameFreed) {
            let memory = (&mut self.dram.space, &mut self.tenants);
            return self.dram.frames.free(id, memory, wanted);
        }
        None
    }

    /// Free a frame that was dropped and has no readers. Nothing happens if its number belongs to a
    /// live frame by now.
    pub fn free_if_unused(&mut self, id: FrameId) {
        if self.dram.frames.get(id).is_some_and(Frame::is_dead) && !self.dram.frames.has_readers(id)
        {
            let memory = (&mut self.dram.space, &mut self.tenants);
            self.dram.frames.free(id, memory, None);
        }
    }

    /// Release a guard of a frame.
    pub fn release_frame(&mut self, frame: FrameRef) {
        let Some(f) = self.dram.frames.get_ref(frame) else { return };
        f.readers -= 1;
        self.free_if_unused(frame.id);
    }

    /// Evict one frame, with `everywhere` its objects on SSD too; false if no frame may be evicted
    /// now.
    pub fn evict_one(&mut self, everywhere: bool) -> bool {
        self.evict(everywhere, None).is_some()
    }

    /// Evict until the index has space for `entries` more entries; false if nothing more can be
    /// evicted, or if the index is too small.
    pub fn reserve_index_entries(&mut self, entries: u64) -> bool {
        if entries > self.index.capacity() {
            return false;
        }
        while self.index.len() + entries > self.index.capacity() {
            // Everywhere: a frame that is also on SSD would otherwise keep its entries, and all of
            // DRAM could be evicted without freeing one.
            if !self.evict_one(true) {
                return false;
            }
        }
        true
    }

    /// Evict until a frame number is free; false if nothing more can be evicted.
    pub fn reserve_frame_number(&mut self) -> bool {
        while self.dram.frames.is_full() {
            if !self.evict_one(false) {
                return false;
            }
        }
        true
    }

    /// Evict one frame for an allocation of `bytes` bytes. `None` if no frame may be evicted now.
    /// The inner value is the frame's extent and number, if the extent has as many 4 KiB units as
    /// `bytes` need.
    pub fn evict_for(&mut self, bytes: u64) -> Option<Option<FreedFrame>> {
        self.evict(false, Some(bytes))
    }

    fn evict(&mut self, everywhere: bool, wanted: Option<u64>) -> Option<Option<FreedFrame>> {
        let (frames, pins) = (&self.dram.frames, &self.pins);
        let id = self.dram.policy.victim(&mut |id| may_leave(frames, pins, id))?;
        Some(self.evict_frame(id, everywhere, wanted))
    }

    /// Whether a frame may be evicted now.
    pub fn is_evictable(&self, id: FrameId) -> bool {
        may_leave(&self.dram.frames, &self.pins, id)
    }

    /// Evict a frame that may leave; the result is that of [`Core::drop_frame_for`].
    pub fn evict_frame(
        &mut self,
        id: FrameId,
        everywhere: bool,
        wanted: Option<u64>,
    ) -> Option<FreedFrame> {
        self.counters.frames_evicted += 1;
        let mut departure = Departure::EvictedMemory;
        if let Some(serial) = self.dram.frames.get(id).filter(|f| f.refused).map(|f| f.serial) {
            self.count_refused_frame(FrameRef { id, serial });
            departure = Departure::Refused;
        }
        self.drop_frame_for(id, everywhere, departure, wanted)
    }
}

fn may_leave(frames: &Frames, pins: &Pins, id: FrameId) -> bool {
    frames.get(id).is_some_and(|f| {
        let is_idle = !frames.has_readers(id) && f.state == FrameState::Evictable;
        is_idle && !(pins.any() && f.any_fingerprint(|fingerprint| pins.is_pinned(fingerprint)))
    })
}
