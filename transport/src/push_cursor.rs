//! A push in transmission, and its progress.

use pagelith_layouts::wire::shm_ref::ItemRange;

use crate::link::{LinkEvent, Push};

/// A push in transmission. `framed` is at most `len`.
pub(crate) struct PushCursor {
    /// Identifies the push on its link.
    pub id: u64,
    pub push: Push,
    pub len: u64,
    /// Bytes covered by frame heads that are already staged.
    pub framed: u64,
    /// Bytes that a device writes to the peer's memory.
    pub writing: u64,
    /// Its operation was cancelled.
    pub is_retracted: bool,
    /// Position of the next byte to write: the part, and the offset in it.
    part: usize,
    part_offset: usize,
}

impl PushCursor {
    pub fn new(id: u64, push: Push, len: u64) -> PushCursor {
        let (framed, writing, part, part_offset) = (0, 0, 0, 0);
        PushCursor { id, push, len, framed, writing, is_retracted: false, part, part_offset }
    }

    /// The next `bytes_max` bytes to write, in at most `slices_max` slices.
    pub fn next_slices(&self, bytes_max: u64, slices_max: usize) -> Vec<&[u8]> {
        let (mut left, mut skip) = (bytes_max, self.part_offset);
        let mut found = Vec::new();
        for part in self.push.parts.iter().skip(self.part) {
            if left == 0 || found.len() == slices_max {
                break;
            }
            let rest = part.bytes().get(std::mem::take(&mut skip)..).unwrap_or_default();
            let len = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= len as u64;
            if len > 0 {
                found.push(&rest[..len]);
            }
        }
        found
    }

    /// Note that a device writes the next `bytes` bytes.
    pub fn note_placed(&mut self, bytes: u32) {
        self.advance(bytes as usize);
        self.framed += u64::from(bytes);
        self.writing += u64::from(bytes);
    }

    pub fn advance(&mut self, bytes: usize) {
        self.part_offset += bytes;
        while let Some(part) =
            self.push.parts.get(self.part).filter(|part| self.part_offset >= part.len())
        {
            self.part_offset -= part.len();
            self.part += 1;
        }
    }
}

/// The range that a push fills.
pub(crate) fn item_range_of(push: &Push) -> ItemRange {
    (push.op, push.item, push.offset)
}

/// The event that hands a push back.
pub(crate) fn pushed(push: Push, sent: bool) -> LinkEvent {
    let Push { op, token, parts, .. } = push;
    LinkEvent::Pushed { op, token, sent, parts }
}
