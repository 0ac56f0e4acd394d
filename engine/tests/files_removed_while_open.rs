//! Files that are removed, replaced or truncated while a store has them open: later puts are not
//! reported as durable.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]
#![allow(clippy::print_stdout, reason = "a skip is printed")]

#[allow(dead_code, reason = "other tests use the rest")]
mod loop_device;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use loop_device::{run, text};
use pagelith::config::SsdIo;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    Config, Error, ErrorKind, FlushReport, GetSlice, MachineLimits, Options, PutOutcome, PutSlice,
    Size, Store,
};

const LEN: usize = 100_000;
const SIDES: [SsdIo; 2] = [SsdIo::Auto, SsdIo::Blocking];

fn config(dirs: &[PathBuf], io: SsdIo) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.staging.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(16);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = dirs.to_vec();
    config.ssd.io = io;
    config.ssd.probe_ms = 1;
    config.ssd.probe_max_ms = 1;
    config
}

fn open(config: Config) -> Store {
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

fn hits(store: &Store, n: u8) -> bool {
    let mut bytes = vec![0; LEN];
    let get = GetSlice { key: key(n), range: None, pieces: &mut [&mut bytes] };
    let hit = store.get_batch(&mut [get], Options::default())[0].as_ref().is_ok_and(|o| o.is_hit());
    assert!(!hit || bytes.iter().all(|b| *b == n), "wrong bytes");
    hit
}

fn flush(store: &Store) -> Result<FlushReport, Error> {
    store.flush(Options::default())
}

/// Nothing is durable from now on, and the error names the file, what happened to it, and the
/// remedy.
#[track_caller]
fn is_gone(store: &Store, file: &Path, what: &str) {
    let error = flush(store).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    for words in [text(file), &format!("the file was {what}"), "open it again"] {
        assert!(error.message.contains(words), "{words}: {error}");
    }
    assert_eq!(store.stats().ssd_state, "read-only");
    // Later requests get the reason too.
    let again = flush(store).unwrap_err();
    assert!(again.message.contains(text(file)), "{again}");
}

#[test]
fn flush_after_directory_removal_is_unavailable_and_counts_losses() {
    for io in SIDES {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("store");
        let store = open(config(std::slice::from_ref(&dir), io));
        put(&store, 1);
        assert_eq!(flush(&store).unwrap().durable_objects, 1);
        fs::remove_dir_all(&dir).unwrap();
        (2..11).for_each(|n| put(&store, n));
        is_gone(&store, &dir, "removed");
        // Probes do not turn the tier on again, and DRAM hits are served.
        is_gone(&store, &dir, "removed");
        assert!((2..11).all(|n| hits(&store, n)));
        let closed = store.close().unwrap_err();
        assert_eq!(closed.kind, ErrorKind::Unavailable, "{closed}");

        let store = open(config(&[dir], io));
        assert!(store.opened().made && !hits(&store, 1));
        put(&store, 1);
        assert_eq!(flush(&store).unwrap().durable_objects, 1);
    }
}

#[test]
fn removal_of_each_file_is_detected() {
    for (dir, name) in [
        (0, "segments"),
        (1, "segments"),
        (0, "manifest.0"),
        (1, "manifest.1"),
        (0, "checkpoint.0"),
        (0, "checkpoint.1"),
        (0, "LOCK"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let dirs = [home.path().join("a"), home.path().join("b")];
        let store = open(config(&dirs, SsdIo::Auto));
        fs::remove_file(dirs[dir].join(name)).unwrap();
        // Without a new put too: objects of an earlier flush are lost as well.
        is_gone(&store, &dirs[dir].join(name), "removed");
    }
}

#[test]
fn remove_and_clear_after_file_removal_are_unavailable() {
    let home = tempfile::tempdir().unwrap();
    for removes in [true, false] {
        let dir = home.path().join(format!("store{removes}"));
        let store = open(config(std::slice::from_ref(&dir), SsdIo::Auto));
        put(&store, 1);
        flush(&store).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let error = match removes {
            true => store.remove(&[key(1)], Options::default()).map(|_| ()).unwrap_err(),
            false => {
                store.clear(Namespace::default().id(), Options::default()).map(|_| ()).unwrap_err()
            }
        };
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(error.message.contains(text(&dir)), "{error}");
    }
}

#[test]
fn replaced_store_is_detected_and_original_is_used_again() {
    let home = tempfile::tempdir().unwrap();
    let (dir, aside) = (home.path().join("store"), home.path().join("aside"));
    let store = open(config(std::slice::from_ref(&dir), SsdIo::Auto));
    fs::rename(&dir, &aside).unwrap();
    let other = open(config(std::slice::from_ref(&dir), SsdIo::Auto));
    assert!(other.opened().made);
    put(&store, 1);
    let start = Instant::now();
    // The store may have noticed before the other directory was in place; the next probe checks
    // again.
    while !flush(&store).unwrap_err().message.contains("the file was replaced") {
        assert!(start.elapsed() < Duration::from_secs(30), "it is not noticed");
    }
    put(&other, 2);
    assert_eq!(flush(&other).unwrap().durable_objects, 1);
    other.close().unwrap();

    fs::remove_dir_all(&dir).unwrap();
    fs::rename(&aside, &dir).unwrap();
    let (mut durable, mut lost) = (0, 0);
    while durable == 0 {
        // A flush requested just before the tier is on again may be answered before the requeued
        // frames.
        if let Ok(report) = flush(&store) {
            (durable, lost) = (durable + report.durable_objects, lost + report.lost_objects);
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it is not taken again");
    }
    assert_eq!((durable, lost), (1, 1));
    assert_eq!(store.stats().ssd_state, "on");
    store.close().unwrap();
    assert!(hits(&open(config(&[dir], SsdIo::Auto)), 1));
}

#[test]
fn truncated_file_is_detected() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let store = open(config(std::slice::from_ref(&dir), SsdIo::Auto));
    put(&store, 1);
    fs::File::options().write(true).open(dir.join("segments")).unwrap().set_len(4096).unwrap();
    is_gone(&store, &dir, "cut");
}

#[test]
fn mount_over_the_directory_is_detected() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("store");
    let store = open(config(std::slice::from_ref(&dir), SsdIo::Auto));
    if let Err(why) = run("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs", text(&dir)]) {
        return println!("skipped: no tmpfs can be mounted: {why}");
    }
    put(&store, 1);
    let error = flush(&store).unwrap_err();
    run("umount", &[text(&dir)]).unwrap();
    assert!(error.message.contains("the file was removed"), "{error}");
}

#[test]
fn store_in_a_relative_directory_survives_chdir() {
    let home = tempfile::tempdir().unwrap();
    std::env::set_current_dir(home.path()).unwrap();
    let store = open(config(&[PathBuf::from("store")], SsdIo::Auto));
    std::env::set_current_dir("/").unwrap();
    put(&store, 1);
    assert_eq!(flush(&store).unwrap().durable_objects, 1);
    store.close().unwrap();
}
