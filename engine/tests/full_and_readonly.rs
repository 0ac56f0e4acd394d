//! Directories in which a store cannot be created, and one without a block device: the error, and
//! the files left.
#![allow(clippy::disallowed_methods, reason = "tests look at files from outside the store")]
#![allow(clippy::print_stdout, reason = "a skip is printed")]

#[allow(dead_code, reason = "other tests use the rest")]
mod loop_device;

use std::fs;
use std::path::{Path, PathBuf};

use loop_device::{LoopFs, run, text};
use pagelith::config::SsdIo;
use pagelith::io::disk::IoBackend;
use pagelith::{Config, Error, ErrorKind, MachineLimits, Options, Size, Store};

fn config(dirs: &[&Path], ssd: Size) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.staging.bytes = Size::mib(4);
    config.ssd.bytes = ssd;
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = dirs.iter().map(|d| d.to_path_buf()).collect();
    config
}

fn open(config: Config) -> Result<Store, Error> {
    let facts = MachineLimits::of_this_machine().unwrap();
    Store::open(config.validate(&facts).unwrap())
}

fn refused(config: Config) -> Error {
    match open(config) {
        Ok(store) => panic!("opened: {store:?}"),
        Err(error) => error,
    }
}

fn loop_fs(mib: u64) -> Option<LoopFs> {
    LoopFs::new(mib).inspect_err(|why| println!("skipped: no loop device with ext4: {why}")).ok()
}

#[test]
fn store_larger_than_file_system_is_refused_and_leaves_no_files() {
    let Some(fs) = loop_fs(32) else { return };
    let free = fs.free_bytes();
    let dir = fs.path().join("a/store");
    let error = refused(config(&[&dir], Size::mib(256)));
    assert_eq!((error.kind, error.errno), (ErrorKind::NoSpace, Some(28)), "{error}");
    assert!(error.message.contains(text(&dir)), "{error}");
    assert!(!fs.path().join("a").exists(), "directories remain");
    assert_eq!(fs.free_bytes(), free);

    // All but the last file fits: the store's needs, less a few blocks.
    open(config(&[&dir], Size::mib(16))).unwrap().close().unwrap();
    let need = free - fs.free_bytes();
    fs::remove_dir_all(fs.path().join("a")).unwrap();
    // The blocks are free once the journal has committed.
    run("sync", &["-f", text(fs.path())]).unwrap();
    let ballast = fs.path().join("ballast");
    let blocks = ((free - need) / 4096 + 4).to_string();
    run(
        "dd",
        &["if=/dev/zero", &format!("of={}", text(&ballast)), "bs=4096", &format!("count={blocks}")],
    )
    .unwrap();
    run("sync", &["-f", text(&ballast)]).unwrap();
    let left = fs.free_bytes();
    assert!(left < need && need - left < 64 << 10, "left={left} need={need}");
    let error = refused(config(&[&dir], Size::mib(16)));
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert!(!fs.path().join("a").exists() && fs.free_bytes() == left);

    // The same directory takes a store once there is room.
    fs::remove_file(&ballast).unwrap();
    open(config(&[&dir], Size::mib(16))).unwrap().close().unwrap();
}

#[test]
fn full_second_directory_leaves_the_first_unchanged() {
    let Some(fs) = loop_fs(16) else { return };
    let home = tempfile::tempdir().unwrap();
    let (roomy, full) = (home.path().join("roomy"), fs.path().join("full"));
    let error = refused(config(&[&roomy, &full], Size::mib(64)));
    assert_eq!(error.kind, ErrorKind::NoSpace, "{error}");
    assert!(error.message.contains(text(&full)), "{error}");
    assert_eq!(left_in(home.path()), Vec::<PathBuf>::new());
    assert!(!full.exists());
}

#[test]
fn store_on_a_full_file_system_opens() {
    let Some(fs) = loop_fs(32) else { return };
    let dir = fs.path().join("store");
    open(config(&[&dir], Size::mib(16))).unwrap().close().unwrap();
    // The last blocks too: dd fails once nothing more fits.
    let rest = format!("of={}", text(&fs.path().join("rest")));
    let full = run("dd", &["if=/dev/zero", &rest, "bs=4096"]).unwrap_err();
    assert!(full.contains("No space left"), "{full}");
    let store = open(config(&[&dir], Size::mib(16))).unwrap();
    assert!(!store.opened().made);
    store.flush(Options::default()).unwrap();
    store.close().unwrap();
}

#[test]
fn read_only_file_system_is_denied_by_name() {
    let Some(fs) = loop_fs(32) else { return };
    let (with_store, without) = (fs.path().join("store"), fs.path().join("other"));
    open(config(&[&with_store], Size::mib(16))).unwrap().close().unwrap();
    fs.make_read_only();
    for dir in [&with_store, &without] {
        let error = refused(config(&[dir], Size::mib(16)));
        assert_eq!((error.kind, error.errno), (ErrorKind::Denied, Some(30)), "{error}");
        assert!(error.message.contains(text(dir)), "{error}");
        assert!(error.message.contains("Read-only file system"), "{error}");
    }
}

#[test]
fn directory_without_a_device_uses_the_blocking_backend_and_reports_it() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.lines().any(|l| l.starts_with("tmpfs /dev/shm ") || l.contains(" /dev/shm tmpfs ")) {
        println!("skipped: /dev/shm is no tmpfs here");
        return;
    }
    let home = match tempfile::tempdir_in("/dev/shm") {
        Ok(home) => home,
        Err(e) => return println!("skipped: no directory in /dev/shm: {e}"),
    };
    let dir = home.path().join("store");
    let store = open(config(&[&dir], Size::mib(8))).unwrap();
    let (backend, reason) = (store.opened().backend, store.opened().backend_reason.clone());
    assert_eq!(backend, Some(IoBackend::Blocking));
    assert!(reason.contains("tmpfs has no device"), "{reason}");
    assert!(reason.contains("/dev/shm"), "{reason}");
    store.close().unwrap();

    let mut uring = config(&[&dir], Size::mib(8));
    uring.ssd.io = SsdIo::Uring;
    let error = refused(uring);
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(
        error.message.contains("io_uring is configured") && error.message.contains("tmpfs"),
        "{error}"
    );
}

fn left_in(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect()
}
