//! Staging memory, shared by more threads than it has room for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use pagelith::{PutOutcome, Size};
use pagelith_io::runtime::Runtime;
use pagelith_io::staging::StagingPool;

use super::env::{ShuttleRuntime, World, tiers};
use super::explore::explore;
use super::helpers::{Scenario, run_all, thread};

/// Four threads on a budget of two: no byte belongs to two of them, every thread gets a turn, and
/// all is returned.
#[test]
fn staging_permits_are_exclusive_and_all_returned() {
    explore("staging_permits_are_exclusive_and_all_returned", 4000, || {
        let pool = StagingPool::new(2 * 4096).expect("memory");
        let runtime = ShuttleRuntime(World::new().sim.clock.clone());
        let owned = Arc::new(Mutex::new(BTreeSet::new()));
        let user = |id: u8| {
            let (pool, runtime, owned) = (pool.clone(), runtime.clone(), owned.clone());
            let body = move || {
                for _ in 0..2 {
                    let mut tries = 0;
                    let mut mine = loop {
                        let seen = pool.released().value();
                        if let Some(part) = pool.try_part(4096) {
                            break part;
                        }
                        tries += 1;
                        assert!(tries < 50, "starved");
                        runtime.pause(pool.released(), seen, std::time::Duration::from_secs(60));
                    };
                    assert!(
                        owned.lock().expect("set").insert(mine.addr()),
                        "memory that another has"
                    );
                    mine.bytes_mut().expect("exclusive").fill(id);
                    assert!(pool.in_use() >= 4096);
                    assert!(mine.bytes().iter().all(|b| *b == id), "another thread wrote here");
                    owned.lock().expect("set").remove(&mine.addr());
                }
            };
            Box::new(body) as Box<dyn FnOnce() + Send>
        };
        run_all((0..4).map(user).collect());
        assert_eq!((pool.in_use(), pool.largest_free()), (0, pool.capacity()));
    });
}

/// Gets that must be staged, one object at a time within the budget, from three threads.
#[test]
fn staged_gets_share_the_budget() {
    explore("staged_gets_share_the_budget", 800, || {
        let world = World::new();
        let scenario = Scenario::new(&world, &tiers(Size::ZERO), 60 << 10);
        for key in 1..4 {
            assert_eq!(scenario.put(key, key * 100), Ok(PutOutcome::Stored));
        }
        scenario.flush();
        let reader = |keys: [u64; 2]| {
            thread(&scenario, move |p| {
                for key in keys {
                    assert_eq!(p.get_unaligned(key), Some(key * 100));
                }
            })
        };
        run_all(vec![reader([1, 2]), reader([2, 3]), reader([3, 1])]);
        assert!(scenario.store.stats().staged_bytes > 0, "nothing was staged");
        scenario.ends_clean();
    });
}
