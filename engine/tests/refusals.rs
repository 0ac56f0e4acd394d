//! Refusals and their messages: one test for each kind of bad input.
#![allow(clippy::disallowed_methods)] // Tests make files of their own.

mod suite;

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith::io::clock::{Clock, Mono};
use pagelith::io::fault::IoFault;
use pagelith::io::probe::{BackendChoice, open_disk};
use pagelith::io::runtime::{Env, Join, Runtime, Task};
use pagelith::io::signal::Signal;
use pagelith::io::system::{SystemEntropy, Threads};
use pagelith::layouts::checksum::checksum_around;
use pagelith::{Config, ErrorKind, MachineLimits, Options, PutOutcome, Size};
use suite::env::{IoKind, TestEnv};
use suite::harness::Store;
use suite::helpers::*;

const LEN: usize = 50_000;

/// Directories with the backend that the machine allows.
fn world() -> TestEnv {
    TestEnv::new(IoKind::Blocking, false, 1)
}

fn config(world: &TestEnv) -> Config {
    let mut config = world.config();
    config.ssd.io = pagelith::config::SsdIo::Auto;
    config
}

fn open(world: &TestEnv) -> Result<Store, pagelith::Error> {
    world.try_open(&config(world))
}

/// A closed store of forty pages: two full segments and one that is not.
fn closed() -> TestEnv {
    let world = world();
    let store = open(&world).expect("made");
    store_pages(&store, 0..40, LEN);
    store.close().expect("closed");
    world
}

/// The store is refused as damaged, and the message names the repair command.
#[track_caller]
fn damaged(world: &TestEnv, message: &str) {
    let dir = dir(world);
    let commands = format!(
        "; `pagelith verify {dir}` says what is damaged, `pagelith verify --repair {dir}` drops it"
    );
    refused(open(world), ErrorKind::Damaged, &(message.to_owned() + &commands));
}

fn dir(world: &TestEnv) -> String {
    world.paths()[0].display().to_string()
}

#[test]
fn directory_of_an_open_store_is_refused() {
    let world = world();
    let first = open(&world).expect("made");
    store_page(&first, 1, LEN);
    let message = format!(
        "store is open elsewhere dir={} file=segments owner=({}); if that process has ended, a child that it forked \
             still has the file, its last writes are under way, or `pagelith verify` reads it",
        dir(&world),
        pagelith::io::lock_owner::this_process().trim()
    );
    refused(open(&world), ErrorKind::Denied, &message);
    let lock = String::from_utf8(world.read(0, "LOCK")).expect("text");
    assert!(lock.starts_with(&pagelith::io::lock_owner::this_process()), "{lock}");
    hit_page(&first, 1, LEN);
    first.close().expect("closed");
    hit_page(&open(&world).expect("free again"), 1, LEN);
}

/// A clock and a runtime of which each pause advances the clock. After `pauses_left` of them the
/// files that a killed process's writes still hold are released.
struct LastWrites {
    now: AtomicU64,
    pauses_left: AtomicU64,
    files: Mutex<Option<File>>,
}

impl LastWrites {
    /// The last writes of a process that has ended: the store in `world` is closed and locked.
    fn hold(world: &TestEnv, pauses_left: u64) -> Arc<LastWrites> {
        // Above the kernel's largest process number, 2^22.
        world.write(0, "LOCK", 0, format!("{:4095}\n", "pid=4194305").as_bytes());
        let file = File::open(world.paths()[0].join("segments")).expect("opened");
        file.try_lock().expect("locked");
        let (now, pauses_left) = (AtomicU64::new(0), AtomicU64::new(pauses_left));
        Arc::new(LastWrites { now, pauses_left, files: Mutex::new(Some(file)) })
    }

    fn open(self: &Arc<LastWrites>, world: &TestEnv) -> Result<pagelith::Store, pagelith::Error> {
        let limits = MachineLimits::of_this_machine().expect("facts");
        let config = config(world).validate(&limits).expect("valid");
        let disk = Some(open_disk(config.ssd_dirs(), BackendChoice::Auto).expect("a disk"));
        let entropy = Arc::new(SystemEntropy);
        let env = Env { disk, clock: self.clone(), entropy, runtime: self.clone() };
        pagelith::Store::open_in(config, env)
    }
}

impl Clock for LastWrites {
    fn now(&self) -> Mono {
        Mono(self.now.load(Relaxed))
    }
}

impl Runtime for LastWrites {
    fn spawn(
        &self,
        name: &str,
        task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<Box<dyn Join>, IoFault> {
        Threads.spawn(name, task, wake)
    }

    fn pause(&self, _: &Signal, _: u64, timeout: Duration) {
        self.now.fetch_add(timeout.as_nanos() as u64, Relaxed);
        if self.pauses_left.fetch_sub(1, Relaxed) == 1 {
            self.files.lock().expect("no panic").take();
        }
    }
}

#[test]
fn open_waits_for_the_last_writes_of_a_killed_process() {
    let world = closed();
    let writes = LastWrites::hold(&world, 3);
    let store = writes.open(&world).expect("opened once they have landed");
    assert!(writes.files.lock().expect("no panic").is_none(), "it did not wait");
    let page = store.exists_batch(&[key(1)], Options::default());
    assert_eq!(page, [true]);
}

/// A process that the killed one forked may hold the lock for ever.
#[test]
fn directory_that_a_killed_process_keeps_locked_is_refused_after_ten_seconds() {
    let world = closed();
    let writes = LastWrites::hold(&world, u64::MAX);
    let error = writes.open(&world).map(drop).expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
    assert!(error.message.contains("owner=(pid=4194305)"), "{error}");
    assert_eq!(writes.now(), Mono(Duration::from_secs(10).as_nanos() as u64));
}

#[test]
fn directory_without_a_store_is_refused() {
    let world = world();
    let path = world.paths()[0].clone();
    std::fs::create_dir(&path).expect("made");
    std::fs::write(path.join("thesis.tex"), b"irreplaceable").expect("written");
    let message =
        format!("directory is not a store and not empty dir={} file=thesis.tex", dir(&world));
    refused(open(&world), ErrorKind::Invalid, &message);
    assert_eq!(std::fs::read(path.join("thesis.tex")).expect("there"), b"irreplaceable");
    assert_eq!(world.files(0).len(), 1, "nothing was made");
}

#[test]
fn file_in_place_of_the_directory_is_refused() {
    let world = world();
    std::fs::write(&world.paths()[0], b"x").expect("written");
    let error = open(&world).expect_err("refused");
    assert!(error.message.contains(&dir(&world)), "{error}");
    assert_eq!(std::fs::read(&world.paths()[0]).expect("there"), b"x");
}

/// Change a manifest block and recompute its checksum.
fn forge(world: &TestEnv, name: &str, block: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = world.read(0, name)[block * 4096..][..4096].to_vec();
    change(&mut bytes);
    let sum = checksum_around(&bytes, 8).expect("a block");
    bytes[8..24].copy_from_slice(&sum);
    world.write(0, name, block as u64 * 4096, &bytes);
}

#[test]
fn store_of_a_newer_format_is_refused() {
    let world = closed();
    let before = world.read(0, "segments");
    for name in ["manifest.0", "manifest.1"] {
        forge(&world, name, 0, |b| b[24] += 1);
    }
    let now = world.read(0, "manifest.0")[24];
    let message = format!(
        "manifest block has a newer format version={now} newest_known={} file=manifest.0 offset=0",
        now - 1
    );
    refused(open(&world), ErrorKind::Incompatible, &message);
    assert!(world.read(0, "segments") == before, "nothing was touched");
    for name in ["manifest.0", "manifest.1"] {
        forge(&world, name, 0, |b| b[24] -= 1);
    }
    hit_page(&open(&world).expect("opens again"), 7, LEN);
}

#[test]
fn damaged_manifest_copy_is_repaired() {
    for name in ["manifest.0", "manifest.1"] {
        for at in [0, 30, 100, 4096 + 9, 2 * 4096 + 70] {
            let world = closed();
            world.flip(0, name, at);
            let store = open(&world).unwrap_or_else(|e| panic!("{name} at={at} {e}"));
            assert_eq!(store.opened().mended_blocks, 1, "{name} at={at}");
            (0..40).for_each(|n| assert_eq!(hit_page(&store, n, LEN), pagelith::Tier::Ssd));
            store.close().expect("closed");
            assert!(world.read(0, "manifest.0") == world.read(0, "manifest.1"), "{name} at={at}");
        }
    }
}

#[test]
fn truncated_or_missing_manifest_copy_is_recreated() {
    for name in ["manifest.0", "manifest.1"] {
        for len in [Some(0), Some(5000), None] {
            let world = closed();
            let path = world.paths()[0].join(name);
            match len {
                Some(len) => truncate(&path, len),
                None => std::fs::remove_file(&path).expect("removed"),
            }
            let store = open(&world).unwrap_or_else(|e| panic!("{name} len={len:?} {e}"));
            hit_page(&store, 39, LEN);
            store.close().expect("closed");
            assert!(
                world.read(0, "manifest.0") == world.read(0, "manifest.1"),
                "{name} len={len:?}"
            );
        }
    }
}

fn truncate(path: &Path, len: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("a file");
    file.set_len(len).expect("cut");
}

#[test]
fn two_damaged_manifest_copies_are_refused() {
    let world = closed();
    for name in ["manifest.0", "manifest.1"] {
        world.flip(0, name, 4096 + 100);
    }
    let message = "checksum of manifest block does not match file=manifest.0 offset=4096";
    damaged(&world, message);
    for name in ["manifest.0", "manifest.1"] {
        world.flip(0, name, 4096 + 100);
    }
    hit_page(&open(&world).expect("opens again"), 7, LEN);
}

#[test]
fn two_truncated_manifest_copies_are_refused() {
    let world = closed();
    for name in ["manifest.0", "manifest.1"] {
        truncate(&world.paths()[0].join(name), 4096);
    }
    let message = "superblock is malformed field=segment_count value=15 file=manifest.0 offset=0";
    damaged(&world, message);
}

#[test]
fn truncated_segments_file_is_refused() {
    let world = closed();
    let path = world.paths()[0].join("segments");
    let whole = std::fs::metadata(&path).expect("a file").len();
    for len in [0, whole - 4096, whole - 1, 1 << 20] {
        truncate(&path, len);
        let message = format!(
            "a file of the store has another length dir={} file=segments expected_bytes={whole} found_bytes={len}",
            dir(&world)
        );
        damaged(&world, &message);
    }
}

#[test]
fn missing_segments_file_is_refused() {
    let world = closed();
    std::fs::remove_file(world.paths()[0].join("segments")).expect("removed");
    damaged(&world, &format!("a file of the store is missing dir={} file=segments", dir(&world)));
}

#[test]
fn damaged_checkpoints_are_ignored() {
    let world = closed();
    for name in ["checkpoint.0", "checkpoint.1"] {
        for at in [10, 4096 + 100, 8192] {
            world.flip(0, name, at);
        }
    }
    let store = open(&world).expect("opens");
    assert!(!store.opened().from_checkpoint && store.opened().footers > 0, "{:?}", store.opened());
    (0..40).for_each(|n| assert_eq!(hit_page(&store, n, LEN), pagelith::Tier::Ssd));
}

#[test]
fn object_of_no_bytes_is_refused() {
    let store = open(&world()).expect("made");
    let message = format!("object has no bytes key={} length=0", key(1));
    refused(put(&store, key(1), &[]), ErrorKind::Invalid, &message);
    assert_eq!(store.stats().objects, 0);
}

#[test]
fn object_above_the_maximum_is_refused() {
    let world = world();
    let store = open(&world).expect("made");
    let max = store.opened().object_bytes_max as usize;
    // A segment of 1 MiB less its head, its footer and the record's header.
    assert_eq!(max, (1 << 20) - 3 * 4096);
    let remedy = "raise ssd.segment_bytes or dram.bytes";
    let message =
        format!("object is too large; {remedy} key={} length={} max={max}", key(1), max + 1);
    refused(put(&store, key(1), &bytes(1, max + 1)), ErrorKind::Invalid, &message);
    store_page(&store, 1, max);
    flush(&store);
    assert_eq!(store.stats().unflushed_bytes, 0);
    hit_page(&store, 1, max);
}

#[test]
fn destination_of_another_length_is_refused() {
    let world = world();
    let store = open(&world).expect("made");
    store_page(&store, 1, LEN);
    let check = |store: &Store| {
        for (have, relation) in [(LEN - 1, "shorter"), (0, "shorter"), (LEN + 1, "longer")] {
            let mut to = vec![7; have];
            let message = format!(
                "destination is {relation} than the object key={} destination={have} object={LEN}",
                key(1)
            );
            refused(get_into(store, key(1), &mut to), ErrorKind::Invalid, &message);
            assert!(to.iter().all(|b| *b == 7), "nothing was written");
        }
        hit_page(store, 1, LEN);
    };
    check(&store);
    store.close().expect("closed");
    check(&open(&world).expect("opens"));
}

#[test]
fn put_of_another_length_for_a_present_key_is_refused() {
    let store = open(&world()).expect("made");
    assert_eq!(put(&store, key(1), &bytes(1, 100)), Ok(PutOutcome::Stored));
    let message = format!("key is present with another length key={} present=100 given=99", key(1));
    refused(put(&store, key(1), &bytes(1, 99)), ErrorKind::Invalid, &message);
}

#[test]
fn configuration_that_differs_from_the_stores_is_refused() {
    let world = closed();
    type Change = fn(&mut Config);
    let rows: [(&str, u64, u64, Change); 3] = [
        ("ssd.bytes", 16 << 20, 17 << 20, |c| c.ssd.bytes = Size::mib(17)),
        ("ssd.segment_bytes", 1 << 20, 2 << 20, |c| c.ssd.segment_bytes = Some(Size::mib(2))),
        ("namespaces_max", 64, 65, |c| c.namespaces_max = 65),
    ];
    for (field, has, asked, change) in rows {
        let mut config = config(&world);
        change(&mut config);
        let message = format!(
            "store was created with another {field}: it has {has}, the configuration has {asked} dir={}",
            dir(&world)
        );
        refused(world.try_open(&config), ErrorKind::Incompatible, &message);
    }
    // The size of the index is not a property of the store.
    let mut config = config(&world);
    config.index.max_objects = Some(1000);
    hit_page(&world.try_open(&config).expect("opens"), 7, LEN);
}

/// A small ext4, unmounted on drop.
struct SmallFs {
    mount: tempfile::TempDir,
    _image: tempfile::NamedTempFile,
}

impl SmallFs {
    fn new(mib: u64) -> Result<SmallFs, String> {
        let image = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
        image.as_file().set_len(mib << 20).map_err(|e| e.to_string())?;
        let mount = tempfile::tempdir().map_err(|e| e.to_string())?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image.path()))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(image.path()).arg(mount.path()))?;
        Ok(SmallFs { mount, _image: image })
    }

    fn config(&self, ssd: Size) -> Config {
        let mut config = config(&world());
        config.ssd.bytes = ssd;
        config.ssd.dirs = vec![self.mount.path().join("store")];
        config
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.mount.path()));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", said.trim())) }
}

/// The file system, or a printed line about the skipped test.
fn small_fs(what: &str) -> Option<SmallFs> {
    use std::io::Write as _;
    SmallFs::new(32).map_err(|why| writeln!(std::io::stderr(), "skipped: {what}: {why}")).ok()
}

#[test]
fn full_file_system_is_refused() {
    let Some(fs) = small_fs("a full file system") else { return };
    let error = world().try_open(&fs.config(Size::mib(64))).expect_err("refused");
    assert_eq!((error.kind, error.errno), (ErrorKind::NoSpace, Some(28)), "{error}");
    assert!(error.message.contains("segments"), "it names the file: {error}");
    let left = std::fs::read_dir(fs.mount.path().join("store")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "files remain");
    // And the space is free again.
    let store = world().try_open(&fs.config(Size::mib(16))).expect("made");
    store_page(&store, 1, LEN);
    store.close().expect("closed");
}

#[test]
fn read_only_file_system_is_refused() {
    let Some(fs) = small_fs("a read-only file system") else { return };
    let config = fs.config(Size::mib(16));
    let store = world().try_open(&config).expect("made");
    store_page(&store, 1, LEN);
    store.close().expect("closed");
    let remount = |how: &str| run(Command::new("mount").args(["-o", how]).arg(fs.mount.path()));
    remount("remount,ro").expect("remounted");
    for dirs in [config.ssd.dirs.clone(), vec![fs.mount.path().join("another")]] {
        let mut config = config.clone();
        config.ssd.dirs = dirs;
        let error = world().try_open(&config).expect_err("refused");
        assert_eq!((error.kind, error.errno), (ErrorKind::Denied, Some(30)), "{error}");
        assert!(error.message.contains(&*fs.mount.path().to_string_lossy()), "{error}");
    }
    remount("remount,rw").expect("remounted");
    hit_page(&world().try_open(&config).expect("opens again"), 1, LEN);
}

/// The message has both numbers, and nothing was dropped: the store opens with its previous
/// contents.
#[test]
fn index_smaller_than_the_stores_contents_is_refused() {
    for (made, used, closes) in [(400, 400, true), (400, 400, false), (50, 400, true)] {
        let world = world();
        let with = |max_objects| {
            let mut config = config(&world);
            config.index.max_objects = Some(max_objects);
            world.try_open(&config)
        };
        with(made).expect("made").close().expect("closed");
        let store = with(used).expect("opened");
        store_pages(&store, 0..100, 4096);
        flush(&store);
        match closes {
            true => _ = store.close().expect("closed"),
            false => store.abandon(),
        }
        for room in [99, 60, 1] {
            let message = format!(
                "index.max_objects: the store holds 100 entries and the index has room for {room}: entries without room \
                 would be lost for good; set it to at least 100"
            );
            refused(with(room), ErrorKind::Incompatible, &message);
        }
        assert_eq!(with(100).expect("opens with just enough").opened().objects, 100);
        // Objects without room in a nearly full index are reclaimed.
        let store = with(120).expect("opens");
        assert_eq!(store.opened().objects, 100, "made={made} closes={closes}");
        (0..100).for_each(|n| assert_eq!(hit_page(&store, n, 4096), pagelith::Tier::Ssd));
    }
}
