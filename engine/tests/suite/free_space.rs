//! Making room despite pins, tombstones, a full index and unreadable blocks.

use std::time::Duration;

use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::{ErrorKind, Options, PutOutcome, Size};
use pagelith_sim::disk::{DiskFault, FaultPlan, FaultRates};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;
/// Approximate bytes of segments of the store in these tests.
const LAP: usize = 14 << 20;

pub fn cleared_object_is_not_held_by_a_pin(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A pin would hold every object.
    }
    let store = world.open(&world.cold_config());
    let last = put_until(&store, 0, LEN, LAP);
    flush(&store);
    let keys: Vec<_> = (0..last).map(key).collect();
    let pin = store.pin(&keys);
    assert!(pin.pinned() > 200, "{}", pin.pinned());
    store.clear(namespace("m"), Options::default()).expect("a clear");
    put_until(&store, 10_000, LEN, 2 * LAP);
    flush(&store);
    assert!(store.stats().segments_reclaimed > 20, "{:?}", store.stats());
    drop(pin);
}

/// With every object pinned no victim gives an entry back: without a limit the device would be
/// written without end.
pub fn index_full_of_pins_is_not_rewritten_repeatedly(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    // Three to a segment, of which a sixth becomes free when they are written again.
    let len = 280_000;
    let mut config = world.config();
    config.dram.bytes = Size::mib(8);
    config.index.max_objects = Some(12);
    let store = world.open(&config);
    // The last one as soon as it is stored: it fills the index, and reclaim makes room.
    let mut pins = Vec::new();
    for n in 0..12 {
        store_page(&store, n, len);
        pins.push(store.pin(&[key(n)]));
    }
    assert_eq!(pins.iter().map(|pin| pin.pinned()).sum::<usize>(), 12);
    flush(&store);
    assert_eq!(put(&store, key(100), &bytes(100, len)), Ok(PutOutcome::Refused));
    sim.runtime.run_for(Duration::from_secs(2));
    let before = store.stats().bytes_to_device;
    sim.runtime.run_for(Duration::from_secs(60));
    let after = store.stats().bytes_to_device;
    assert!(after - before < 1 << 20, "it wrote {} without a request", after - before);
    assert!(
        pins.iter().all(|pin| pin.is_held()),
        "a client that says nothing for a minute is not dead"
    );
    drop(pins);
}

/// Pinned objects are older than all tombstones, wherever they move: the tombstones stay needed.
pub fn single_removals_do_not_fill_the_log(world: &TestEnv) {
    let Some(_) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let store = world.open(&world.cold_config());
    store_pages(&store, 0..5, LEN);
    flush(&store);
    let keys: Vec<_> = (0..5).map(key).collect();
    let pin = store.pin(&keys);
    assert_eq!(pin.pinned(), 5);
    // A block each: together twice the capacity of the log.
    for n in 0..8000 {
        assert_eq!(store.remove(&[key(100_000 + n)], Options::default()), Ok(0), "n={n}");
    }
    put_until(&store, 1000, LEN, LAP);
    for n in 0..5 {
        hit_page(&store, n, LEN);
    }
    assert_eq!(store.stats().namespaces_forgotten, 0);
    drop(pin);
}

/// No call waits for room that never appears.
pub fn tier_without_readable_victim_stops_writing(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let mut config = world.config();
    config.ssd.quarantine_after = 1_000_000;
    let store = world.open(&config);
    put_into_namespace(&store, "other");
    let next = put_until(&store, 0, LEN, LAP);
    flush(&store);
    sim.disk.set_faults(FaultRates::new(1).with(DiskFault::ReadError, 1_000_000));
    for n in next..next + 60 {
        // Stored in memory, or refused for a while: never stuck.
        let outcome = put(&store, key(n), &bytes(n, LEN));
        assert!(
            matches!(&outcome, Ok(PutOutcome::Stored | PutOutcome::Refused))
                || outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy),
            "{outcome:?}"
        );
    }
    sim.runtime.run_for(Duration::from_secs(1));
    assert_eq!(store.stats().ssd_state, "read-only");
    let cleared = store.clear(namespace("other"), Options::default());
    let cleared = cleared.expect_err("it takes nothing").message;
    assert!(cleared.starts_with("clear: ssd tier is read-only: "), "{cleared}");
    sim.disk.clear_faults();
    sim.runtime.run_for(Duration::from_secs(120));
    assert_eq!(store.stats().ssd_state, "on");
    put_until(&store, 1000, LEN, 2 * LAP);
    flush(&store);
}

/// Large reads of both copies fail; reads of single blocks succeed.
pub fn manifest_copies_are_merged_block_by_block(world: &TestEnv) {
    if world.sim().is_none() || world.constant {
        return; // Independent of fingerprints.
    }
    for blocks in 0..12 {
        let world = world.fresh(1);
        let sim = world.sim().expect("simulated as the other");
        let store = world.open(&world.config());
        store_pages(&store, 0..3, LEN);
        flush(&store);
        store.close().expect("a close");
        // Twice the first copy, its blocks one by one, twice the second.
        for nth in [1, 2, blocks + 3, blocks + 4] {
            sim.disk.inject(FaultPlan::Fail { op: FaultOp::Read, nth, kind: FaultKind::Device });
        }
        let store = world.try_open(&world.config());
        assert!(store.is_ok(), "blocks={blocks} {:?}", store.err());
    }
}
