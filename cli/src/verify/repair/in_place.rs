//! Repair of a store with a readable manifest.
//!
//! The order of the writes; each step is durable before the next:
//! 1. make the manifest copies equal, without any change of content, so that either may be lost
//!    from here on;
//! 2. raise the incarnations of dropped segments, which only hides objects, also from checkpoints.
//!    The newest is last: it is why the older ones are dropped, and a resumed repair must find it;
//! 3. write heads and footers of segments without damaged records, whose content they do not
//!    change, and which only a checkpoint may prove;
//! 4. replace checkpoints that are damaged or have entries of a segment to be rewritten by empty
//!    ones;
//! 5. correct the lengths of files, and zero head and footer of dropped segments;
//! 6. zero damaged payload, then write heads and footers of segments without an intact footer, then
//!    replace headers by tombstones, then write the other heads and footers. So at any moment a
//!    resumed repair has the keys of a damaged record from its header or from the footer. A footer
//!    that lists a dropped record leads to a miss.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder};
use pagelith_layouts::manifest::{self, Manifest};
use pagelith_layouts::names;

use super::super::metadata::StoreMetadata;
use super::options::RepairOptions;
use super::report::{MAY_RETURN, Repair, Report};
use super::segment::{RepairPlan, Rewrite, plan};
use super::survey::survey;
use crate::machine::{Access, open_store_file};
use crate::on_disk::OnDisk;
use crate::on_disk::files::Files;

/// Repair the store with this metadata.
pub(super) fn repair(
    disk: &OnDisk,
    files: &mut Files,
    metadata: StoreMetadata,
    options: RepairOptions,
    report: &mut Report,
) -> anyhow::Result<()> {
    let Plans { drops, wipes, rewrites } = plans(disk, &metadata, options, report);
    let mut repairer = Repairer { disk, files, report, manifest: metadata.manifest.clone() };
    repairer.sync_manifest_copies()?;
    repairer.hide_segments(&drops)?;
    repairer.write_ends(rewrites.iter().filter(|(_, rewrite)| rewrite.records.is_empty()))?;
    for which in 0..2 {
        let path = disk.checkpoint_path(which);
        let resized = metadata.lengths.iter().any(|(p, ..)| *p == path);
        if metadata.checkpoints.damaged[which] || resized {
            repairer.empty_checkpoint(which, "")?;
        } else if !rewrites.is_empty() && is_not_empty(&path) {
            repairer.empty_checkpoint(which, "segments with entries in it are repaired")?;
        }
    }
    for (path, expected, found) in &metadata.lengths {
        if path.ends_with(names::SEGMENTS) {
            repairer.files.resize(path, *expected)?;
            let cause =
                found.map_or("it was missing".to_owned(), |found| format!("it had {found} bytes"));
            repairer.report.repairs.push(Repair::new("file has its length again", cause, path));
        }
    }
    repairer.wipe_segments(&drops, &wipes)?;
    repairer.rewrite_segments(rewrites)
}

type Drops = BTreeMap<SegmentId, String>;

/// The segments to drop, with reasons, those to wipe, and those to rewrite.
#[derive(Default)]
struct Plans {
    drops: Drops,
    wipes: BTreeSet<SegmentId>,
    rewrites: BTreeMap<SegmentId, Rewrite>,
}

fn plans(
    disk: &OnDisk,
    metadata: &StoreMetadata,
    options: RepairOptions,
    report: &mut Report,
) -> Plans {
    let superblock = metadata.manifest.superblock();
    let mut plans = Plans::default();
    let used = |id: &SegmentId| metadata.manifest.segment(*id).is_some_and(|(i, _)| i.0 > 0);
    for (id, error) in metadata.unreadable.iter().filter(|(id, _)| used(id)) {
        plans.drops.insert(*id, format!("{error:#}"));
    }
    for (path, _, found) in &metadata.lengths {
        let id = |n: &u32| disk.segment_location(SegmentId(*n), superblock);
        let ids = (0..superblock.segment_count).filter(|n| {
            let (file, at) = id(n);
            file == *path && at + superblock.segment_bytes > found.unwrap_or(0)
        });
        plans.drops.extend(
            ids.map(SegmentId).filter(used).map(|id| (id, "its file was cut short".to_owned())),
        );
    }
    for segment in &metadata.segments {
        let id = segment.identity.segment;
        // The mark of a segment that an open could not read has the maximum end: treat that as
        // unknown.
        let known = |end: u64| if end < superblock.segment_bytes { end } else { 0 };
        let mark_end = metadata.checkpoints.mark(segment).map(|m| known(m.data_end));
        match plan(disk, superblock, segment, metadata.covered(segment), mark_end) {
            _ if plans.drops.contains_key(&id) => {}
            RepairPlan::Keep => {}
            RepairPlan::Wipe => _ = plans.wipes.insert(id),
            RepairPlan::Rewrite(rewrite) => _ = plans.rewrites.insert(id, rewrite),
            RepairPlan::Drop(reason) => _ = plans.drops.insert(id, reason),
        }
    }
    let order = |id: SegmentId| order_of(&metadata.manifest, id);
    let Some(newest) = newest(&metadata.manifest, &plans.drops) else {
        return plans;
    };
    if options.keep {
        report.warn(format!(
            "the content of {newest} is unknown, and older objects are kept: {MAY_RETURN}"
        ));
        return plans;
    }
    let reason = format!("removals in {newest} may be lost, and this segment is older");
    for id in (0..superblock.segment_count).map(SegmentId).filter(used) {
        if order(id) < order(newest) && !plans.drops.contains_key(&id) {
            plans.rewrites.remove(&id);
            plans.wipes.remove(&id);
            plans.drops.insert(id, reason.clone());
        }
    }
    plans
}

fn order_of(manifest: &Manifest, id: SegmentId) -> SegmentOrder {
    manifest.segment(id).map_or(SegmentOrder(0), |(_, order)| order)
}

/// The newest of the segments to drop.
fn newest(manifest: &Manifest, drops: &Drops) -> Option<SegmentId> {
    drops.keys().max_by_key(|id| order_of(manifest, **id)).copied()
}

/// The loss by a repair: dropped segments, segments in use, and readable objects in the dropped
/// ones.
pub(super) fn loss(
    disk: &OnDisk,
    metadata: &StoreMetadata,
    options: RepairOptions,
) -> (usize, usize, u64) {
    let drops = plans(disk, metadata, options, &mut Report::default()).drops;
    let (superblock, store) = (metadata.manifest.superblock(), metadata.manifest.store());
    let ids = (0..superblock.segment_count).map(SegmentId);
    let used =
        ids.filter(|id| metadata.manifest.segment(*id).is_some_and(|(i, _)| i.0 > 0)).count();
    let objects = drops.keys().map(|id| survey(disk, superblock, store, *id).objects).sum();
    (drops.len(), used, objects)
}

/// Whether the first block of a file is unreadable or not zero.
fn is_not_empty(path: &std::path::Path) -> bool {
    use std::io::Read;
    let mut block = vec![0; ALIGN as usize];
    let read = open_store_file(path, Access::Read)
        .map(|fd| std::fs::File::from(fd).read_exact(&mut block));
    !matches!(read, Ok(Ok(()))) || block.iter().any(|b| *b != 0)
}

struct Repairer<'a> {
    disk: &'a OnDisk,
    files: &'a mut Files,
    report: &'a mut Report,
    manifest: Manifest,
}

impl Repairer<'_> {
    fn sync_manifest_copies(&mut self) -> anyhow::Result<()> {
        let (_, damage) = self.disk.manifest().unwrap_or((self.manifest.clone(), Vec::new()));
        let damaged = |copy: usize| {
            let stale =
                |error: &FormatError| matches!(error, FormatError::Field { field: "sequence", .. });
            damage.iter().any(|d| d.copy == copy && !stale(&d.error))
        };
        for copy in 0..2 {
            let (before, path) = (self.disk.manifest_bytes()[copy], self.disk.manifest_path(copy));
            let bytes = Manifest::copy_bytes(
                self.manifest.superblock().segment_count,
                self.manifest.superblock().namespaces_max,
            );
            let resized = std::fs::metadata(&path).map_or(0, |m| m.len()) != bytes;
            let written = write_copy(self.disk, self.files, copy, before, &self.manifest)?;
            if written && (resized || damaged(copy)) {
                self.report.repairs.push(Repair::new("manifest copy is whole again", "", &path));
            }
        }
        Ok(())
    }

    /// Hide the objects of dropped segments.
    fn hide_segments(&mut self, drops: &Drops) -> anyhow::Result<()> {
        let newest = newest(&self.manifest, drops);
        self.raise_incarnations(drops.iter().filter(|(id, _)| Some(**id) != newest))?;
        self.raise_incarnations(drops.iter().filter(|(id, _)| Some(**id) == newest))
    }

    /// Raise the incarnations of these segments. They keep their order: a segment that the next
    /// repair drops again must not make it drop younger ones.
    fn raise_incarnations<'d>(
        &mut self,
        drops: impl Iterator<Item = (&'d SegmentId, &'d String)>,
    ) -> anyhow::Result<()> {
        let before = self.manifest.copy();
        for (id, reason) in drops {
            let (known, order) = self.manifest.segment(*id).unwrap_or_default();
            let seen = survey(self.disk, self.manifest.superblock(), self.manifest.store(), *id);
            let next = Incarnation(known.max(seen.incarnation).0.saturating_add(1));
            self.manifest.set_segment(*id, next, order);
            let (path, _) = self.disk.segment_location(*id, self.manifest.superblock());
            let mut repair = Repair::new("segment is dropped", reason, &path).of(*id);
            repair.objects = if seen.incarnation == known { seen.objects } else { 0 };
            self.report.repairs.push(repair);
        }
        let after = self.manifest.copy();
        if let Err(d) = manifest::decode([&after, &after]) {
            anyhow::bail!("the manifest cannot be changed: {} block={}", d.error, d.index);
        }
        for copy in 0..2 {
            write_copy(self.disk, self.files, copy, &before, &self.manifest)?;
        }
        Ok(())
    }

    fn empty_checkpoint(&mut self, which: usize, cause: &str) -> anyhow::Result<()> {
        let path = self.disk.checkpoint_path(which);
        self.files.create(&path, self.manifest.superblock().checkpoint_bytes)?;
        self.report.repairs.push(Repair::new(
            "checkpoint is dropped, the log says the same",
            cause,
            &path,
        ));
        Ok(())
    }

    fn location(&self, id: SegmentId) -> (PathBuf, u64) {
        self.disk.segment_location(id, self.manifest.superblock())
    }

    /// Zero head and footer of segments dropped now, and before. Their objects are hidden already,
    /// so a device that refuses is only a warning.
    fn wipe_segments(&mut self, drops: &Drops, wipes: &BTreeSet<SegmentId>) -> anyhow::Result<()> {
        let bytes = self.manifest.superblock().segment_bytes;
        let mut touched = BTreeSet::new();
        for id in drops.keys().chain(wipes) {
            let (path, at) = self.location(*id);
            let mut wiped = true;
            for offset in [at, at + bytes - ALIGN] {
                if let Err(error) = self.files.zero(&path, offset, ALIGN) {
                    self.report.warn(format!("{error:#}"));
                    wiped = false;
                }
            }
            if wiped && wipes.contains(id) {
                let repair = Repair::new("footer without records is wiped", "", &path);
                self.report.repairs.push(repair.of(*id));
            }
            touched.insert(path);
        }
        touched.iter().try_for_each(|path| self.files.sync(path))
    }

    fn rewrite_segments(&mut self, rewrites: BTreeMap<SegmentId, Rewrite>) -> anyhow::Result<()> {
        let sync = |repairer: &Self| {
            let paths: BTreeSet<_> = rewrites.keys().map(|id| repairer.location(*id).0).collect();
            paths.iter().try_for_each(|path| repairer.files.sync(path))
        };
        let mut zeroed = Vec::new();
        for (id, rewrite) in &rewrites {
            let (path, at) = self.location(*id);
            for (range, header) in &rewrite.records {
                let from = range.start + header.len() as u64;
                match self.files.zero(&path, at + from, range.end - from) {
                    Ok(()) => zeroed.push((path.clone(), at + range.start, header)),
                    // The payload must not be scanned for records, so the header stays. The footer
                    // will not list its objects.
                    Err(error) => self.report.warn(format!("{error:#}")),
                }
            }
        }
        sync(self)?;
        self.write_ends(rewrites.iter().filter(|(_, rewrite)| !rewrite.sealed))?;
        for (path, at, header) in zeroed {
            // If the device refuses, the footer leads to a miss, and the next repair tries again.
            if let Err(error) = self.files.write(&path, at, header) {
                self.report.warn(format!("{error:#}"));
            }
        }
        sync(self)?;
        self.write_ends(rewrites.iter().filter(|(_, rewrite)| rewrite.sealed))?;
        for (id, rewrite) in &rewrites {
            self.report_rewrite(*id, &self.location(*id).0, rewrite);
        }
        Ok(())
    }

    /// Write heads and footers, durably.
    fn write_ends<'r>(
        &self,
        rewrites: impl Iterator<Item = (&'r SegmentId, &'r Rewrite)>,
    ) -> anyhow::Result<()> {
        let bytes = self.manifest.superblock().segment_bytes;
        let mut paths = BTreeSet::new();
        for (id, rewrite) in rewrites {
            let (path, at) = self.location(*id);
            if let Some(head) = &rewrite.head {
                self.files.write(&path, at, head)?;
            }
            if let Some(footer) = &rewrite.footer {
                self.files.write(&path, at + bytes - footer.len() as u64, footer)?;
            }
            paths.insert(path);
        }
        paths.iter().try_for_each(|path| self.files.sync(path))
    }

    fn report_rewrite(&mut self, id: SegmentId, path: &std::path::Path, rewrite: &Rewrite) {
        let repair_of = |action, cause: String| Repair::new(action, cause, path).of(id);
        if rewrite.head.is_some() {
            self.report.repairs.push(repair_of("segment header is written again", String::new()));
        }
        if !rewrite.dropped.is_empty() {
            let mut repair = repair_of(
                "damaged records are dropped",
                format!("records={}", rewrite.records.len()),
            );
            repair.objects = rewrite.dropped.len() as u64;
            repair.keys = rewrite.dropped.iter().map(ToString::to_string).collect();
            self.report.repairs.push(repair);
        }
        if rewrite.removals > 0 {
            let cause = format!("removals={}", rewrite.removals);
            self.report.repairs.push(repair_of("damaged removals are written again", cause));
        }
        if rewrite.footer.is_some() && rewrite.records.is_empty() {
            self.report.repairs.push(repair_of("footer is written again", String::new()));
        }
    }
}

/// Write the blocks of a manifest copy that differ from `before`, and make them durable. Returns
/// whether any differed.
pub(super) fn write_copy(
    disk: &OnDisk,
    files: &mut Files,
    copy: usize,
    before: &[u8],
    manifest: &Manifest,
) -> anyhow::Result<bool> {
    let (path, wanted) = (disk.manifest_path(copy), manifest.copy());
    let long = std::fs::metadata(&path).is_ok_and(|m| m.len() == wanted.len() as u64);
    if before == wanted && long {
        return Ok(false);
    }
    if !long {
        files.resize(&path, wanted.len() as u64)?;
    }
    for (i, block) in wanted.chunks_exact(ALIGN as usize).enumerate() {
        let at = i * ALIGN as usize;
        if before.get(at..at + ALIGN as usize) != Some(block) {
            files.write(&path, at as u64, block)?;
        }
    }
    files.sync(&path)?;
    Ok(true)
}
