//! Verification of the two checkpoint files. They are written in turn, and the newer one is used. A
//! crash may interrupt the write of the older one, so damaged chunks of that are not reported.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{self, CHUNK_BYTES, CheckpointFacts, ChunkKind, SegmentMark};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, StoreId};

use super::finding::{Finding, Severity};
use crate::on_disk::segment::Segment;
use crate::on_disk::{CheckpointFile, OnDisk};

/// Bytes of an item in a chunk.
const ITEM_BYTES: usize = checkpoint::CheckpointEntry::BYTES;

/// The two checkpoints.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// The newest checkpoint with an intact head, if any.
    pub(super) newest: Option<CheckpointFacts>,
    /// Its segment marks; empty if it is damaged.
    marks: Vec<SegmentMark>,
    /// Whether each file is damaged.
    pub(super) damaged: [bool; 2],
    pub(super) findings: Vec<Finding>,
}

impl Checkpoints {
    /// The mark of a segment's current incarnation in the newest checkpoint, if that has entries of
    /// the segment. They are found through the checkpoint, even if the segment's head is damaged.
    pub(super) fn mark(&self, segment: &Segment) -> Option<&SegmentMark> {
        let SegmentId(id) = segment.identity.segment;
        let covers = |m: &&SegmentMark| {
            let replayed = self.newest.is_none_or(|c| m.order >= c.replay_from.0);
            m.incarnation == segment.identity.incarnation.0 && !replayed && m.data_end > 0
        };
        self.marks.get(id as usize).filter(covers)
    }

    fn add_finding(&mut self, which: usize, finding: Finding) {
        self.damaged[which] = true;
        self.findings.push(finding);
    }
}

/// Verify both files.
pub(super) fn verify(disk: &OnDisk, store: StoreId) -> anyhow::Result<Checkpoints> {
    let mut all = Checkpoints::default();
    let mut newest: Option<(CheckpointFacts, CheckpointFile, usize)> = None;
    for which in 0..2 {
        // A missing file is reported with the lengths of the files.
        let Some(file) = disk.checkpoint(which, store)? else { continue };
        match &file.head {
            Ok(facts) if newest.as_ref().is_none_or(|n| n.0.serial < facts.serial) => {
                newest = Some((*facts, file, which));
            }
            Ok(_) | Err(FormatError::Empty { .. }) => {}
            Err(error) => {
                let path = disk.checkpoint_path(which).display().to_string();
                all.add_finding(which, Finding::new(Severity::Wrong, error, path).at(0));
            }
        }
    }
    let Some((facts, file, which)) = newest else { return Ok(all) };
    all.newest = Some(facts);
    let path = disk.checkpoint_path(which).display().to_string();
    let mut read = |index, buf: &mut [u8]| disk.read_chunk(which, &file, index, buf);
    let marks = chunks(&facts, &mut read, &path, &mut |finding| all.add_finding(which, finding));
    all.marks = marks.into_iter().filter(|_| !all.damaged[which]).collect();
    Ok(all)
}

/// Read a checkpoint's chunks; returns its segment marks.
fn chunks(
    facts: &CheckpointFacts,
    read: &mut dyn FnMut(u64, &mut [u8]) -> usize,
    path: &str,
    find: &mut dyn FnMut(Finding),
) -> Vec<SegmentMark> {
    let mut buf = vec![0; CHUNK_BYTES];
    let (mut marks, mut entries, mut whole) = (Vec::new(), 0, true);
    for index in 0..facts.chunk_count {
        let read = read(index, &mut buf);
        match checkpoint::decode_chunk(&buf[..read], facts, index) {
            Ok((ChunkKind::Segments, items)) => {
                marks.extend(
                    items.chunks_exact(ITEM_BYTES).map(bytemuck::pod_read_unaligned::<SegmentMark>),
                );
            }
            Ok((ChunkKind::Entries, items)) => entries += (items.len() / ITEM_BYTES) as u64,
            Err(error) => {
                whole = false;
                find(
                    Finding::new(Severity::Wrong, error, path).at(checkpoint::chunk_offset(index)),
                );
                // A head with a false chunk count would cause a finding for each missing chunk.
                if read < CHUNK_BYTES {
                    return marks;
                }
            }
        }
    }
    let claims = [
        ("segment_count", u64::from(facts.segment_count), marks.len() as u64),
        ("entry_count", facts.entry_count, entries),
    ];
    for (field, found, counted) in claims {
        if found != counted && whole {
            let cause =
                format!("checkpoint is malformed field={field} value={found} counted={counted}");
            find(Finding::new(Severity::Wrong, cause, path).at(ALIGN));
        }
    }
    marks
}
