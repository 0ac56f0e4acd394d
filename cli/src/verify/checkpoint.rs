//! Verifying the checkpoints: two files, written in turn, of which the newer counts. The older one is being
//! overwritten whenever a crash comes at the wrong moment, so what is the matter with its chunks is no
//! damage.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{self, CHUNK_BYTES, CheckpointFacts, ChunkKind};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::StoreId;

use super::finding::{Finding, Severity};
use crate::on_disk::{CheckpointFile, OnDisk};

/// Bytes of an item of a chunk.
const ITEM_BYTES: u64 = checkpoint::CheckpointEntry::BYTES as u64;

/// The newest checkpoint whose head is whole, if there is one, and what is the matter with the two.
pub(crate) fn verify(
    disk: &OnDisk,
    store: StoreId,
) -> anyhow::Result<(Option<CheckpointFacts>, Vec<Finding>)> {
    let mut findings = Vec::new();
    let mut newest: Option<(CheckpointFacts, CheckpointFile, String)> = None;
    for which in 0..2 {
        let path = disk.checkpoint_path(which).display().to_string();
        // A missing file is named with the files' lengths.
        let Some(file) = disk.checkpoint(which, store)? else { continue };
        match &file.head {
            Ok(facts) if newest.as_ref().is_none_or(|n| n.0.serial < facts.serial) => {
                newest = Some((*facts, file, path));
            }
            Ok(_) | Err(FormatError::Empty { .. }) => {}
            Err(error) => findings.push(Finding::new(Severity::Wrong, error, path).at(0)),
        }
    }
    let Some((facts, file, path)) = newest else { return Ok((None, findings)) };
    chunks(&facts, &file, &path, &mut findings)?;
    Ok((Some(facts), findings))
}

fn chunks(
    facts: &CheckpointFacts,
    file: &CheckpointFile,
    path: &str,
    findings: &mut Vec<Finding>,
) -> anyhow::Result<()> {
    let mut buf = vec![0; CHUNK_BYTES];
    let (mut marks, mut entries) = (0, 0);
    for index in 0..facts.chunk_count {
        let read = file.read_chunk(index, &mut buf)?;
        match checkpoint::decode_chunk(&buf[..read], facts, index) {
            Ok((ChunkKind::Segments, items)) => marks += items.len() as u64 / ITEM_BYTES,
            Ok((ChunkKind::Entries, items)) => entries += items.len() as u64 / ITEM_BYTES,
            Err(error) => {
                let offset = checkpoint::chunk_offset(index);
                findings.push(Finding::new(Severity::Wrong, error, path).at(offset));
                // A head that lies about its chunks would be named for each of them.
                if read < CHUNK_BYTES {
                    return Ok(());
                }
            }
        }
    }
    let claims = [
        ("segment_count", u64::from(facts.segment_count), marks),
        ("entry_count", facts.entry_count, entries),
    ];
    for (field, found, counted) in claims {
        if found != counted && findings.is_empty() {
            let cause = format!("checkpoint is malformed field={field} value={found} counted={counted}");
            findings.push(Finding::new(Severity::Wrong, cause, path).at(ALIGN));
        }
    }
    Ok(())
}
