//! Segments that are emptied and overwritten while other threads read them, pin objects in them,
//! and remove these. The disk panics when two operations in flight overlap and one is a write. So a
//! segment that is reused too early is detected even where checksums would have turned it into a
//! miss.

use std::sync::{Arc, Mutex};

use pagelith::config::SsdPolicy;
use pagelith::{Config, PutOutcome, Size};
use pagelith_sim::disk::{CrashMode, DiskSnapshot};
use shuttle::rand::{Rng, thread_rng};

use super::env::{World, tiers};
use super::explore::explore;
use super::helpers::{Scenario, get_pair, is_allowed, part, put_pair, run_all, thread};

/// Two objects per segment.
const LEN: usize = 480 << 10;

fn config() -> Config {
    let mut c = tiers(Size::ZERO);
    (c.deadline_ms, c.close_timeout_ms) = (600_000, 600_000);
    c.ssd.policy = SsdPolicy::Recency;
    c
}

/// A store with all segments but two full: of page 1, a group, and of objects 3 to 8. The next put
/// makes the first segment a victim.
fn full_log() -> (World, Arc<Scenario>) {
    // Made in the first schedule of a program, and copied from then on.
    static FULL: Mutex<Option<DiskSnapshot>> = Mutex::new(None);
    let world = World { slow_reads: true, ..World::new() };
    let kept = FULL.lock().expect("snapshot").clone();
    match kept {
        Some(kept) => world.sim.disk.restore(&kept),
        None => {
            let scenario = Scenario::new(&world, &config(), LEN);
            assert_eq!(put_pair(&scenario, 1, 100), Ok(PutOutcome::Stored));
            scenario.flush();
            for key in 3..9 {
                assert_eq!(scenario.put(key, key * 100), Ok(PutOutcome::Stored));
                scenario.flush();
            }
            drop(scenario.reopened(&world, &config(), |store| assert!(store.close().is_ok())));
            let mut full = FULL.lock().expect("snapshot");
            *full = Some(world.sim.disk.snapshot());
            world.sim.disk.restore(full.as_ref().expect("just made"));
        }
    }
    let scenario = Scenario::new(&world, &config(), LEN);
    for key in (1..9).filter(|key| *key != 2) {
        let begun = scenario.history.begin_put(key, key * 100);
        scenario.history.end(begun, true);
    }
    (world, scenario)
}

fn put_and_flush(p: &Scenario, keys: std::ops::Range<u64>) {
    for key in keys {
        let outcome = p.put(key, key * 100);
        assert!(is_allowed(&outcome), "{outcome:?}");
        p.flush();
    }
}

/// Lets other threads run for a while, so that the next call meets reclaim at any of its steps.
fn yield_randomly() {
    (0..thread_rng().gen_range(0..600)).for_each(|_| shuttle::thread::yield_now());
}

/// Reads of segments that are being reclaimed.
#[test]
fn reads_during_reclaim_return_own_bytes() {
    explore("reads_during_reclaim_return_own_bytes", 600, || {
        let (_world, scenario) = full_log();
        let reader = |keys: [u64; 3]| {
            thread(&scenario, move |p| {
                for key in keys {
                    p.get(key);
                }
            })
        };
        run_all(vec![
            thread(&scenario, |p| put_and_flush(p, 10..17)),
            reader([1, 3, 1]),
            reader([4, 1, 3]),
        ]);
        let stats = scenario.store.stats();
        assert!(stats.segments_reclaimed > 0, "nothing was reclaimed");
        // A segment with a reader is not reused, so an object found in it is there until it was
        // read.
        assert_eq!(stats.misses.get("gone"), None, "a segment was used again under a reader");
        scenario.ends_clean();
    });
}

/// An object that a pin counted is present as long as the pin.
#[test]
fn pinned_object_survives_reclaim() {
    explore("pinned_object_survives_reclaim", 600, || {
        let (_world, scenario) = full_log();
        let pinner = |key: u64| {
            thread(&scenario, move |p| {
                yield_randomly();
                let pin = p.store.pin(&[part(key, 0)]);
                if pin.pinned() == 1 {
                    yield_randomly();
                    assert_eq!(p.get(key), Some(key * 100), "a pinned object is gone");
                }
            })
        };
        run_all(vec![thread(&scenario, |p| put_and_flush(p, 10..14)), pinner(1), pinner(3)]);
        scenario.ends_clean();
    });
}

/// An object that is removed while reclaim moves it stays gone, with its whole group.
#[test]
fn object_removed_while_reclaim_moves_it_stays_absent() {
    explore("object_removed_while_reclaim_moves_it_stays_absent", 500, || {
        let (world, scenario) = full_log();
        // Pinned, so that it is moved; a remove overrides a pin.
        let pin = scenario.store.pin(&[part(1, 0)]);
        assert_eq!(pin.pinned(), 1);
        let gone = |p: &Scenario| assert_eq!(get_pair(p, 1), [None; 2], "removed but present");
        run_all(vec![
            thread(&scenario, |p| put_and_flush(p, 10..14)),
            thread(&scenario, move |p| {
                yield_randomly();
                p.remove_part(1, 1);
                gone(p);
            }),
            thread(&scenario, |p| {
                get_pair(p, 1);
            }),
        ]);
        gone(&scenario);
        drop(pin);
        scenario.flush();
        world.sim.crash_seeded(CrashMode::DropAll, 1);
        let scenario = scenario.reopened(&world, &config(), drop);
        gone(&scenario);
        scenario.ends_clean();
    });
}
