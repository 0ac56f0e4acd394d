//! One record torn at every sector (row 1), over zeros and over a twin: a record of the same key,
//! length, place, store, life and sequence with other bytes, as an identical machine would have
//! written it.

use std::collections::BTreeSet;
use std::ops::Range;

use pagelith::layouts::record::{GroupKind, RecordKind};
use pagelith_sim::disk::{FaultPlan, SimDisk};

use super::report::Sums;
use super::scene::{BuiltStore, LoggedRecord, Scene};

const SECTOR: usize = 512;

/// The old content of the sectors that were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OldSectors {
    Zeros,
    Twin,
}

/// Which sectors of `count` were written: every prefix, every suffix, every single one, and all but
/// a single one.
fn tears(count: usize) -> Vec<Vec<bool>> {
    let mut tears = Vec::new();
    for at in 1..count {
        tears.push((0..count).map(|i| i < at).collect());
        tears.push((0..count).map(|i| i >= at).collect());
    }
    for at in 0..count {
        tears.push((0..count).map(|i| i == at).collect());
        tears.push((0..count).map(|i| i != at).collect());
    }
    tears
}

fn bytes_of(disk: &SimDisk, record: &LoggedRecord) -> Vec<u8> {
    disk.peek(0, "segments", record.at, record.bytes as usize).expect("a record")
}

/// The ranges of a record that checksums cover: its header, and its payloads without the zeros
/// after them.
fn covered(record: &LoggedRecord) -> impl Iterator<Item = Range<usize>> + '_ {
    let payloads = record.payloads.iter().map(|(start, len)| {
        let start = (start - record.at) as usize;
        start..start + *len as usize
    });
    std::iter::once(0..record.header_bytes as usize).chain(payloads)
}

fn record_of(made: &BuiltStore, group: GroupKind) -> LoggedRecord {
    let of = |r: &&LoggedRecord| {
        r.kind == RecordKind::Data && r.group == group && !r.needed_by.is_empty()
    };
    made.records.iter().find(of).expect("a record of each group kind").clone()
}

fn tear(scene: Scene, group: GroupKind, under: OldSectors) {
    let (mut made, twin) = (scene.make(), scene.twin());
    let record = record_of(&made, group);
    let new = bytes_of(&made.on_disk(), &record);
    let old = match under {
        OldSectors::Zeros => vec![0; new.len()],
        OldSectors::Twin => bytes_of(&twin.on_disk(), &record),
    };
    assert!(under == OldSectors::Zeros || record_of(&twin, group).at == record.at, "twins");
    let mut sums = Sums::default();
    for landed in tears(new.len() / SECTOR) {
        let mut bytes = old.clone();
        for (i, _) in landed.iter().enumerate().filter(|(_, landed)| **landed) {
            let sector = i * SECTOR..(i + 1) * SECTOR;
            bytes[sector.clone()].copy_from_slice(&new[sector]);
        }
        let differs = covered(&record).any(|range| bytes[range.clone()] != new[range]);
        let is_old = |range: &Range<usize>| bytes[range.clone()] == old[range.clone()];
        if under == OldSectors::Twin
            && is_old(&(0..record.header_bytes as usize))
            && covered(&record).skip(1).any(|range| is_old(&range))
        {
            // This is the twin, or one whole object of it under its whole header.
            continue;
        }
        let place = record.at;
        let seen = made.reopen(|disk| {
            let name = "segments".to_string();
            disk.inject(FaultPlan::Overwrite { dir: 0, name, offset: place, bytes });
        });
        let place = format!("{scene:?} {group:?} over {under:?} landed={landed:?}");
        assert!(seen.is_whole() && seen.look.returned.is_empty(), "{place} {seen:?}");
        // No read uses bytes after the end of a payload.
        let lost = if differs { record.needed_by.clone() } else { BTreeSet::new() };
        assert_eq!(seen.look.lost, lost, "{place}");
        sums.injected += 1;
        sums.detected += u64::from(differs);
    }
    assert!(sums.detected * 3 > sums.injected * 2, "{sums:?}");
    sums.print(
        1,
        &format!(
            "{group:?} record of {} sectors torn over {under:?}, {scene:?}",
            new.len() / SECTOR
        ),
    );
}

fn tear_all(scene: Scene) {
    for group in [GroupKind::Single, GroupKind::Base, GroupKind::Attached] {
        [OldSectors::Zeros, OldSectors::Twin]
            .into_iter()
            .for_each(|under| tear(scene, group, under));
    }
}

#[test]
fn torn_record_in_open_segment_is_lost_alone() {
    tear_all(Scene::Open);
}

#[test]
fn torn_record_in_sealed_segment_is_lost_alone() {
    tear_all(Scene::Sealed);
}

#[test]
fn torn_record_under_checkpoint_is_lost_alone() {
    tear_all(Scene::Closed);
}
