//! Results of calls: one outcome per object, never one for a whole batch.

use std::fmt;

use pagelith_layouts::checksum::{Checksum, Checksums};

use crate::api::error::{Error, Result};
use crate::api::group_info::GroupInfo;
use crate::api::hits::PagesFound;
use crate::api::request::{Destination, Source};

/// Where an object's bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// The arena.
    Memory,
    /// The segment log.
    Ssd,
    /// A peer.
    Remote,
}

/// Why a get missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MissCause {
    /// No entry: never put, or evicted, removed, cleared, or lost before it was durable.
    Absent,
    /// The stored bytes failed verification; the entry was dropped and counted.
    Damaged,
    /// The device failed the read; the entry was dropped.
    Unreadable,
    /// A server could not complete it: it was replaced while its chunks were read, or a peer's
    /// reply lacks its checksums. A get of an embedded store never has this cause.
    Gone,
    /// The batch's deadline passed before the store reached the object.
    Late,
    /// The object is on SSD, and loading it would have been slower than recomputing it
    /// ([`Options::prefill_tokens_per_s`](crate::Options::prefill_tokens_per_s), or the setting
    /// `read.prefill_tokens_per_s`). A client of a store process gets `Absent` instead.
    Slow,
}

impl MissCause {
    /// All causes, for tables.
    pub const ALL: &'static [MissCause] = &[
        MissCause::Absent,
        MissCause::Damaged,
        MissCause::Unreadable,
        MissCause::Gone,
        MissCause::Late,
        MissCause::Slow,
    ];
}

impl fmt::Display for MissCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MissCause::Absent => "absent",
            MissCause::Damaged => "damaged",
            MissCause::Unreadable => "unreadable",
            MissCause::Gone => "gone",
            MissCause::Late => "late",
            MissCause::Slow => "slow",
        })
    }
}

/// Outcome of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// Every byte is in the destination, verified unless `dram.verify_ratio` exempts the hit.
    Hit {
        /// Where it came from.
        tier: Tier,
        /// Bytes delivered.
        bytes: u64,
    },
    /// No verified bytes were delivered.
    Miss(MissCause),
}

impl GetOutcome {
    /// Whether it is a hit.
    pub fn is_hit(&self) -> bool {
        match self {
            GetOutcome::Hit { .. } => true,
            GetOutcome::Miss(_) => false,
        }
    }
}

/// Outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutOutcome {
    /// Stored: `get` hits until eviction, removal, clear or detected damage.
    Stored,
    /// The key was present, or another put of it was first. The bytes of this put are not stored.
    AlreadyPresent,
    /// Kept and not visible yet: its base is absent, or its group is incomplete. It is dropped at
    /// the deadline of its group. No flush covers it.
    Waiting,
    /// Not stored: the index is full of objects that must not be dropped, the store has no DRAM
    /// tier and its SSD tier takes no writes, or the namespace is at its limit. Or a peer offered
    /// an attached group without its base.
    Refused,
}

/// Identifies a submitted batch on its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(#[doc(hidden)] pub u64);

/// A finished get: its outcome, and the caller's memory. `Err` stands for an invalid request
/// (`Invalid`), for `Busy`, and for a closed store.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletedGet {
    /// The outcome.
    pub outcome: Result<GetOutcome>,
    /// The caller's memory.
    pub destination: Destination,
    /// The object's length in bytes, if it was found.
    #[doc(hidden)]
    pub length: u64,
    /// Metadata of the object, if it was requested.
    #[doc(hidden)]
    pub meta: Option<Box<ObjectMeta>>,
}

impl CompletedGet {
    #[doc(hidden)]
    pub fn of(
        outcome: Result<GetOutcome>,
        destination: Destination,
        length: u64,
        meta: Option<Box<ObjectMeta>>,
    ) -> CompletedGet {
        CompletedGet { outcome, destination, length, meta }
    }

    /// The checksums of the object's blocks, and its group; empty unless requested.
    #[doc(hidden)]
    pub fn metadata(&self) -> (&[Checksum], GroupInfo) {
        self.meta.as_ref().map(|meta| (&meta.checksums[..], meta.group.clone())).unwrap_or_default()
    }
}

/// Metadata of a found object, for sessions that request it. Boxed in [`CompletedGet`], since other
/// sessions do not need it.
#[derive(Debug, Default)]
pub struct ObjectMeta {
    /// The checksums of all its blocks.
    pub checksums: Checksums,
    /// The group that it was put with.
    pub group: GroupInfo,
}

/// A finished put: its outcome, and the caller's memory.
#[derive(Debug)]
#[non_exhaustive]
pub struct CompletedPut {
    /// The outcome. All objects of a group have the same one, except that an object that was stored
    /// alone and now belongs to the group is `AlreadyPresent` while the others are `Stored`.
    pub outcome: Result<PutOutcome>,
    /// The caller's memory.
    pub source: Source,
}

impl CompletedPut {
    #[doc(hidden)]
    pub fn of(outcome: Result<PutOutcome>, source: Source) -> CompletedPut {
        CompletedPut { outcome, source }
    }
}

/// A finished batch, in the order of submission (groups flattened).
#[derive(Debug)]
#[non_exhaustive]
pub enum CompletedBatch {
    /// The outcomes of `submit_put`.
    Put(Vec<CompletedPut>),
    /// The outcomes of `submit_get`.
    Get(Vec<CompletedGet>),
    /// The answers of `submit_exists`.
    Exists(Vec<bool>),
    /// The answer of `submit_exists_groups`, for the whole query.
    ExistsGroups(Result<PagesFound>),
}

/// Result of closing a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Counts since the last flush.
    pub flushed: FlushReport,
    /// Objects that are not durable at the end; 0 without an SSD tier.
    pub unsaved_objects: u64,
    /// Their bytes.
    pub unsaved_bytes: u64,
    /// Why the close is incomplete: the timeout passed, or the tier accepts no writes.
    pub error: Option<Error>,
}

/// Result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlushReport {
    /// Objects made durable since the last report.
    pub durable_objects: u64,
    /// Their bytes.
    pub durable_bytes: u64,
    /// Objects whose put was refused since the last report, objects that left every tier before a
    /// flush covered them, and objects attached to a base that is not on SSD.
    pub refused_objects: u64,
    /// Objects that were acknowledged and could not be made durable: the device failed, the SSD
    /// tier took no writes, or they were found damaged. Those still in memory are served until they
    /// are evicted, and count as durable once they are written after all. 0 without an SSD tier.
    pub lost_objects: u64,
}

impl CloseReport {
    #[doc(hidden)]
    pub fn of(
        flushed: FlushReport,
        (unsaved_objects, unsaved_bytes): (u64, u64),
        error: Option<Error>,
    ) -> CloseReport {
        CloseReport { flushed, unsaved_objects, unsaved_bytes, error }
    }
}

impl FlushReport {
    /// Of objects that became durable.
    #[doc(hidden)]
    pub fn durable(objects: u64, bytes: u64) -> FlushReport {
        FlushReport { durable_objects: objects, durable_bytes: bytes, ..FlushReport::default() }
    }

    /// Of objects that SSD refused.
    #[doc(hidden)]
    pub fn refused(objects: u64) -> FlushReport {
        FlushReport { refused_objects: objects, ..FlushReport::default() }
    }

    /// Of objects that were lost.
    #[doc(hidden)]
    pub fn lost(objects: u64) -> FlushReport {
        FlushReport { lost_objects: objects, ..FlushReport::default() }
    }
}
