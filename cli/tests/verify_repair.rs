//! `verify --repair`: a store is damaged in one structure after the other, repaired, verified,
//! opened and read. All undamaged objects are present, and no removed, cleared or replaced object
//! returns.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::fs::File;

use common::filled_store::{
    CAPACITY_BYTES, FilledStore, NAMESPACES_MAX, PAGES, RecordLocation, SEGMENT_BYTES, bytes,
    is_present, key, pages, put, zero,
};
use common::fixture::flip;
use common::{ProgramOutput, pagelith};
use pagelith::Options;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::record::RecordKind;

fn run(f: &FilledStore, flags: &[&str]) -> ProgramOutput {
    let mut args: Vec<std::ffi::OsString> = vec!["verify".into(), "--json".into()];
    args.extend(flags.iter().map(Into::into));
    args.extend(f.dirs.iter().map(|d| d.as_os_str().to_owned()));
    pagelith(&args)
}

/// Repair with these flags. Asserts that the store then verifies, and that a second repair writes
/// nothing. Returns the report of the first repair.
#[track_caller]
fn repaired(f: &FilledStore, flags: &[&str]) -> serde_json::Value {
    let before = run(f, &[]);
    assert_eq!(before.code, Some(1), "the damage is found {before:?}");
    let ran = run(f, flags);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.json();
    assert_ne!(report["repairs"], serde_json::json!([]), "{report}");
    assert_eq!(report["wrong"], 0, "{report}");
    let verified = run(f, &[]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let files = contents(f);
    let again = run(f, &["--repair"]);
    assert_eq!(
        (again.code, &again.json()["repairs"]),
        (Some(0), &serde_json::json!([])),
        "{again:?}"
    );
    assert!(files == contents(f), "a repair of an intact store wrote something");
    report
}

fn contents(f: &FilledStore) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = f.dirs.iter().flat_map(|d| std::fs::read_dir(d).unwrap());
    let mut files: Vec<_> = entries
        .map(|e| e.unwrap())
        .map(|e| (e.file_name(), std::fs::read(e.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// The third segment of the log: sealed, and neither first nor last.
fn middle(f: &FilledStore) -> SegmentId {
    f.segments()[2]
}

fn record_of(f: &FilledStore, kind: RecordKind, but: &[SegmentId]) -> RecordLocation {
    let ids = f.segments();
    let last = ids[ids.len() - 1];
    let all =
        ids.iter().filter(|id| **id != last && !but.contains(id)).flat_map(|id| f.records(*id));
    all.filter(|r| r.kind == kind).nth(3.min(if kind == RecordKind::Data { 3 } else { 0 })).unwrap()
}

/// Damage without loss: the damaged structure is redundant.
#[test]
fn redundant_structure_is_rewritten_without_loss() {
    type Damage = fn(&FilledStore);
    let damages: [(&str, Damage); 9] = [
        ("manifest block", |f| flip(&f.manifest_path(0), 4096 + 100)),
        ("superblock", |f| flip(&f.manifest_path(1), 70)),
        ("manifest missing", |f| std::fs::remove_file(f.manifest_path(0)).unwrap()),
        ("manifest cut", |f| {
            File::options().write(true).open(f.manifest_path(1)).unwrap().set_len(4196).unwrap()
        }),
        ("manifest too long", |f| {
            File::options().write(true).open(f.manifest_path(1)).unwrap().set_len(1 << 20).unwrap();
        }),
        ("checkpoint missing", |f| std::fs::remove_file(f.checkpoint_path(1)).unwrap()),
        ("segment header", |f| flip(&f.location(middle(f)).0, f.location(middle(f)).1 + 50)),
        ("footer", |f| f.flip(middle(f), SEGMENT_BYTES - 60)),
        ("footer gone", |f| f.write(middle(f), SEGMENT_BYTES - 8192, &[0; 8192])),
    ];
    for (name, damage) in damages {
        for (dirs, close) in [(1, true), (2, false)] {
            eprintln!("{name} dirs={dirs} close={close}");
            let f = FilledStore::new(dirs, close);
            damage(&f);
            let report = repaired(&f, &["--repair"]);
            assert_eq!(report["dropped_objects"], 0, "{name} {report}");
            assert_eq!(report["warnings"], serde_json::json!([]), "{name} {report}");
            assert_eq!(f.missing(), Vec::<u64>::new(), "{name}");
        }
    }
}

#[test]
fn damaged_checkpoint_is_dropped() {
    for at in [60, 4096 + 100, 4096 + 65536 + 100] {
        let f = FilledStore::new(1, true);
        flip(&f.checkpoint_path(1), at);
        let report = repaired(&f, &["--repair"]);
        assert_eq!(report["repairs"].as_array().unwrap().len(), 1, "{report}");
        assert_eq!(f.missing(), Vec::<u64>::new(), "at={at}");
    }
}

/// An open skips a segment without a head, unless the checkpoint has entries of it.
#[test]
fn missing_head_of_a_segment_in_the_checkpoint_is_rewritten() {
    let f = FilledStore::new(1, true);
    f.write(middle(&f), 0, &[0; 4096]);
    repaired(&f, &["--repair"]);
    assert_eq!(f.missing(), Vec::<u64>::new());
}

#[test]
fn damaged_record_loses_only_its_objects() {
    for close in [true, false] {
        for (at, what) in
            [(20, "checksum"), (40, "store"), (200, "key"), (8192, "payload"), (4096, "first byte")]
        {
            let f = FilledStore::new(1, close);
            let record = record_of(&f, RecordKind::Data, &[]);
            f.flip(record.segment, record.offset + at);
            let report = repaired(&f, &["--repair"]);
            assert_eq!(report["dropped_objects"], record.keys.len(), "{what} {report}");
            let keys: Vec<_> = record.keys.iter().map(ToString::to_string).collect();
            assert_eq!(
                report["repairs"].as_array().unwrap().last().unwrap()["keys"],
                serde_json::json!(keys)
            );
            let mut lost = pages(&record.keys);
            lost.retain(|page| !f.removed.contains(page));
            assert_eq!(f.missing(), lost, "{what} close={close}");
        }
    }
}

#[test]
fn damaged_records_and_footer_lose_only_the_records() {
    let f = FilledStore::new(1, false);
    let id = middle(&f);
    let records = f.records(id);
    // Only payloads: the intact headers have the keys.
    for r in records.iter().filter(|r| r.kind == RecordKind::Data).take(2) {
        f.flip(id, r.offset + 4096 + 5);
    }
    f.flip(id, SEGMENT_BYTES - 4);
    let report = repaired(&f, &["--repair"]);
    assert_eq!(report["dropped_objects"], 4, "{report}");
    assert!(f.missing().len() <= 2);
}

#[test]
fn damaged_removals_are_rewritten() {
    for close in [true, false] {
        for at in [20, 200] {
            let f = FilledStore::new(1, close);
            let record = record_of(&f, RecordKind::Tombstones, &[]);
            f.flip(record.segment, record.offset + at);
            let report = repaired(&f, &["--repair"]);
            assert_eq!(report["dropped_objects"], 0, "{report}");
            assert!(report.to_string().contains("damaged removals are written again"), "{report}");
            assert_eq!(f.missing(), Vec::<u64>::new(), "close={close} at={at}");
        }
    }
}

/// Both a header and the footer are damaged: the record may have been a removal.
#[test]
fn older_objects_are_dropped_if_removals_may_be_lost() {
    let damage = |close| {
        let f = FilledStore::new(1, close);
        let record = record_of(&f, RecordKind::Tombstones, &f.segments()[..2]);
        f.flip(record.segment, record.offset + 200);
        f.flip(record.segment, SEGMENT_BYTES - 60);
        (f, record.segment)
    };
    let (f, id) = damage(false);
    let ids = f.segments();
    let doubtful: Vec<_> = ids
        .iter()
        .take_while(|other| **other != id)
        .chain([&id])
        .flat_map(|id| f.records(*id))
        .collect();
    let report = repaired(&f, &["--repair"]);
    let dropped: Vec<_> = report["repairs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|r| r["action"] == "segment is dropped")
        .collect();
    assert_eq!(dropped.len(), ids.iter().position(|i| *i == id).unwrap() + 1, "{report}");
    let mut lost: Vec<u64> = doubtful
        .iter()
        .filter(|r| r.kind == RecordKind::Data)
        .flat_map(|r| pages(&r.keys))
        .collect();
    lost.sort_unstable();
    lost.retain(|page| !f.removed.contains(page));
    assert_eq!(f.missing(), lost);

    let (f, _) = damage(false);
    let report = repaired(&f, &["--repair=keep"]);
    assert!(report["warnings"].to_string().contains("may return"), "{report}");
    assert_eq!(report["repairs"].as_array().unwrap().len(), 1, "{report}");
}

#[test]
fn truncated_segments_file_is_extended_again() {
    for (flags, keeps) in [("--repair", false), ("--repair=keep", true)] {
        let f = FilledStore::new(2, true);
        let (path, _) = f.location(SegmentId(0));
        // Segments 0 and 2 of this directory remain.
        File::options().write(true).open(&path).unwrap().set_len(2 * SEGMENT_BYTES).unwrap();
        let report = repaired(&f, &[flags]);
        assert!(report.to_string().contains("file has its length again"), "{report}");
        // The newest segment may have contained removals of all older objects.
        if keeps {
            assert!(report["warnings"].to_string().contains("may return"), "{report}");
        } else {
            assert!(f.missing().len() < PAGES as usize);
        }
    }
}

#[test]
fn missing_segments_file_is_created_again() {
    let f = FilledStore::new(2, true);
    std::fs::remove_file(f.location(SegmentId(1)).0).unwrap();
    repaired(&f, &["--repair", "--drop-missing-dirs"]);
    f.missing();
}

/// One block of the manifest is damaged in both copies.
#[test]
fn store_without_a_valid_manifest_becomes_empty() {
    let f = FilledStore::new(1, true);
    (0..2).for_each(|copy| flip(&f.manifest_path(copy), 4096 + 100));
    let report = repaired(&f, &["--repair"]);
    assert!(report.to_string().contains("store is made empty"), "{report}");
    assert_eq!(f.missing().len() + f.removed.len(), PAGES as usize);
}

/// Whether all objects are present that were neither removed nor cleared. Cleared objects may
/// return if they had been written, since only the manifest records clears.
fn is_complete(f: &FilledStore) -> bool {
    let store = f.open();
    let mut kept = (0..PAGES).filter(|page| !f.removed.contains(page));
    let present = kept.all(|page| is_present(&store, &key("m", page, 0), &bytes(page, 0, 0)));
    store.close().unwrap();
    present
}

#[test]
fn repair_keep_rebuilds_a_lost_manifest_from_the_segments() {
    for (name, block) in [("segment facts", 1), ("namespace facts", 2)] {
        for close in [true, false] {
            let f = FilledStore::new(2, close);
            (0..2).for_each(|copy| zero(&f.manifest_path(copy), block * 4096, 4096));
            let report = repaired(&f, &["--repair=keep"]);
            assert!(report["warnings"].to_string().contains("may return"), "{report}");
            assert!(report.to_string().contains("rebuilt from the segments"), "{name} {report}");
            assert!(is_complete(&f), "{name} close={close} {report}");
        }
    }
}

#[test]
fn store_without_a_superblock_is_removed_or_rebuilt_with_given_sizes() {
    let lose = || {
        let f = FilledStore::new(1, false);
        (0..2).for_each(|copy| std::fs::remove_file(f.manifest_path(copy)).unwrap());
        f
    };
    let f = lose();
    let ran = run(&f, &["--repair=keep"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("--capacity-bytes (ssd.bytes) and --namespaces-max"), "{ran:?}");
    let sizes = [
        format!("--capacity-bytes={CAPACITY_BYTES}"),
        format!("--namespaces-max={NAMESPACES_MAX}"),
    ];
    let report = repaired(&f, &["--repair=keep", &sizes[0], &sizes[1]]);
    assert!(report["warnings"].to_string().contains("both superblocks are lost"), "{report}");
    assert_eq!(f.missing_without_clears(&f.removed), Vec::<u64>::new());

    let f = lose();
    let ran = run(&f, &["--repair"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("the next open makes an empty store"), "{ran:?}");
    assert_eq!(f.missing().len() + f.removed.len(), PAGES as usize);
}

/// An object was damaged, dropped and put again with other bytes. If these are damaged too, the
/// first bytes, which are readable again, must not return.
#[test]
fn object_replaced_by_a_damaged_record_does_not_return() {
    let f = FilledStore::new(1, false);
    let stays =
        |r: &RecordLocation| r.kind == RecordKind::Data && !f.removed.contains(&pages(&r.keys)[0]);
    let old = f.records(middle(&f)).into_iter().find(stays).unwrap();
    let page = pages(&old.keys)[0];
    f.flip(old.segment, old.offset + 4096);
    let store = f.open();
    let first = bytes(page, 0, 0);
    assert!(!is_present(&store, &key("m", page, 0), &first), "it is damaged");
    put(&store, "m", page, 1);
    assert!(is_present(&store, &key("m", page, 0), &bytes(page, 0, 1)));
    store.flush(Options::default()).unwrap();
    (0..20).for_each(|page| put(&store, "more", page, 0));
    store.flush(Options::default()).unwrap();
    store.abandon();
    f.flip(old.segment, old.offset + 4096);
    let young =
        f.segments().iter().flat_map(|id| f.records(*id)).rfind(|r| r.keys == old.keys).unwrap();
    assert_ne!((young.segment, young.offset), (old.segment, old.offset));
    f.flip(young.segment, young.offset + 4096);
    repaired(&f, &["--repair"]);
    let store = f.open();
    assert!(!is_present(&store, &key("m", page, 0), &first), "the replaced object returned");
    store.close().unwrap();
}

#[test]
fn store_in_use_or_with_wrong_directories_is_not_repaired() {
    let f = FilledStore::new(2, true);
    flip(&f.manifest_path(0), 4096 + 100);
    let files = contents(&f);
    let refused = |f: &FilledStore, text: &str| {
        let ran = run(f, &["--repair"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains(text), "{ran:?}");
    };
    let held = File::open(f.location(SegmentId(0)).0).unwrap();
    held.lock_shared().unwrap();
    refused(&f, "the store is in use");
    drop(held);

    let mut swapped = f;
    swapped.dirs.reverse();
    refused(&swapped, "which belongs in the");
    swapped.dirs.reverse();
    let note = swapped.dirs[1].join("notes");
    std::fs::write(&note, "mine").unwrap();
    refused(&swapped, "directory holds other things than a store");
    std::fs::remove_file(note).unwrap();
    let dirs = swapped.dirs.clone();
    // Only one of two directories, while the manifest copy in it is damaged.
    flip(&swapped.manifest_path(0), 70);
    swapped.dirs.truncate(1);
    refused(&swapped, "directory 1 is not the one it was");
    swapped.dirs = dirs;
    flip(&swapped.manifest_path(0), 70);
    assert!(files == contents(&swapped), "something was written");
    repaired(&swapped, &["--repair"]);
}

#[test]
fn manifests_of_two_stores_are_not_repaired() {
    let (f, other) = (FilledStore::new(1, true), FilledStore::new(1, true));
    std::fs::copy(other.manifest_path(1), f.manifest_path(1)).unwrap();
    for flags in ["--repair", "--repair=keep"] {
        let ran = run(&f, &[flags]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("the copies are of two stores"), "{ran:?}");
    }
}
