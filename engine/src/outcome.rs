//! What callers get back: one outcome an object, never one verdict for a batch.

use std::fmt;

use pagelith_layouts::checksum::{Checksum, Checksums};

use crate::batch::{Destination, Source};
use crate::error::{Error, Result};
use crate::frames::FrameData;
use crate::hits::PagesFound;
use crate::together::Together;

/// Where bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// The arena.
    Memory,
    /// The segment log.
    Ssd,
    /// A peer.
    Remote,
}

/// Why an object was not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MissCause {
    /// No entry: never put, or evicted, removed, cleared, lost before it was durable.
    Absent,
    /// What was stored failed verification; the entry is gone and counted.
    Damaged,
    /// The device failed the read, or was late; the entry of a failed read is gone.
    Unreadable,
    /// It was removed, cleared or reclaimed while it was being read.
    Gone,
    /// The batch's time was up before the store came to it.
    Late,
}

impl MissCause {
    /// All causes, for tables.
    pub const ALL: [MissCause; 5] =
        [MissCause::Absent, MissCause::Damaged, MissCause::Unreadable, MissCause::Gone, MissCause::Late];
}

impl fmt::Display for MissCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MissCause::Absent => "absent",
            MissCause::Damaged => "damaged",
            MissCause::Unreadable => "unreadable",
            MissCause::Gone => "gone",
            MissCause::Late => "late",
        })
    }
}

/// What became of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// Every byte is in the destination, verified.
    Hit {
        /// Where it came from.
        tier: Tier,
        /// Bytes delivered.
        bytes: u64,
    },
    /// Not here.
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

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored, and `get` hits until eviction, removal, clear or detected damage.
    Stored,
    /// The key was there already; these bytes were not read.
    AlreadyPresent,
    /// It is kept and not visible yet: it is attached to a base that is not here, or its group is not
    /// complete. At the deadline of its group it is dropped. No flush covers it.
    Waiting,
    /// Policy said no: the index is full of objects that may not be dropped.
    Refused,
}

/// Names a submitted batch on its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

/// A finished get: its outcome, and its memory back. `Err` is for what is wrong with the request
/// (`Invalid`), for `Busy`, and for a closed store.
#[derive(Debug)]
pub struct GetDone {
    /// What became of it.
    pub outcome: Result<GetOutcome>,
    /// The caller's memory.
    pub destination: Destination,
    /// The object's length in bytes, where it was found.
    pub(crate) length: u64,
    /// What is said of it beside, where that was asked for.
    pub(crate) proof: Option<Box<Proof>>,
}

impl GetDone {
    /// The checksums of the object's blocks, and what it was put with; nothing where that was not asked for.
    pub(crate) fn proven(&self) -> (&[Checksum], Together) {
        self.proof.as_ref().map(|proof| (&proof.checksums[..], proof.with.clone())).unwrap_or_default()
    }
}

/// What a session with proofs says of an object beside its outcome. Kept apart: nobody else asks.
#[derive(Debug, Default)]
pub(crate) struct Proof {
    /// The checksums of all its blocks.
    pub checksums: Checksums,
    /// What it was put with.
    pub with: Together,
}

impl Proof {
    /// Of an object in memory.
    pub fn of_frame(data: &FrameData, member: usize) -> Proof {
        let checksums = data.members[member].checksums.clone();
        Proof { checksums, with: Together::of_frame(data) }
    }
}

/// A finished put: its outcome, and its memory back.
#[derive(Debug)]
pub struct PutDone {
    /// What became of it. The objects of a group have the same outcome, except that what was here by itself
    /// and is now of the group is `AlreadyPresent` beside others that were `Stored`.
    pub outcome: Result<PutOutcome>,
    /// The caller's memory.
    pub source: Source,
}

/// A finished batch, in the order it was submitted in (groups flattened).
#[derive(Debug)]
pub enum Done {
    /// Of `submit_put`.
    Put(Vec<PutDone>),
    /// Of `submit_get`.
    Get(Vec<GetDone>),
    /// Of `submit_exists`.
    Exists(Vec<bool>),
    /// Of `submit_exists_groups`: one answer for the whole query.
    ExistsGroups(Result<PagesFound>),
}

/// How a store ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloseReport {
    /// What happened since the last flush.
    pub flushed: FlushReport,
    /// Objects that the store had, and that are not durable as it ends. 0 of a store without an SSD tier.
    pub unsaved_objects: u64,
    /// Their bytes.
    pub unsaved_bytes: u64,
    /// What kept the store from closing as it should: the time was up, or the tier takes nothing.
    pub error: Option<Error>,
}

/// What a flush did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushReport {
    /// Objects made durable since the last report.
    pub durable_objects: u64,
    /// Their bytes.
    pub durable_bytes: u64,
    /// Objects whose put was refused since the last report.
    pub refused_objects: u64,
    /// Objects that were acked and could not be made durable: the device failed, or there is no SSD tier to
    /// take them. They are served from memory until evicted.
    pub lost_objects: u64,
}
