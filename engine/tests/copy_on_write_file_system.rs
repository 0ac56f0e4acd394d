//! A full copy-on-write file system: btrfs on a loop device.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]
#![allow(clippy::print_stdout, reason = "a skip is printed")]

#[allow(dead_code, reason = "other tests use the rest")]
mod loop_device;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use loop_device::{LoopFs, run, text};
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    Config, ErrorKind, GetOutcome, GetSlice, MachineLimits, Options, PutOutcome, PutSlice, Size,
    Store, Tier,
};

const LEN: usize = 100_000;

fn btrfs() -> Option<LoopFs> {
    LoopFs::btrfs(160).inspect_err(|why| println!("skipped: no loop device with btrfs: {why}")).ok()
}

fn open(dir: &Path) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.staging.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(16);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = vec![dir.to_path_buf()];
    (config.ssd.probe_ms, config.ssd.probe_max_ms) = (1, 1);
    Store::open(config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap()).unwrap()
}

fn key(n: u8) -> ObjectKey {
    let ns = Namespace::default().id();
    ObjectKey::new(ns, PrefixHash([n; 32]), Role::Target, "kv", "k", Shard::Whole).unwrap()
}

fn put(store: &Store, n: u8) {
    let bytes = vec![n; LEN];
    let done = store.put_batch(&[PutSlice { key: key(n), pieces: &[&bytes] }], Options::default());
    assert_eq!(done, [Ok(PutOutcome::Stored)]);
}

#[track_caller]
fn hit(store: &Store, n: u8) -> Tier {
    let mut bytes = vec![0; LEN];
    let get = GetSlice { key: key(n), range: None, pieces: &mut [&mut bytes] };
    let outcome = store.get_batch(&mut [get], Options::default()).remove(0).unwrap();
    assert!(bytes.iter().all(|b| *b == n), "wrong bytes");
    match outcome {
        GetOutcome::Hit { tier, .. } => tier,
        GetOutcome::Miss(cause) => panic!("a miss: n={n} {cause:?}"),
    }
}

/// Fill the file system to the last block, metadata included.
fn fill(fs: &LoopFs) {
    for bs in ["1M", "4096"] {
        let rest = format!("of={}", text(&fs.path().join(format!("rest{bs}"))));
        let full = run("dd", &["if=/dev/zero", &rest, &format!("bs={bs}")]).unwrap_err();
        assert!(full.contains("No space left"), "{full}");
        run("sync", &["-f", text(fs.path())]).unwrap();
    }
}

fn empty(fs: &LoopFs) {
    ["rest1M", "rest4096"].iter().for_each(|name| fs::remove_file(fs.path().join(name)).unwrap());
    run("sync", &["-f", text(fs.path())]).unwrap();
}

/// Whether a file is written in place.
fn in_place(file: &Path) -> bool {
    run("lsattr", &[text(file)]).unwrap().split(' ').next().unwrap().contains('C')
}

const FILES: [&str; 6] =
    ["LOCK", "segments", "manifest.0", "manifest.1", "checkpoint.0", "checkpoint.1"];

#[test]
fn store_with_nocow_files_works_on_a_full_file_system() {
    let Some(fs) = btrfs() else { return };
    let dir = fs.path().join("store");
    open(&dir).close().unwrap();
    FILES.iter().for_each(|name| assert!(in_place(&dir.join(name)), "{name}"));
    fill(&fs);
    // More than one lap of the log, so that every kind of write is made, also over earlier ones.
    for round in 0..6u8 {
        let store = open(&dir);
        (0..40).for_each(|n| put(&store, round * 40 + n));
        let report = store.flush(Options::default()).unwrap();
        assert_eq!((report.durable_objects, report.lost_objects), (40, 0), "round={round}");
        assert_eq!(store.stats().ssd_state, "on");
        store.close().unwrap();
    }
    assert_eq!(hit(&open(&dir), 239), Tier::Ssd);
}

#[test]
fn store_with_cow_files_is_read_only_on_a_full_file_system() {
    let Some(fs) = btrfs() else { return };
    let dir = fs.path().join("store");
    let store = open(&dir);
    (0..40).for_each(|n| put(&store, n));
    store.close().unwrap();
    // Like files that were restored from a backup.
    for name in FILES {
        let (file, copy) = (dir.join(name), dir.join("copy"));
        run("cp", &["--reflink=never", text(&file), text(&copy)]).unwrap();
        fs::rename(&copy, &file).unwrap();
        assert!(!in_place(&file), "{name}");
    }
    fill(&fs);
    let store = open(&dir);
    assert_eq!(store.stats().ssd_state, "read-only");
    (0..40).for_each(|n| assert_eq!(hit(&store, n), Tier::Ssd));
    put(&store, 50);
    let error = store.flush(Options::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(error.message.contains("NoSpace"), "{error}");

    empty(&fs);
    let start = Instant::now();
    while !store.flush(Options::default()).is_ok_and(|report| report.durable_objects > 0) {
        assert!(start.elapsed() < Duration::from_secs(30), "it is not written again");
    }
    store.close().unwrap();
    let store = open(&dir);
    assert_eq!(store.stats().ssd_state, "on");
    (0..40).chain([50]).for_each(|n| assert_eq!(hit(&store, n), Tier::Ssd));
}
