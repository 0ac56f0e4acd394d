//! A block that the device cannot read loses at most the objects in it: the other blocks of the
//! same file are verified, and a repair writes the block again.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::chunk_offset;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::manifest;
use pagelith_layouts::names;
use pagelith_layouts::record::RecordKind;

use super::filled_store::{FilledStore, SEGMENT_BYTES, bytes, flush, is_present, key, pages, put};
use super::fixture::Fixture;
use super::{RepairOptions, VerifyReport, fixture, repair};
use crate::on_disk::read::fail_reads_of;
use crate::on_disk::{LockMode, OnDisk};
use crate::verify::finding::Severity;

const DROP: RepairOptions = RepairOptions {
    keep: false,
    drop_missing_dirs: false,
    capacity_bytes: None,
    namespaces_max: None,
};

/// Repair a store in which the device cannot read this block. Returns the missing pages.
#[track_caller]
fn missing_after_repair(f: &FilledStore, file: std::path::PathBuf, offset: u64) -> Vec<u64> {
    fail_reads_of(vec![(file.clone(), offset)]);
    let report = repair(&f.dirs, DROP);
    fail_reads_of(Vec::new());
    let report =
        report.unwrap_or_else(|e| panic!("offset={offset} file={}: {e:#}", file.display()));
    let damage = &report.damage;
    assert!(
        damage.iter().any(|d| d.cause.starts_with("block cannot be read")),
        "offset={offset} file={} {damage:?}",
        file.display()
    );
    assert!(damage.iter().any(|d| d.severity == Severity::Wrong), "{damage:?}");
    assert_eq!(report.after.wrong, 0, "{:?}", report.after.findings);
    f.missing()
}

#[test]
fn unreadable_manifest_or_checkpoint_block_loses_no_object() {
    for copy in 0..2 {
        for block in 0..2 {
            let f = FilledStore::new(1, true);
            let missing = missing_after_repair(&f, f.manifest_path(copy), block * ALIGN);
            assert!(missing.is_empty(), "copy={copy} block={block} {missing:?}");
        }
    }
    let f = FilledStore::new(1, true);
    let newest = (0..2).max_by_key(|w| std::fs::read(f.checkpoint_path(*w)).unwrap()[0] > 0);
    let newest = f.checkpoint_path(newest.unwrap());
    assert_eq!(missing_after_repair(&f, newest.clone(), 0), [0; 0]);
    let f = FilledStore::new(1, true);
    let newest = f.dirs[0].join(newest.file_name().unwrap());
    assert_eq!(missing_after_repair(&f, newest, chunk_offset(0)), [0; 0]);
}

#[test]
fn unreadable_header_or_footer_of_a_segment_loses_no_object() {
    for offset in [0, SEGMENT_BYTES - ALIGN] {
        let f = FilledStore::new(1, true);
        let (file, at) = f.location(f.segments()[1]);
        assert_eq!(missing_after_repair(&f, file, at + offset), [0; 0], "offset={offset}");
    }
}

#[test]
fn unreadable_block_of_a_record_loses_only_its_objects() {
    let f = FilledStore::new(1, true);
    let id = f.segments()[1];
    let records = f.records(id);
    let record = records.iter().find(|r| r.kind == RecordKind::Data).unwrap();
    let lost: Vec<u64> =
        pages(&record.keys).into_iter().filter(|p| !f.removed.contains(p)).collect();
    let (file, at) = f.location(id);
    assert_eq!(missing_after_repair(&f, file, at + record.offset + ALIGN), lost);
}

/// The newest segment of a store that was killed has no footer. An open forgets everything if it
/// cannot read a block of it.
#[test]
fn unreadable_block_of_the_newest_segment_loses_no_other_object() {
    let f = FilledStore::new(1, false);
    let id = *f.segments().last().unwrap();
    let (file, at) = f.location(id);
    for offset in [0, SEGMENT_BYTES - ALIGN] {
        let copy = f.copy();
        let file = copy.location(id).0;
        assert_eq!(missing_after_repair(&copy, file, at + offset), [0; 0], "offset={offset}");
    }
    let records = f.records(id);
    let record = records.iter().rfind(|r| r.kind == RecordKind::Data).unwrap();
    let lost: Vec<u64> =
        pages(&record.keys).into_iter().filter(|p| !f.removed.contains(p)).collect();
    assert_eq!(missing_after_repair(&f, file, at + record.offset + ALIGN), lost);
}

/// Repair a store in which the device cannot read these blocks of these segments. Returns the
/// incarnation of segment 1, which is 1 unless it is dropped.
#[track_caller]
fn incarnation_after_repair(f: &Fixture, blocks: &[(u32, u64)]) -> u64 {
    let blocks = blocks.iter().map(|(id, offset)| (f.location(*id), offset));
    fail_reads_of(blocks.map(|((file, at), offset)| (file, at + offset)).collect());
    let report = repair(&f.dirs, DROP);
    fail_reads_of(Vec::new());
    let report = report.unwrap();
    assert!(!report.repairs.is_empty(), "{:?}", report.damage);
    assert_eq!(report.after.wrong, 0, "{:?}", report.after.findings);
    let copies = [0, 1].map(|copy| std::fs::read(f.manifest_path(copy)).unwrap());
    let (manifest, _) = manifest::decode([&copies[0], &copies[1]]).unwrap();
    manifest.segment(SegmentId(1)).unwrap().0.0
}

const END: u64 = fixture::SEGMENT_BYTES;

#[test]
fn unreadable_blocks_of_a_prepared_segment_drop_no_other() {
    for blocks in [vec![0], vec![END - ALIGN], vec![END - 2 * ALIGN, END - ALIGN]] {
        for covered in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let mut f = Fixture::new(&[dir.path()]);
            f.segment(1, 1, 1, 2, true);
            f.announce(3, 1, if covered { 2 } else { 9 });
            f.segment(2, 1, 3, 2, true);
            // Something else to repair.
            f.flip(2, 50);
            let unreadable: Vec<_> = blocks.iter().map(|at| (3, *at)).collect();
            assert_eq!(incarnation_after_repair(&f, &unreadable), 1, "{blocks:?} {covered}");
        }
    }
}

#[test]
fn unreadable_header_of_the_newest_segment_drops_no_older_one_with_a_torn_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(1, 1, 1, 2, true);
    let records = f.segment(2, 1, 2, 3, false);
    // A lost write that no sync covered.
    f.write(2, records[1], &[0; 4096]);
    f.segment(3, 1, 3, 1, false);
    assert_eq!(incarnation_after_repair(&f, &[(3, 0)]), 1);
}

#[test]
fn unreadable_footer_of_the_newest_sealed_segment_loses_no_object() {
    let f = FilledStore::new(1, false);
    let store = f.open();
    // Until the footer will have several blocks.
    let more = (0..).find(|page| {
        put(&store, "more", *page, 0);
        flush(&store);
        f.records(*f.segments().last().unwrap()).len() > 11
    });
    store.abandon();
    let newest = *f.segments().last().unwrap();
    // Seals it.
    f.open().abandon();
    let (file, at) = f.location(newest);
    let sealed = f.segment_content(newest);
    let block = at + SEGMENT_BYTES - 2 * ALIGN;
    fail_reads_of(vec![(file, block)]);
    let report = repair(&f.dirs, DROP);
    fail_reads_of(Vec::new());
    assert_eq!(report.unwrap().after.wrong, 0);
    assert!(f.segment_content(newest) == sealed, "header, records and footer are as before");
    assert_eq!(f.missing(), [0; 0]);
    let store = f.open();
    for page in 0..=more.unwrap() {
        assert!(is_present(&store, &key("more", page, 0), &bytes(page, 0, 0)), "page={page}");
    }
}

#[test]
fn segment_whose_header_is_lost_is_used_as_an_open_uses_it() {
    for (sealed, repairs) in [(true, 1), (false, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let mut f = Fixture::new(&[dir.path()]);
        f.segment(1, 1, 1, 2, true);
        f.segment(2, 1, 2, 2, sealed);
        let before = f.segment_bytes(2);
        f.write(2, 0, &[0; ALIGN as usize]);
        let report = repair(&f.dirs, DROP).unwrap();
        assert_eq!((report.repairs.len(), report.after.wrong), (repairs, 0), "{:?}", report.damage);
        assert_eq!(f.segment_bytes(2) == before, sealed, "an open writes the footer");
    }
}

#[test]
fn segment_whose_records_are_all_lost_drops_older_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(1, 1, 1, 2, true);
    f.removal(2, 2);
    f.segment(3, 1, 3, 1, true);
    f.write(2, 0, &vec![0xa5; END as usize]);
    assert_eq!(incarnation_after_repair(&f, &[]), 2, "it may have removed objects");

    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(1, 1, 1, 2, true);
    f.segment(2, 1, 2, 1, false);
    assert_eq!(incarnation_after_repair(&f, &[(2, 0), (2, ALIGN)]), 2, "it may have had a removal");
}

#[test]
fn lost_removal_of_the_newest_segment_whose_footer_is_unreadable_drops_older_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(1, 1, 1, 2, true);
    f.removal(2, 2);
    f.flip(2, ALIGN + 200);
    assert_eq!(incarnation_after_repair(&f, &[(2, END - ALIGN)]), 2);
}

#[test]
fn unreadable_block_that_may_have_had_a_removal_brings_nothing_back() {
    let f = FilledStore::new(1, false);
    let id = *f.segments().last().unwrap();
    let records = f.records(id);
    let removal = records.iter().rfind(|r| r.kind == RecordKind::Tombstones).unwrap();
    let (file, at) = f.location(id);
    let missing = missing_after_repair(&f, file, at + removal.offset);
    assert!(!missing.is_empty(), "older objects are dropped");
}

#[test]
fn store_whose_manifest_cannot_be_read_is_not_deleted() {
    let f = FilledStore::new(1, true);
    for block in 0..2 {
        fail_reads_of([0, 1].map(|copy| (f.manifest_path(copy), block * ALIGN)).into());
        let refused = repair(&f.dirs, DROP).map(|report| report.repairs.len());
        fail_reads_of(Vec::new());
        let error = refused.unwrap_err().to_string();
        assert!(error.starts_with("the manifest cannot be read: "), "{error}");
        assert!(error.contains("if that lasts, --repair=keep"), "{error}");
    }
    assert_eq!(f.missing(), [0; 0]);
}

#[test]
fn unreadable_block_without_a_record_is_no_damage() {
    let f = FilledStore::new(1, true);
    let id = *f.segments().last().unwrap();
    let end = f.records(id).iter().map(|r| r.offset + r.bytes).max().unwrap();
    let (file, at) = f.location(id);
    assert_eq!(file.file_name().unwrap(), names::SEGMENTS);
    fail_reads_of(vec![(file, at + end.next_multiple_of(ALIGN))]);
    let (report, _) = VerifyReport::of(&OnDisk::open(&f.dirs, LockMode::Shared).unwrap()).unwrap();
    fail_reads_of(Vec::new());
    assert_eq!(report.wrong, 0, "{:?}", report.findings);
    assert!(report.findings.iter().any(|d| d.cause.starts_with("block cannot be read")));
}
