//! Moments in the life of a store at which a process is killed: operations on its files, classified
//! by their contents and by earlier operations. The store's code is not involved.

use pagelith::io::disk::Op;
use pagelith::layouts::names::{CHECKPOINTS, CREATING, MANIFESTS, SEGMENTS};
use pagelith::layouts::record::{Record, RecordKind};

/// Phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It never reaches the disk.
    Before,
    /// The kernel has it, and has not reported its completion.
    InFlight,
    /// It has completed, and the store has not been notified.
    After,
}

/// The relevant facts of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObservedOp {
    /// Its kind.
    pub what: OpKind,
    /// Whether the flusher made it.
    pub by_flusher: bool,
    /// Whether the store is still being opened.
    pub opening: bool,
    /// Whether records were written since the last sync of segments.
    pub records: bool,
    /// Whether tombstones were among them.
    pub tombstones: bool,
    /// Whether reclaim reinserted records, and the manifest has not changed since.
    pub reinserted: bool,
    /// Whether the file was written since its last sync.
    pub dirty: bool,
}

/// Contents of a write into a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The segment's header.
    pub head: bool,
    /// Its footer only.
    pub footer: bool,
    /// Tombstones.
    pub tombstones: bool,
    /// Records that reclaim reinserts.
    pub reinserted: bool,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpKind {
    /// A write into a segment.
    Segment(Parts),
    /// A write of a manifest copy.
    Manifest(usize),
    /// A write of a checkpoint.
    Checkpoint,
    /// A sync of the segments.
    SyncSegments,
    /// A sync of a manifest copy.
    SyncManifest(usize),
    /// A sync of a checkpoint.
    SyncCheckpoint,
    /// A read of segments.
    Read,
    /// Creation of a file.
    Create,
    /// Removal of the mark of a store under creation.
    Made,
    /// Anything else.
    #[default]
    Other,
}

impl OpKind {
    /// Facts of an operation on the file of this name.
    pub fn of(op: &Op, name: &str) -> OpKind {
        let manifest = MANIFESTS.iter().position(|m| *m == name);
        let checkpoint = CHECKPOINTS.contains(&name);
        match (op, manifest) {
            (Op::Write { .. }, Some(copy)) => OpKind::Manifest(copy),
            (Op::Sync { .. }, Some(copy)) => OpKind::SyncManifest(copy),
            (Op::Write { .. }, None) if checkpoint => OpKind::Checkpoint,
            (Op::Sync { .. }, None) if checkpoint => OpKind::SyncCheckpoint,
            (Op::Sync { .. }, None) if name == SEGMENTS => OpKind::SyncSegments,
            (Op::Read { .. }, None) if name == SEGMENTS => OpKind::Read,
            (Op::Write { parts, .. }, None) if name == SEGMENTS => {
                segment(parts.iter().map(|p| p.bytes()))
            }
            _ => OpKind::Other,
        }
    }

    /// Facts of the removal of a file.
    pub fn of_removal(name: &str) -> OpKind {
        if name == CREATING { OpKind::Made } else { OpKind::Other }
    }
}

/// A header is a part of its own, with the padding that the store writes after it.
fn segment<'a>(parts: impl Iterator<Item = &'a [u8]>) -> OpKind {
    let mut found = Parts::default();
    for part in parts {
        found.head |= part.starts_with(b"PLSEGMNT");
        let last_block = part.len().saturating_sub(4096);
        found.footer |= part[last_block..].windows(8).any(|w| w == b"PLFOOTER");
        if let Ok(record) = Record::decode(part) {
            found.tombstones |= record.facts().kind == RecordKind::Tombstones;
            found.reinserted |= record.facts().reinserted;
        }
    }
    OpKind::Segment(found)
}

/// A point at which to kill: its name, the operations, and the phase.
pub type Point = (&'static str, fn(&ObservedOp) -> bool, Phase);

fn writes(seen: &ObservedOp, of: fn(Parts) -> bool) -> bool {
    matches!(seen.what, OpKind::Segment(parts) if of(parts))
}

/// All points, in the order of a store's life.
pub const POINTS: [Point; 27] = [
    ("a file of a new store made", |s| s.what == OpKind::Create, Phase::After),
    ("all files made, the mark still there", |s| s.what == OpKind::Made, Phase::Before),
    ("mark removed, caller not notified", |s| s.what == OpKind::Made, Phase::After),
    ("recovery reads", |s| s.opening && s.what == OpKind::Read, Phase::After),
    ("recovery syncs", |s| s.opening && s.what == OpKind::SyncSegments, Phase::Before),
    ("head in flight", |s| writes(s, |w| w.head), Phase::InFlight),
    ("records in flight", |s| writes(s, |w| !w.footer), Phase::InFlight),
    ("records written, not synced", |s| s.records && s.what == OpKind::SyncSegments, Phase::Before),
    ("sync of records in flight", |s| s.records && s.what == OpKind::SyncSegments, Phase::InFlight),
    (
        "records synced, caller not notified",
        |s| s.records && s.what == OpKind::SyncSegments,
        Phase::After,
    ),
    ("data synced, before the footer", |s| writes(s, |w| w.footer), Phase::Before),
    ("footer in flight", |s| writes(s, |w| w.footer), Phase::InFlight),
    ("footer written, not synced", |s| writes(s, |w| w.footer), Phase::After),
    ("tombstones in flight", |s| writes(s, |w| w.tombstones), Phase::InFlight),
    (
        "tombstones written, not synced",
        |s| s.tombstones && s.what == OpKind::SyncSegments,
        Phase::Before,
    ),
    ("before the first manifest copy", |s| s.what == OpKind::Manifest(0), Phase::Before),
    ("first manifest copy in flight", |s| s.what == OpKind::Manifest(0), Phase::InFlight),
    (
        "first manifest copy not synced",
        |s| s.dirty && s.what == OpKind::SyncManifest(0),
        Phase::Before,
    ),
    ("between the manifest copies", |s| s.what == OpKind::Manifest(1), Phase::Before),
    (
        "second manifest copy not synced",
        |s| s.dirty && s.what == OpKind::SyncManifest(1),
        Phase::Before,
    ),
    ("manifest changed, caller not notified", |s| s.what == OpKind::SyncManifest(1), Phase::After),
    ("mid checkpoint", |s| s.what == OpKind::Checkpoint, Phase::InFlight),
    (
        "checkpoint written, not synced",
        |s| s.dirty && s.what == OpKind::SyncCheckpoint,
        Phase::Before,
    ),
    ("checkpoint synced, caller not notified", |s| s.what == OpKind::SyncCheckpoint, Phase::After),
    (
        "reclaim reads its victim",
        |s| s.by_flusher && !s.opening && s.what == OpKind::Read,
        Phase::After,
    ),
    ("reinserted, not synced", |s| s.reinserted && s.what == OpKind::SyncSegments, Phase::Before),
    (
        "reinserted and synced, before the new incarnation",
        |s| s.reinserted && s.what == OpKind::Manifest(0),
        Phase::Before,
    ),
];
