//! Stores of one tier, and of several directories.

use super::harness::Store;
use pagelith::{Config, ErrorKind, Options, PutOutcome, Size, Tier};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;

pub fn store_without_ssd_works(world: &TestEnv) {
    let config = world.memory_config(Size::mib(1));
    let store = world.open(&config);
    assert_eq!((store.opened().backend, store.opened().segments), (None, 0));
    store_pages(&store, 0..10, LEN);
    for n in 0..10 {
        assert_eq!(hit_page(&store, n, LEN), Tier::Memory);
        assert_eq!(hit_unaligned(&store, key(n), &bytes(n, LEN)), Tier::Memory);
    }
    assert_eq!(store.remove(&[key(1)], Options::default()), Ok(1));
    assert_absent(world, &store, key(1), LEN);
    let other = key_in(namespace("other"), 1, "k");
    assert_eq!(put(&store, other, b"bytes"), Ok(PutOutcome::Stored));
    store.clear(namespace("m"), Options::default()).expect("cleared");
    assert_absent(world, &store, key(2), LEN);
    hit(&store, other, b"bytes");
    store_pages(&store, 100..200, LEN);
    assert_eq!(store.flush(Options::default()).map(|r| r.durable_objects), Ok(0));
    assert_eq!(store.stats().ssd_state, "off");
    store.close().expect("closed");
    assert_absent(world, &world.open(&config), key(150), LEN);
}

pub fn store_without_dram_works(world: &TestEnv) {
    let config = world.cold_config();
    let store = world.open(&config);
    assert_eq!(store.opened().memory.arena, 2 << 20);
    store_pages(&store, 0..30, LEN);
    flush(&store);
    assert_eq!(store.stats().dram_bytes, 0, "the arena is a write buffer only");
    for n in 0..30 {
        assert_eq!(hit_page(&store, n, LEN), Tier::Ssd);
    }
    let store = world.reopen(store, &config);
    for n in 0..30 {
        assert_eq!(hit_page(&store, n, LEN), Tier::Ssd);
    }
}

fn config_of(world: &TestEnv) -> Config {
    let mut config = world.cold_config();
    config.ssd.bytes = Size::mib(17);
    config
}

fn pages_are_present(store: &Store, pages: std::ops::Range<u64>) {
    pages.for_each(|n| assert_eq!(hit_page(store, n, LEN), Tier::Ssd));
}

pub fn store_with_two_directories_works(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let world = world.fresh(2);
    let config = config_of(&world);
    let store = world.open(&config);
    store_pages(&store, 0..100, LEN);
    flush(&store);
    let store = world.crash(store, &config);
    pages_are_present(&store, 0..100);
    let store = world.reopen(store, &config);
    pages_are_present(&store, 0..100);
    assert_eq!(store.remove(&[key(3)], Options::default()), Ok(1));
    put_until(&store, 1000, LEN, 30 << 20);
    store.close().expect("closed");
    assert!(world.total_bytes() <= 17 << 20);
    for dir in 0..2 {
        let segments = world.read(dir, "segments");
        let used = segments.chunks(1 << 20).filter(|s| s.starts_with(b"PL")).count();
        assert_eq!(used, segments.len() >> 20, "every segment of directory {dir} was used");
        assert!(used >= 6, "dir={dir} used={used}");
    }
}

/// A store in `dirs` directories with records in every segment.
fn filled(world: &TestEnv, dirs: usize) -> (TestEnv, Config) {
    let world = world.fresh(dirs);
    let config = config_of(&world);
    let store = world.open(&config);
    put_until(&store, 0, LEN, 13 << 20);
    store.close().expect("closed");
    (world, config)
}

/// Opening with these directories is refused; afterwards the original ones still open with all
/// their pages.
fn refused_with(world: &TestEnv, config: &Config, order: &[usize]) -> pagelith::Error {
    let dirs = order.iter().map(|i| config.ssd.dirs[*i].clone()).collect();
    let mut wrong = config.clone();
    wrong.ssd.dirs = dirs;
    let error = world.try_open(&wrong).expect_err("refused");
    let store = world.open(config);
    pages_are_present(&store, 200..260);
    store.close().expect("closed");
    error
}

pub fn reordered_directories_are_refused(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    if world.sim().is_some() {
        return; // Its directories have no names.
    }
    for order in [&[1, 0][..], &[1, 0, 2], &[2, 1, 0], &[0, 2, 1], &[0, 2, 1, 3]] {
        let (world, config) = filled(world, order.len());
        let error = refused_with(&world, &config, order);
        assert_eq!(error.kind, ErrorKind::Incompatible, "order={order:?} {error}");
        let named = config.ssd.dirs.iter().any(|d| error.message.contains(&*d.to_string_lossy()));
        assert!(named && error.message.contains("ssd.dirs"), "order={order:?} {error}");
    }
}

pub fn missing_directory_is_refused(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    if world.sim().is_some() {
        return; // Its directories cannot be left out.
    }
    let (world, config) = filled(world, 2);
    for order in [&[0][..], &[1], &[0, 1]] {
        if order.len() == 1 {
            let error = refused_with(&world, &config, order);
            assert_eq!(error.kind, ErrorKind::Incompatible, "{error}");
            let says = "number of ssd.dirs: it has 2, the configuration has 1";
            assert!(error.message.contains(says), "{error}");
            continue;
        }
        // An empty directory where the second was.
        let away = world.paths()[1].with_extension("away");
        std::fs::rename(&world.paths()[1], &away).expect("moved");
        std::fs::create_dir(&world.paths()[1]).expect("made");
        let error = world.try_open(&config).expect_err("refused");
        let dir = world.paths()[1].display().to_string();
        let says = "ssd.dirs: directory 2 of 2 holds no file of the store, is its drive mounted?";
        assert_eq!(
            (error.kind, error.message),
            (ErrorKind::Unavailable, format!("{says} dir={dir}"))
        );
        assert_eq!(std::fs::read_dir(&dir).expect("listed").count(), 0, "nothing was made there");
        std::fs::remove_dir(&dir).expect("removed");
        std::fs::rename(&away, &dir).expect("moved back");
        pages_are_present(&world.open(&config), 200..260);
    }
}

pub fn directory_of_another_store_is_refused(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    if world.sim().is_some() {
        return; // Its directories cannot be exchanged.
    }
    let (mine, config) = filled(world, 3);
    let (theirs, _) = filled(world, 3);
    let other = theirs.paths()[1].clone();
    let mut dirs = config.ssd.dirs.clone();
    dirs[1] = other.clone();
    let mut wrong = config.clone();
    wrong.ssd.dirs = dirs;
    let error = mine.try_open(&wrong).expect_err("refused");
    assert_eq!(error.kind, ErrorKind::Incompatible, "{error}");
    assert!(error.message.contains(&*other.to_string_lossy()), "{error}");
    pages_are_present(&mine.open(&config), 200..260);
}
