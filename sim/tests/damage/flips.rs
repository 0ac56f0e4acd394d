//! Every bit of every structure, flipped at rest (rows 4 and 23 of the fault matrix).
//!
//! Structures that fail independently are damaged together, one bit in each, so that one reopening
//! checks many.

use std::collections::BTreeSet;

use pagelith::layouts::align::ALIGN;
use pagelith::layouts::footer;
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::record::{GroupKind, RecordKind};
use pagelith_sim::disk::FaultPlan;
use pagelith_sim::entropy::SplitMix64;

use super::report::Sums;
use super::scene::{BuiltStore, SEGMENT, Scene, Seen};

/// Of the bits that are zero in every store, one in this many is flipped, unless all are requested.
const PADDING_ONE_IN: usize = 211;

/// A bit of a file.
#[derive(Clone, Debug)]
struct Flip {
    file: &'static str,
    at: u64,
    bit: u8,
}

impl Flip {
    /// Bit number `bit` after byte `start`.
    fn new(file: &'static str, start: u64, bit: u64) -> Flip {
        Flip { file, at: start + bit / 8, bit: (bit % 8) as u8 }
    }
}

impl BuiltStore {
    /// Reopens with these bits flipped.
    fn flipped(&mut self, flips: &[Flip]) -> Seen {
        self.reopen(|disk| {
            for Flip { file, at, bit } in flips {
                let name = file.to_string();
                disk.inject(FaultPlan::FlipBit { dir: 0, name, offset: *at, bit: *bit });
            }
        })
    }
}

/// Bits of a structure of `bytes` bytes; `used` is the part that is not padding.
fn bits(used: std::ops::Range<u64>, bytes: u64) -> Vec<u64> {
    let step = if super::report::all() { 1 } else { PADDING_ONE_IN };
    let padding = (0..used.start * 8).chain(used.end * 8..bytes * 8);
    (used.start * 8..used.end * 8).chain(padding.step_by(step)).collect()
}

/// One in `by` of them, unless all are requested: another test checks the same structure in full.
fn thin(mut bits: Vec<u64>, by: usize) -> Vec<u64> {
    let mut i = 0;
    bits.retain(|_| {
        i += 1;
        super::report::all() || i % by == 1 % by
    });
    bits
}

/// The bit that each of `count` structures has flipped in a round; over all rounds each bit is
/// flipped once.
fn turns(bits: &[u64], count: usize) -> impl Iterator<Item = Vec<u64>> + '_ {
    let rounds = bits.len().div_ceil(count);
    (0..rounds)
        .map(move |round| (0..count).map(|i| bits[(i * rounds + round) % bits.len()]).collect())
}

/// Record headers: objects that need the record may be missed, others not.
fn headers(
    scene: Scene,
    by: usize,
    what: &str,
    sort: impl Fn(RecordKind, GroupKind) -> bool,
) -> Sums {
    let mut made = scene.make();
    let records: Vec<_> = made.records.iter().filter(|r| sort(r.kind, r.group)).cloned().collect();
    let may: BTreeSet<ObjectKey> = records.iter().flat_map(|r| r.needed_by.clone()).collect();
    let used = records.iter().map(|r| r.used_bytes).max().expect("a record");
    let mut sums = Sums::default();
    let which = thin(bits(0..used, records[0].header_bytes), by);
    for turn in turns(&which, records.len()) {
        let flip =
            |(r, bit): (&super::scene::LoggedRecord, &u64)| Flip::new("segments", r.at, *bit);
        let flips: Vec<Flip> = records.iter().zip(&turn).map(flip).collect();
        let seen = made.flipped(&flips);
        assert!(seen.is_whole() && seen.look.lost.is_subset(&may), "flips={flips:?} {seen:?}");
        let lost = |keys: &BTreeSet<ObjectKey>| keys.iter().any(|key| seen.look.lost.contains(key));
        sums.injected += flips.len() as u64;
        sums.detected += records.iter().filter(|r| lost(&r.needed_by)).count() as u64;
        sums.returned += seen.look.returned.len() as u64;
    }
    sums.print(4, &format!("header of {what}, {scene:?}, records={}", records.len()));
    sums
}

/// Headers of all kinds.
fn all_headers(scene: Scene, by: usize) {
    use GroupKind::*;
    for (what, group) in [("single", Single), ("base", Base), ("attached", Attached)] {
        let sums = headers(scene, by, what, |kind, g| kind == RecordKind::Data && g == group);
        assert!(sums.detected > sums.injected / 2 && sums.returned == 0, "{sums:?}");
    }
}

#[test]
fn flipped_record_headers_in_open_segment_lose_only_their_objects() {
    all_headers(Scene::Open, 2);
}

#[test]
fn flipped_record_headers_with_footers_lose_only_their_objects() {
    all_headers(Scene::Sealed, 1);
}

#[test]
fn flipped_record_headers_with_checkpoint_lose_only_their_objects() {
    all_headers(Scene::Closed, 5);
}

/// A tombstone is on SSD once, until its segment has a footer: before that, damage to it revives
/// removed objects.
#[test]
fn flipped_tombstone_without_footer_revives_only_its_objects() {
    let is = |kind, _| kind == RecordKind::Tombstones;
    let open = headers(Scene::Open, 3, "tombstones", is);
    assert!(open.returned <= open.injected, "more than the injected faults {open:?}");
    for scene in [Scene::Sealed, Scene::Closed] {
        let sums = headers(scene, 5, "tombstones", is);
        assert_eq!((sums.detected, sums.returned), (0, 0), "{scene:?}");
    }
}

/// One bit in the payloads of many records at once: exactly the damaged records are lost.
fn payloads(scene: Scene, rounds: u64) {
    let mut made = scene.make();
    let mut sums = Sums::default();
    let mut rng = SplitMix64::new(1);
    let records: Vec<_> =
        made.records.iter().filter(|r| !r.needed_by.is_empty()).cloned().collect();
    for _ in 0..rounds {
        // One record in four is left intact: it must stay.
        let hit: Vec<_> = records.iter().filter(|_| !rng.one_in(4)).collect();
        let mut flips = Vec::new();
        for record in &hit {
            let (start, len) = record.payloads[rng.below(record.payloads.len() as u64) as usize];
            flips.push(Flip::new("segments", start, rng.below(len * 8)));
        }
        let seen = made.flipped(&flips);
        let must: BTreeSet<ObjectKey> = hit.iter().flat_map(|r| r.needed_by.clone()).collect();
        assert!(seen.is_whole() && seen.look.returned.is_empty(), "flips={flips:?} {seen:?}");
        assert_eq!(seen.look.lost, must, "flips={flips:?}");
        sums.injected += flips.len() as u64;
        sums.detected += flips.len() as u64;
    }
    sums.print(4, &format!("payload, {scene:?}"));
}

#[test]
fn flipped_payload_bit_loses_exactly_its_record() {
    let rounds = if super::report::all() { 2000 } else { 40 };
    [Scene::Open, Scene::Sealed, Scene::Closed]
        .into_iter()
        .for_each(|scene| payloads(scene, rounds));
}

/// Structures without which the store holds the same: nothing is lost. `noticed` returns the
/// detected flips.
fn harmless(
    scene: Scene,
    what: &str,
    starts: &[(&'static str, u64)],
    bits: &[u64],
    noticed: impl Fn(&Seen, &Seen) -> u64,
) -> Sums {
    let mut made = scene.make();
    let before = made.reopen(|_| ());
    let mut sums = Sums::default();
    for turn in turns(bits, starts.len()) {
        let flip =
            |((file, start), bit): (&(&'static str, u64), &u64)| Flip::new(file, *start, *bit);
        let flips: Vec<Flip> = starts.iter().zip(&turn).map(flip).collect();
        let seen = made.flipped(&flips);
        let whole = seen.is_whole() && seen.look.lost.is_empty() && seen.look.returned.is_empty();
        assert!(whole, "flips={flips:?} {seen:?}");
        sums.injected += flips.len() as u64;
        sums.detected += noticed(&before, &seen);
    }
    assert!(sums.detected <= sums.injected, "{sums:?}");
    sums.print(23, &format!("{what}, {scene:?}, of {}", starts.len()));
    sums
}

#[test]
fn flipped_segment_header_loses_nothing() {
    for scene in [Scene::Open, Scene::Sealed, Scene::Closed] {
        let starts: Vec<_> =
            scene.make().segments().into_iter().map(|i| ("segments", i * SEGMENT)).collect();
        harmless(scene, "segment header", &starts, &bits(0..96, ALIGN), |_, _| 0);
    }
}

/// Every segment with a damaged footer falls back to its records, whichever bit it was.
#[test]
fn flipped_footer_bit_loses_nothing() {
    let made = Scene::Sealed.make();
    for (i, segment) in made.segments().into_iter().enumerate() {
        let last =
            made.on_disk().peek(0, "segments", (segment + 1) * SEGMENT - ALIGN, ALIGN as usize);
        let bytes = footer::claimed_bytes(&last.expect("a segment"), SEGMENT).expect("a footer");
        let start = [("segments", (segment + 1) * SEGMENT - bytes)];
        // Entries are alike: one of them in full, others like padding; then the tail.
        let mut which = bits(0..192, bytes - 128);
        which.extend((bytes - 128) * 8..bytes * 8);
        if i > 0 && !super::report::all() {
            which = which.into_iter().skip(i).step_by(40).collect();
        }
        harmless(
            Scene::Sealed,
            &format!("footer of segment {segment}"),
            &start,
            &which,
            |before, seen| {
                assert_eq!(
                    (before.footers, seen.footers, seen.scanned - before.scanned),
                    (4, 3, 1),
                    "unnoticed"
                );
                1
            },
        );
    }
}

const MANIFESTS: [&str; 2] = ["manifest.0", "manifest.1"];
/// Blocks of a copy of the manifest: superblock, segments, namespaces.
const BLOCKS: [(u64, std::ops::Range<u64>); 3] =
    [(0, 0..384), (1, 0..64 + 4 * 32), (2, 0..64 + 2 * 32)];

#[test]
fn flipped_block_of_one_manifest_copy_loses_nothing() {
    for copy in [0, 1] {
        for (block, used) in BLOCKS {
            // For the other blocks the other copy is damaged.
            let which = thin(bits(used, ALIGN), 1 + 6 * copy);
            let starts: Vec<_> = (0..3)
                .map(|b| (MANIFESTS[usize::from((b == block) == (copy == 1))], b * ALIGN))
                .collect();
            harmless(
                Scene::Sealed,
                &format!("manifest.{copy} block {block}"),
                &starts,
                &which,
                |_, seen| {
                    assert_eq!(seen.mended, 3, "{seen:?}");
                    3
                },
            );
        }
    }
}

#[test]
fn damage_in_both_manifest_copies_is_refused_by_name() {
    let mut made = Scene::Sealed.make();
    let mut sums = Sums::default();
    for (block, used) in BLOCKS {
        // One bit per byte, and not the same in both.
        for byte in (used.start..used.end).step_by(if super::report::all() { 1 } else { 7 }) {
            let flips: Vec<_> = MANIFESTS
                .iter()
                .zip([0, 5])
                .map(|(file, bit)| Flip::new(file, block * ALIGN, byte * 8 + bit))
                .collect();
            let seen = made.flipped(&flips);
            let refusal = seen.refused.unwrap_or_default();
            assert!(
                refusal.contains("manifest") && refusal.contains("block"),
                "flips={flips:?} refusal={refusal}"
            );
            sums.injected += 2;
            sums.detected += 2;
        }
    }
    sums.print(23, "both copies of a manifest block");
}

/// With the newer checkpoint, the older one, or none at all, the store holds the same.
#[test]
fn flipped_checkpoint_bit_loses_nothing() {
    const CHUNK: u64 = 65_536;
    let heads = ["checkpoint.0", "checkpoint.1"].map(|file| (file, 0));
    let expected_reports = |_: &Seen, seen: &Seen| 2 * u64::from(!seen.from_checkpoint);
    harmless(
        Scene::Closed,
        "heads of both checkpoints",
        &heads,
        &thin(bits(0..128, ALIGN), 3),
        expected_reports,
    );
    // Without the newer one, records since the older one are replayed.
    let expected_reports = |before: &Seen, seen: &Seen| u64::from(seen.footers > before.footers);
    let mut noticed = Vec::new();
    for file in ["checkpoint.0", "checkpoint.1"] {
        // Marks of segments, then entries: those of a kind are alike, so some are taken in full.
        let parts = [
            ("head", 0, 0..128, ALIGN),
            ("marks", ALIGN, 0..64 + 3 * 32, CHUNK),
            ("entries", ALIGN + CHUNK, 0..64 + 64, CHUNK),
        ];
        for (what, start, used, bytes) in parts {
            let mut which = bits(used.clone(), bytes);
            which.retain(|bit| {
                *bit < used.end * 8 || bytes == ALIGN || super::report::all() || bit % 11 == 0
            });
            if noticed.contains(&0) && !super::report::all() {
                which.retain(|bit| bit % 17 == 0);
            }
            let what = format!("{file} {what}");
            let sums = harmless(Scene::Closed, &what, &[(file, start)], &which, expected_reports);
            noticed.push(if sums.detected == sums.injected { 1 } else { sums.detected });
        }
    }
    noticed.sort_unstable();
    assert_eq!(
        noticed,
        [0, 0, 0, 1, 1, 1],
        "of the newer one every bit is noticed, of the older one none"
    );
}
