//! Keeps damage dropped across a crash: the next open must not find again what was dropped as
//! damaged.
//!
//! A flush after damage waits for a checkpoint. The checkpoint contains only what the index still
//! finds, and covers every segment that was sealed when it began, so it needs no keys. Tombstones
//! would need them: an unreadable record header does not name its keys, a quarantined segment holds
//! thousands of objects, and a base's tombstone would hide the objects attached to it even after
//! the base is put again.
//!
//! Invariants:
//! - `Damage::newest` is the youngest segment with a dropped record that no checkpoint under way
//!   leaves out.
//! - A checkpoint leaves damage out if the damage is found before the index is copied to its end,
//!   in a segment older than the checkpoint's log position (`newest < replay_from`). If the
//!   checkpoint fails, the damage is noted again.
//! - A flush waits for at most one checkpoint, so neither a stream of new damage nor a checkpoint
//!   that cannot be written delays it further.

use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_tiers::policy::FrameId;

use crate::memory::frames::FrameState;
use crate::state::core::Core;

/// Damage dropped since the last checkpoint, as one number: its youngest segment.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    pub newest: Option<SegmentOrder>,
    /// A page was found damaged in DRAM while its record may be in a segment that only the log
    /// knows.
    pub writing: bool,
}

impl Damage {
    /// Something in a segment of this order was dropped, or may be found again.
    pub fn note(&mut self, order: SegmentOrder) {
        self.newest = self.newest.max(Some(order));
    }

    /// The damage that a checkpoint leaves out once it has copied the whole index.
    pub fn take_before(&mut self, replay_from: SegmentOrder) -> Option<SegmentOrder> {
        self.newest.take_if(|newest| *newest < replay_from)
    }
}

impl Core {
    /// Something in a segment was dropped as damaged.
    pub fn note_damage(&mut self, segment: SegmentId) {
        if let Some(ssd) = self.ssd.as_mut() {
            let order = ssd.segments.get(segment).order;
            ssd.damage.note(order);
        }
    }

    /// Drop a frame whose bytes in the arena differ from the put's, with its entries. Its record
    /// may be in flight to SSD, or be there although its write failed (the frame is queued again
    /// then); an open after a crash would find it.
    pub fn drop_damaged(&mut self, id: FrameId) {
        let may_be_written = self.dram.frames.get(id).is_some_and(|f| match f.state {
            FrameState::Queued | FrameState::Writing => true,
            // A dead frame was written, or was removed or cleared, which the log records, or its
            // damage was noted when it was dropped.
            FrameState::Clean | FrameState::Dead => false,
        });
        self.drop_frame(id, false);
        if let Some(ssd) = self.ssd.as_mut().filter(|_| may_be_written) {
            ssd.damage.writing = true;
        }
    }
}
