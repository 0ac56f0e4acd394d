//! Pages that admission keeps off SSD. `second-touch` is used, whose decisions are known.

use pagelith::config::SsdAdmissionRule;
use pagelith::layouts::checkpoint::CHUNK_BYTES;
use pagelith::layouts::names::CHECKPOINTS;
use pagelith::{Config, Options, PutOutcome, Size};

use super::attached::attach;
use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 30_000;
/// Fewer than DRAM has room for.
const FEW: u64 = 8;

fn second_touch(world: &TestEnv) -> Config {
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::SecondTouch;
    config
}

pub fn refused_page_is_served_from_memory_and_not_written(world: &TestEnv) {
    if !world.tells_keys_apart() {
        // Each put seems to replace an object, and such a put is always written.
        return;
    }
    let config = second_touch(world);
    let store = world.open(&config);
    store_pages(&store, 0..FEW, LEN);
    let stats = store.stats();
    assert_eq!(stats.ssd_refused, FEW, "{stats:?}");
    // A hit makes a page worth a write.
    hit_page(&store, 0, LEN);
    let store = world.crash(store, &config);
    for n in 1..FEW {
        assert_absent(world, &store, key(n), LEN);
    }
}

pub fn flush_writes_refused_pages_that_memory_has(world: &TestEnv) {
    let config = second_touch(world);
    let store = world.open(&config);
    store_pages(&store, 0..FEW, LEN);
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (FEW, 0), "{report:?}");
    let store = world.crash(store, &config);
    for n in 0..FEW {
        hit_page(&store, n, LEN);
    }
}

pub fn close_writes_refused_pages_that_memory_has(world: &TestEnv) {
    let config = second_touch(world);
    let store = world.open(&config);
    store_pages(&store, 0..FEW, LEN);
    let store = world.reopen(store, &config);
    for n in 0..FEW {
        hit_page(&store, n, LEN);
    }
}

pub fn flush_reports_refused_pages_that_left_memory(world: &TestEnv) {
    if !world.tells_keys_apart() {
        // Each put seems to replace an object, and such a put is always written.
        return;
    }
    let mut config = second_touch(world);
    config.dram.bytes = Size::mib(1);
    let store = world.open(&config);
    let pages = 3 * config.dram.bytes.bytes() / LEN as u64;
    store_pages(&store, 0..pages, LEN);
    let report = store.flush(Options::default()).expect("flushed");
    assert!(report.refused_objects > pages / 2, "{report:?}");
    assert_eq!(report.durable_objects + report.refused_objects, pages, "{report:?}");
    let store = world.crash(store, &config);
    let present = (0..pages).filter(|n| is_page_present(&store, *n, LEN)).count() as u64;
    assert_eq!(present, report.durable_objects);
}

pub fn refused_page_that_is_hit_is_written(world: &TestEnv) {
    if !world.tells_keys_apart() {
        // Each put seems to replace an object, and such a put is always written.
        return;
    }
    let mut config = second_touch(world);
    config.dram.bytes = Size::mib(1);
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    store_page(&store, 2, LEN);
    hit_page(&store, 1, LEN);
    until(world, "the page is written", || store.stats().unflushed_bytes == 0);
    let pages = 3 * config.dram.bytes.bytes() / LEN as u64;
    store_pages(&store, 100..100 + pages, LEN);
    hit_page(&store, 1, LEN);
    assert_absent(world, &store, key(2), LEN);
}

pub fn state_is_written_unless_its_page_is_refused(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let mut config = second_touch(world);
    config.dram.bytes = Size::mib(1);
    let store = world.open(&config);
    let state = |n: u64| vec![(key_in(namespace("m"), n, "temporal"), bytes(n + 50, LEN))];
    let base = |n: u64| vec![(key_in(namespace("m"), n, "k"), bytes(n, LEN))];
    let put_base = |n: u64| put(&store, base(n)[0].0, &base(n)[0].1).expect("stored");
    for n in [1, 2] {
        put_base(n);
        let attached = attach(&store, base(n)[0].0, &state(n)).expect("attached");
        assert_eq!(attached, PutOutcome::Stored);
    }
    assert_eq!(store.stats().ssd_refused, 4, "two pages and their states");
    // The page was touched before, and the state is written with it, though it is new.
    for object in [&base(1)[0], &state(1)[0]] {
        assert!(is_present(&store, object.0, &object.1));
    }
    until(world, "both are written", || store.stats().unflushed_bytes == 0);
    let pages = 3 * config.dram.bytes.bytes() / LEN as u64;
    store_pages(&store, 100..100 + pages, LEN);
    for object in [&base(1)[0], &state(1)[0]] {
        assert!(is_present(&store, object.0, &object.1));
    }
    assert_absent(world, &store, base(2)[0].0, LEN);
}

pub fn removed_page_counts_as_new(world: &TestEnv) {
    let config = second_touch(world);
    let store = world.open(&config);
    for times in 1..=2 {
        store_page(&store, 1, LEN);
        assert_eq!(store.stats().ssd_refused, times);
        assert_eq!(store.remove(&[key(1)], Options::default()), Ok(1));
    }
}

pub fn group_that_replaces_durable_objects_is_written(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    // So small a budget that nothing may be written any more.
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::Through;
    config.ssd.write_budget = Size::mib(1);
    let store = world.open(&config);
    store_pages(&store, 100..140, LEN);
    flush(&store);
    let objects = group(7, 3);
    put(&store, objects[0].0, &objects[0].1).expect("stored");
    let refused = store.stats().ssd_refused;
    assert!(refused > 0);
    flush(&store);
    put_group(&store, &objects).expect("stored");
    assert_eq!(store.stats().ssd_refused, refused, "the group is not refused");
    until(world, "the group is written", || store.stats().unflushed_bytes == 0);
    assert_eq!(store.flush(Options::default()).expect("flushed").durable_objects, 3);
}

/// A store that has learned that pages are not requested again, and has a checkpoint with it.
/// Returns it with the first page that was not put.
fn learned_store(world: &TestEnv, config: &Config) -> (Store, u64) {
    let store = world.open(config);
    let mut pages = 0..100;
    while store.stats().ssd_refused < 100 {
        assert!(pages.end < 2000, "nothing was learned: {:?}", store.stats());
        store_pages(&store, pages.clone(), LEN);
        pages = pages.end..pages.end + 100;
    }
    let before = store.stats().checkpoints;
    while store.stats().checkpoints == before {
        store_pages(&store, pages.clone(), LEN);
        flush(&store);
        pages = pages.end..pages.end + 100;
    }
    (store, pages.start)
}

fn worth(world: &TestEnv) -> Config {
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::Worth;
    config.ssd.checkpoint_segments = 1;
    config
}

pub fn learned_state_survives_crash_and_close(world: &TestEnv) {
    if !world.tells_keys_apart() {
        // No checkpoint is taken.
        return;
    }
    let config = worth(world);
    let (store, new) = learned_store(world, &config);
    let store = world.crash(store, &config);
    store_pages(&store, new..new + FEW, LEN);
    assert_eq!(store.stats().ssd_refused, FEW, "learned before the crash");
    let store = world.reopen(store, &config);
    store_pages(&store, new + FEW..new + 2 * FEW, LEN);
    assert_eq!(store.stats().ssd_refused, FEW, "learned before the close");
}

pub fn damaged_learned_state_is_not_used(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let config = worth(world);
    let (store, new) = learned_store(world, &config);
    store.close().expect("closed");
    for name in CHECKPOINTS {
        let (_, bytes) = world.files(0).into_iter().find(|(file, _)| file == name).expect("there");
        // The learned state is in the last chunk.
        world.flip(0, name, bytes - CHUNK_BYTES as u64 + 1000);
    }
    let store = world.open(&config);
    assert!(store.opened().from_checkpoint, "the checkpoint is not concerned");
    store_pages(&store, new..new + FEW, LEN);
    assert_eq!(store.stats().ssd_refused, 0, "everything is written until it learns again");
}
