//! Memory that is reused while readers copy from it: a DRAM-only store with room for two objects.

use pagelith::{Event, Options, Size};

use super::env::{World, memory};
use super::explore::explore;
use super::helpers::{Scenario, is_allowed, part, run_all, thread, value_of};

const LEN: usize = 24 << 10;

fn scenario() -> std::sync::Arc<Scenario> {
    Scenario::new(&World::new(), &memory(Size::kib(64)), LEN)
}

/// All threads that put and get one key see the bytes of the same put.
#[test]
fn concurrent_calls_see_one_put_per_key() {
    explore("concurrent_calls_see_one_put_per_key", 3000, || {
        let scenario = Scenario::new(&World::new(), &memory(Size::kib(128)), LEN);
        let writer = |value: u64| {
            thread(&scenario, move |p| {
                let outcome = p.put(1, value);
                assert!(is_allowed(&outcome), "{outcome:?}");
                let first = p.get(1).expect("put object is missing");
                assert_eq!(p.get(1), Some(first), "a present key changed its bytes");
            })
        };
        run_all(vec![writer(10), writer(11), writer(12)]);
        let stored = scenario.history.stored(1);
        assert_eq!(stored.len(), 1, "several first writers {stored:?}");
        assert_eq!(scenario.get(1), Some(stored[0]));
        scenario.ends_clean();
    });
}

/// Frames are evicted and filled again while other threads copy out of them.
#[test]
fn reads_during_eviction_return_own_bytes() {
    explore("reads_during_eviction_return_own_bytes", 4000, || {
        let scenario = scenario();
        assert!(scenario.put(1, 100).is_ok() && scenario.put(2, 200).is_ok());
        let mut threads = Vec::new();
        threads.push(thread(&scenario, |p| {
            for key in 3..6 {
                let outcome = p.put(key, key * 100);
                assert!(is_allowed(&outcome), "{outcome:?}");
            }
        }));
        threads.push(thread(&scenario, |p| {
            for key in [1, 2, 3, 1] {
                p.get(key);
            }
        }));
        threads.push(thread(&scenario, |p| {
            for key in [2, 4, 3] {
                p.get(key);
            }
            p.remove(4);
        }));
        run_all(threads);
        scenario.ends_clean();
    });
}

/// The bytes of a view stay unchanged while other threads put, remove and clear.
#[test]
fn view_keeps_its_bytes_during_other_calls() {
    explore("view_keeps_its_bytes_during_other_calls", 3000, || {
        let scenario = scenario();
        assert!(scenario.put(1, 100).is_ok());
        let mut threads = Vec::new();
        threads.push(thread(&scenario, |p| {
            if let Some(view) = p.store.view(&part(1, 0)).expect("open") {
                let first = value_of(&view);
                let _ = p.store.stats();
                shuttle::thread::yield_now();
                assert_eq!(value_of(&view), first, "the bytes of a view changed");
            }
        }));
        threads.push(thread(&scenario, |p| {
            p.remove(1);
            let outcome = p.put(2, 200);
            assert!(is_allowed(&outcome), "{outcome:?}");
        }));
        threads.push(thread(&scenario, |p| {
            let outcome = p.put(3, 300);
            assert!(is_allowed(&outcome), "{outcome:?}");
            p.get(2);
        }));
        run_all(threads);
        scenario.ends_clean();
    });
}

/// An object that a pin counted stays.
#[test]
fn pinned_object_survives_concurrent_eviction() {
    explore("pinned_object_survives_concurrent_eviction", 3000, || {
        let scenario = scenario();
        assert!(scenario.put(1, 100).is_ok());
        let mut threads = Vec::new();
        threads.push(thread(&scenario, |p| {
            let pin = p.store.pin(&[part(1, 0)]);
            if pin.pinned() == 1 {
                p.store.stats();
                assert_eq!(p.get(1), Some(100), "a pinned object is gone");
            }
        }));
        for key in [2, 3] {
            threads.push(thread(&scenario, move |p| {
                let outcome = p.put(key, key * 100);
                assert!(is_allowed(&outcome), "{outcome:?}");
            }));
        }
        run_all(threads);
        scenario.ends_clean();
    });
}

/// Events of threads that put the same keys and evict one another's objects are in the right order
/// for each key.
#[test]
fn events_match_concurrent_puts_and_evictions() {
    explore("events_match_concurrent_puts_and_evictions", 3000, || {
        let mut config = memory(Size::kib(64));
        config.events.max = 1000;
        let scenario = Scenario::new(&World::new(), &config, LEN);
        let putter = |keys: [u64; 4]| {
            thread(&scenario, move |p| {
                for key in keys {
                    let outcome = p.put(key, key * 100);
                    assert!(is_allowed(&outcome), "{outcome:?}");
                }
            })
        };
        run_all(vec![putter([1, 2, 3, 1]), putter([3, 1, 4, 3]), putter([2, 1, 2, 3])]);
        let batch = scenario.store.take_events(1000);
        assert_eq!(batch.lost, 0);
        let mut mirrored = std::collections::BTreeSet::new();
        for event in batch.events {
            match event {
                Event::Stored { key, new: true, .. } => assert!(mirrored.insert(key), "came twice"),
                Event::Removed { key, gone: true, .. } => {
                    assert!(mirrored.remove(&key), "left before it came")
                }
                other => panic!("{other:?}"),
            }
        }
        for key in 1..5 {
            let part = part(key, 0);
            assert_eq!(
                scenario.store.exists_batch(&[part], Options::default()),
                [mirrored.contains(&part)],
                "{key}"
            );
        }
        scenario.ends_clean();
    });
}
