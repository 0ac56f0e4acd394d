//! Segments affected by a failing device: they are reused, and the index stays correct.

use std::time::Duration;

use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, Options, PutOutcome, Size, Tier};
use pagelith_sim::disk::{CrashMode, FaultPlan};
use pagelith_sim::env::SimWorld;

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;
/// So long that each page takes its own segment.
const LONG: usize = 900_000;
const LAP: usize = 14 << 20;

fn fail(sim: &SimWorld, op: FaultOp, nth: u64) {
    sim.disk.inject(FaultPlan::Fail { op, nth, kind: FaultKind::Device });
}

fn wait(sim: &SimWorld, ms: u64) {
    sim.runtime.run_for(Duration::from_millis(ms));
}

pub fn segment_whose_first_write_failed_is_reused(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Independent of fingerprints.
    }
    let store = world.open(&world.config());
    store_page(&store, 0, LONG);
    // More often than there are segments, and so far apart that the tier stays on.
    for n in 1..30 {
        wait(sim, 31_000);
        fail(sim, FaultOp::Write, 1);
        store_page(&store, n, LONG);
        let flushed = store.flush(Options::default()).map(|_| ());
        assert_eq!((flushed, store.stats().ssd_state.as_str()), (Ok(()), "on"), "n={n}");
        assert_eq!(store.stats().flush_errors, n);
    }
}

/// If an object's header and its segment's footer are damaged, only the index knows the object.
pub fn reused_segment_has_no_stale_entries(world: &TestEnv) {
    if world.sim().is_none() || world.constant {
        return; // Independent of fingerprints.
    }
    let mut config = world.config();
    config.ssd.scrub_bytes_per_s = pagelith::Size::ZERO;
    let store = world.open(&config);
    store_pages(&store, 0..40, LEN);
    flush(&store);
    let (at, other) = (find(world, key(3)).record, find(world, key(4)).record);
    let segment = at >> 20 << 20;
    assert_eq!(other >> 20 << 20, segment);
    world.flip(0, "segments", at + 100);
    world.write(0, "segments", segment + (1 << 20) - 4096, &[0; 4096]);
    let before = world.read(0, "segments")[other as usize..][..4096].to_vec();
    put_until(&store, 100, LEN, 2 * LAP);
    let now = world.read(0, "segments")[other as usize..][..4096].to_vec();
    assert!(before != now, "its segment was used again");
    for n in 0..10 {
        assert_absent(world, &store, key(n), LEN);
    }
    let stats = store.stats();
    assert_eq!(
        (stats.segments_suspect, stats.damaged),
        (0, 0),
        "the new life of it is not to blame"
    );
}

/// The index lists nothing of an `off` tier; a checkpoint of it would hide the tier's objects for
/// good.
pub fn no_checkpoint_is_taken_while_tier_is_off(world: &TestEnv) {
    if world.sim().is_none() || world.constant {
        return; // Constant fingerprints take no checkpoints.
    }
    let mut off = 0;
    for nth in 1..12 {
        let world = world.fresh(1);
        let sim = world.sim().expect("simulated as the other");
        let mut config = world.config();
        config.ssd.checkpoint_segments = 1;
        let store = world.open(&config);
        store_pages(&store, 0..5, LEN);
        flush(&store);
        fail(sim, FaultOp::Sync, 1);
        store_page(&store, 5, LEN);
        store.flush(Options::default()).expect_err("its sync fails");
        wait(sim, 1100);
        assert_eq!(store.stats().ssd_state, "on");
        wait(sim, 100);
        // The next failed sync turns it off.
        fail(sim, FaultOp::Sync, nth);
        for n in 10..13 {
            store_page(&store, n, LONG);
            wait(sim, 5);
        }
        wait(sim, 200);
        off += u32::from(store.stats().ssd_state == "off");
        drop(store);
        sim.crash(CrashMode::DropAll);
        let store = world.open(&config);
        for n in 0..5 {
            assert!(is_page_present(&store, n, LEN), "nth={nth} n={n} {:?}", store.opened());
        }
    }
    assert!(off > 2, "off={off}");
}

pub fn failed_sync_of_a_probe_counts_once(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let config = world.config();
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    let store = world.reopen(store, &config);
    wait(sim, 20);
    fail(sim, FaultOp::Write, 1);
    let cleared = store.clear(namespace("x"), Options::default()).map_err(|e| e.kind);
    assert_eq!(cleared, Err(ErrorKind::Unavailable));
    // The first probe fails at its head, the second at the sync of the manifest.
    fail(sim, FaultOp::Write, 1);
    wait(sim, 1100);
    assert_eq!(store.stats().ssd_state, "read-only");
    fail(sim, FaultOp::Sync, 1);
    wait(sim, 2100);
    assert_eq!(store.stats().ssd_state, "read-only", "the first sync that failed");
    assert_eq!(hit_page(&store, 1, LEN), Tier::Ssd);
    wait(sim, 4100);
    assert_eq!(store.stats().ssd_state, "on");
}

/// The purge of the index takes several pieces, and writes end between them: a group of which the
/// purge had passed one object was visible in part when the tier was on again.
pub fn group_written_while_an_off_tier_is_purged_is_whole_or_gone(world: &TestEnv) {
    let Some(_) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let mut was_off = 0;
    for latency in (2..120).step_by(2) {
        let world = world.fresh(1);
        let sim = world.sim().expect("simulated as the other");
        let mut config = world.config();
        config.dram.bytes = Size::mib(2);
        config.index.max_objects = Some(1024);
        // Many writes that end one by one.
        config.ssd.write_bytes = Size::kib(64);
        sim.disk.set_latency(Duration::from_micros(latency));
        sim.disk.shuffle(latency);
        let store = world.open(&config);
        // After one failed sync the tier still serves reads; another one soon after turns it off.
        store_page(&store, 1000, LEN);
        fail(sim, FaultOp::Sync, 1);
        store.flush(Options::default()).expect_err("a failed sync");
        wait(sim, 1100);
        assert_eq!(store.stats().ssd_state, "on");
        fail(sim, FaultOp::Sync, 1);
        let groups: Vec<_> = (0..120).map(|n| group(n, 2)).collect();
        groups
            .iter()
            .for_each(|objects| assert_eq!(put_group(&store, objects), Ok(PutOutcome::Stored)));
        wait(sim, 5);
        was_off += usize::from(store.stats().ssd_state == "off");
        // Evict the pages that are only in memory.
        store_pages(&store, 2000..2040, LEN);
        wait(sim, 5000);
        assert_eq!(store.stats().ssd_state, "on");
        for objects in groups {
            let here: Vec<bool> =
                objects.iter().map(|(key, bytes)| is_present(&store, *key, bytes)).collect();
            assert!(here[0] == here[1], "latency_us={latency} {here:?}");
        }
    }
    assert!(was_off > 30, "{was_off} of 59");
}

/// Damaged headers do not name their keys, so a walk over the index finds their objects, in several
/// pieces.
pub fn no_partial_group_is_visible_while_its_segment_is_emptied(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let mut config = world.config();
    config.ssd.scrub_bytes_per_s = Size::ZERO;
    config.dram.bytes = Size::ZERO;
    config.index.max_objects = Some(1024);
    let store = world.open(&config);
    let groups: Vec<_> = (0..40).map(|n| group(n, 2)).collect();
    groups
        .iter()
        .for_each(|objects| assert_eq!(put_group(&store, objects), Ok(PutOutcome::Stored)));
    flush(&store);
    store_pages(&store, 1000..1040, LEN);
    flush(&store);
    let records: Vec<u64> = groups.iter().map(|objects| find(world, objects[0].0).record).collect();
    let segment = records[0] >> 20 << 20;
    assert!(records.iter().all(|at| at >> 20 << 20 == segment), "{records:?}");
    records.iter().for_each(|at| world.flip(0, "segments", at + 100));
    world.write(0, "segments", segment + (1 << 20) - 4096, &[0; 4096]);
    let here = |objects: &[(ObjectKey, Vec<u8>)]| {
        let keys: Vec<_> = objects.iter().map(|(key, _)| *key).collect();
        store.exists_batch(&keys, Options::default())
    };
    let mut last = true;
    for n in 2000..2600 {
        store_page(&store, n, LEN);
        for _ in 0..60 {
            sim.runtime.run_for(Duration::from_micros(1));
            for objects in &groups {
                let here = here(objects);
                assert!(here[0] == here[1], "page={n} {here:?}");
                last = here[0];
            }
        }
        if !last {
            return;
        }
    }
    panic!("it was never emptied");
}
