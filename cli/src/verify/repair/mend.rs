//! Repairing a store whose manifest can be read.
//!
//! The order of the writes, each step durable before the next:
//! 1. the manifest's copies are made equal again, without any change, so that either may be lost from here on;
//! 2. the incarnations of segments that are dropped are raised: this only hides, the checkpoints' entries included;
//! 3. checkpoints that are damaged, or that speak for a segment about to be rewritten, are replaced by empty ones;
//! 4. files get their lengths, and dropped segments lose head and footer;
//! 5. damaged payload becomes zeros, then damaged headers tombstones, then heads and footers are written. A footer
//!    that still lists what is no more leads to a miss, a torn one to a scan.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder};
use pagelith_layouts::manifest::{self, Manifest};
use pagelith_layouts::names;

use super::super::look::Look;
use super::segment::{Mend, Plan, plan};
use super::survey::survey;
use super::{MAY_RETURN, Repair, Report, Wish};
use crate::machine::{Access, open_own};
use crate::on_disk::OnDisk;
use crate::on_disk::files::Files;

/// Repair what `look` found.
pub(super) fn mend(
    disk: &OnDisk,
    files: &mut Files,
    look: Look,
    wish: Wish,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (drops, mends) = plans(disk, &look, wish, report);
    let mut work = Work { disk, files, report, manifest: look.manifest.clone() };
    work.equal_copies()?;
    work.raise(&drops)?;
    for which in 0..2 {
        let path = disk.checkpoint_path(which);
        let resized = look.lengths.iter().any(|(p, ..)| *p == path);
        if look.checkpoints.damaged[which] || resized {
            work.empty_checkpoint(which, "")?;
        } else if !mends.is_empty() && holds_something(&path) {
            work.empty_checkpoint(which, "segments it speaks for are repaired")?;
        }
    }
    for (path, expected, found) in &look.lengths {
        if path.ends_with(names::SEGMENTS) {
            work.files.resize(path, *expected)?;
            let cause = found.map_or("it was missing".to_owned(), |found| format!("it had {found} bytes"));
            work.report.repairs.push(Repair::new("file has its length again", cause, path));
        }
    }
    work.wipe(&drops)?;
    work.rewrite(mends)
}

type Drops = BTreeMap<SegmentId, String>;

/// What to do about each segment.
fn plans(disk: &OnDisk, look: &Look, wish: Wish, report: &mut Report) -> (Drops, BTreeMap<SegmentId, Mend>) {
    let superblock = look.manifest.superblock();
    let (mut drops, mut mends) = (Drops::new(), BTreeMap::new());
    let used = |id: &SegmentId| look.manifest.segment(*id).is_some_and(|(i, _)| i.0 > 0);
    for (id, error) in look.unreadable.iter().filter(|(id, _)| used(id)) {
        drops.insert(*id, format!("{error:#}"));
    }
    for (path, _, found) in &look.lengths {
        let id = |n: &u32| disk.segment_place(SegmentId(*n), superblock);
        let ids = (0..superblock.segment_count).filter(|n| {
            let (file, at) = id(n);
            file == *path && at + superblock.segment_bytes > found.unwrap_or(0)
        });
        drops.extend(ids.map(SegmentId).filter(used).map(|id| (id, "its file was cut short".to_owned())));
    }
    for segment in &look.segments {
        let id = segment.identity.segment;
        // Of one that an open could not read it says that it may be full.
        let known = |end: u64| if end < superblock.segment_bytes { end } else { 0 };
        let mark_end = look.checkpoints.mark(segment).map(|m| known(m.data_end));
        match plan(disk, superblock, segment, look.covered(segment), mark_end) {
            _ if drops.contains_key(&id) => {}
            Plan::Leave => {}
            Plan::Mend(mend) => _ = mends.insert(id, mend),
            Plan::Drop(reason) => _ = drops.insert(id, reason),
        }
    }
    let order = |id: SegmentId| look.manifest.segment(id).map_or(SegmentOrder(0), |(_, order)| order);
    let Some(newest) = drops.keys().max_by_key(|id| order(**id)).copied() else { return (drops, mends) };
    if wish.keep {
        report.warn(format!("nobody knows what {newest} held, and what is older is kept: {MAY_RETURN}"));
        return (drops, mends);
    }
    let reason = format!("removals in {newest} may be lost, and this is older");
    for id in (0..superblock.segment_count).map(SegmentId).filter(used) {
        if order(id) < order(newest) && !drops.contains_key(&id) {
            mends.remove(&id);
            drops.insert(id, reason.clone());
        }
    }
    (drops, mends)
}

/// What a repair would drop: segments of so many that are in use, and objects in them that can be read.
pub(super) fn loss(disk: &OnDisk, look: &Look, wish: Wish) -> (usize, usize, u64) {
    let (drops, _) = plans(disk, look, wish, &mut Report::default());
    let (superblock, store) = (look.manifest.superblock(), look.manifest.store());
    let ids = (0..superblock.segment_count).map(SegmentId);
    let used = ids.filter(|id| look.manifest.segment(*id).is_some_and(|(i, _)| i.0 > 0)).count();
    let objects = drops.keys().map(|id| survey(disk, superblock, store, *id).members).sum();
    (drops.len(), used, objects)
}

/// Whether a file begins with anything.
fn holds_something(path: &std::path::Path) -> bool {
    use std::io::Read;
    let mut block = vec![0; ALIGN as usize];
    let read = open_own(path, Access::Read).map(|fd| std::fs::File::from(fd).read_exact(&mut block));
    !matches!(read, Ok(Ok(()))) || block.iter().any(|b| *b != 0)
}

struct Work<'a> {
    disk: &'a OnDisk,
    files: &'a mut Files,
    report: &'a mut Report,
    manifest: Manifest,
}

impl Work<'_> {
    fn equal_copies(&mut self) -> anyhow::Result<()> {
        let (_, damage) = self.disk.manifest().unwrap_or((self.manifest.clone(), Vec::new()));
        let damaged = |copy: usize| {
            let stale = |error: &FormatError| matches!(error, FormatError::Field { field: "sequence", .. });
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

    /// Raise the incarnations of dropped segments.
    fn raise(&mut self, drops: &Drops) -> anyhow::Result<()> {
        let before = self.manifest.copy();
        let ids = (0..self.manifest.superblock().segment_count).map(SegmentId);
        let mut order =
            ids.filter_map(|id| self.manifest.segment(id)).map(|(_, order)| order.0).max().unwrap_or(0);
        for (id, reason) in drops {
            let (known, _) = self.manifest.segment(*id).unwrap_or_default();
            let seen = survey(self.disk, self.manifest.superblock(), self.manifest.store(), *id);
            order += 1;
            let next = Incarnation(known.max(seen.incarnation).0.saturating_add(1));
            self.manifest.set_segment(*id, next, SegmentOrder(order));
            let (path, _) = self.disk.segment_place(*id, self.manifest.superblock());
            let mut repair = Repair::new("segment is dropped", reason, &path).of(*id);
            repair.objects = if seen.incarnation == known { seen.members } else { 0 };
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
        self.report.repairs.push(Repair::new("checkpoint is dropped, the log says the same", cause, &path));
        Ok(())
    }

    fn place(&self, id: SegmentId) -> (PathBuf, u64) {
        self.disk.segment_place(id, self.manifest.superblock())
    }

    fn wipe(&mut self, drops: &Drops) -> anyhow::Result<()> {
        let bytes = self.manifest.superblock().segment_bytes;
        let mut touched = BTreeSet::new();
        for id in drops.keys() {
            let (path, at) = self.place(*id);
            self.files.zero(&path, at, ALIGN)?;
            self.files.zero(&path, at + bytes - ALIGN, ALIGN)?;
            touched.insert(path);
        }
        touched.iter().try_for_each(|path| self.files.sync(path))
    }

    fn rewrite(&mut self, mends: BTreeMap<SegmentId, Mend>) -> anyhow::Result<()> {
        let paths: BTreeSet<PathBuf> = mends.keys().map(|id| self.place(*id).0).collect();
        for (id, mend) in &mends {
            let (path, at) = self.place(*id);
            for (range, header) in &mend.records {
                let from = range.start + header.len() as u64;
                self.files.zero(&path, at + from, range.end - from)?;
            }
        }
        paths.iter().try_for_each(|path| self.files.sync(path))?;
        for (id, mend) in &mends {
            let (path, at) = self.place(*id);
            for (range, header) in &mend.records {
                self.files.write(&path, at + range.start, header)?;
            }
        }
        paths.iter().try_for_each(|path| self.files.sync(path))?;
        let bytes = self.manifest.superblock().segment_bytes;
        for (id, mend) in mends {
            let (path, at) = self.place(id);
            if let Some(head) = &mend.head {
                self.files.write(&path, at, head)?;
            }
            if let Some(footer) = &mend.footer {
                self.files.write(&path, at + bytes - footer.len() as u64, footer)?;
            }
            self.say(id, &path, &mend);
        }
        paths.iter().try_for_each(|path| self.files.sync(path))
    }

    fn say(&mut self, id: SegmentId, path: &std::path::Path, mend: &Mend) {
        let said = |action, cause: String| Repair::new(action, cause, path).of(id);
        if mend.head.is_some() {
            self.report.repairs.push(said("segment header is written again", String::new()));
        }
        if !mend.dropped.is_empty() {
            let mut repair = said("damaged records are dropped", format!("records={}", mend.records.len()));
            repair.objects = mend.dropped.len() as u64;
            repair.keys = mend.dropped.iter().map(ToString::to_string).collect();
            self.report.repairs.push(repair);
        }
        if mend.removals > 0 {
            let cause = format!("removals={}", mend.removals);
            self.report.repairs.push(said("damaged removals are written again", cause));
        }
        if mend.footer.is_some() && mend.records.is_empty() {
            self.report.repairs.push(said("footer is written again", String::new()));
        }
    }
}

/// Write the blocks of a manifest copy that differ from `before`, and make them durable; whether any did.
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
