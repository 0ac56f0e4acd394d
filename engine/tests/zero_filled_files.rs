//! A store on a file system without fallocate: its files are filled with zeros, unless the process
//! is asked to stop.
#![allow(
    clippy::disallowed_methods,
    reason = "a thread of its own wears the filter; a test looks at real files"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pagelith::config::Size;
use pagelith::{Config, MachineLimits, Store};

/// From now on this thread gets EOPNOTSUPP from `fallocate`.
fn refuse_fallocate() {
    #[cfg(target_arch = "x86_64")]
    const FALLOCATE: i64 = 285;
    #[cfg(not(target_arch = "x86_64"))]
    const FALLOCATE: i64 = 47;
    const EOPNOTSUPP: u32 = 95;
    let filter = seccompiler::SeccompFilter::new(
        BTreeMap::from([(FALLOCATE, Vec::new())]),
        seccompiler::SeccompAction::Allow,
        seccompiler::SeccompAction::Errno(EOPNOTSUPP),
        std::env::consts::ARCH.try_into().expect("an architecture with seccomp"),
    );
    let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("put on");
}

/// Open a store of 16 MiB in a thread that cannot allocate.
fn open(dir: &Path, stop: bool) -> pagelith::Result<Store> {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(16);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = vec![dir.to_owned()];
    let config = config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
    let opened = std::thread::spawn(move || {
        refuse_fallocate();
        Store::open_until(config, &Arc::new(AtomicBool::new(stop)))
    });
    opened.join().expect("no panic")
}

#[test]
fn store_without_fallocate_is_filled_with_zeros() {
    use std::os::unix::fs::MetadataExt;
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("store");
    open(&dir, false).expect("opened").close().expect("closed");
    let segments = std::fs::metadata(dir.join("segments")).expect("there");
    assert!(segments.blocks() * 512 >= segments.len(), "{segments:?}");
}

#[test]
fn interrupted_zero_fill_removes_the_files() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("store");
    let error = open(&dir, true).map(drop).expect_err("requested to stop");
    assert!(error.message.contains("stop requested"), "{error}");
    assert_eq!(std::fs::read_dir(home.path()).expect("listed").count(), 0);
    open(&dir, false).expect("opened").close().expect("closed");
}
