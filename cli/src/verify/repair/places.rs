//! Whether the directories are the store's, in its order. Repair of directories that were mixed up would take a whole
//! store for damage, so it refuses them as an engine does.

use anyhow::bail;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::StoreId;
use pagelith_layouts::manifest;
use pagelith_layouts::names;
use pagelith_layouts::segment::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

use crate::on_disk::segment::RawHead;
use crate::on_disk::{OnDisk, list_if_there};

/// By the names of the files, and by what the heads of segments say of themselves.
pub(super) fn check(disk: &OnDisk) -> anyhow::Result<()> {
    let dirs = disk.dirs();
    let last = dirs.len() - 1;
    for (i, dir) in dirs.iter().enumerate() {
        let names = list_if_there(dir)?.unwrap_or_default();
        if let Some(other) = names.iter().find(|name| !names::is_ours(name) && dir.join(name).is_file()) {
            bail!("directory holds other things than a store file={}", dir.join(other).display());
        }
        let stray = |name: &&String| {
            let first = name.as_str() == names::MANIFESTS[0] || names::CHECKPOINTS.contains(&name.as_str());
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

/// Of a directory's segments: how many are in their place, how many are not, and one of those.
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
        let here =
            u64::from(head.segment.0) == slot * dirs + dir as u64 && store.is_none_or(|s| s == head.store);
        if here {
            own += 1;
        } else {
            (others, other) = (others + 1, Some(head));
        }
    }
    (own, others, other)
}

/// Length of a segment: as the superblock says, else as the first head that there is.
fn segment_bytes(disk: &OnDisk) -> Option<u64> {
    if let Ok(saved) = manifest::salvage(disk.manifest_bytes()) {
        return Some(saved.superblock.segment_bytes);
    }
    any_head(disk).map(|head| head.segment_bytes)
}

/// The first head of a segment that lies at the beginning of a directory's segments, or anywhere behind it.
pub(super) fn any_head(disk: &OnDisk) -> Option<RawHead> {
    let mut block = vec![0; ALIGN as usize];
    for dir in 0..disk.dirs().len() {
        // Two of the longest segments are looked through: the first may have no head.
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
