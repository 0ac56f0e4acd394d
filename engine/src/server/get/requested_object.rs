//! An object that a client requests: its progress, and the facts that the outcome reports.

use std::ops::Range;

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, checksum};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::GetItem;

use crate::api::error::Error;
use crate::api::group_info::{BaseGroupInfo, GroupInfo};
use crate::api::outcome::{CompletedGet, MissCause, Tier};
use crate::server::op_outcome::ItemVerdict;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A requested object.
pub(super) struct RequestedObject {
    pub key: ObjectKey,
    /// The requested byte range; the wire has no empty one.
    pub range: Range<u64>,
    /// Whether the range must be the whole object.
    pub whole: bool,
    /// Whether the bytes may be passed by reference.
    pub allow_ref: bool,
    pub state: ObjectState,
}

/// The state of a requested object.
pub(super) enum ObjectState {
    /// Not looked up in DRAM yet.
    Requested,
    /// Not in DRAM, and no chunk of it was read yet.
    Reading,
    /// Not local: the whole range is requested from the peers at once.
    Remote,
    /// A part of it was read, and not all of it was sent.
    Sending(SendingObject),
    /// All of it was sent.
    Sent(SentObject),
    /// Not a hit. Chunks that are read later are not used.
    NoHit(ItemVerdict),
}

/// An object that is being sent.
pub(super) struct SendingObject {
    /// Bytes of the range that are not sent yet.
    pub unsent_bytes: u64,
    /// Checksums of all blocks of the object, from the first chunk that was read: all chunks must
    /// be of the same object. Empty for an object of a peer, which is one chunk.
    pub object_sums: Checksums,
    pub sent: SentObject,
}

/// The facts of a sent object that the outcome reports.
pub(super) struct SentObject {
    pub tier: Tier,
    /// Group members and base that the object was put with.
    pub group_info: GroupInfo,
    /// Checksums of the blocks that overlap the range, each over the bytes that are sent.
    pub sums: Checksums,
}

impl RequestedObject {
    pub fn new(item: &GetItem) -> RequestedObject {
        RequestedObject {
            key: item.key,
            range: item.byte_range(),
            whole: item.range().is_none(),
            allow_ref: !item.is_sent(),
            state: ObjectState::Requested,
        }
    }

    /// Length of the range.
    pub fn length(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Number of blocks that overlap the range.
    pub fn blocks(&self) -> usize {
        (self.range.end.div_ceil(BLOCK) - self.range.start / BLOCK) as usize
    }

    /// The base, if this is a hit on an attached object.
    pub fn attached(&self) -> Option<&BaseGroupInfo> {
        match &self.state {
            ObjectState::Sent(sent) => sent.group_info.attached.as_ref(),
            ObjectState::Requested
            | ObjectState::Reading
            | ObjectState::Remote
            | ObjectState::Sending(_)
            | ObjectState::NoHit(_) => None,
        }
    }

    /// The chunk of at most `bytes` bytes that begins at `from`. Chunks end at block boundaries, so
    /// that each block is in one chunk.
    pub fn chunk(&self, from: u64, bytes: u64) -> Range<u64> {
        let end = (from / BLOCK * BLOCK).saturating_add(bytes).min(self.range.end);
        from..end
    }

    /// The error for a destination whose length differs from the object's.
    pub fn length_mismatch(&self, have: u64) -> Error {
        let (key, given) = (&self.key, self.range.end);
        let detail = format!(
            "destination length differs from the object's key={key} object={have} given={given}"
        );
        Error::invalid(detail)
    }

    /// Adds a chunk that was read completely to `before`, which has the earlier chunks. `Err` if
    /// the object is no hit.
    pub fn accept_chunk(
        &self,
        before: Option<SendingObject>,
        chunk: &Range<u64>,
        tier: Tier,
        done: &CompletedGet,
        bytes: &[u8],
    ) -> Result<SendingObject, ItemVerdict> {
        let (checksums, group_info) = done.metadata();
        let (first, blocks) = (self.range.start / BLOCK, self.blocks());
        let begin = |object_sums, sums| SendingObject {
            unsent_bytes: self.length(),
            object_sums,
            sent: SentObject { tier, group_info: GroupInfo::default(), sums },
        };
        if tier == Tier::Remote {
            // The reply of the peer is all that is known of the object. For a whole object the peer
            // has checked the length.
            if checksums.len() != blocks {
                return Err(ItemVerdict::Miss(MissCause::Gone));
            }
            let mut sending = begin(Checksums::new(), checksums.into());
            sending.sent.group_info = group_info;
            return Ok(sending);
        }
        if self.whole && done.length != self.range.end {
            return Err(ItemVerdict::Failed(self.length_mismatch(done.length)));
        }
        let none = || begin(checksums.into(), Checksums::from_elem(Checksum::default(), blocks));
        let mut sending = before.unwrap_or_else(none);
        if sending.object_sums[..] != *checksums {
            // The object was removed and put again between two chunks: bytes of two objects must
            // not be mixed.
            return Err(ItemVerdict::Miss(MissCause::Gone));
        }
        for block in chunk.start / BLOCK..chunk.end.div_ceil(BLOCK) {
            let all = block * BLOCK..((block + 1) * BLOCK).min(done.length);
            let sent = all.start.max(chunk.start)..all.end.min(chunk.end);
            let sum = match sent == all {
                true => checksums.get(block as usize).copied().unwrap_or_default(),
                false => checksum(
                    &bytes[(sent.start - chunk.start) as usize..(sent.end - chunk.start) as usize],
                ),
            };
            sending.sent.sums[(block - first) as usize] = sum;
        }
        (sending.sent.tier, sending.sent.group_info) = (tier, group_info);
        Ok(sending)
    }

    /// Counts bytes that were sent.
    pub fn count_sent(&mut self, bytes: u64) {
        self.state = match std::mem::replace(&mut self.state, ObjectState::Reading) {
            ObjectState::Sending(sending) if sending.unsent_bytes == bytes => {
                ObjectState::Sent(sending.sent)
            }
            ObjectState::Sending(sending) => ObjectState::Sending(SendingObject {
                unsent_bytes: sending.unsent_bytes - bytes,
                ..sending
            }),
            other => other,
        };
    }
}
