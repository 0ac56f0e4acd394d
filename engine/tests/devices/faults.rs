//! Gets and puts while the device fails, hangs or is lost.

use std::time::Duration;

use pagelith::{
    DeviceGet, DeviceGroup, DevicePut, DriverKind, ErrorKind, GetOutcome, GetSlice, MissCause,
    Options, PutSlice, Size,
};

use crate::support::{Bench, config, key, late, object, open, pin, put};

const LONG: Duration = Duration::from_secs(30);
const SHORT: Options = Options::within(Duration::from_millis(250));

/// The device hangs beyond the deadline: nothing that it uses is given back or overwritten, and the
/// late copy lands in memory that is still there.
#[test]
fn memory_of_late_get_is_kept_until_device_is_done() {
    for kind in DriverKind::ALL {
        let bench = Bench::new(kind, "hang=1");
        put(&bench.store, 1);
        let (memory, pieces) = bench.memory(object(1).len());
        let error = late(|| bench.get(1, &pieces, SHORT));
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(error.message.contains("device is not done with copies in time"), "{error}");
        assert_eq!(bench.device.late_copies(), 1);
        // All of the arena is put over, except the frame that the device reads.
        bench.store.remove(&[key(1)], Options::default()).expect("removed");
        (100..300).for_each(|n| put(&bench.store, n));
        bench.fake.change("hang=0");
        while bench.device.late_copies() > 0 {
            bench.fake.step();
        }
        assert!(memory.bytes() == object(1), "{kind}: the late copy brought other bytes");
        drop((memory, pieces));
        bench.end();
    }
}

/// As above, for an object that was read from SSD into staging memory.
#[test]
fn staging_memory_of_late_get_is_kept_until_device_is_done() {
    let home = tempfile::tempdir().expect("a directory");
    let config = config(&home, pin(DriverKind::Cuda));
    let store = open(&config);
    (0..20).for_each(|n| put(&store, n));
    store.close().expect("durable");
    let bench = Bench::of(home, open(&config), DriverKind::Cuda, "hang=1");
    let (memory, pieces) = bench.memory(object(1).len());
    let options = SHORT.timeout(Duration::from_millis(500));
    assert_eq!(late(|| bench.get(1, &pieces, options)).kind, ErrorKind::Unavailable);
    assert_eq!(bench.device.late_copies(), 1);
    // Reads that are staged, since their pieces are not aligned, use the other staging memory.
    for n in 2..20 {
        let mut to = vec![0; object(n).len() + 1];
        let get = GetSlice { key: key(n), range: None, pieces: &mut [&mut to[1..]] };
        let got = bench.store.get_batch(&mut [get], Options::default()).remove(0);
        assert!(got.is_ok_and(|got| got.is_hit()) && to[1..] == object(n), "n={n}");
    }
    bench.fake.change("hang=0");
    while bench.device.late_copies() > 0 {
        bench.fake.step();
    }
    assert!(memory.bytes() == object(1), "the late copy brought other bytes");
    drop((memory, pieces));
    bench.end();
}

/// The store goes first: its memory stays locked and mapped for the late copy.
#[test]
fn store_dropped_before_late_copy_keeps_its_memory() {
    let bench = Bench::new(DriverKind::Cuda, "hang=1");
    put(&bench.store, 1);
    let (memory, pieces) = bench.memory(object(1).len());
    late(|| bench.get(1, &pieces, SHORT));
    let Bench { home, fake, store, device } = bench;
    store.close().expect("durable");
    assert!(fake.count("locked-bytes") > 0);
    fake.change("hang=0");
    while device.late_copies() > 0 {
        fake.step();
    }
    assert!(memory.bytes() == object(1));
    drop((home, memory, pieces, device));
    let left = ["retained", "streams", "events", "work", "locked-chunks", "violations"];
    assert_eq!(left.map(|what| fake.count(what)), [0; 6]);
}

#[test]
fn store_and_handle_dropped_before_late_copy_release_all_once_device_is_done() {
    let bench = Bench::new(DriverKind::Cuda, "hang=1");
    put(&bench.store, 1);
    let (memory, pieces) = bench.memory(object(1).len());
    late(|| bench.get(1, &pieces, SHORT));
    let Bench { home, fake, store, device } = bench;
    store.close().expect("durable");
    fake.change("hang=0");
    while memory.bytes() != object(1) {
        fake.step();
    }
    // No caller asks for late copies.
    drop((home, memory, pieces, device));
    let left = ["retained", "streams", "events", "work", "locked-chunks", "violations"];
    assert_eq!(left.map(|what| fake.count(what)), [0; 6]);
}

/// Each call that ends late keeps memory, and all of them together leave room for puts.
#[test]
fn late_gets_together_keep_at_most_a_quarter_of_the_arena() {
    let bench = Bench::new(DriverKind::Cuda, "hang=1");
    (0..64).for_each(|n| put(&bench.store, n));
    let memories: Vec<_> = (0..64).map(|n| bench.memory(object(n).len())).collect();
    for call in 0..8 {
        let numbers = call * 8..call * 8 + 8;
        let gets: Vec<_> = numbers
            .map(|n| DeviceGet { key: key(n), range: None, pieces: &memories[n].1 })
            .collect();
        let outcomes = bench.store.get_to_device(&bench.device, None, &gets, SHORT);
        let is_hit = |outcome: &Result<GetOutcome, _>| outcome.as_ref().is_ok_and(|o| o.is_hit());
        assert!(!outcomes.iter().any(is_hit), "{outcomes:?}");
    }
    // More than half of the arena.
    for n in 100..148 {
        let bytes = object(n);
        let put = PutSlice { key: key(n), pieces: &[&bytes] };
        let outcome = bench.store.put_batch(&[put], Options::default()).remove(0);
        assert!(outcome.is_ok(), "{outcome:?} n={n}");
    }
    drop(memories);
    bench.fake.change("hang=0");
    while bench.device.late_copies() > 0 {
        bench.fake.step();
    }
    bench.end();
}

/// A hit that exceeds half of the staging memory can only be copied out of DRAM: it waits while
/// copies of other calls hold as much of the arena as they may.
#[test]
fn large_hit_waits_for_memory_that_late_copies_hold() {
    let bench = Bench::new(DriverKind::Cuda, "hang=1");
    let whole = |n: usize| -> Vec<u8> { (0..700_000).map(|at| ((at * n) >> 3) as u8).collect() };
    for n in [5, 7] {
        let bytes = whole(n);
        let put = PutSlice { key: key(n), pieces: &[&bytes] };
        bench.store.put_batch(&[put], Options::default())[0].as_ref().expect("stored");
    }
    let memories = [5, 7].map(|n| (n, bench.memory(700_000)));
    let get = |at: usize, options| {
        let (n, (_, pieces)) = &memories[at];
        bench.get(*n, pieces, options)
    };
    late(|| get(0, SHORT));
    assert_eq!(bench.device.late_copies(), 1);
    assert_eq!(get(1, SHORT), Ok(GetOutcome::Miss(MissCause::Late)));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(1, Options::default().timeout(LONG)));
        bench.fake.change("hang=0");
        while !waiting.is_finished() {
            bench.fake.step();
        }
        let got = waiting.join().expect("no panic");
        assert!(got.as_ref().is_ok_and(GetOutcome::is_hit), "{got:?}");
    });
    for (n, (memory, _)) in &memories {
        assert!(memory.bytes() == whole(*n), "n={n}");
    }
    drop(memories);
    bench.end();
}

/// A get that ends late, and then the device does what it was asked, and no caller asks for it.
fn end_late_copy(bench: &Bench) {
    put(&bench.store, 1);
    let (memory, pieces) = bench.memory(object(1).len());
    late(|| bench.get(1, &pieces, SHORT));
    bench.fake.change("hang=0");
    while bench.fake.count("work") > 0 {
        bench.fake.step();
    }
    assert!(memory.bytes() == object(1));
}

#[test]
fn late_memory_is_released_by_the_flusher() {
    let bench = Bench::new(DriverKind::Ascend, "hang=1");
    end_late_copy(&bench);
    while bench.fake.count("events") > 0 {
        std::thread::yield_now();
    }
    bench.end();
}

#[test]
fn late_memory_of_store_without_flusher_is_released_by_bind_and_close() {
    for closes in [false, true] {
        let home = tempfile::tempdir().expect("a directory");
        let mut config = config(&home, pin(DriverKind::Cuda));
        (config.ssd.bytes, config.ssd.dirs) = (Size::ZERO, Vec::new());
        let bench = Bench::of(home, open(&config), DriverKind::Cuda, "hang=1");
        end_late_copy(&bench);
        assert_eq!(bench.fake.count("events"), 1, "the end of the late copy");
        let Bench { fake, store, device, .. } = bench;
        match closes {
            true => assert!(store.close_within(LONG).error.is_none()),
            false => drop(store.bind_device_of(&fake.driver(), 0).expect("bound")),
        }
        assert_eq!(fake.count("events"), 0, "closes={closes}");
        drop(device);
    }
}

#[test]
fn late_put_of_many_groups_begins_no_copies_after_its_deadline() {
    let bench = Bench::new(DriverKind::Cuda, "hang=1");
    let memories: Vec<_> = (0..64).map(|n| bench.memory(object(n).len())).collect();
    let puts: Vec<[DevicePut<'_>; 1]> =
        (0..).zip(&memories).map(|(n, (_, pieces))| [DevicePut { key: key(n), pieces }]).collect();
    let groups: Vec<_> = puts.iter().map(|put| DeviceGroup::new(put)).collect();
    let outcomes = bench.store.put_from_device(&bench.device, None, &groups, &[], SHORT);
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    assert_eq!(bench.device.late_copies(), 2, "one round for each half of the memory");
    drop(groups);
    drop(puts);
    drop(memories);
    bench.fake.change("hang=0");
    while bench.device.late_copies() > 0 {
        bench.fake.step();
    }
    bench.end();
}

#[test]
fn late_put_stores_nothing_and_device_memory_is_kept() {
    let bench = Bench::new(DriverKind::Cuda, "hang=1");
    let (memory, pieces) = bench.memory(object(1).len());
    memory.write(&object(1));
    let puts = [DevicePut { key: key(1), pieces: &pieces }];
    let group = [DeviceGroup::new(&puts)];
    let outcome = bench.store.put_from_device(&bench.device, None, &group, &[], SHORT).remove(0);
    assert_eq!(outcome.expect_err("the device hangs").kind, ErrorKind::Unavailable);
    assert_eq!(bench.store.exists_batch(&[key(1)], Options::default()), [false]);
    // The engine frees the memory: it stays allocated for the copy.
    drop((memory, pieces));
    assert_eq!((bench.fake.count("violations"), bench.device.late_copies()), (0, 1));
    bench.fake.change("hang=0");
    while bench.device.late_copies() > 0 {
        bench.fake.step();
    }
    bench.end();
}

/// Each copy in turn fails when it is queued: an error or a hit, never wrong bytes, and nothing is
/// left at the device.
#[test]
fn each_failing_copy_is_an_error_of_its_get() {
    for kind in DriverKind::ALL {
        let bench = Bench::new(kind, "late=1");
        (0..6).for_each(|n| put(&bench.store, n));
        // Three copies for each of six objects.
        for failing in 1..=19 {
            bench.fake.change(&format!("fail-copy={failing}"));
            let memories: Vec<_> = (0..6).map(|n| bench.memory(object(n).len())).collect();
            let gets: Vec<_> = memories
                .iter()
                .enumerate()
                .map(|(n, (_, pieces))| DeviceGet { key: key(n), range: None, pieces })
                .collect();
            let outcomes =
                bench.store.get_to_device(&bench.device, None, &gets, Options::default());
            for (n, (outcome, (memory, _))) in outcomes.iter().zip(&memories).enumerate() {
                match outcome {
                    Ok(hit) => assert!(hit.is_hit() && memory.bytes() == object(n), "n={n}"),
                    Err(error) => assert_eq!(error.kind, ErrorKind::Unavailable, "{error}"),
                }
            }
            let has_failed = outcomes.iter().any(Result::is_err);
            assert_eq!(has_failed, failing <= 18, "failing={failing}");
        }
        bench.fake.change("fail-copy=0");
        while bench.device.late_copies() > 0 {
            bench.fake.step();
        }
        bench.end();
    }
}

#[test]
fn lost_device_is_unavailable_and_store_serves_the_host() {
    for kind in DriverKind::ALL {
        let bench = Bench::new(kind, "lose-at-copy=2");
        (0..3).for_each(|n| put(&bench.store, n));
        let memories: Vec<_> = (0..3).map(|n| bench.memory(object(n).len())).collect();
        let gets: Vec<_> = memories
            .iter()
            .enumerate()
            .map(|(n, (_, pieces))| DeviceGet { key: key(n), range: None, pieces })
            .collect();
        let outcomes = bench.store.get_to_device(&bench.device, None, &gets, Options::default());
        for outcome in outcomes {
            let error = outcome.expect_err("the device is lost");
            assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
            assert!(error.message.contains("restart this process"), "{error}");
        }
        let mut to = vec![0; object(2).len()];
        let get = GetSlice { key: key(2), range: None, pieces: &mut [&mut to] };
        let got = bench.store.get_batch(&mut [get], Options::default()).remove(0);
        assert!(got.is_ok_and(|got: GetOutcome| got.is_hit()) && to == object(2));
        let bytes = object(9);
        let put = PutSlice { key: key(9), pieces: &[&bytes] };
        assert!(bench.store.put_batch(&[put], Options::default())[0].is_ok());
        assert_eq!(bench.fake.count("violations"), 0);
    }
}
