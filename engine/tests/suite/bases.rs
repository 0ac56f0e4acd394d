//! Attached objects whose base is kept off SSD: they are not durable, and a flush says so.

use std::time::Duration;

use pagelith::config::{NamespaceLimits, SsdAdmissionRule};
use pagelith::io::fault::FaultOp;
use pagelith::layouts::key::ObjectKey;
use pagelith::{Config, ErrorKind, Hint, Options, PutOutcome, PutSlice, Size};

use super::attached::attach;
use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 30_000;
const STATE: usize = 3000;
/// Bytes of the log for a base, and for its state.
const RECORD: u64 = 4096 + (32 << 10);
const STATE_RECORD: u64 = 2 * 4096;

fn state_key(n: u64) -> ObjectKey {
    key_in(namespace("m"), n, "state")
}

fn attach_state(store: &Store, n: u64) -> PutOutcome {
    let state = [(state_key(n), bytes(n + 7, STATE))];
    attach(store, key(n), &state).unwrap_or_else(|error| panic!("n={n} {error}"))
}

fn state_is_here(store: &Store, n: u64) -> bool {
    is_present(store, state_key(n), &bytes(n + 7, STATE))
}

fn ssd_bytes(store: &Store) -> u64 {
    store.stats().limits[&namespace("m").to_string()].ssd_bytes
}

/// A store whose namespace may use so many bytes of the log more.
fn with_room(world: &TestEnv, bytes: u64) -> (Store, Config) {
    let mut config = world.config();
    let limit = config.ssd.segment_bytes.expect("set");
    let mut limits = NamespaceLimits::of(namespace("m"));
    limits.ssd_bytes = Some(limit);
    config.namespaces.limits = vec![limits];
    let store = world.open(&config);
    let used = limit.bytes() - bytes;
    let fits = |large: &u64| (used - large * RECORD).is_multiple_of(STATE_RECORD);
    let large = (0..=used / RECORD).rev().find(fits).expect("a number");
    store_pages(&store, 1000..1000 + large, LEN);
    store_pages(&store, 2000..2000 + (used - large * RECORD) / STATE_RECORD, STATE);
    flush(&store);
    assert_eq!(ssd_bytes(&store), used);
    (store, config)
}

pub fn state_written_before_its_base_is_refused_with_it(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    // There is room for either, and the state is written first.
    let (store, config) = with_room(world, RECORD + STATE_RECORD / 2);
    assert_eq!(attach_state(&store, 1), PutOutcome::Waiting);
    store_page(&store, 1, LEN);
    assert!(state_is_here(&store, 1));
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (0, 2), "{report:?}");
    let store = world.crash(store, &config);
    assert!(!is_page_present(&store, 1, LEN) && !state_is_here(&store, 1));
}

pub fn state_of_a_base_that_a_limit_refused_is_not_written(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    // There is room for one of two bases that are put together, and for both states.
    let (store, config) = with_room(world, RECORD + 2 * STATE_RECORD);
    let data = [bytes(1, LEN), bytes(2, LEN)];
    let pieces = data.each_ref().map(|bytes| [&bytes[..]]);
    let put = |n: usize| PutSlice { key: key(n as u64), pieces: &pieces[n - 1] };
    let outcomes = store.put_batch(&[put(1), put(2)], Options::default());
    assert_eq!(outcomes, [Ok(PutOutcome::Stored), Ok(PutOutcome::Stored)]);
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (1, 1), "{report:?}");
    let used = ssd_bytes(&store);
    assert_eq!([1, 2].map(|n| attach_state(&store, n)), [PutOutcome::Stored; 2]);
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (1, 1), "{report:?}");
    assert_eq!(ssd_bytes(&store), used + STATE_RECORD, "the other is of no use there");
    assert!(state_is_here(&store, 1) && state_is_here(&store, 2));
    let store = world.crash(store, &config);
    assert_ne!(state_is_here(&store, 1), state_is_here(&store, 2));
}

pub fn state_of_a_refused_base_that_left_memory_is_refused(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let Some(sim) = world.sim() else { return };
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::SecondTouch;
    config.dram.bytes = Size::mib(1);
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    write_state(world, &store);
    sim.clock.advance(RETAINED);
    let pages = 3 * config.dram.bytes.bytes() / LEN as u64;
    store_pages(&store, 100..100 + pages, LEN);
    assert!(!is_page_present(&store, 1, LEN), "the base left memory");
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!(report.durable_objects + report.refused_objects, pages + 2, "{report:?}");
    let store = world.crash(store, &config);
    let present = (100..100 + pages).filter(|n| is_page_present(&store, *n, LEN)).count() as u64;
    assert!(!state_is_here(&store, 1));
    assert_eq!(present, report.durable_objects, "{report:?}");
}

/// A store whose page 1 is in memory only, and its state on SSD.
fn with_written_state(world: &TestEnv) -> (Store, Config) {
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::SecondTouch;
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    write_state(world, &store);
    (store, config)
}

/// As [`with_written_state`], after a sync that covers the state.
fn with_synced_state(world: &TestEnv) -> (Store, Config) {
    let (store, config) = with_written_state(world);
    store.remove(&[key(5000)], Options::default()).expect("synced");
    (store, config)
}

/// For how long [`write_state`] retains the state.
const RETAINED: Duration = Duration::from_secs(3600);

/// Attach the state of page 1, and let it be written: it is retained, and its base is not.
fn write_state(world: &TestEnv, store: &Store) {
    let refused = store.stats().ssd_refused;
    store.hint(&[state_key(1)], Hint::Retain(RETAINED)).expect("retained");
    assert_eq!(attach_state(store, 1), PutOutcome::Stored);
    until(world, "the state is written", || store.stats().unflushed_bytes == 0);
    assert_eq!(store.stats().ssd_refused, refused, "the state was not refused");
}

pub fn state_that_reclaim_drops_before_its_base_is_durable_is_refused(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let Some(sim) = world.sim() else { return };
    let (store, config) = with_synced_state(world);
    sim.clock.advance(RETAINED);
    let held = store.pin(&[key(1)]);
    assert_eq!(held.pinned(), 1);
    let pages = config.ssd.bytes.bytes() / RECORD;
    for n in 100..100 + pages {
        store_page(&store, n, LEN);
        hit_page(&store, n, LEN);
    }
    until(world, "they are written", || store.stats().unflushed_bytes == 0);
    assert!(!state_is_here(&store, 1), "reclaim has dropped it");
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (pages + 1, 1), "{report:?}");
}

pub fn state_that_is_removed_and_put_again_is_durable_once(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let (synced, written) = (with_synced_state, with_written_state);
    for open in [synced as fn(&TestEnv) -> (Store, Config), written] {
        let world = world.fresh(1);
        let Some(sim) = world.sim() else { return };
        let (store, _) = open(&world);
        // The state is written again before the sync of the removal has ended.
        sim.disk.hold(FaultOp::Sync, None);
        let soon = Options::within(Duration::from_millis(50));
        let removed = store.remove(&[state_key(1)], soon).map_err(|error| error.kind);
        assert_eq!(removed, Err(ErrorKind::Unavailable));
        write_state(&world, &store);
        sim.disk.release();
        let report = store.flush(Options::default()).expect("flushed");
        assert_eq!((report.durable_objects, report.refused_objects), (2, 0), "{report:?}");
        assert_eq!(report.durable_bytes, (LEN + STATE) as u64, "{report:?}");
    }
}

pub fn cleared_state_whose_base_was_not_durable_is_in_no_report(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let (store, _) = with_synced_state(world);
    store.clear(namespace("m"), Options::default()).expect("cleared");
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (0, 0), "{report:?}");
}

pub fn state_of_a_removed_base_is_in_no_report(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let (store, _) = with_synced_state(world);
    assert_eq!(store.remove(&[key(1)], Options::default()), Ok(1));
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (0, 0), "{report:?}");
}

pub fn state_is_durable_with_a_base_that_a_group_has_replaced(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let (store, config) = with_synced_state(world);
    let page = [(key(1), bytes(1, LEN)), (key_in(namespace("m"), 1, "v"), bytes(2, LEN))];
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
    let report = store.flush(Options::default()).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (3, 0), "{report:?}");
    let store = world.crash(store, &config);
    assert!(is_page_present(&store, 1, LEN) && state_is_here(&store, 1));
}
