//! A repair that is interrupted after any of its writes leaves a store that opens without damage
//! and without removed objects, or that is refused. The next repair continues and has the same
//! result.

use std::path::Path;

use pagelith_layouts::footer::{self, FooterFacts, FooterTail};
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder, Sequence};
use pagelith_layouts::manifest::{self, Manifest};
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::segment::SegmentIdentity;

use super::filled_store::{FilledStore, PAGES, SEGMENT_BYTES, is_present, key};
use super::fixture::Fixture;
use super::{RepairOptions, filled_store, fixture, repair};
use crate::on_disk::files::{refuse_writes_at, stop_after};

const DROP: RepairOptions = RepairOptions {
    keep: false,
    drop_missing_dirs: false,
    capacity_bytes: None,
    namespaces_max: None,
};

/// Damage of every kind that is repaired in place, of a store with or without a checkpoint.
fn damage_in_place(f: &FilledStore) {
    let ids = f.segments();
    fixture::flip(&f.manifest_path(0), 4096 + 100);
    let records = f.records(ids[1]);
    let data = records.iter().find(|r| r.kind == RecordKind::Data).unwrap();
    f.flip(data.segment, data.offset + 4096);
    f.flip(ids[2], SEGMENT_BYTES - 60);
    f.flip(ids[2], 50);
    let all = ids.iter().flat_map(|id| f.records(*id));
    let removal =
        all.into_iter().find(|r| r.kind == RecordKind::Tombstones && r.segment != ids[2]).unwrap();
    f.flip(removal.segment, removal.offset + 200);
}

/// Damaged payloads in a segment without an intact footer.
fn damage_records_and_footer(f: &FilledStore) {
    let id = f.segments()[2];
    let records = f.records(id);
    let data = records.iter().filter(|r| r.kind == RecordKind::Data);
    // Not the last: what follows a half replaced record must not count as lost.
    data.take(2).for_each(|r| f.flip(id, r.offset + 4096 + 5));
    f.flip(id, SEGMENT_BYTES - 4);
}

/// Damage that may include lost removals, so that older objects are dropped.
fn damage_removals(f: &FilledStore) {
    let ids = f.segments();
    let all = ids[1..].iter().flat_map(|id| f.records(*id));
    let removal = all.into_iter().find(|r| r.kind == RecordKind::Tombstones).unwrap();
    f.flip(removal.segment, removal.offset + 200);
    f.flip(removal.segment, SEGMENT_BYTES - 60);
}

/// If the store opens, it has no wrong bytes and no removed objects.
fn assert_no_removed_objects(f: &FilledStore) {
    let Ok(store) = f.try_open() else { return };
    for page in 0..PAGES {
        for part in 0..2 {
            let present =
                is_present(&store, &key("m", page, part), &filled_store::bytes(page, part, 0));
            assert!(
                !present || !f.removed.contains(&page),
                "a removed object returned page={page}"
            );
        }
    }
    store.abandon();
}

fn copy(from: &FilledStore, to: &FilledStore) {
    for (from, to) in from.dirs.iter().zip(&to.dirs) {
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), Path::new(to).join(entry.file_name())).unwrap();
        }
    }
}

/// Zero the segment table in both copies of the manifest.
fn damage_manifest(f: &FilledStore) {
    (0..2).for_each(|copy| filled_store::zero(&f.manifest_path(copy), 4096, 4096));
}

fn interrupt_at_every_step(
    close: bool,
    damage: fn(&FilledStore),
    options: RepairOptions,
    opens_meanwhile: bool,
) {
    let f = FilledStore::new(1, close);
    damage(&f);
    let whole = FilledStore::new(1, true);
    copy(&f, &whole);
    repair(&whole.dirs, options).unwrap();
    let expected = whole.missing();
    let scratch = FilledStore::new(1, true);
    let mut steps = 0;
    loop {
        copy(&f, &scratch);
        stop_after(Some(steps));
        let ended = repair(&scratch.dirs, options);
        stop_after(None);
        if ended.is_ok() {
            break;
        }
        if opens_meanwhile {
            assert_no_removed_objects(&scratch);
        }
        repair(&scratch.dirs, options).unwrap_or_else(|e| panic!("steps={steps}: {e:#}"));
        assert_eq!(scratch.missing_of(&f.removed), expected, "steps={steps}");
        steps += 1;
    }
    assert!(steps > 3, "steps={steps}");
}

#[test]
fn interrupted_repair_in_place_is_resumed() {
    interrupt_at_every_step(true, damage_in_place, DROP, false);
    interrupt_at_every_step(false, damage_in_place, DROP, false);
}

#[test]
fn interrupted_repair_in_place_is_resumed_after_the_store_was_used() {
    interrupt_at_every_step(true, damage_in_place, DROP, true);
}

#[test]
fn interrupted_repair_of_possible_lost_removals_is_resumed() {
    interrupt_at_every_step(false, damage_removals, DROP, false);
}

#[test]
fn interrupted_rebuild_of_the_manifest_is_resumed() {
    interrupt_at_every_step(true, damage_manifest, RepairOptions { keep: true, ..DROP }, true);
}

#[test]
fn interrupted_repair_of_records_without_footer_is_resumed() {
    interrupt_at_every_step(false, damage_records_and_footer, DROP, false);
    interrupt_at_every_step(false, damage_records_and_footer, DROP, true);
}

/// The segment with an object, and the younger one with its removal, whose content is lost. Their
/// facts are in different blocks of the manifest.
const OBJECT: u32 = 128;
const REMOVAL: u32 = 1;
const YOUNGER: u32 = 2;

fn lost_removal(dir: &Path) -> Fixture {
    let mut f = Fixture::with_segments(&[dir], 130);
    f.segment(OBJECT, 1, 1, 1, true);
    f.removal(REMOVAL, 2);
    f.segment(YOUNGER, 1, 3, 1, true);
    f.flip(REMOVAL, 4096 + 200);
    f.flip(REMOVAL, fixture::SEGMENT_BYTES - 60);
    f
}

fn manifest_of(f: &Fixture) -> Manifest {
    let copies = [0, 1].map(|copy| std::fs::read(f.manifest_path(copy)).unwrap());
    manifest::decode([&copies[0], &copies[1]]).unwrap().0
}

fn incarnation(f: &Fixture, id: u32) -> u64 {
    manifest_of(f).segment(SegmentId(id)).unwrap().0.0
}

#[test]
fn interrupted_drop_of_segments_in_several_manifest_blocks_is_resumed() {
    for steps in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let f = lost_removal(dir.path());
        stop_after(Some(steps));
        let ended = repair(&f.dirs, DROP);
        stop_after(None);
        repair(&f.dirs, DROP).unwrap_or_else(|e| panic!("steps={steps}: {e:#}"));
        assert!(incarnation(&f, OBJECT) > 1, "the removed object returned steps={steps}");
        assert_eq!(incarnation(&f, YOUNGER), 1, "steps={steps}");
        if ended.is_ok() {
            assert!(steps > 10, "steps={steps}");
            break;
        }
    }
}

/// A segment that is damaged again after it was dropped is not younger than it was.
#[test]
fn segment_dropped_twice_does_not_drop_younger_ones() {
    let dir = tempfile::tempdir().unwrap();
    let f = lost_removal(dir.path());
    repair(&f.dirs, DROP).unwrap();
    let (incarnation_now, order) = manifest_of(&f).segment(SegmentId(REMOVAL)).unwrap();
    let facts = FooterFacts {
        identity: SegmentIdentity {
            store: fixture::STORE,
            segment: SegmentId(REMOVAL),
            incarnation: incarnation_now,
        },
        order,
        min_sequence: Sequence(u64::MAX),
        max_sequence: Sequence(0),
        data_end: 8192,
    };
    let footer = footer::encode(&facts, &[]);
    f.write(REMOVAL, fixture::SEGMENT_BYTES - footer.len() as u64, &footer);
    f.flip(REMOVAL, fixture::SEGMENT_BYTES - footer.len() as u64);
    repair(&f.dirs, DROP).unwrap();
    assert_eq!((incarnation_now, order), (Incarnation(2), SegmentOrder(2)));
    assert_eq!(incarnation(&f, REMOVAL), 3, "dropped again");
    assert_eq!(incarnation(&f, YOUNGER), 1, "the younger one is kept");
}

/// A device that refuses to write the head of a dropped segment.
#[test]
fn refused_wipe_of_a_dropped_segment_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let f = lost_removal(dir.path());
    let (path, at) = f.location(REMOVAL);
    refuse_writes_at(Some((path.clone(), at)));
    let report = repair(&f.dirs, DROP);
    refuse_writes_at(None);
    let report = report.unwrap();
    assert!(
        report.warnings[0].contains(&format!("cannot write offset={at} file={}", path.display()))
    );
    assert_eq!(incarnation(&f, OBJECT), 2, "the others are still dropped");
}

/// The damaged footer of a dropped segment has a larger incarnation than the segment, and the
/// device refused its wipe.
#[test]
fn footer_that_a_repair_could_not_wipe_is_wiped_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let f = lost_removal(dir.path());
    let tail = fixture::SEGMENT_BYTES - FooterTail::BYTES as u64;
    let fields = FooterTail::STRUCTURE.fields;
    let incarnation_at = fields.iter().find(|f| f.name == "incarnation").unwrap().offset as u64;
    f.write(REMOVAL, tail + incarnation_at, &(u64::MAX / 2).to_le_bytes());
    let (path, at) = f.location(REMOVAL);
    refuse_writes_at(Some((path, at + fixture::SEGMENT_BYTES - 4096)));
    let report = repair(&f.dirs, DROP);
    refuse_writes_at(None);
    assert!(report.unwrap().after.wrong > 0, "the footer is still wrong");
    assert_eq!(repair(&f.dirs, DROP).unwrap().after.wrong, 0);
    assert_eq!(incarnation(&f, YOUNGER), 1, "the younger one is kept");
}

/// A device that refuses to write the header of one damaged record: the others are repaired.
#[test]
fn refused_header_of_a_damaged_record_stops_no_other_repair() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    let records = f.segment(1, 1, 1, 4, true);
    f.segment(2, 1, 2, 1, true);
    records[1..3].iter().for_each(|record| f.flip(1, record + 4096 + 5));
    let (path, at) = f.location(1);
    refuse_writes_at(Some((path, at + records[1])));
    let report = repair(&f.dirs, DROP);
    refuse_writes_at(None);
    let report = report.unwrap();
    assert!(report.warnings[0].starts_with("cannot write offset="), "{:?}", report.warnings);
    assert!(report.after.wrong > 0, "the header is still wrong");
    assert_eq!(incarnation(&f, 1), 1, "no segment is dropped");
    let report = repair(&f.dirs, DROP).unwrap();
    assert_eq!((report.after.wrong, incarnation(&f, 1)), (0, 1));
}
