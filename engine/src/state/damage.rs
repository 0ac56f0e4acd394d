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

use pagelith_layouts::ids::SegmentOrder;

/// Damage dropped since the last checkpoint, as one number: its youngest segment.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    pub newest: Option<SegmentOrder>,
    /// A frame was found damaged in DRAM while its record may be in a segment that only the log
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
