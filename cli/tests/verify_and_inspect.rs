//! `verify` and `inspect` on intact and damaged stores, written without the engine.
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

mod common;

use std::fs::File;
use std::path::Path;

use common::fixture::{Fixture, LENGTHS, SEGMENT_BYTES, STORE, flip};
use common::{ProgramOutput, pagelith};
use pagelith_layouts::footer;
use pagelith_layouts::ids::{Incarnation, SegmentId};
use pagelith_layouts::segment::SegmentIdentity;
use serde_json::Value;

/// Two sealed segments (one in its second incarnation, with remains of the first after its end),
/// one open, and one ready.
fn store(dir: &Path) -> (Fixture, [Vec<u64>; 3]) {
    let mut f = Fixture::new(&[dir]);
    let first = f.segment(0, 1, 1, 3, true);
    f.segment(1, 1, 2, 5, false);
    let second = f.segment(1, 2, 3, 2, true);
    let open = f.segment(2, 1, 4, 3, false);
    f.announce(3, 1, 5);
    f.checkpoint(0, 1, 3);
    (f, [first, second, open])
}

fn verify(f: &Fixture) -> ProgramOutput {
    let mut args = vec!["verify".into(), "--json".into()];
    args.extend(f.dirs.iter().map(|d| d.as_os_str().to_owned()));
    pagelith(&args)
}

/// The findings of severity `wrong`.
fn wrong(ran: &ProgramOutput) -> Vec<Value> {
    let all = ran.json()["findings"].as_array().unwrap().clone();
    all.into_iter().filter(|f| f["severity"] == "wrong").collect()
}

/// The only finding of severity `wrong`: (segment, offset, cause).
fn only_wrong(ran: &ProgramOutput) -> (Option<u64>, Option<u64>, String) {
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let wrong = wrong(ran);
    assert_eq!(wrong.len(), 1, "{ran:?}");
    let w = &wrong[0];
    (w["segment"].as_u64(), w["offset"].as_u64(), w["cause"].as_str().unwrap().to_owned())
}

#[test]
fn intact_store_with_older_incarnations_has_no_findings() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    let ran = verify(&f);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    assert_eq!(json["findings"], serde_json::json!([]), "{json}");
    for (name, expected) in [
        ("segments", 4),
        ("segments_sealed", 2),
        ("records", 8),
        ("objects", 16),
        ("stale_records", 3),
    ] {
        assert_eq!(json[name], expected, "{name} {json}");
    }
    let text = pagelith(&["verify".as_ref(), dir.path().as_os_str()]);
    assert_eq!(text.code, Some(0));
    assert!(text.stdout.starts_with("nothing is wrong segments=4 sealed=2 records=8 "), "{text:?}");
}

/// The minimum sequence of a footer excludes tombstones.
#[test]
fn segment_with_only_removals_has_no_findings() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(0, 1, 1, 1, true);
    f.removal(1, 2);
    let ran = verify(&f);
    assert_eq!((ran.code, &ran.json()["findings"]), (Some(0), &serde_json::json!([])), "{ran:?}");
}

#[test]
fn flipped_bit_in_a_sealed_header_or_footer_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (f, [first, ..]) = store(dir.path());
    // A byte of each field: magic, checksum, version, kind, lengths, store, namespace, generation,
    // segment, counts, incarnation, offset, sequence, group, flags, members, payload checksums,
    // padding.
    for byte in [0, 8, 24, 26, 28, 32, 48, 64, 72, 76, 80, 88, 96, 104, 140, 192, 320, 530, 4095] {
        f.flip(0, first[1] + byte);
        let (segment, offset, cause) = only_wrong(&verify(&f));
        assert_eq!((segment, offset), (Some(0), Some(first[1])), "byte={byte} {cause}");
        assert!(cause.contains("record header"), "byte={byte} {cause}");
        f.flip(0, first[1] + byte);
    }
    let footer = SEGMENT_BYTES - 4096;
    for byte in
        [0, 128, 400, 2000, 3968, 3976, 3992, 3996, 4000, 4016, 4024, 4032, 4040, 4056, 4064, 4095]
    {
        f.flip(0, footer + byte);
        let ran = verify(&f);
        assert_eq!(ran.code, Some(1), "byte={byte} {ran:?}");
        let (segment, offset, cause) = only_wrong(&ran);
        assert_eq!((segment, offset), (Some(0), Some(footer)), "byte={byte} {cause}");
        // With a flipped incarnation it looks like an older footer, and the current one is missing.
        let expected = if byte == 4032 { "segment has records and no footer" } else { "footer" };
        assert!(cause.contains(expected), "byte={byte} {cause}");
        assert_eq!(cause.contains("no footer"), byte == 4032, "byte={byte} {cause}");
        f.flip(0, footer + byte);
    }
    f.flip(0, 17);
    let found = only_wrong(&verify(&f));
    assert_eq!(found, (Some(0), Some(0), "checksum of segment header does not match".to_owned()));
}

#[test]
fn flipped_payload_bit_is_reported_with_segment_record_block_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let (f, [_, second, _]) = store(dir.path());
    let header = 4096;
    let block = second[1] + header + 32768;
    f.flip(1, block + 100);
    let ran = verify(&f);
    let cause = "checksum of payload block 1 does not match".to_owned();
    assert_eq!(only_wrong(&ran), (Some(1), Some(second[1]), cause));
    let found = &wrong(&ran)[0];
    assert_eq!(found["block_offset"], block);
    let key = found["key"].as_str().unwrap();
    assert!(key.ends_with("/kv/k/whole"), "{key}");
    assert!(found["file"].as_str().unwrap().ends_with("/segments"), "{found}");
    let text = pagelith(&["verify".as_ref(), dir.path().as_os_str()]);
    let line = text.stdout.lines().next().unwrap();
    let expected = format!(
        "wrong: checksum of payload block 1 does not match segment=1 offset={} block_offset={block} key={key} file={}",
        second[1],
        dir.path().join("segments").display()
    );
    assert_eq!(line, expected);
}

#[test]
fn padding_after_a_payload_is_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (f, [first, ..]) = store(dir.path());
    f.flip(0, first[1] - 1);
    assert!(!LENGTHS[1].is_multiple_of(4096));
    assert_eq!(verify(&f).code, Some(0));
}

#[test]
fn torn_tail_is_reported_and_not_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (f, [.., open]) = store(dir.path());
    // The payload of the last record was not written.
    f.write(2, open[2] + 8192, &vec![0; 4096]);
    let ran = verify(&f);
    let json = ran.json();
    assert_eq!(
        (ran.code, &json["torn_tails"], &json["wrong"]),
        (Some(0), &1.into(), &0.into()),
        "{json}"
    );
    let found = &json["findings"][0];
    assert_eq!((&found["severity"], &found["segment"]), (&"torn_tail".into(), &2.into()), "{json}");
    assert_eq!(found["offset"], open[2], "{json}");
    // Its header was not written completely either.
    f.flip(2, open[2] + 200);
    let json = verify(&f).json();
    assert_eq!((&json["torn_tails"], &json["wrong"]), (&1.into(), &0.into()), "{json}");
    // A record that was not written, before one that was.
    f.write(2, open[1], &vec![0; (open[2] - open[1]) as usize]);
    f.flip(2, open[2] + 200);
    f.write(2, open[2] + 8192, &vec![0; 4096]);
    let json = verify(&f).json();
    assert_eq!(json["findings"][1]["offset"], open[1], "{json}");
    assert_eq!((&json["torn_tails"], &json["wrong"]), (&2.into(), &0.into()), "{json}");
    let text = pagelith(&["verify".as_ref(), dir.path().as_os_str()]);
    assert!(text.stdout.starts_with("torn tail: checksum of payload block "), "{text:?}");
}

#[test]
fn damage_in_an_open_segment_before_the_replay_point_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (f, [.., open]) = store(dir.path());
    f.flip(2, open[0] + 4096);
    assert_eq!(verify(&f).code, Some(0));
    f.checkpoint(1, 2, 5);
    let ran = verify(&f);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let causes: Vec<_> =
        wrong(&ran).iter().map(|w| w["cause"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        causes,
        ["checksum of payload block 0 does not match", "segment has records and no footer"]
    );
}

#[test]
fn flipped_manifest_bit_is_reported_with_copy_block_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    for (copy, block) in [(0, 0), (0, 1), (1, 1), (1, 2)] {
        let path = f.manifest_path(copy);
        flip(&path, block * 4096 + 100);
        let cause = format!("checksum of manifest block does not match copy={copy} block={block}");
        assert_eq!(only_wrong(&verify(&f)), (None, Some(block * 4096), cause));
        flip(&path, block * 4096 + 100);
    }
}

#[test]
fn crash_between_the_manifest_copies_is_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let (mut f, _) = store(dir.path());
    let before = std::fs::read(f.manifest_path(1)).unwrap();
    f.announce(3, 2, 6);
    std::fs::write(f.manifest_path(1), before).unwrap();
    let ran = verify(&f);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.json()["findings"][0]["severity"], "note", "{ran:?}");
}

#[test]
fn damage_in_both_manifest_copies_is_reported_for_both() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    for copy in 0..2 {
        flip(&f.manifest_path(copy), 4096 + 100);
    }
    let ran = verify(&f);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for copy in 0..2 {
        let cause = format!("checksum of manifest block does not match copy={copy} block=1");
        assert!(ran.stdout.contains(&cause), "{ran:?}");
    }
    let ran = pagelith(&["inspect".as_ref(), dir.path().as_os_str()]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("copy=0 block=1 offset=4096"), "{ran:?}");
    assert!(ran.stderr.contains("no copy of the manifest can be used"), "{ran:?}");
}

#[test]
fn missing_and_truncated_files_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    std::fs::remove_file(f.manifest_path(1)).unwrap();
    let (.., cause) = only_wrong(&verify(&f));
    assert_eq!(cause, "file is missing expected_bytes=12288");
    f.write_manifest();
    let segments = File::options().write(true).open(dir.path().join("segments")).unwrap();
    segments.set_len(3 * SEGMENT_BYTES + 5).unwrap();
    let ran = verify(&f);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let text = ran.stdout;
    let length = "file has another length expected_bytes=2097152 found_bytes=1572869";
    assert!(text.contains(length) && text.contains("cannot read segment=3 offset="), "{text}");
}

#[test]
fn damaged_checkpoint_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    let path = dir.path().join("checkpoint.0");
    flip(&path, 60);
    let cause = "checksum of checkpoint does not match".to_owned();
    assert_eq!(only_wrong(&verify(&f)), (None, Some(0), cause));
    flip(&path, 60);
    assert_eq!(verify(&f).code, Some(0));
}

#[test]
fn directory_without_a_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let message = |command: &str, path: &Path| {
        let ran = pagelith(&[command.as_ref(), path.as_os_str()]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        ran.stderr
    };
    for command in ["verify", "inspect"] {
        let expected = format!(
            "error: not a store: no file of a store is there, is the drive mounted? dir={}\n",
            dir.path().display()
        );
        assert_eq!(message(command, dir.path()), expected);
        let text = message(command, &missing);
        assert!(text.contains("not a store: the directory cannot be read dir="), "{text}");
    }
    std::fs::write(dir.path().join("CREATING"), "").unwrap();
    let text = message("verify", dir.path());
    assert!(text.contains("its creation was not finished"), "{text}");
}

#[test]
fn newer_format_is_refused_with_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    for copy in 0..2 {
        let mut bytes = std::fs::read(f.manifest_path(copy)).unwrap();
        bytes[24] = 2;
        let sum = pagelith_layouts::checksum::checksum_around(&bytes[..4096], 8).unwrap();
        bytes[8..24].copy_from_slice(&sum);
        std::fs::write(f.manifest_path(copy), bytes).unwrap();
    }
    for command in ["verify", "inspect"] {
        let ran = pagelith(&[command.as_ref(), dir.path().as_os_str()]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains("newer format version=2 newest_known=1"), "{ran:?}");
    }
}

#[test]
fn store_of_two_directories_needs_both() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let mut f = Fixture::new(&[&a, &b]);
    let offsets = f.segment(1, 1, 1, 2, true);
    f.segment(2, 1, 2, 2, true);
    f.checkpoint(0, 1, 3);
    assert_eq!(verify(&f).code, Some(0));
    f.flip(1, offsets[0] + 4096);
    let ran = verify(&f);
    assert_eq!(only_wrong(&ran).0, Some(1));
    assert!(wrong(&ran)[0]["file"].as_str().unwrap().contains("/b/"), "{ran:?}");
    let ran = pagelith(&["verify".as_ref(), a.as_os_str()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("another number of directories has=2 given=1"), "{ran:?}");
    for command in ["verify", "inspect"] {
        let ran = pagelith(&[command.as_ref(), b.as_os_str(), a.as_os_str()]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains("which belongs in the"), "{ran:?}");
    }
}

/// After a failed write a segment is sealed without the records of that write. Their sequences and
/// end stay in the footer, because the device may have written them anyway.
#[test]
fn footer_after_a_failed_write_is_not_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(1, 1, 1, 2, true);
    let (segment, incarnation) = (SegmentId(1), Incarnation(1));
    let identity = SegmentIdentity { store: STORE, segment, incarnation };
    let end = SEGMENT_BYTES;
    let last = f.segment_bytes(1).split_off(end as usize - 4096);
    let (facts, entries) = footer::decode(&last, identity, end).unwrap();
    f.write(1, end - 4096, &footer::encode(&facts, &entries[..2]));
    let ran = verify(&f);
    assert_eq!((ran.code, &ran.json()["records"]), (Some(0), &1.into()), "{ran:?}");
}

#[test]
fn removals_are_not_counted_as_objects() {
    let dir = tempfile::tempdir().unwrap();
    let mut f = Fixture::new(&[dir.path()]);
    f.segment(1, 1, 1, 2, true);
    f.removal(2, 2);
    let report = verify(&f).json();
    assert_eq!((&report["records"], &report["objects"]), (&3.into(), &4.into()), "{report}");
    let inspected =
        pagelith(&["inspect".as_ref(), "--json".as_ref(), f.dirs[0].as_os_str()]).json();
    let removal = &inspected["segments"][2];
    assert_eq!((&removal["records"], &removal["objects"]), (&1.into(), &0.into()), "{inspected}");
    assert_eq!(inspected["namespaces"][0]["objects"], 4, "{inspected}");
}

#[test]
fn store_in_use_is_inspected_and_not_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (f, _) = store(dir.path());
    let held = File::open(dir.path().join("segments")).unwrap();
    held.lock().unwrap();
    let ran = verify(&f);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("the store is in use"), "{ran:?}");
    let ran = pagelith(&["inspect".as_ref(), dir.path().as_os_str()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stderr.contains("the store is in use") && ran.stdout.contains("(in use)"),
        "{ran:?}"
    );
}

#[test]
fn inspect_shows_segments_namespaces_and_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (f, offsets) = store(dir.path());
    let ran = pagelith(&["inspect".as_ref(), "--json".as_ref(), f.dirs[0].as_os_str()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let json = ran.json();
    let states: Vec<_> = json["segments"].as_array().unwrap().iter().map(|s| &s["state"]).collect();
    assert_eq!(states, ["sealed", "sealed", "open", "ready"]);
    let second = &json["segments"][1];
    assert_eq!((&second["incarnation"], &second["order"]), (&2.into(), &3.into()));
    assert_eq!((&second["records"], &second["objects"]), (&2.into(), &4.into()));
    assert_eq!(second["bytes"], offsets[1][2] - 4096);
    assert_eq!((&second["min_sequence"], &second["max_sequence"]), (&9.into(), &10.into()));
    let namespace = &json["namespaces"][0];
    assert_eq!((&namespace["generation"], &namespace["objects"]), (&1.into(), &16.into()));
    assert_eq!(json["checkpoints"][0]["replay_from"], 3);
    assert_eq!(json["checkpoints"][1]["state"], "never written");
    let text = pagelith(&["inspect".as_ref(), f.dirs[0].as_os_str()]).stdout;
    assert!(text.contains("capacity_bytes=8388608") && text.contains("sealed"), "{text}");
}
