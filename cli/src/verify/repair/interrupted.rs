//! A repair that ends after any of its writes leaves a store that opens with nothing wrong and nothing back that was
//! gone, or is refused by name; and that the next repair goes on with to the same end.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../tests/common/filled.rs"]
mod filled;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../tests/common/fixture.rs"]
mod fixture;

use std::path::Path;

use pagelith_layouts::record::RecordKind;

use self::filled::{Filled, PAGES, SEGMENT_BYTES, is_here, key};
use super::{Wish, repair};
use crate::on_disk::files::stop_after;

const DROP: Wish = Wish { keep: false, drop_missing_dirs: false, capacity_bytes: None, namespaces_max: None };

/// Damage of every kind that is repaired in place, of a store with or without a checkpoint.
fn harm(f: &Filled) {
    let ids = f.segments();
    fixture::flip(&f.manifest_path(0), 4096 + 100);
    let records = f.records(ids[1]);
    let data = records.iter().find(|r| r.kind == RecordKind::Data).unwrap();
    f.flip(data.segment, data.offset + 4096);
    f.flip(ids[2], SEGMENT_BYTES - 60);
    f.flip(ids[2], 50);
    let all = ids.iter().flat_map(|id| f.records(*id));
    let removal = all.into_iter().find(|r| r.kind == RecordKind::Tombstones && r.segment != ids[2]).unwrap();
    f.flip(removal.segment, removal.offset + 200);
}

/// Damage that leaves removals in doubt, so that what is older is dropped.
fn doubt(f: &Filled) {
    let ids = f.segments();
    let all = ids[1..].iter().flat_map(|id| f.records(*id));
    let removal = all.into_iter().find(|r| r.kind == RecordKind::Tombstones).unwrap();
    f.flip(removal.segment, removal.offset + 200);
    f.flip(removal.segment, SEGMENT_BYTES - 60);
}

/// Nothing wrong and nothing removed is here. Not asked of a store that is refused.
fn nothing_is_back(f: &Filled) {
    let Ok(store) = f.try_open() else { return };
    for page in 0..PAGES {
        for part in 0..2 {
            let here = is_here(&store, &key("m", page, part), &filled::bytes(page, part, 0));
            assert!(!here || !f.removed.contains(&page), "removed and here again page={page}");
        }
    }
    store.abandon();
}

fn copy(from: &Filled, to: &Filled) {
    for (from, to) in from.dirs.iter().zip(&to.dirs) {
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), Path::new(to).join(entry.file_name())).unwrap();
        }
    }
}

/// Which segments there are is lost in both copies of the manifest.
fn lost(f: &Filled) {
    (0..2).for_each(|copy| filled::zero(&f.manifest_path(copy), 4096, 4096));
}

fn at_every_step(close: bool, damage: fn(&Filled), wish: Wish, opens_meanwhile: bool) {
    let f = Filled::new(1, close);
    damage(&f);
    let whole = Filled::new(1, true);
    copy(&f, &whole);
    repair(&whole.dirs, wish).unwrap();
    let expected = whole.missing();
    let scratch = Filled::new(1, true);
    let mut steps = 0;
    loop {
        copy(&f, &scratch);
        stop_after(Some(steps));
        let ended = repair(&scratch.dirs, wish);
        stop_after(None);
        if ended.is_ok() {
            break;
        }
        if opens_meanwhile {
            nothing_is_back(&scratch);
        }
        repair(&scratch.dirs, wish).unwrap_or_else(|e| panic!("steps={steps}: {e:#}"));
        assert_eq!(scratch.missing_of(&f.removed), expected, "steps={steps}");
        steps += 1;
    }
    assert!(steps > 3, "steps={steps}");
}

#[test]
fn of_damage_in_place() {
    at_every_step(true, harm, DROP, false);
    at_every_step(false, harm, DROP, false);
}

#[test]
fn of_damage_in_place_and_the_store_is_used_in_between() {
    at_every_step(true, harm, DROP, true);
}

#[test]
fn of_removals_in_doubt() {
    at_every_step(false, doubt, DROP, false);
}

#[test]
fn of_a_lost_manifest_that_is_rebuilt() {
    at_every_step(true, lost, Wish { keep: true, ..DROP }, true);
}
