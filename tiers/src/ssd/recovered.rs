//! The result of recovery.

use pagelith_layouts::ids::{SegmentOrder, Sequence};
use pagelith_layouts::learned::Learned;

use super::segments::SegmentTable;
use super::volume::FileSystemFull;

/// Larger than the number of sequences assigned since any segment was opened.
pub(super) const UNREADABLE_SEQUENCES: u64 = 1 << 40;

/// Result of recovery.
#[derive(Debug)]
pub struct Recovered {
    /// All segments, sealed or free.
    pub segments: SegmentTable,
    /// First order that was not assigned yet.
    pub next_order: SegmentOrder,
    /// First sequence that was not assigned yet.
    pub next_sequence: Sequence,
    /// Serial of the checkpoint that was used.
    pub checkpoint: Option<u64>,
    /// The store was closed cleanly: the checkpoint is complete.
    pub clean: bool,
    /// Number of checkpoints with a valid header whose content is damaged, other than by a newer
    /// checkpoint. Only damage at rest causes this.
    pub refused_checkpoints: u32,
    /// What admission had learned when the checkpoint was taken.
    pub learned: Option<Learned>,
    /// Largest serial of any checkpoint found.
    pub last_serial: u64,
    /// Number of footers read.
    pub footers: u32,
    /// Number of segments without a footer, which were scanned.
    pub scanned: u32,
    /// Number of incomplete records: torn by the crash, and covered by no flush.
    pub torn: u64,
    /// Number of unreadable segments, whose records are dropped.
    pub unreadable: u32,
    /// Bytes written to seal segments that were open.
    pub bytes_written: u64,
    /// The manifest could not be written because the file system is full.
    pub full: Option<FileSystemFull>,
}
