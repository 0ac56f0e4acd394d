//! Outcomes: the last frame of an operation. Each item has an outcome of its own, with the hash of
//! the item's key, so that the client refuses an outcome for another item. A hit has the checksums
//! with which the client verifies the received bytes.

mod events;
mod failure;
mod read;
mod views;
mod write;

use super::List;
use super::request::Verb;
use crate::checksum::Checksum;
use crate::format::structure;
use crate::key::ObjectKey;

pub use events::{EventItem, EventList, WireEvent};
pub use failure::{ErrorTag, Failure, TEXT_MAX};
pub use read::{DecodedOutcome, decode};
pub use views::{RegionExtent, ViewItem, digest};
pub use write::{OutcomeToSend, encode};

structure! {
    /// Start of an outcome's body. The rest depends on the form: items, then checksums of 16 bytes,
    /// then keys of bases, then texts; or bits, one per item from the lowest of each byte; or four
    /// numbers; or a text; or events; or views.
    pub struct OutcomeHead = 40 {
        /// 1 items (get, put), 2 bits (exists, missing), 3 a number (exists prefix, remove, clear,
        /// ping, pin, unpin, lease, begin, prefetch, commit, abort, hold, release, used, hint), 4
        /// flushed, 5 a text (stats), 6 failed as a whole, 7 events, 8 views.
        form: u8,
        /// Verb of the request.
        verb: u8,
        /// In form 6, the error tag.
        error: u8,
        /// Zero.
        reserved: u8,
        /// Number of items, bits, events or views.
        item_count: u32,
        /// Number of checksums.
        checksum_count: u32,
        /// Block size of the checksums; zero without checksums.
        block_bytes: u32,
        /// Length of all texts.
        text_bytes: u32,
        /// The kernel's errno of a failure; zero if none.
        errno: i32,
        /// Number of keys that are present (exists prefix, pin, lease, used), follow the hint
        /// (hint), are being read (prefetch) or were present (remove, unpin); generation after a
        /// clear; state of a group after a commit (3, 4 or 5, as of an item); 1 if the hold was in
        /// force (release); position of the next event, never zero (events); number of keys of
        /// bases (items).
        number: u64,
        /// Events that were dropped before these.
        lost: u64,
    }
}

structure! {
    /// Result of one item.
    pub struct OutcomeItem = 48 {
        /// 1 hit, 2 miss, 3 stored, 4 present already, 5 waiting, 6 refused, 7 failed.
        state: u8,
        /// In a hit, the source of the bytes: 1 memory, 2 SSD, 3 a peer.
        tier: u8,
        /// In a miss, the cause: 1 absent, 2 damaged, 3 unreadable, 4 gone, 5 late.
        cause: u8,
        /// In a failure, the error tag.
        error: u8,
        /// In a hit, the number of its checksums.
        checksum_count: u32,
        /// XXH3-128 of the whole key, never zero.
        key_hash: Checksum,
        /// In a hit, the number of bytes sent.
        length: u64,
        /// Length of its text; zero unless it failed.
        text_bytes: u32,
        /// The kernel's errno of a failure; zero if none.
        errno: i32,
        /// In a hit, the number of objects that were put together, this one included, if they form
        /// a base group or `base` is set; else 0, which means unknown.
        members: u32,
        /// In a hit on an attached object, 1 plus the index of its base among the keys of bases; 0
        /// if unknown. Items that were put together, and only those, share an index; indices are in
        /// the order of first use.
        base: u32,
    }
}

structure! {
    /// Result of a flush, counted since the last flush that reported.
    pub struct Flushed = 32 {
        /// Objects made durable.
        pub durable_objects: u64,
        /// Their bytes.
        pub durable_bytes: u64,
        /// Objects whose put was refused.
        pub refused_objects: u64,
        /// Objects that were acknowledged and could not be made durable.
        pub lost_objects: u64,
    }
}

const WHAT: &str = "outcome";

/// Source of a hit's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TierTag {
    /// The arena.
    Memory = 1,
    /// The segment log.
    Ssd = 2,
    /// A peer.
    Remote = 3,
}

/// Cause of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CauseTag {
    /// The index has no entry.
    Absent = 1,
    /// The stored bytes failed verification.
    Damaged = 2,
    /// The device failed the read.
    Unreadable = 3,
    /// Removed, cleared or reclaimed while it was read.
    Gone = 4,
    /// The deadline passed.
    Late = 5,
}

impl TierTag {
    /// All tiers.
    pub const ALL: [TierTag; 3] = [TierTag::Memory, TierTag::Ssd, TierTag::Remote];
}

impl CauseTag {
    /// All causes.
    pub const ALL: [CauseTag; 5] =
        [CauseTag::Absent, CauseTag::Damaged, CauseTag::Unreadable, CauseTag::Gone, CauseTag::Late];
}

/// State of a group after a commit; the values are those of [`OutcomeItem`]'s `state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum GroupState {
    /// The commit made it visible.
    Stored = STATE_STORED as u64,
    /// It was visible before.
    AlreadyPresent = STATE_PRESENT as u64,
    /// Objects are missing.
    Waiting = STATE_WAITING as u64,
    /// The admission policy refused it.
    Refused = STATE_REFUSED as u64,
}

impl GroupState {
    /// All states.
    pub const ALL: [GroupState; 4] =
        [GroupState::Stored, GroupState::AlreadyPresent, GroupState::Waiting, GroupState::Refused];
}

/// The base group of an attached object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseRef {
    /// Index of the base in the outcome, from 0. Hits that were put together, and only those, share
    /// an index; indices are in the order of first use.
    pub number: u32,
    /// A key of the base group.
    pub key: ObjectKey,
}

/// Result of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemOutcome<'a> {
    /// Every byte was sent before this frame; the receiver must verify the checksums.
    Hit {
        /// Source of the bytes.
        tier: TierTag,
        /// Number of bytes.
        length: u64,
        /// One per block of the object that the sent bytes touch, over those bytes of the block
        /// that were sent.
        checksums: List<'a, Checksum>,
        /// Number of objects that were put together, this one included; 0 if unknown, or if they
        /// are attached and `base` is `None`.
        members: u32,
        /// The base group that they are attached to.
        base: Option<BaseRef>,
    },
    /// The object was not read.
    Miss(CauseTag),
    /// The put is stored.
    Stored,
    /// The key of the put was present already; its bytes were not pulled, or not stored.
    AlreadyPresent,
    /// The put is stored and not visible yet.
    Waiting,
    /// The admission policy refused the put.
    Refused,
    /// The item failed.
    Failed(Failure<'a>),
}

/// The outcome of one item, with the hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// [`crate::checksum::key_hash`] of the item's key.
    pub key_hash: Checksum,
    /// Result.
    pub verdict: ItemOutcome<'a>,
}

/// The items of an outcome, in the order of the request, borrowed from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items<'a> {
    items: List<'a, OutcomeItem>,
    checksums: List<'a, Checksum>,
    bases: List<'a, ObjectKey>,
    texts: &'a str,
    block_bytes: u32,
}

/// One bit per item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits<'a> {
    bytes: &'a [u8],
    count: u32,
}

impl<'a> Bits<'a> {
    /// The first `count` bits of `bytes`, from the lowest of each byte; `None` if `bytes` has
    /// another length than `count` bits need, or if an unused bit is set.
    pub fn new(bytes: &'a [u8], count: u32) -> Option<Bits<'a>> {
        let unused = (count as usize).next_multiple_of(8) - count as usize;
        let unused_zero = bytes.last().is_none_or(|last| last.leading_zeros() as usize >= unused);
        (bytes.len() == count.div_ceil(8) as usize && unused_zero).then_some(Bits { bytes, count })
    }

    /// Encode `bits` into bytes.
    pub fn pack(bits: &[bool]) -> Vec<u8> {
        bits.chunks(8)
            .map(|c| c.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
            .collect()
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are no bits.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All bits, in order.
    pub fn iter(&self) -> impl Iterator<Item = bool> + use<'a> {
        let bytes = self.bytes;
        (0..self.count as usize).map(move |i| bytes[i / 8] >> (i % 8) & 1 == 1)
    }
}

/// The form of an outcome of `verb`. Any verb may also have the form [`FORM_FAILED`].
fn form_of(verb: Verb) -> u8 {
    match verb {
        Verb::Get | Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::PutInto => FORM_ITEMS,
        Verb::Exists | Verb::Missing => FORM_BITS,
        Verb::ExistsPrefix | Verb::Remove | Verb::Clear | Verb::Ping => FORM_NUMBER,
        Verb::Pin | Verb::Unpin | Verb::Lease | Verb::Prefetch | Verb::Used | Verb::Hint => {
            FORM_NUMBER
        }
        Verb::Begin | Verb::Commit | Verb::Abort | Verb::Hold | Verb::Release => FORM_NUMBER,
        Verb::Flush => FORM_FLUSHED,
        Verb::Stats => FORM_TEXT,
        Verb::Events => FORM_EVENTS,
        Verb::View => FORM_VIEWS,
    }
}

const FORM_ITEMS: u8 = 1;
const FORM_BITS: u8 = 2;
const FORM_NUMBER: u8 = 3;
const FORM_FLUSHED: u8 = 4;
const FORM_TEXT: u8 = 5;
const FORM_FAILED: u8 = 6;
const FORM_EVENTS: u8 = 7;
const FORM_VIEWS: u8 = 8;

const STATE_HIT: u8 = 1;
const STATE_MISS: u8 = 2;
const STATE_STORED: u8 = 3;
const STATE_PRESENT: u8 = 4;
const STATE_WAITING: u8 = 5;
const STATE_REFUSED: u8 = 6;
const STATE_FAILED: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_packed_from_lowest_bit() {
        let bits = [true, false, true, false, false, false, false, false, true];
        let bytes = Bits::pack(&bits);
        assert_eq!(bytes, [0b101, 1]);
        assert_eq!(
            Bits::new(&bytes, 9).expect("two bytes for nine bits").iter().collect::<Vec<_>>(),
            bits
        );
        assert_eq!((Bits::new(&bytes, 8), Bits::new(&bytes, 17)), (None, None));
        assert_eq!(Bits::new(&[0b101, 2], 9), None, "an unused bit is set");
        assert_eq!(Bits::new(&[], 0).map(|b| b.is_empty()), Some(true));
    }
}
