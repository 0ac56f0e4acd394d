//! Pairs of places of which one holds the data meant for the other (row 3): every pair of records,
//! the blocks of the manifest's copies, whole segments, the checkpoints.

use std::collections::BTreeSet;

use pagelith::layouts::align::ALIGN;
use pagelith_sim::disk::FaultPlan;

use super::report::{Sums, all};
use super::scene::{BuiltStore, LoggedRecord, SEGMENT, Scene, Seen};

impl BuiltStore {
    /// Reopens with the data of the first place also at the second; with `moved`, the first place
    /// has zeros, as if the write was misdirected.
    fn misdirected(&mut self, from: (&str, u64), to: (&str, u64), len: u64, moved: bool) -> Seen {
        self.reopen(|disk| {
            let bytes = disk.peek(0, from.0, from.1, len as usize).expect("a place");
            let put = |(name, offset): (&str, u64), bytes: Vec<u8>| {
                disk.inject(FaultPlan::Overwrite { dir: 0, name: name.to_string(), offset, bytes });
            };
            if moved {
                put(from, vec![0; len as usize]);
            }
            put(to, bytes);
        })
    }
}

fn overlaps(record: &LoggedRecord, at: u64, len: u64) -> bool {
    record.at < at + len && at < record.at + record.bytes
}

/// Writes each record at the place of another, or reads it from there: only objects at these places
/// may be missed.
fn records(scene: Scene) {
    let mut made = scene.make();
    let records = made.records.clone();
    let step = if all() { 1 } else { records.len().div_ceil(8) };
    let mut sums = Sums::default();
    let pairs = records.iter().flat_map(|a| records.iter().map(move |b| (a, b)));
    for (i, (a, b)) in pairs.filter(|(a, b)| a.at != b.at).enumerate().step_by(step) {
        let (moved, len) = (i % 2 == 0, a.bytes);
        if b.at / SEGMENT != (b.at + len - 1) / SEGMENT || overlaps(a, b.at, len) {
            continue;
        }
        let seen = made.misdirected(("segments", a.at), ("segments", b.at), len, moved);
        let hit = |r: &&LoggedRecord| overlaps(r, b.at, len) || (moved && r.at == a.at);
        let may: BTreeSet<_> =
            records.iter().filter(hit).flat_map(|r| r.needed_by.clone()).collect();
        let place = format!("{scene:?} from={} to={} moved={moved}", a.at, b.at);
        assert!(seen.is_whole() && seen.look.lost.is_subset(&may), "{place} {seen:?}");
        sums.injected += 1;
        sums.detected += u64::from(!seen.look.lost.is_empty());
        sums.returned += seen.look.returned.len() as u64;
        // Removed objects come back only if their tombstone was hit, in a segment without a footer.
        let returns =
            scene == Scene::Open && records.iter().filter(hit).any(|r| r.needed_by.is_empty());
        assert!(returns || seen.look.returned.is_empty(), "{place} {seen:?}");
    }
    sums.print(3, &format!("pairs of records, {scene:?}"));
}

#[test]
fn misdirected_records_lose_only_affected_objects() {
    [Scene::Open, Scene::Sealed, Scene::Closed].into_iter().for_each(records);
}

#[test]
fn misdirected_segments_lose_only_affected_objects() {
    for scene in [Scene::Sealed, Scene::Closed] {
        let mut made = scene.make();
        let mut sums = Sums::default();
        let used = made.segments();
        let pairs = used.iter().flat_map(|a| (0..6).map(move |b| (*a, b)));
        for (a, b) in pairs.filter(|(a, b)| a != b) {
            let seen = made.misdirected(
                ("segments", a * SEGMENT),
                ("segments", b * SEGMENT),
                SEGMENT,
                false,
            );
            let gone: BTreeSet<_> = made
                .records
                .iter()
                .filter(|r| r.at / SEGMENT == b)
                .flat_map(|r| r.needed_by.clone())
                .collect();
            sums.injected += 1;
            if let Some(refusal) = &seen.refused {
                // The store detects swapped directories by this, so it takes segment 0 for one of
                // them.
                assert!(b == 0 && refusal.contains("is not the one it was"), "a={a} {refusal}");
                sums.detected += 1;
                continue;
            }
            assert!(seen.is_whole(), "{scene:?} a={a} b={b} {seen:?}");
            assert_eq!(seen.look.lost, gone, "{scene:?} a={a} b={b}");
            sums.detected += u64::from(!gone.is_empty());
            sums.returned += seen.look.returned.len() as u64;
        }
        sums.print(3, &format!("pairs of segments, {scene:?}"));
    }
}

#[test]
fn misdirected_manifest_blocks_lose_nothing() {
    let mut made = Scene::Sealed.make();
    let blocks =
        ["manifest.0", "manifest.1"].map(|file| (0..3).map(move |block| (file, block * ALIGN)));
    let blocks: Vec<(&str, u64)> = blocks.into_iter().flatten().collect();
    let mut sums = Sums::default();
    for (from, to) in
        blocks.iter().flat_map(|a| blocks.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b)
    {
        for moved in [false, true] {
            let seen = made.misdirected(from, to, ALIGN, moved);
            let place = format!("from={from:?} to={to:?} moved={moved}");
            sums.injected += 1;
            if moved && from.1 == to.1 {
                // One place has no copy, and the other place has it.
                assert!(seen.refused.is_none() && seen.mended == 1, "{place} {seen:?}");
            }
            sums.detected += u64::from(seen.mended > 0);
            let whole =
                seen.is_whole() && seen.look.lost.is_empty() && seen.look.returned.is_empty();
            assert!(whole, "{place} {seen:?}");
        }
    }
    sums.print(3, "pairs of manifest blocks");
}

#[test]
fn misdirected_checkpoint_blocks_lose_nothing() {
    let mut made = Scene::Closed.make();
    let places: Vec<(&str, u64)> = ["checkpoint.0", "checkpoint.1"]
        .into_iter()
        .flat_map(|file| [0, ALIGN, ALIGN + 65_536].map(|at| (file, at)))
        .collect();
    let mut sums = Sums::default();
    for (from, to) in
        places.iter().flat_map(|a| places.iter().map(move |b| (*a, *b))).filter(|(a, b)| a != b)
    {
        for moved in [false, true] {
            let len = if from.1 == 0 || to.1 == 0 { ALIGN } else { 65_536 };
            let seen = made.misdirected(from, to, len, moved);
            let whole =
                seen.is_whole() && seen.look.lost.is_empty() && seen.look.returned.is_empty();
            assert!(whole, "from={from:?} to={to:?} moved={moved} {seen:?}");
            sums.injected += 1;
            sums.detected += u64::from(seen.footers > 0 || seen.refused_checkpoints > 0);
        }
    }
    sums.print(3, "pairs of checkpoint blocks");
}
