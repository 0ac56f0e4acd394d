//! A device that fails and recovers: what is served in the meantime, and that the tier turns on
//! again without reopening.

use std::time::Duration;

use pagelith::config::SsdAdmissionRule;
use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::layouts::footer;
use pagelith::layouts::record::Record;
use pagelith::{Error, ErrorKind, FlushReport, Hint, Options, PutOutcome, Tier};
use pagelith_sim::disk::{CrashMode, FaultPlan};
use pagelith_sim::env::SimWorld;

use super::attached::attach;
use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 50_000;
const LAP: usize = 14 << 20;

fn fail(sim: &SimWorld, op: FaultOp, which: std::ops::Range<u64>) {
    which.for_each(|nth| sim.disk.inject(FaultPlan::Fail { op, nth, kind: FaultKind::Device }));
}

fn wait(sim: &SimWorld, ms: u64) {
    sim.runtime.run_for(Duration::from_millis(ms));
}

fn state(store: &Store) -> (String, u64) {
    let stats = store.stats();
    (stats.ssd_state, stats.ssd_state_changes)
}

fn try_flush(store: &Store) -> Result<FlushReport, Error> {
    store.flush(Options::default())
}

#[track_caller]
fn unavailable(result: Result<FlushReport, Error>) {
    assert_eq!(result.map_err(|e| e.kind), Err(ErrorKind::Unavailable));
}

pub fn failed_sync_makes_tier_read_only_until_a_probe_succeeds(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..5, LEN);
    flush(&store);
    store_pages(&store, 5..8, LEN);
    fail(sim, FaultOp::Sync, 1..2);
    unavailable(try_flush(&store));
    assert_eq!(state(&store), ("read-only".into(), 1));
    store_page(&store, 8, LEN);
    for n in 0..9 {
        hit_page(&store, n, LEN);
    }
    unavailable(try_flush(&store));
    wait(sim, 900);
    assert_eq!(state(&store), ("read-only".into(), 1), "not before the pause is over");
    wait(sim, 200);
    assert_eq!(state(&store), ("on".into(), 2));
    // Objects that the sync did not cover, and later puts, are written after all.
    let report = try_flush(&store).expect("flushed");
    assert_eq!(report.durable_objects, 4, "{report:?}");
    drop(store);
    sim.crash(CrashMode::DropAll);
    let store = world.open(&config);
    for n in 0..9 {
        hit_page(&store, n, LEN);
    }
}

/// A damaged page has a segment quarantined and purged before the sync of its pages fails.
pub fn pages_purged_before_a_failed_sync_are_reported_as_lost(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let mut config = world.cold_config();
    config.ssd.quarantine_after = 1;
    let store = world.open(&config);
    store_pages(&store, 0..5, LEN);
    until(world, "they are written", || store.stats().unflushed_bytes == 0);
    world.flip(0, "segments", find(world, key(3)).payload + 40_000);
    sim.disk.hold(FaultOp::Sync, None);
    fail(sim, FaultOp::Sync, 1..2);
    assert!(!is_page_present(&store, 3, LEN));
    // The purge is over before the sync fails.
    wait(sim, 5);
    sim.disk.release();
    unavailable(try_flush(&store));
    wait(sim, 1200);
    let report = try_flush(&store).expect("flushed");
    assert_eq!((report.durable_objects, report.lost_objects), (0, 5), "{report:?}");
}

pub fn pages_put_while_read_only_are_written_the_last_first(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if !world.tells_keys_apart() {
        return; // Each page would be read before it is put.
    }
    let config = world.config();
    let store = world.open(&config);
    // Their frame numbers are used again, in another order.
    store_pages(&store, 0..5, LEN);
    let keys = [3, 0, 4, 1, 2].map(key);
    keys.iter().for_each(|key| assert_eq!(store.remove(&[*key], Options::default()), Ok(1)));
    store_page(&store, 9, LEN);
    fail(sim, FaultOp::Sync, 1..2);
    unavailable(try_flush(&store));
    store_pages(&store, 10..15, LEN);
    wait(sim, 1200);
    assert_eq!(state(&store), ("on".into(), 2));
    try_flush(&store).expect("flushed");
    let records = [14, 13, 12, 11, 10].map(|n| find(world, key(n)).record);
    assert!(records.is_sorted(), "{records:?}");
}

/// A sync covers an attached object while its base is only in DRAM, and the sync of the base fails.
pub fn attached_object_whose_base_is_synced_later_is_durable_with_it(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if !world.tells_keys_apart() {
        return; // A base is any object.
    }
    let mut config = world.config();
    config.ssd.admission = SsdAdmissionRule::SecondTouch;
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    let state = key_in(namespace("m"), 1, "state");
    // A retained state is written, and its base is not.
    store.hint(&[state], Hint::Retain(Duration::from_secs(3600))).expect("retained");
    let attached = attach(&store, key(1), &[(state, bytes(8, LEN))]);
    assert_eq!(attached, Ok(PutOutcome::Stored));
    until(world, "the state is written", || store.stats().unflushed_bytes == 0);
    store.remove(&[key(50)], Options::default()).expect("synced");
    fail(sim, FaultOp::Sync, 1..2);
    unavailable(try_flush(&store));
    wait(sim, 1100);
    let report = try_flush(&store).expect("flushed");
    assert_eq!((report.durable_objects, report.refused_objects), (2, 0), "{report:?}");
    drop(store);
    sim.crash(CrashMode::DropAll);
    let store = world.open(&config);
    hit_page(&store, 1, LEN);
    assert!(is_present(&store, state, &bytes(8, LEN)));
}

pub fn removed_file_makes_tier_read_only_for_good(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let config = world.config();
    for name in ["segments", "manifest.0", "manifest.1", "checkpoint.0", "LOCK"] {
        let world = world.fresh(1);
        let sim_of = world.sim().expect("simulated as the other");
        let store = world.open(&config);
        store_pages(&store, 0..5, LEN);
        put_into_namespace(&store, "other");
        flush(&store);
        store_pages(&store, 5..8, LEN);
        sim_of.disk.inject(FaultPlan::Unlink { dir: 0, name: name.into() });
        unavailable(try_flush(&store));
        assert_eq!(state(&store), ("read-only".into(), 1), "{name}");
        // Not a fault of the device: reads continue, however many probes fail.
        wait(sim_of, 600_000);
        assert_eq!(state(&store), ("read-only".into(), 1), "{name}");
        (0..8).for_each(|n| _ = hit_page(&store, n, LEN));
        let cleared = store.clear(namespace("other"), Options::default()).map_err(|e| e.kind);
        assert_eq!(cleared, Err(ErrorKind::Unavailable), "{name}");
    }
    assert_eq!(sim.disk.held(), 0);
}

pub fn second_failed_sync_turns_tier_off_until_a_probe_succeeds(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..5, LEN);
    let store = world.reopen(store, &config);
    store_page(&store, 10, LEN);
    fail(sim, FaultOp::Sync, 1..3);
    unavailable(try_flush(&store));
    assert_eq!(hit_page(&store, 1, LEN), Tier::Ssd, "read-only is read");
    wait(sim, 1100);
    assert_eq!(state(&store), ("off".into(), 2));
    for n in 0..5 {
        assert_absent(world, &store, key(n), LEN);
    }
    assert_eq!(hit_page(&store, 10, LEN), Tier::Memory);
    store_page(&store, 2, LEN);
    wait(sim, 2100);
    assert_eq!(state(&store), ("on".into(), 3));
    assert_eq!(try_flush(&store).map(|r| r.durable_objects), Ok(2));
    assert_absent(world, &store, key(1), LEN);
    drop(store);
    sim.crash(CrashMode::DropAll);
    let store = world.open(&config);
    for n in [2, 10] {
        hit_page(&store, n, LEN);
    }
}

pub fn third_round_of_failing_writes_makes_tier_read_only(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    for (rounds, ends) in [(1, "on"), (2, "on"), (3, "read-only")] {
        let world = world.fresh(1);
        let sim_of = world.sim().expect("simulated as the other");
        let config = world.config();
        let store = world.open(&config);
        store_pages(&store, 0..5, LEN);
        flush(&store);
        for n in 0..rounds {
            // One write at a time, so that each fails in a different segment, which is prepared by
            // then.
            wait(sim_of, 20);
            sim_of.disk.inject(FaultPlan::Fail {
                op: FaultOp::Write,
                nth: 1,
                kind: FaultKind::NoSpace,
            });
            store_page(&store, 10 + n, LEN);
            wait(sim_of, 20);
        }
        assert_eq!(store.stats().ssd_state, ends, "rounds={rounds}");
        for n in (0..5).chain(10..10 + rounds) {
            hit_page(&store, n, LEN);
        }
        wait(sim_of, 1100);
        assert_eq!(store.stats().ssd_state, "on");
        assert_eq!(try_flush(&store).map(|_| ()), Ok(()), "rounds={rounds}");
        drop(store);
        sim_of.crash(CrashMode::DropAll);
        let store = world.open(&config);
        for n in (0..5).chain(10..10 + rounds) {
            hit_page(&store, n, LEN);
        }
    }
    assert_eq!(sim.disk.held(), 0);
}

pub fn failed_write_seals_segment_after_its_last_good_record(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let mut config = world.config();
    config.ssd.checkpoint_segments = 0;
    let store = world.open(&config);
    store_pages(&store, 0..5, LEN);
    flush(&store);
    wait(sim, 20);
    fail(sim, FaultOp::Write, 1..2);
    store_page(&store, 5, LEN);
    flush(&store);
    store_pages(&store, 6..9, LEN);
    flush(&store);
    assert_eq!(store.stats().flush_errors, 1);
    let file = world.read(0, "segments");
    let at = find(world, key(0)).record >> 20 << 20;
    let identity =
        Record::decode(&file[at as usize + 4096..]).expect("the first record").facts().identity;
    let tail = &file[(at + (1 << 20) - 4096) as usize..(at + (1 << 20)) as usize];
    let (_, entries) = footer::decode(tail, identity, 1 << 20).expect("a footer");
    let named: Vec<_> = entries.iter().map(|e| e.key).collect();
    assert_eq!(named, (0..5).map(key).collect::<Vec<_>>(), "the footer lists no failed write");
    drop(store);
    sim.crash(CrashMode::DropAll);
    let store = world.open(&config);
    let report = store.opened().clone();
    assert_eq!(
        (report.footers, report.scanned_segments),
        (1, 1),
        "sealed with a footer {report:?}"
    );
    for n in 0..9 {
        hit_page(&store, n, LEN);
    }
}

pub fn failed_manifest_write_is_repeated_later(world: &TestEnv) {
    if world.sim().is_none() {
        return;
    }
    // The writes and the syncs of both copies in turn, each also followed by a crash.
    for op in [FaultOp::Write, FaultOp::Sync] {
        for nth in 1..3 {
            for crash in [false, true] {
                let world = world.fresh(1);
                let sim = world.sim().expect("simulated as the other");
                let config = world.config();
                let store = world.open(&config);
                store_page(&store, 1, LEN);
                put_into_namespace(&store, "x");
                flush(&store);
                wait(sim, 20);
                fail(sim, op, nth..nth + 1);
                let at = format!("op={op} nth={nth} crash={crash}");
                let cleared = store.clear(namespace("x"), Options::default()).map_err(|e| e.kind);
                assert_eq!(cleared, Err(ErrorKind::Unavailable), "{at}");
                assert_eq!(store.stats().ssd_state, "read-only", "{at}");
                if !crash {
                    wait(sim, 1100);
                    assert_eq!(store.stats().ssd_state, "on", "{at}");
                    store.clear(namespace("m"), Options::default()).expect("cleared");
                    store_page(&store, 2, LEN);
                    flush(&store);
                }
                drop(store);
                sim.crash(if crash { CrashMode::Random } else { CrashMode::DropAll });
                let store = world.open(&config);
                if crash {
                    hit_page(&store, 1, LEN);
                } else {
                    assert_absent(&world, &store, key(1), LEN);
                    hit_page(&store, 2, LEN);
                }
            }
        }
    }
}

/// A crash at any moment of a manifest rewrite leaves one valid copy of each block.
pub fn crash_during_a_manifest_rewrite_leaves_one_valid_copy(world: &TestEnv) {
    if world.sim().is_none() || world.constant {
        return; // Independent of fingerprints.
    }
    for (op, nth) in
        [(FaultOp::Write, 1), (FaultOp::Write, 2), (FaultOp::Sync, 1), (FaultOp::Sync, 2)]
    {
        for stop in 0..7 {
            for seed in 0..6 {
                let world = world.fresh(1);
                let sim = world.sim().expect("simulated as the other");
                let config = world.config();
                let store = world.open(&config);
                store_page(&store, 1, LEN);
                ["x", "y"].iter().for_each(|name| put_into_namespace(&store, name));
                (0..40).for_each(|n| put_into_namespace(&store, &format!("x{n}")));
                flush(&store);
                // Enough that a change of the last row touches several sectors of its block: one
                // can be torn.
                for n in 0..40 {
                    store.clear(namespace(&format!("x{n}")), Options::default()).expect("cleared");
                }
                wait(sim, 20);
                fail(sim, op, nth..nth + 1);
                store.clear(namespace("x"), Options::default()).expect_err("refused");
                // This one becomes durable together with the other, so that the blocks differ in
                // two sectors.
                store.clear(namespace("y"), Options::default()).expect_err("refused");
                sim.disk.stop_after(stop);
                wait(sim, 1200);
                drop(store);
                sim.crash_seeded(CrashMode::Random, seed);
                hit_page(&world.open(&config), 1, LEN);
            }
        }
    }
}

/// A removal is not answered as done if its tombstone did not reach its place.
pub fn lost_tombstone_write_is_detected(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Independent of fingerprints.
    }
    let store = world.open(&world.config());
    store_pages(&store, 0..5, LEN);
    flush(&store);
    assert_eq!(store.remove(&[key(0)], Options::default()), Ok(1));
    // The write is acknowledged; before the read-back its place is overwritten.
    let at = find(world, key(4));
    sim.disk.hold(FaultOp::Sync, Some("segments"));
    let soon = Options::default().timeout(Duration::from_millis(20));
    store.remove(&[key(1)], soon).expect_err("its sync hangs");
    let waiting = store.remove(&[key(2)], soon);
    assert_eq!(waiting.map_err(|e| e.kind), Err(ErrorKind::Unavailable));
    // Everything after the last page.
    let from = at.record + at.record_bytes;
    let zeros = vec![0; 64 << 10];
    let ruin = FaultPlan::Overwrite { dir: 0, name: "segments".into(), offset: from, bytes: zeros };
    sim.disk.inject(ruin);
    sim.disk.release();
    wait(sim, 50);
    let stats = store.stats();
    assert_eq!((stats.damaged, stats.segments_suspect), (2, 1), "{stats:?}");
    assert_eq!(store.remove(&[key(3)], Options::default()), Ok(1));
}

pub fn stalled_device_blocks_no_call(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let mut config = world.config();
    config.deadline_ms = 500;
    let store = world.open(&config);
    store_pages(&store, 0..3, LEN);
    flush(&store);
    sim.disk.hold(FaultOp::Write, None);
    // More than the arena holds in addition to the writes in flight.
    for n in 10..13 {
        store_page(&store, n, LEN);
    }
    wait(sim, 600);
    assert_eq!(state(&store), ("read-only".into(), 1));
    for n in 100..250 {
        assert_eq!(put_with(&store, key(n), &bytes(n, LEN), NOW), Ok(PutOutcome::Stored), "n={n}");
    }
    hit_page(&store, 249, LEN);
    wait(sim, 5000);
    assert_eq!(state(&store), ("read-only".into(), 1), "no trial while anything is under way");
    sim.disk.release();
    wait(sim, 1100);
    assert_eq!(state(&store), ("on".into(), 2));
    flush(&store);
    store_page(&store, 300, LEN);
    let store = world.reopen(store, &config);
    for n in [0, 1, 2, 10, 11, 12, 249, 300] {
        hit_page(&store, n, LEN);
    }
}

/// If the sync that covers moved objects fails, they are at their old places, whichever sync it is.
pub fn failed_sync_during_a_move_loses_no_durable_object(world: &TestEnv) {
    if world.sim().is_none() || world.constant {
        return; // Independent of fingerprints.
    }
    let mut moved = 0;
    for nth in 1..24 {
        let world = world.fresh(1);
        let sim = world.sim().expect("simulated as the other");
        let config = world.cold_config();
        let store = world.open(&config);
        store_pages(&store, 0..5, LEN);
        flush(&store);
        let pin = store.pin(&(0..5).map(key).collect::<Vec<_>>());
        let before = store.stats().syncs;
        fail(sim, FaultOp::Sync, 2 * nth..2 * nth + 1);
        for n in 100..100 + (LAP * 3 / 2 / LEN) as u64 {
            while put(&store, key(n), &bytes(n, LEN)) == Ok(PutOutcome::Refused) {
                wait(sim, 100);
            }
        }
        wait(sim, 3000);
        let stats = store.stats();
        assert_eq!(stats.ssd_state, "on", "nth={nth}");
        moved += stats.bytes_reinserted;
        assert!(stats.syncs > before);
        for n in 0..5 {
            hit_page(&store, n, LEN);
        }
        drop(pin);
    }
    assert!(moved > 0, "nothing was moved");
}

pub fn segment_without_a_footer_is_reclaimed(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Independent of fingerprints.
    }
    let mut config = world.config();
    config.ssd.checkpoint_segments = 1;
    let store = world.open(&config);
    store_pages(&store, 0..5, LEN);
    // Objects removed here must stay removed when the segment with the tombstones is reused.
    store.remove(&[key(0)], Options::default()).expect("removed");
    flush(&store);
    wait(sim, 50);
    store_page(&store, 5, LEN);
    fail(sim, FaultOp::Sync, 1..2);
    unavailable(try_flush(&store));
    wait(sim, 1100);
    assert_eq!(store.stats().ssd_state, "on");
    // A checkpoint covers it, so that open does not scan it.
    let store = world.reopen(store, &config);
    assert_eq!(store.opened().scanned_segments, 0, "{:?}", store.opened());
    let at = find(world, key(1)).record;
    let before = world.read(0, "segments")[at as usize..][..4096].to_vec();
    let pin = store.pin(&[key(2)]);
    put_until(&store, 100, LEN, 2 * LAP);
    let now = world.read(0, "segments")[at as usize..][..4096].to_vec();
    assert!(before != now, "its segment was used again");
    hit_page(&store, 2, LEN);
    assert_absent(world, &store, key(0), LEN);
    drop(pin);
}

/// Pages of segment 0, on SSD only after a reopen, of which the first `damaged` are damaged.
fn with_damaged_records(world: &TestEnv, damaged: u64) -> Store {
    let mut config = world.config();
    config.dram.promote = pagelith::config::Promote::Always;
    let store = world.open(&config);
    store_pages(&store, 0..30, LEN);
    store.close().expect("closed");
    let store = world.open(&config);
    let sim = world.sim().expect("a simulated world");
    for n in 0..damaged {
        let offset = find(world, key(n)).payload + 100;
        sim.disk.inject(FaultPlan::FlipBit { dir: 0, name: "segments".into(), offset, bit: 1 });
    }
    store
}

/// Pages 0 to 15 are in one segment, others in another.
const TOGETHER: std::ops::Range<u64> = 0..15;

pub fn segment_with_too_many_failed_reads_is_quarantined(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Each get would read several records.
    }
    let store = with_damaged_records(world, 2);
    for n in 0..2 {
        assert!(!is_page_present(&store, n, LEN));
    }
    let stats = store.stats();
    assert_eq!((stats.segments_suspect, stats.segments_quarantined), (1, 0));
    TOGETHER.skip(2).for_each(|n| {
        hit_page(&store, n, LEN);
    });
    drop(store);

    let world = world.fresh(1);
    let store = with_damaged_records(&world, 3);
    // Some of it is in memory by then.
    for n in 5..8 {
        assert_eq!(hit_page(&store, n, LEN), Tier::Ssd);
    }
    for n in 0..3 {
        assert!(!is_page_present(&store, n, LEN));
    }
    let stats = store.stats();
    assert_eq!((stats.segments_suspect, stats.segments_quarantined), (0, 1));
    assert_eq!(stats.ssd_state, "on");
    let sim_of = world.sim().expect("simulated as the other");
    wait(sim_of, 100);
    for n in (3..5).chain(8..15) {
        assert_absent(&world, &store, key(n), LEN);
    }
    for n in 5..8 {
        assert_eq!(hit_page(&store, n, LEN), Tier::Memory);
    }
    hit_page(&store, 29, LEN);
    assert_eq!(
        try_flush(&store).map(|r| r.durable_objects),
        Ok(3),
        "frames in memory are written again"
    );
    // It is not reused, however much is put.
    let at = find(&world, key(4)).record;
    put_until(&store, 100, LEN, 2 * LAP);
    assert_eq!(find(&world, key(4)).record, at);
    assert_eq!(sim.disk.held(), 0);
}

pub fn many_quarantined_segments_make_tier_read_only(world: &TestEnv) {
    let Some(_) = world.sim() else { return };
    if world.constant {
        return; // Each get would read several records.
    }
    let mut config = world.config();
    config.ssd.quarantine_after = 1;
    let store = world.open(&config);
    store_pages(&store, 0..150, LEN);
    store.close().expect("closed");
    let store = world.open(&config);
    let sim = world.sim().expect("a simulated world");
    for n in (0..150).step_by(20) {
        let offset = find(world, key(n)).record + 100;
        sim.disk.inject(FaultPlan::FlipBit { dir: 0, name: "segments".into(), offset, bit: 1 });
    }
    let mut kept = 0;
    for n in (0..150).step_by(20) {
        assert!(!is_page_present(&store, n, LEN));
        kept += usize::from(store.stats().ssd_state == "on");
    }
    let stats = store.stats();
    assert!((2..6).contains(&kept), "kept={kept} {stats:?}");
    assert_eq!(stats.ssd_state, "read-only");
    wait(sim, 200_000);
    assert_eq!(store.stats().ssd_state, "read-only", "no trial can help");
    store_page(&store, 500, LEN);
    hit_page(&store, 500, LEN);
    store.abandon();
    let store = world.open(&config);
    assert_eq!(store.stats().ssd_state, "on");
}
