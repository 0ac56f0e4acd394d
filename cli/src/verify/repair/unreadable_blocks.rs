//! A block that the device cannot read loses at most the objects in it: the other blocks of the
//! same file are verified, and a repair writes the block again.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::chunk_offset;
use pagelith_layouts::names;
use pagelith_layouts::record::RecordKind;

use super::filled_store::{FilledStore, SEGMENT_BYTES, pages};
use super::{RepairOptions, VerifyReport, repair};
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
