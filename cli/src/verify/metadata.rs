//! The metadata of a store as far as it is readable: the input of verification and repair.

use std::path::PathBuf;

use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_layouts::manifest::Manifest;

use super::checkpoint::{self, Checkpoints};
use super::finding::{Finding, Severity};
use crate::on_disk::OnDisk;
use crate::on_disk::segment::{Footer, Segment};

/// Everything of a store except its records.
pub(super) struct StoreMetadata {
    pub(super) manifest: Manifest,
    /// Files of wrong length: path, expected length, actual length (`None` if missing).
    pub(super) lengths: Vec<(PathBuf, u64, Option<u64>)>,
    pub(super) checkpoints: Checkpoints,
    /// The readable segments that were ever used.
    pub(super) segments: Vec<Segment>,
    /// Segments whose head or footer cannot be read, and the error.
    pub(super) unreadable: Vec<(SegmentId, anyhow::Error)>,
    newest_sealed: SegmentOrder,
}

impl StoreMetadata {
    /// Read the metadata of the store with this manifest.
    pub(super) fn read(disk: &OnDisk, manifest: Manifest) -> anyhow::Result<StoreMetadata> {
        let mut lengths = disk.lengths(manifest.superblock());
        lengths.retain(|(_, expected, found)| Some(*expected) != *found);
        let checkpoints = checkpoint::verify(disk, manifest.store())?;
        let (mut segments, mut unreadable) = (Vec::new(), Vec::new());
        for id in (0..manifest.superblock().segment_count).map(SegmentId) {
            match Segment::load(disk, &manifest, id) {
                Ok(segment) => segments.extend(segment),
                Err(error) => unreadable.push((id, error)),
            }
        }
        let sealed = segments.iter().filter(|s| s.is_sealed());
        let newest_sealed = sealed.map(|s| s.order).max().unwrap_or_default();
        Ok(StoreMetadata { manifest, lengths, checkpoints, segments, unreadable, newest_sealed })
    }

    /// Whether all records of a segment were durable before, even if it is not sealed. A segment is
    /// sealed after a sync of everything written before, and a checkpoint's replay starts at the
    /// oldest segment that was not sealed then.
    pub(super) fn covered(&self, segment: &Segment) -> bool {
        let replay_from = self.checkpoints.newest.map_or(SegmentOrder(0), |c| c.replay_from);
        segment.order < self.newest_sealed || segment.order < replay_from
    }

    /// The findings about file lengths and checkpoints.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let length = |(path, expected, found): &(PathBuf, u64, Option<u64>)| {
            let cause = match found {
                Some(found) => {
                    format!("file has another length expected_bytes={expected} found_bytes={found}")
                }
                None => format!("file is missing expected_bytes={expected}"),
            };
            Finding::new(Severity::Wrong, cause, path.display().to_string())
        };
        self.lengths.iter().map(length).chain(self.checkpoints.findings.iter().cloned()).collect()
    }
}

impl Segment {
    /// Whether the footer is intact.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(self.footer, Footer::Sealed { .. })
    }
}
