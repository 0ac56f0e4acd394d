//! Check that the directories belong to the store, in its order. Directories in the wrong order
//! would look like a damaged store, so they are refused as an engine refuses them.

use std::io;

use anyhow::bail;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::StoreId;
use pagelith_layouts::manifest;
use pagelith_layouts::names;
use pagelith_layouts::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

use super::segment::RawHead;
use super::{OnDisk, list_if_exists};

/// Check the number of the directories, the names of their files, and the heads of their segments.
pub(crate) fn check(disk: &OnDisk) -> anyhow::Result<()> {
    if let Ok(found) = manifest::salvage(disk.manifest_bytes()) {
        let (has, given) = (found.superblock.dir_count, disk.dir_count());
        if has != given {
            bail!("the store has another number of directories has={has} given={given}");
        }
    }
    let dirs = disk.dirs();
    let last = dirs.len() - 1;
    for (i, dir) in dirs.iter().enumerate() {
        let names = list_if_exists(dir)?.unwrap_or_default();
        let stray = |name: &&String| {
            let first =
                name.as_str() == names::MANIFESTS[0] || names::CHECKPOINTS.contains(&name.as_str());
            (first && i != 0) || (name.as_str() == names::MANIFESTS[1] && i != last)
        };
        if let Some(name) = names.iter().find(stray) {
            let belongs = if *name == names::MANIFESTS[1] { "last" } else { "first" };
            bail!(
                "directory {} is not the one it was: it holds {name}, which belongs in the {belongs} dir={}",
                i + 1,
                dir.display()
            );
        }
    }
    for (i, dir) in dirs.iter().enumerate() {
        let (own, others, other) = heads(disk, i);
        if let Some(head) = other.filter(|_| others >= own) {
            bail!(
                "directory {} is not the one it was: it holds segment={} of store={} dir={}",
                i + 1,
                head.segment.0,
                head.store,
                dir.display()
            );
        }
    }
    Ok(())
}

/// An error if a directory holds a file that is not the store's, for a command that writes.
pub(crate) fn require_only_store_files(disk: &OnDisk) -> anyhow::Result<()> {
    for dir in disk.dirs() {
        let names = list_if_exists(dir)?.unwrap_or_default();
        let other = names.iter().find(|n| !names::is_store_file(n) && dir.join(n).is_file());
        if let Some(other) = other {
            bail!("directory holds other things than a store file={}", dir.join(other).display());
        }
    }
    Ok(())
}

/// The segments of a directory: the number at the right position, the number at a wrong one, and
/// one of the latter.
fn heads(disk: &OnDisk, dir: usize) -> (u64, u64, Option<RawHead>) {
    let store: Option<StoreId> = manifest::salvage(disk.manifest_bytes()).ok().map(|s| s.store);
    let (mut own, mut others, mut other) = (0, 0, None);
    let Some(bytes) = segment_bytes(disk) else { return (0, 0, None) };
    let mut block = vec![0; ALIGN as usize];
    let dirs = u64::from(disk.dir_count());
    for slot in 0.. {
        match disk.read_slot(dir, slot * bytes, &mut block) {
            Ok(()) => {}
            Err(error) if is_end(&error) => break,
            Err(_) => continue,
        }
        let Some(head) = RawHead::read(&block) else { continue };
        let is_own = u64::from(head.segment.0) == slot * dirs + dir as u64
            && store.is_none_or(|s| s == head.store);
        if is_own {
            own += 1;
        } else {
            (others, other) = (others + 1, Some(head));
        }
    }
    (own, others, other)
}

/// Whether a read failed because the file ends there, or is missing.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
}

/// Length of a segment, from the superblock or else from the first segment head.
fn segment_bytes(disk: &OnDisk) -> Option<u64> {
    if let Ok(saved) = manifest::salvage(disk.manifest_bytes()) {
        return Some(saved.superblock.segment_bytes);
    }
    any_head(disk).map(|head| head.segment_bytes)
}

/// The first segment head near the beginning of a directory's segments file.
pub(crate) fn any_head(disk: &OnDisk) -> Option<RawHead> {
    let mut block = vec![0; ALIGN as usize];
    for dir in 0..disk.dirs().len() {
        // Searches two segments of maximum length, since the first may have no head.
        for slot in 0..2 * SEGMENT_BYTES_MAX / SEGMENT_BYTES_MIN {
            match disk.read_slot(dir, slot * SEGMENT_BYTES_MIN, &mut block) {
                Ok(()) => {}
                Err(error) if is_end(&error) => break,
                Err(_) => continue,
            }
            if let Some(head) = RawHead::read(&block) {
                return Some(head);
            }
        }
    }
    None
}
