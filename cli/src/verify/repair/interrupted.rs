//! A repair that is interrupted after any of its writes leaves a store that opens without damage
//! and without removed objects, or that is refused. The next repair continues and has the same
//! result.

#[allow(dead_code, reason = "other tests use other parts")]
#[path = "../../../tests/common/filled_store.rs"]
mod filled_store;
#[allow(dead_code, reason = "other tests use other parts")]
#[path = "../../../tests/common/fixture.rs"]
mod fixture;

use std::path::Path;

use pagelith_layouts::record::RecordKind;

use self::filled_store::{FilledStore, PAGES, SEGMENT_BYTES, is_present, key};
use super::{RepairOptions, repair};
use crate::on_disk::files::stop_after;

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
