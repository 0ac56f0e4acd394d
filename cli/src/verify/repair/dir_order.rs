//! Check that the directories belong to the store, in its order. Repair would take directories in
//! the wrong order for a damaged store, so it refuses them as an engine does.

use anyhow::bail;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::StoreId;
use pagelith_layouts::manifest;
use pagelith_layouts::names;
use pagelith_layouts::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

use crate::on_disk::segment::RawHead;
use crate::on_disk::{OnDisk, list_if_exists};

/// Check the directories by the names of their files and by the heads of their segments.
pub(super) fn check(disk: &OnDisk) -> anyhow::Result<()> {
    let dirs = disk.dirs();
    let last = dirs.len() - 1;
    for (i, dir) in dirs.iter().enumerate() {
        let names = list_if_exists(dir)?.unwrap_or_default();
        if let Some(other) =
            names.iter().find(|name| !names::is_store_file(name) && dir.join(name).is_file())
        {
            bail!("directory holds other things than a store file={}", dir.join(other).display());
        }
        let stray = |name: &&String| {
            let first =
                name.as_str() == names::MANIFESTS[0] || names::CHECKPOINTS.contains(&name.as_str());
            (first && i != 0) || (name.as_str() == names::MANIFESTS[1] && i != last)
        };
        if let Some(name) = names.iter().find(stray) {
            let belongs = if *name == names::MANIFESTS[1] { "last" } else { "first" };
            bail!(
                "directory {i} is not the one it was: it holds {name}, which belongs in the {belongs} dir={}",
                dir.display()
            );
        }
    }
    for (i, dir) in dirs.iter().enumerate() {
        let (own, others, other) = heads(disk, i);
        if let Some(head) = other.filter(|_| others >= own) {
            bail!(
                "directory {i} is not the one it was: it holds segment={} of store={} dir={}",
                head.segment.0,
                head.store,
                dir.display()
            );
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
        if !disk.read_slot(dir, slot * bytes, &mut block) {
            break;
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

/// Length of a segment, from the superblock or else from the first segment head.
fn segment_bytes(disk: &OnDisk) -> Option<u64> {
    if let Ok(saved) = manifest::salvage(disk.manifest_bytes()) {
        return Some(saved.superblock.segment_bytes);
    }
    any_head(disk).map(|head| head.segment_bytes)
}

/// The first segment head near the beginning of a directory's segments file.
pub(super) fn any_head(disk: &OnDisk) -> Option<RawHead> {
    let mut block = vec![0; ALIGN as usize];
    for dir in 0..disk.dirs().len() {
        // Searches two segments of maximum length, since the first may have no head.
        for slot in 0..2 * SEGMENT_BYTES_MAX / SEGMENT_BYTES_MIN {
            if !disk.read_slot(dir, slot * SEGMENT_BYTES_MIN, &mut block) {
                break;
            }
            if let Some(head) = RawHead::read(&block) {
                return Some(head);
            }
        }
    }
    None
}
