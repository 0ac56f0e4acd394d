//! Counts the objects that would be lost if the store ended now.

use pagelith_layouts::ids::NamespaceId;
use pagelith_tiers::policy::FrameId;

use crate::memory::frames::{Frame, FrameState};
use crate::memory::index::{Entry, SsdLocation};
use crate::state::core::Core;

/// A record that was written and that no sync has covered.
pub(crate) struct UnsyncedRecord {
    /// Namespace of a put; `None` for a move.
    pub namespace: Option<NamespaceId>,
    pub members: Vec<(u128, SsdLocation)>,
    pub bytes: u64,
    /// Name of the base that the objects are attached to.
    pub base: Option<u64>,
    /// Old location of each reinserted member; empty for a put.
    pub from: Vec<SsdLocation>,
}

impl UnsyncedRecord {
    /// Segment and first sector of its record, if the index has any of its objects.
    pub fn record(&self) -> Option<(u32, u16)> {
        self.members.first().map(|(_, at)| (at.segment, at.record_sector))
    }
}

impl Core {
    /// Objects that are not durable, and their bytes: frames in DRAM that wait to be written, and
    /// written objects that no sync has covered. Objects that reclaim has evicted from SSD count
    /// only while the tier takes no writes; otherwise their frames are a cache. Visits every frame
    /// and, without writes, every object of each. Zero without an SSD tier.
    pub fn unsaved(&self) -> (u64, u64) {
        let unsynced = self.ssd.as_ref().map_or((0, 0), |ssd| ssd.unsynced);
        let unwritten = self.unwritten();
        (unsynced.0 + unwritten.0, unsynced.1 + unwritten.1)
    }

    /// The part of `unsaved` that was not written.
    pub fn unwritten(&self) -> (u64, u64) {
        let Some(ssd) = &self.ssd else { return (0, 0) };
        let takes_writes = ssd.health.writes();
        let waits = |frame: &Frame| frame.state != FrameState::Evictable || !takes_writes;
        let alive = self.dram.frames.iter().filter(|(_, frame)| !frame.is_dead() && waits(frame));
        let counts = alive.map(|(id, frame)| self.only_in_dram(id, frame));
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    fn only_in_dram(&self, id: FrameId, frame: &Frame) -> (u64, u64) {
        let only_here = |e: &Entry| e.frame == Some(id.0) && e.ssd.is_none();
        let members = frame.data.members.iter();
        let left = members.filter(|m| self.index.find(m.fingerprint).any(|e| only_here(&e)));
        left.fold((0, 0), |sum, m| (sum.0 + 1, sum.1 + m.extent.bytes))
    }

    /// Objects were written; no sync has covered them yet.
    pub fn note_written(&mut self, written: &UnsyncedRecord) {
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.unsynced.0 += written.members.len() as u64;
            ssd.unsynced.1 += written.bytes;
        }
    }

    /// A sync has covered these objects, or they were given up.
    pub fn note_synced(&mut self, written: &UnsyncedRecord) {
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.unsynced.0 = ssd.unsynced.0.saturating_sub(written.members.len() as u64);
            ssd.unsynced.1 = ssd.unsynced.1.saturating_sub(written.bytes);
        }
    }
}
