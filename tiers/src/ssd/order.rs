//! Whether each directory is the one it is taken for. Segments are striped over the directories by number, so a
//! store opened with its directories in another order, or with one of another store among them, would find
//! nothing where it looks, and write over what is there.

use pagelith_io::disk::{Disk, FileId};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, StoreId};
use pagelith_layouts::{names, segment};

use super::serial::Serial;
use super::volume::VolumeError;

fn misplaced(disk: &dyn Disk, dir: usize, found: String) -> VolumeError {
    VolumeError::Misplaced { dir: disk.dir_name(dir), number: dir, found }
}

/// By name: the files of the first and of the last directory lie nowhere else. Before the manifest is read,
/// since it would not be found. `dirs` is the configured number, which the manifest may contradict: with one
/// directory every file may lie in it.
pub(super) fn check_names(disk: &dyn Disk, dirs: usize) -> Result<(), VolumeError> {
    if dirs < 2 {
        return Ok(());
    }
    for dir in 0..dirs {
        for (name, _) in disk.list(dir)? {
            let first = name == names::MANIFESTS[0] || names::CHECKPOINTS.contains(&&*name);
            let last = name == names::MANIFESTS[1];
            if (first && dir != 0) || (last && dir != dirs - 1) {
                return Err(misplaced(disk, dir, format!("{name}, which belongs in the {}", which(first))));
            }
        }
    }
    Ok(())
}

fn which(first: bool) -> &'static str {
    if first { "first" } else { "last" }
}

/// By what was written: the head of each directory's first segment, if there is one, names this store and the
/// segment that belongs there.
pub(super) fn check_heads(
    disk: &dyn Disk,
    serial: &mut Serial,
    store: StoreId,
    segments: &[FileId],
) -> Result<(), VolumeError> {
    for (dir, file) in segments.iter().enumerate() {
        // What the device will not read is recovery's to judge.
        let Ok(block) = serial.read(*file, 0, ALIGN as usize) else { continue };
        let head = segment::decode_head(&block, store, SegmentId(dir as u32));
        if let Err(error @ FormatError::Identity { .. }) = head {
            return Err(misplaced(disk, dir, error.to_string()));
        }
    }
    Ok(())
}
