//! Verifying the checkpoints: two files, written in turn, of which the newer counts. The older one is being
//! overwritten whenever a crash comes at the wrong moment, so what is the matter with its chunks is no
//! damage.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{self, CHUNK_BYTES, CheckpointFacts, ChunkKind, SegmentMark};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, StoreId};

use super::finding::{Finding, Severity};
use crate::on_disk::segment::Segment;
use crate::on_disk::{CheckpointFile, OnDisk};

/// Bytes of an item of a chunk.
const ITEM_BYTES: usize = checkpoint::CheckpointEntry::BYTES;

/// The two checkpoints.
#[derive(Default)]
pub(super) struct Checkpoints {
    /// The newest one whose head is whole, if there is one.
    pub(super) newest: Option<CheckpointFacts>,
    /// Its segment marks; empty if anything is wrong with it.
    marks: Vec<SegmentMark>,
    /// Which files are damaged.
    pub(super) damaged: [bool; 2],
    /// What is the matter with them.
    pub(super) findings: Vec<Finding>,
}

impl Checkpoints {
    /// What the newest checkpoint says of a segment in its present life, if it speaks for something in it: that
    /// is found through it, whatever the segment itself says.
    pub(super) fn mark(&self, segment: &Segment) -> Option<&SegmentMark> {
        let SegmentId(id) = segment.identity.segment;
        let speaks = |m: &&SegmentMark| {
            let replayed = self.newest.is_none_or(|c| m.order >= c.replay_from.0);
            m.incarnation == segment.identity.incarnation.0 && !replayed && m.data_end > 0
        };
        self.marks.get(id as usize).filter(speaks)
    }

    fn find(&mut self, which: usize, finding: Finding) {
        self.damaged[which] = true;
        self.findings.push(finding);
    }
}

/// Read both.
pub(super) fn verify(disk: &OnDisk, store: StoreId) -> anyhow::Result<Checkpoints> {
    let mut all = Checkpoints::default();
    let mut newest: Option<(CheckpointFacts, CheckpointFile, usize)> = None;
    for which in 0..2 {
        // A missing file is named with the files' lengths.
        let Some(file) = disk.checkpoint(which, store)? else { continue };
        match &file.head {
            Ok(facts) if newest.as_ref().is_none_or(|n| n.0.serial < facts.serial) => {
                newest = Some((*facts, file, which));
            }
            Ok(_) | Err(FormatError::Empty { .. }) => {}
            Err(error) => {
                let path = disk.checkpoint_path(which).display().to_string();
                all.find(which, Finding::new(Severity::Wrong, error, path).at(0));
            }
        }
    }
    let Some((facts, file, which)) = newest else { return Ok(all) };
    all.newest = Some(facts);
    let path = disk.checkpoint_path(which).display().to_string();
    let marks = chunks(&facts, &file, &path, &mut |finding| all.find(which, finding))?;
    all.marks = marks.into_iter().filter(|_| !all.damaged[which]).collect();
    Ok(all)
}

/// Read a checkpoint's chunks; its segment marks.
fn chunks(
    facts: &CheckpointFacts,
    file: &CheckpointFile,
    path: &str,
    find: &mut dyn FnMut(Finding),
) -> anyhow::Result<Vec<SegmentMark>> {
    let mut buf = vec![0; CHUNK_BYTES];
    let (mut marks, mut entries, mut whole) = (Vec::new(), 0, true);
    for index in 0..facts.chunk_count {
        let read = file.read_chunk(index, &mut buf)?;
        match checkpoint::decode_chunk(&buf[..read], facts, index) {
            Ok((ChunkKind::Segments, items)) => {
                marks.extend(items.chunks_exact(ITEM_BYTES).map(bytemuck::pod_read_unaligned::<SegmentMark>));
            }
            Ok((ChunkKind::Entries, items)) => entries += (items.len() / ITEM_BYTES) as u64,
            Err(error) => {
                whole = false;
                find(Finding::new(Severity::Wrong, error, path).at(checkpoint::chunk_offset(index)));
                // A head that lies about its chunks would be named for each of them.
                if read < CHUNK_BYTES {
                    return Ok(marks);
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
            let cause = format!("checkpoint is malformed field={field} value={found} counted={counted}");
            find(Finding::new(Severity::Wrong, cause, path).at(ALIGN));
        }
    }
    Ok(marks)
}
