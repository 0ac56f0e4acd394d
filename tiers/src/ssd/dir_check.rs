//! Checks at open that each configured directory is the right one.
//!
//! Segments are striped over the directories by number. With directories in another order, or with
//! a directory of another store, the store would find no valid data and overwrite existing data.

use pagelith_io::disk::{Disk, FileId};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{SegmentId, StoreId};
use pagelith_layouts::{names, segment};

use super::serial_queue::SerialQueue;
use super::volume::VolumeError;

fn misplaced(disk: &dyn Disk, dir: usize, found: String) -> VolumeError {
    VolumeError::Misplaced { dir: disk.dir_name(dir), number: dir + 1, found }
}

/// Check file names: certain files exist only in the first or only in the last directory. Runs
/// before the manifest is read, since a misplaced manifest would not be found. `dirs` is the
/// configured number of directories, which may differ from that of the manifest. With one
/// directory, all files are in it.
pub(super) fn check_names(disk: &dyn Disk, dirs: usize) -> Result<(), VolumeError> {
    if dirs < 2 {
        return Ok(());
    }
    for dir in 0..dirs {
        for (name, _) in disk.list(dir)? {
            let first = name == names::MANIFESTS[0]
                || name == names::CREATING
                || names::CHECKPOINTS.contains(&&*name);
            let last = name == names::MANIFESTS[1];
            if (first && dir != 0) || (last && dir != dirs - 1) {
                return Err(misplaced(
                    disk,
                    dir,
                    format!("{name}, which belongs in the {}", ordinal(first)),
                ));
            }
        }
    }
    Ok(())
}

fn ordinal(first: bool) -> &'static str {
    if first { "first" } else { "last" }
}

/// Check content: the header of each directory's first segment, if one exists, names this store and
/// that segment.
pub(super) fn check_heads(
    disk: &dyn Disk,
    serial: &mut SerialQueue,
    store: StoreId,
    segments: &[FileId],
) -> Result<(), VolumeError> {
    for (dir, file) in segments.iter().enumerate() {
        // Recovery handles unreadable segments.
        let Ok(block) = serial.read(*file, 0, ALIGN as usize) else { continue };
        let head = segment::decode_head(&block, store, SegmentId(dir as u32));
        if let Err(error @ FormatError::Identity { .. }) = head {
            return Err(misplaced(disk, dir, format!("another segment: {error}")));
        }
    }
    Ok(())
}
