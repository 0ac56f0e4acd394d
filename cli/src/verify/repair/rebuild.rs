//! Repair of a store without a readable manifest: it becomes empty, or with `--repair=keep` its
//! manifest is rebuilt from the segments.
//!
//! No engine opens such a store, so writes need no order until one copy of the new manifest is
//! complete. The CREATING marker protects states that must not be taken for a store.

use std::collections::BTreeMap;

use anyhow::bail;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint;
use pagelith_layouts::checksum::{BLOCK_BYTES, FINGERPRINT_KEY_BYTES};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{
    Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder, StoreId,
};
use pagelith_layouts::manifest::{self, Manifest, Superblock};
use pagelith_layouts::names;

use super::in_place::write_copy;
use super::options::RepairOptions;
use super::report::{MAY_RETURN, Repair, Report};
use super::survey::survey;
use crate::on_disk::files::Files;
use crate::on_disk::{OnDisk, dir_order, display_dirs};

/// Make the store usable again.
pub(super) fn rebuild(
    disk: &OnDisk,
    files: &mut Files,
    options: RepairOptions,
    report: &mut Report,
) -> anyhow::Result<()> {
    let manifests = [disk.manifest_path(0), disk.manifest_path(1)];
    let unreadable = disk.unreadable();
    let mut of_manifest = unreadable.iter().filter(|((path, _), _)| manifests.contains(path));
    if let Some(((path, at), error)) = of_manifest.next()
        && !options.keep
    {
        // The failure may pass, so nothing is deleted for it.
        bail!(
            "the manifest cannot be read: {error}; if that lasts, --repair=keep keeps the objects \
             offset={at} file={}",
            path.display()
        );
    }
    let saved = manifest::salvage(disk.manifest_bytes());
    if let Err(FormatError::Field { field: "store", value, .. }) = &saved {
        bail!("{value}: repair cannot tell which copy is right dir={}", display_dirs(disk.dirs()));
    }
    if options.keep {
        return rebuild_manifest(disk, files, options, report);
    }
    match saved {
        Ok(saved) => make_empty(disk, files, saved.superblock, report),
        Err(_) => remove(disk, files, report),
    }
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got < N { bail!("getrandom returned too few bytes bytes={got}") } else { Ok(bytes) }
}

/// Make an empty store of the same sizes. It has another id and key, so that no remains are taken
/// for its own.
fn make_empty(
    disk: &OnDisk,
    files: &mut Files,
    was: Superblock,
    report: &mut Report,
) -> anyhow::Result<()> {
    let superblock = Superblock { fingerprint_key: random::<FINGERPRINT_KEY_BYTES>()?, ..was };
    let manifest = Manifest::new(StoreId(random()?), superblock);
    let marker = disk.dirs()[0].join(names::CREATING);
    files.create(&marker, ALIGN)?;
    for (path, bytes, _) in disk.lengths(&superblock) {
        // Checkpoints and manifests must not keep content of the old store.
        if path.ends_with(names::SEGMENTS) {
            files.resize(&path, bytes)?
        } else {
            files.create(&path, bytes)?
        }
    }
    for id in (0..superblock.segment_count).map(SegmentId) {
        let (path, at) = disk.segment_location(id, &superblock);
        files.zero(&path, at, ALIGN)?;
        files.zero(&path, at + superblock.segment_bytes - ALIGN, ALIGN)?;
    }
    for dir in disk.dirs() {
        files.sync(&dir.join(names::SEGMENTS))?;
    }
    for copy in 0..2 {
        write_copy(disk, files, copy, &[], &manifest)?;
    }
    files.remove(&marker)?;
    let cause = "no copy of the manifest can be used";
    report.repairs.push(Repair::new("store is made empty", cause, &disk.dirs()[0]));
    report.warn(
        "all objects are dropped; --repair=keep would have kept those that the segments describe",
    );
    Ok(())
}

/// Remove the files of the store. Without a superblock its configuration is unknown; the next open
/// makes a new store.
fn remove(disk: &OnDisk, files: &mut Files, report: &mut Report) -> anyhow::Result<()> {
    if (0..2).all(|copy| disk.copies[copy].is_none())
        && disk.segment_file_bytes().iter().all(|b| *b == 0)
    {
        bail!(
            "not a store: it has neither manifest nor segments dir={}",
            display_dirs(disk.dirs())
        );
    }
    let marker = disk.dirs()[0].join(names::CREATING);
    files.create(&marker, ALIGN)?;
    for dir in disk.dirs() {
        for name in [names::MANIFESTS, names::CHECKPOINTS, [names::SEGMENTS, names::LOCK]].concat()
        {
            files.remove(&dir.join(name))?;
        }
    }
    files.remove(&marker)?;
    let cause = "no copy of the manifest can be used, and both superblocks are lost";
    report.repairs.push(Repair::new("store is removed", cause, &disk.dirs()[0]));
    report.warn(
        "all objects are dropped, and the store's files are removed: the next open makes an empty store",
    );
    Ok(())
}

/// The reconstructed facts of the store.
struct StoreFacts {
    store: StoreId,
    superblock: Superblock,
    segments: Vec<Option<(Incarnation, SegmentOrder)>>,
    generations: BTreeMap<NamespaceId, Generation>,
}

fn rebuild_manifest(
    disk: &OnDisk,
    files: &mut Files,
    options: RepairOptions,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut known = match manifest::salvage(disk.manifest_bytes()) {
        Ok(saved) => StoreFacts {
            store: saved.store,
            superblock: saved.superblock,
            segments: saved.segments,
            generations: saved.generations.into_iter().collect(),
        },
        Err(error) => reconstruct(disk, options, report, &error.to_string())?,
    };
    let superblock = known.superblock;
    for id in (0..superblock.segment_count).map(SegmentId) {
        let seen = survey(disk, &superblock, known.store, id);
        for (namespace, generation) in seen.generations {
            let highest = known.generations.entry(namespace).or_insert(Generation::FIRST);
            *highest = (*highest).max(generation);
        }
        let fact = &mut known.segments[id.0 as usize];
        if fact.is_none() && seen.incarnation.0 > 0 {
            // Without head and footer its log position is unknown; its incarnations are not used
            // again.
            let lost = Some((Incarnation(seen.incarnation.0.saturating_add(1)), SegmentOrder(0)));
            *fact = seen.order.map(|order| (seen.incarnation, order)).or(lost);
            if seen.order.is_none() {
                let (path, _) = disk.segment_location(id, &superblock);
                let cause = "neither head nor footer is intact, its log position is unknown";
                let mut repair = Repair::new("segment is dropped", cause, &path).of(id);
                repair.objects = seen.objects;
                report.repairs.push(repair);
            }
        }
    }
    let copies = disk.manifest_bytes();
    let mut manifest =
        Manifest::overwriting(known.store, superblock, copies).with_segments(&known.segments);
    for (namespace, generation) in known.generations.iter().filter(|(_, g)| **g > Generation::FIRST)
    {
        if manifest.set_generation(*namespace, *generation).is_none() {
            bail!(
                "the manifest has no room for all cleared namespaces, raise --namespaces-max namespaces_max={}",
                superblock.namespaces_max
            );
        }
    }
    let copy = manifest.copy();
    if let Err(d) = manifest::decode([&copy, &copy]) {
        bail!("the segments yield no valid manifest: {} block={}", d.error, d.index);
    }
    // The checkpoints may have marks of incarnations that are no longer known.
    for which in 0..2 {
        files.create(&disk.checkpoint_path(which), superblock.checkpoint_bytes)?;
    }
    for (copy, before) in copies.into_iter().enumerate() {
        write_copy(disk, files, copy, before, &manifest)?;
    }
    let cause =
        format!("segments={} namespaces={}", superblock.segment_count, known.generations.len());
    report.repairs.push(Repair::new(
        "manifest is rebuilt from the segments",
        cause,
        &disk.manifest_path(0),
    ));
    report.warn(format!(
        "the manifest is rebuilt with the highest incarnations and generations seen: {MAY_RETURN}"
    ));
    Ok(())
}

/// Reconstruct the store's facts without a superblock: store id and segment length from segment
/// heads, the number of segments from file lengths, the rest from flags.
fn reconstruct(
    disk: &OnDisk,
    options: RepairOptions,
    report: &mut Report,
    why: &str,
) -> anyhow::Result<StoreFacts> {
    let (Some(capacity_bytes), Some(namespaces_max)) =
        (options.capacity_bytes, options.namespaces_max)
    else {
        bail!(
            "the superblock is lost in both copies ({why}): --repair=keep needs --capacity-bytes (ssd.bytes) and \
             --namespaces-max as the store was made with; --repair removes the store"
        );
    };
    let Some(head) = dir_order::any_head(disk) else {
        bail!(
            "the superblock is lost in both copies, and no segment header is intact; --repair removes the store"
        );
    };
    let segments: u64 =
        disk.segment_file_bytes().iter().map(|bytes| bytes / head.segment_bytes).sum();
    let segment_count = u32::try_from(segments)?;
    let checkpoint_bytes =
        (0..2).filter_map(|w| std::fs::metadata(disk.checkpoint_path(w)).ok()).map(|m| m.len());
    let checkpoint_bytes = checkpoint_bytes.max().unwrap_or(0);
    let chunks = checkpoint_bytes.saturating_sub(checkpoint::chunk_offset(0))
        / checkpoint::CHUNK_BYTES as u64;
    let marks = checkpoint::chunks_for(segments, 0);
    let objects_max = chunks.saturating_sub(marks) * checkpoint::CHUNK_ITEMS as u64;
    if objects_max == 0 {
        bail!(
            "the superblock is lost in both copies, and the checkpoint files do not tell the maximum number of objects"
        );
    }
    report.warn("both superblocks are lost: objects attached to others are not found again");
    Ok(StoreFacts {
        store: head.store,
        superblock: Superblock {
            segment_bytes: head.segment_bytes,
            capacity_bytes,
            checkpoint_bytes: checkpoint::file_bytes(segments, objects_max),
            objects_max,
            segment_count,
            dir_count: disk.dir_count(),
            block_bytes: BLOCK_BYTES,
            namespaces_max,
            fingerprint_key: random::<FINGERPRINT_KEY_BYTES>()?,
            reserved: [0; 80],
        },
        segments: vec![None; segment_count as usize],
        generations: BTreeMap::new(),
    })
}
