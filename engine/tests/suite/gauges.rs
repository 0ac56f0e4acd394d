//! Every gauge counts what its documentation says, and returns to rest.

use std::time::Duration;

use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::{ErrorKind, Options, PutOutcome, PutSlice, Stats};
use pagelith_sim::disk::FaultPlan;

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 50_000;

/// The fields of `Stats` that are documented as "now".
fn gauges() -> Vec<&'static str> {
    let source = include_str!("../../src/state/stats.rs");
    let of = source
        .split_once("pub struct Stats {")
        .expect("the struct")
        .1
        .split_once("\n}")
        .expect("its end")
        .0;
    let (mut names, mut doc) = (Vec::new(), String::new());
    for line in of.lines().map(str::trim) {
        match (line.strip_prefix("///"), line.strip_prefix("pub ")) {
            (Some(text), _) => doc.push_str(text),
            (None, Some(field)) => {
                let is_now = doc.split([' ', ',', '.', ';', ':']).any(|word| word == "now");
                names.extend(field.split_once(':').map(|(name, _)| name).filter(|_| is_now));
                doc.clear();
            }
            (None, None) => {}
        }
    }
    names
}

fn value(stats: &Stats, gauge: &str) -> serde_json::Value {
    serde_json::to_value(stats).expect("values")[gauge].clone()
}

/// The gauges that differ.
fn differing(stats: &Stats, from: &Stats) -> Vec<&'static str> {
    gauges().into_iter().filter(|gauge| value(stats, gauge) != value(from, gauge)).collect()
}

fn wait(world: &TestEnv, store: &Store, gauge: &str, is: u64) {
    until(world, gauge, || value(&store.stats(), gauge) == is);
}

/// Each gauge is moved, and returns to rest, at the latest by a clear or the next open.
pub fn gauges_return_to_rest(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart() && world.is_embedded()) else {
        return;
    };
    let mut config = world.config();
    config.ssd.quarantine_after = 2;
    let mut store = world.open(&config);
    let rest = store.stats();
    let mut moved = std::collections::BTreeSet::new();
    let mut look = |store: &Store| {
        let stats = store.stats();
        moved.extend(differing(&stats, &rest));
        stats
    };

    // Put, pinned, leased, read and waiting objects.
    store_pages(&store, 0..4, LEN);
    assert!(look(&store).unflushed_bytes >= LEN as u64);
    let pin = store.pin(&[key(0), key(1)]);
    assert_eq!(store.lease(&[key(1), key(2), key(3)], Duration::from_secs(86_400)), 3);
    let page = ["k", "v"].map(|part| key_in(namespace("m"), 20, part));
    let begun = store.begin_group(&page, Options::default()).expect("begun");
    let part = bytes(20, LEN);
    let put = begun.put(&[PutSlice { key: page[0], pieces: &[&part] }], Options::default());
    assert_eq!(put, [Ok(PutOutcome::Waiting)]);
    let view = store.view(&key(0)).expect("asked").expect("here");
    let stats = look(&store);
    assert_eq!((stats.objects_pinned, stats.objects_leased, stats.groups_waiting), (2, 3, 1));
    assert!(stats.readers > 0 && stats.waiting_bytes >= LEN as u64, "{stats:?}");
    flush(&store);
    assert_eq!(look(&store).unflushed_bytes, 0);
    drop((pin, view, begun));
    // A lease ends with its object, with its namespace, and by expiry.
    store.remove(&[key(1)], Options::default()).expect("removed");
    assert_eq!(look(&store).objects_leased, 2);
    store.clear(namespace("m"), Options::default()).expect("cleared");
    let stats = look(&store);
    assert_eq!((stats.objects_leased, stats.objects_pinned, stats.groups_waiting), (0, 0, 0));
    assert_eq!((stats.waiting_bytes, stats.dram_objects, stats.dram_bytes), (0, 0, 0));
    wait(world, &store, "readers", 0);
    store_page(&store, 5, LEN);
    assert_eq!(store.lease(&[key(5)], Duration::from_secs(1)), 1);
    sim.runtime.run_for(Duration::from_secs(2));
    assert_eq!(look(&store).objects_leased, 0, "no put needed memory");

    // Prefetch.
    flush(&store);
    store = world.reopen(store, &config);
    store.prefetch(&[key(5)], Options::default());
    look(&store);
    wait(world, &store, "prefetch_waiting", 0);

    // A tier that accepts no writes.
    sim.disk.inject(FaultPlan::Fail { op: FaultOp::Sync, nth: 1, kind: FaultKind::Device });
    store_page(&store, 6, LEN);
    assert_eq!(
        store.flush(Options::default()).map_err(|e| e.kind).map(|_| ()),
        Err(ErrorKind::Unavailable)
    );
    store_page(&store, 7, LEN);
    let stats = look(&store);
    assert_eq!((stats.ssd_state.as_str(), stats.unflushed_bytes), ("read-only", 2 * LEN as u64));
    sim.runtime.run_for(Duration::from_secs(120));
    store_pages(&store, 8..10, LEN);
    flush(&store);
    assert_eq!((look(&store).ssd_state.as_str(), store.stats().unflushed_bytes), ("on", 0));

    // Segments that fail.
    store = world.reopen(store, &config);
    for (suspect, quarantined) in [(1, 0), (0, 1)] {
        let n = 8 + quarantined;
        world.flip(0, "segments", find(world, key(n)).payload + 9);
        assert!(!is_page_present(&store, n, LEN));
        let stats = look(&store);
        assert_eq!((stats.segments_suspect, stats.segments_quarantined), (suspect, quarantined));
    }
    store = world.reopen(store, &config);
    assert_eq!(look(&store).segments_quarantined, 0);

    // Remove the last objects; cleared objects on SSD leave the index with their segment.
    let keys: Vec<_> = (0..30).map(key).collect();
    store.remove(&keys, Options::default()).expect("removed");
    wait(world, &store, "readers", 0);
    assert!(store.stats().objects <= 3, "{:?}", store.stats());
    let left: Vec<_> =
        differing(&store.stats(), &rest).into_iter().filter(|g| *g != "objects").collect();
    assert!(left.is_empty(), "not at rest: {left:?} {:?}", store.stats());
    // Those of RDMA have no devices here: `engine/tests/rdma.rs` moves them.
    let never = gauges().into_iter().filter(|gauge| !gauge.starts_with("rdma_"));
    let never: Vec<_> = never.filter(|gauge| !moved.contains(gauge)).collect();
    assert!(never.is_empty(), "nothing moves these, so nothing is shown of them: {never:?}");
}

/// A put that is retried until there is room, or until its timeout, counts once.
pub fn retried_put_counts_as_one_busy_put(world: &TestEnv) {
    if !world.is_embedded() {
        return; // Clients retry by themselves; the store counts those the same way.
    }
    let store = world.open(&world.memory_config(pagelith::Size::mib(1)));
    let mut pins = Vec::new();
    for n in 0..4 {
        store_page(&store, n, 250_000);
        pins.push(store.pin(&[key(n)]));
    }
    let time = Options::default().timeout(Duration::from_millis(300));
    for (n, count) in [(10, 1), (11, 2)] {
        let outcome = put_with(&store, key(n), &bytes(n, 250_000), time);
        assert_eq!(outcome.map_err(|e| e.kind), Err(ErrorKind::Busy));
        assert_eq!(store.stats().puts_busy, count);
    }
}
