//! A store as far as it can be read: what verification judges and what repair starts from.

use std::path::PathBuf;

use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_layouts::manifest::Manifest;

use super::checkpoint::{self, Checkpoints};
use super::finding::{Finding, Severity};
use crate::on_disk::OnDisk;
use crate::on_disk::segment::{Footer, Segment};

/// Everything but the records.
pub(super) struct Look {
    /// The manifest.
    pub(super) manifest: Manifest,
    /// Files that have another length than they should, or `None`.
    pub(super) lengths: Vec<(PathBuf, u64, Option<u64>)>,
    /// The checkpoints.
    pub(super) checkpoints: Checkpoints,
    /// The segments that were ever used and can be read.
    pub(super) segments: Vec<Segment>,
    /// Those whose head or footer cannot be read, and why.
    pub(super) unreadable: Vec<(SegmentId, anyhow::Error)>,
    newest_sealed: SegmentOrder,
}

impl Look {
    /// Look at the store of this manifest.
    pub(super) fn at(disk: &OnDisk, manifest: Manifest) -> anyhow::Result<Look> {
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
        Ok(Look { manifest, lengths, checkpoints, segments, unreadable, newest_sealed })
    }

    /// Whether everything in a segment was durable once, sealed or not: a segment is sealed after a sync of all that
    /// was written before, and a checkpoint replays from the oldest segment that was not sealed yet.
    pub(super) fn covered(&self, segment: &Segment) -> bool {
        let replay_from = self.checkpoints.newest.map_or(SegmentOrder(0), |c| c.replay_from);
        segment.order < self.newest_sealed || segment.order < replay_from
    }

    /// What is the matter with files' lengths and the checkpoints.
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
    /// Whether its footer is whole.
    pub(super) fn is_sealed(&self) -> bool {
        matches!(self.footer, Footer::Sealed { .. })
    }
}
