//! Scrub finds latent damage before a get does.

use std::time::Duration;

use super::harness::Store;
use pagelith::io::clock::Clock;
use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::{Options, ScrubOptions, ScrubReport, Size, Tier};
use pagelith_sim::disk::{CrashMode, DiskFault, FaultPlan};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;

fn scrub(store: &Store) -> ScrubReport {
    store.scrub(ScrubOptions::default()).expect("scrubbed")
}

/// Thirty pages and three groups, closed.
fn closed(world: &TestEnv) -> pagelith::Config {
    let mut config = world.config();
    config.dram.promote = pagelith::config::Promote::Always;
    let store = world.open(&config);
    for n in 100..103 {
        put_group(&store, &group(n, 6)).expect("stored");
    }
    store_pages(&store, 0..30, LEN);
    store.close().expect("closed");
    config
}

pub fn scrub_reads_intact_records_and_changes_nothing(world: &TestEnv) {
    let config = closed(world);
    let store = world.open(&config);
    let report = scrub(&store);
    assert_eq!((report.objects, report.damaged, report.unreadable), (48, 0, 0), "{report:?}");
    assert!(report.segments >= 2 && report.bytes > 30 * LEN as u64, "{report:?}");
    let stats = store.stats();
    assert_eq!((stats.scrubbed_objects, stats.scrubbed_bytes), (report.objects, report.bytes));
    for n in 0..30 {
        hit_page(&store, n, LEN);
    }
    // Removed objects are not read.
    if world.tells_keys_apart() {
        store.remove(&[key(3)], Options::default()).expect("removed");
        assert_eq!(scrub(&store).objects, 47);
    }
    let empty = world.fresh(1);
    assert_eq!(scrub(&empty.open(&empty.config())), ScrubReport::default());
}

pub fn scrub_drops_damage_and_rewrites_it_from_memory(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Each get would read several records.
    }
    let config = closed(world);
    // A payload, a header, the last byte of a group's fourth member: in different segments.
    world.flip(0, "segments", find(world, key(2)).payload + 40_000);
    world.flip(0, "segments", find(world, key(28)).record + 70);
    let member = &group(101, 6)[3];
    world.flip(0, "segments", find(world, member.0).payload + member.1.len() as u64 - 1);
    let store = world.open(&config);
    let report = scrub(&store);
    assert_eq!(
        (report.damaged, report.unreadable, report.repaired_from_dram),
        (8, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.objects, 40, "{report:?}");
    for n in [2, 28] {
        assert_absent(world, &store, key(n), LEN);
    }
    for (key, _) in group(101, 6) {
        assert_eq!(store.exists_batch(&[key], Options::default()), [false]);
    }
    assert_eq!(scrub(&store).damaged, 0, "reported once");
    (0..30).filter(|n| ![2, 28].contains(n)).for_each(|n| {
        hit_page(&store, n, LEN);
    });

    // The same while memory has copies.
    let Some(sim) = world.sim() else { return };
    assert_eq!(hit_page(&store, 20, LEN), Tier::Memory);
    let offset = find(world, key(20)).payload + 5;
    sim.disk.inject(FaultPlan::FlipBit { dir: 0, name: "segments".into(), offset, bit: 0 });
    let report = scrub(&store);
    assert_eq!((report.damaged, report.repaired_from_dram), (1, 1), "{report:?}");
    assert_eq!(store.flush(Options::default()).map(|r| r.durable_objects), Ok(1));
    assert_eq!(store.stats().scrub_repaired, 1);
    drop(store);
    sim.crash(CrashMode::DropAll);
    let store = world.open(&config);
    assert_eq!(hit_page(&store, 20, LEN), Tier::Ssd);
}

pub fn scrub_retries_failed_reads_once(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Each get would read several records.
    }
    for (times, lost) in [(1, 0), (2, 1)] {
        let world = world.fresh(1);
        let sim_of = world.sim().expect("simulated as the other");
        let config = closed(&world);
        let store = world.open(&config);
        // Reads of a segment: headers, then record after record.
        for n in 0..times {
            let nth = 3 + n;
            sim_of.disk.inject(FaultPlan::Fail { op: FaultOp::Read, nth, kind: FaultKind::Device });
        }
        let report = scrub(&store);
        assert_eq!(u64::from(report.unreadable > 0), lost, "times={times} {report:?}");
        assert_eq!(report.objects + report.unreadable, 48, "times={times} {report:?}");
        assert_eq!(store.stats().segments_suspect, lost);
    }
    assert_eq!(sim.disk.held(), 0);
}

pub fn scrub_rereads_a_record_that_failed_verification(world: &TestEnv) {
    if world.sim().is_none() || world.constant {
        return; // Each get would read several records.
    }
    // Headers, then record after record, and the space after the last.
    for nth in 1..=24 {
        for fault in [DiskFault::BitFlipRead, DiskFault::MisdirectedRead] {
            let world = world.fresh(1);
            let sim = world.sim().expect("simulated as the other");
            let config = closed(&world);
            let store = world.open(&config);
            sim.disk.inject(FaultPlan::Strike { fault, nth });
            let report = scrub(&store);
            assert_eq!(sim.disk.struck().len(), 1, "nth={nth} {fault:?}");
            assert_eq!(
                (report.damaged, report.unreadable),
                (0, 0),
                "nth={nth} {fault:?} {report:?}"
            );
            assert_eq!(report.objects, 48, "nth={nth} {fault:?} {report:?}");
        }
    }
}

pub fn scrub_obeys_its_rate_and_timeout(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Independent of fingerprints.
    }
    let config = closed(world);
    let store = world.open(&config);
    let all = scrub(&store).bytes;
    let began = sim.clock.now();
    let slow = ScrubOptions::default().bytes_per_s(1 << 20);
    assert_eq!(store.scrub(slow).map(|r| r.bytes), Ok(all));
    let took = sim.clock.now().since(began).as_secs_f64();
    let least = (all as f64 - 300_000.0) / f64::from(1 << 20);
    assert!((least..least + 1.0).contains(&took), "took={took} least={least}");
    let began = sim.clock.now();
    let short = slow.timeout(Duration::from_millis(500));
    let part = store.scrub(short).expect("a partial report").bytes;
    assert!(part > 0 && part < all, "{part} of {all}");
    assert!(sim.clock.now().since(began) < Duration::from_millis(600));
    sim.disk.hold(FaultOp::Read, None);
    assert_eq!(scrub_error(&store), pagelith::ErrorKind::Unavailable);
    sim.disk.release();
    assert_eq!(scrub(&store).bytes, all);
    // No segment stays pinned: all can be reclaimed.
    put_until(&store, 200, LEN, 28 << 20);
}

fn scrub_error(store: &Store) -> pagelith::ErrorKind {
    store.scrub(ScrubOptions::default()).expect_err("refused").kind
}

pub fn background_scrub_runs_while_the_tier_is_idle(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Independent of fingerprints.
    }
    let mut config = closed(world);
    config.ssd.scrub_bytes_per_s = Size::mib(1);
    world.flip(0, "segments", find(world, key(2)).payload + 40_000);
    let store = world.open(&config);
    sim.runtime.run_for(Duration::from_millis(300));
    let early = store.stats().scrubbed_bytes;
    assert!(early > 0 && early < 900_000, "{early}");
    // It runs between puts.
    for n in 200..260 {
        store_page(&store, n, LEN);
        sim.runtime.run_for(Duration::from_millis(100));
    }
    let stats = store.stats();
    assert_eq!(stats.damaged, 1, "{stats:?}");
    assert!(stats.scrubbed_objects >= 47, "{stats:?}");
    assert_absent(world, &store, key(2), LEN);
    store.close().expect("closed");
}
