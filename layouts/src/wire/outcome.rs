//! Outcomes: the last frame of an operation. One verdict an item, never one for the batch; each names the key that
//! it is about, so that an answer for another item is refused, and a hit brings the checksums that the bytes must
//! have where they landed.

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

pub use events::{EventItem, EventsSaid, Happened};
pub use failure::{ErrorTag, Failure, TEXT_MAX};
pub use read::decode;
pub use views::{Lies, ViewItem, digest};
pub use write::{Written, encode};

structure! {
    /// Start of an outcome's body. What follows depends on the form: items, then checksums of 16 bytes, then keys of bases, then texts; or
    /// bits, a bit an item from the lowest of each byte; or four numbers; or a text; or events; or views.
    pub struct OutcomeHead = 40 {
        /// 1 items (get, put), 2 bits (exists, missing), 3 a number (exists prefix, remove, clear, ping, pin, unpin, lease, begin, prefetch,
        /// commit, abort, hold, release, used), 4 flushed, 5 a text
        /// (stats), 6 failed as a whole, 7 events, 8 views; 0 is never valid.
        form: u8,
        /// The verb of the request.
        verb: u8,
        /// What to do about a failure, in form 6: see the text; else zero.
        error: u8,
        /// Zero.
        reserved: u8,
        /// Number of items, bits, events or views; else zero.
        item_count: u32,
        /// Number of checksums; else zero.
        checksum_count: u32,
        /// Block size of the checksums in bytes; zero where there is none.
        block_bytes: u32,
        /// Length of all texts in bytes.
        text_bytes: u32,
        /// The kernel's errno of a failure; zero where there is none.
        errno: i32,
        /// How many keys are here (exists prefix, pin, lease, used), are read (prefetch) or were (remove, unpin), the generation after a clear, the state of a group
        /// after a commit (3, 4 or 5, as of an item), 1 if the hold had lasted (release), from where on to ask next (events), never zero there; the number of keys of bases (items); else zero.
        number: u64,
        /// Events before these that were dropped; else zero.
        lost: u64,
    }
}

structure! {
    /// What became of one item.
    pub struct OutcomeItem = 48 {
        /// 1 hit, 2 miss, 3 stored, 4 present already, 5 waiting, 6 refused, 7 failed; 0 is never valid.
        state: u8,
        /// Where a hit's bytes came from: 1 memory, 2 SSD, 3 a peer; else zero.
        tier: u8,
        /// Why it is a miss: 1 absent, 2 damaged, 3 unreadable, 4 gone, 5 late; else zero.
        cause: u8,
        /// What to do about a failure: see the text; else zero.
        error: u8,
        /// Number of its checksums: of a hit, one a block of the object that the bytes sent lie in; else zero.
        checksum_count: u32,
        /// XXH3-128 of the whole key, never zero.
        key_hash: Checksum,
        /// Bytes that a hit sent; else zero.
        length: u64,
        /// Length of its text in bytes; zero unless it failed.
        text_bytes: u32,
        /// The kernel's errno of a failure; zero where there is none.
        errno: i32,
        /// Of a hit, how many objects were put with it, itself among them, if they are visible by themselves or `base` is said; 0 if that
        /// is not said.
        members: u32,
        /// Of a hit that is attached, 1 more than the number of the key behind the checksums that it is attached to: the same of all items
        /// that were put together, and of no others, in the order of their first ones; 0 if that is not said.
        base: u32,
    }
}

structure! {
    /// What a flush did, counted since the last one that said.
    pub struct Flushed = 32 {
        /// Objects made durable.
        pub durable_objects: u64,
        /// Their bytes.
        pub durable_bytes: u64,
        /// Objects whose put was refused.
        pub refused_objects: u64,
        /// Objects that were acked and could not be made durable.
        pub lost_objects: u64,
    }
}

const WHAT: &str = "outcome";

/// Where a hit's bytes came from.
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

/// Why an object was not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CauseTag {
    /// No entry.
    Absent = 1,
    /// What was stored failed verification.
    Damaged = 2,
    /// The device failed the read.
    Unreadable = 3,
    /// Removed, cleared or reclaimed while it was read.
    Gone = 4,
    /// The time was up.
    Late = 5,
}

impl TierTag {
    /// All tiers, for tables.
    pub const ALL: [TierTag; 3] = [TierTag::Memory, TierTag::Ssd, TierTag::Remote];
}

impl CauseTag {
    /// All causes, for tables.
    pub const ALL: [CauseTag; 5] =
        [CauseTag::Absent, CauseTag::Damaged, CauseTag::Unreadable, CauseTag::Gone, CauseTag::Late];
}

/// What a commit says of its group: the states of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum GroupState {
    /// It is visible now.
    Stored = STATE_STORED as u64,
    /// It was visible.
    AlreadyPresent = STATE_PRESENT as u64,
    /// Objects are missing.
    Waiting = STATE_WAITING as u64,
    /// Policy said no to it.
    Refused = STATE_REFUSED as u64,
}

impl GroupState {
    /// All states, for tables.
    pub const ALL: [GroupState; 4] =
        [GroupState::Stored, GroupState::AlreadyPresent, GroupState::Waiting, GroupState::Refused];
}

/// What a hit is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// The same of all hits of an outcome that were put together, and of no others: from 0, in the order of their first ones.
    pub number: u32,
    /// An object of the base group.
    pub key: ObjectKey,
}

/// What became of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// Every byte was sent before this frame; these are the checksums they must have.
    Hit {
        /// Where they came from.
        tier: TierTag,
        /// How many they are.
        length: u64,
        /// One for each block of the object that the bytes lie in, of those of its bytes that were sent.
        checksums: List<'a, Checksum>,
        /// How many objects were put together with it, itself among them; 0 if that is not known, or they are attached and not said to
        /// what.
        members: u32,
        /// What they are attached to.
        base: Option<Base>,
    },
    /// Not here.
    Miss(CauseTag),
    /// A put that is stored.
    Stored,
    /// A put whose key was here already; its bytes were not asked for, or not kept.
    AlreadyPresent,
    /// A put that is kept and not visible yet.
    Waiting,
    /// A put that policy said no to.
    Refused,
    /// Neither: what went wrong.
    Failed(Failure<'a>),
}

/// The verdict on one item, and the key that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// [`crate::checksum::key_hash`] of the item's key.
    pub key_hash: Checksum,
    /// What became of it.
    pub verdict: Verdict<'a>,
}

/// The items of an outcome, in the order of the request; a view that owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items<'a> {
    items: List<'a, OutcomeItem>,
    checksums: List<'a, Checksum>,
    bases: List<'a, ObjectKey>,
    texts: &'a str,
    block_bytes: u32,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// To a get or put: one verdict an item.
    Items(Items<'a>),
    /// To exists and missing: one bit an item.
    Bits(Bits<'a>),
    /// To exists prefix, remove, clear, ping, pin, unpin, lease, begin, commit, abort, prefetch, hold, release and used.
    Number(u64),
    /// To flush.
    Flushed(Flushed),
    /// To stats: a JSON object.
    Text(&'a str),
    /// To events.
    Events(EventsSaid<'a>),
    /// To view: one an object.
    Views(List<'a, ViewItem>),
    /// It failed as a whole, and no item was touched.
    Failed(Failure<'a>),
}

/// One bit an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits<'a> {
    bytes: &'a [u8],
    count: u32,
}

impl<'a> Bits<'a> {
    /// The first `count` bits of `bytes`, from the lowest of each byte; `None` if they are too few or too many, or if
    /// one behind them is set.
    pub fn new(bytes: &'a [u8], count: u32) -> Option<Bits<'a>> {
        let spare = (count as usize).next_multiple_of(8) - count as usize;
        let ends_well = bytes.last().is_none_or(|last| last.leading_zeros() as usize >= spare);
        (bytes.len() == count.div_ceil(8) as usize && ends_well).then_some(Bits { bytes, count })
    }

    /// The bytes that hold these bits.
    pub fn pack(bits: &[bool]) -> Vec<u8> {
        bits.chunks(8).map(|c| c.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = bool> + use<'a> {
        let bytes = self.bytes;
        (0..self.count as usize).map(move |i| bytes[i / 8] >> (i % 8) & 1 == 1)
    }
}

/// The form of an answer to a verb; a failure may answer any.
fn form_of(verb: Verb) -> u8 {
    match verb {
        Verb::Get | Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::PutInto => FORM_ITEMS,
        Verb::Exists | Verb::Missing => FORM_BITS,
        Verb::ExistsPrefix | Verb::Remove | Verb::Clear | Verb::Ping => FORM_NUMBER,
        Verb::Pin | Verb::Unpin | Verb::Lease | Verb::Prefetch | Verb::Used => FORM_NUMBER,
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
    fn bits_are_packed_from_the_lowest() {
        let bits = [true, false, true, false, false, false, false, false, true];
        let bytes = Bits::pack(&bits);
        assert_eq!(bytes, [0b101, 1]);
        assert_eq!(Bits::new(&bytes, 9).expect("as many").iter().collect::<Vec<_>>(), bits);
        assert_eq!((Bits::new(&bytes, 8), Bits::new(&bytes, 17)), (None, None));
        assert_eq!(Bits::new(&[0b101, 2], 9), None, "a bit behind the last");
        assert_eq!(Bits::new(&[], 0).map(|b| b.is_empty()), Some(true));
    }
}
