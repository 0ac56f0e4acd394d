//! Gets into and puts out of memory of a device, without faults.

use pagelith::config::DramPin;
use pagelith::{
    DeviceGet, DeviceGroup, DevicePut, DeviceRange, DriverKind, ErrorKind, GetOutcome, GetSlice,
    MissCause, Options, PutOutcome, PutSlice, Tier,
};

use crate::fake::DeviceMemory;
use crate::support::{Bench, config, key, object, open, pin, put};

/// Get these objects in one call, and compare every byte of each hit.
fn get_all(bench: &Bench, numbers: &[usize]) -> Vec<GetOutcome> {
    let memories: Vec<(DeviceMemory, Vec<DeviceRange>)> =
        numbers.iter().map(|n| bench.memory(object(*n).len())).collect();
    let gets: Vec<DeviceGet<'_>> = numbers
        .iter()
        .zip(&memories)
        .map(|(n, (_, pieces))| DeviceGet { key: key(*n), range: None, pieces })
        .collect();
    let outcomes = bench.store.get_to_device(&bench.device, None, &gets, Options::default());
    let compared = numbers.iter().zip(&memories).zip(outcomes);
    compared
        .map(|((n, (memory, _)), outcome)| {
            let outcome = outcome.expect("no fault");
            let expected = if outcome.is_hit() { object(*n) } else { vec![0; object(*n).len()] };
            assert!(memory.bytes() == expected, "wrong bytes n={n} {outcome:?}");
            outcome
        })
        .collect()
}

#[test]
fn hits_from_dram_and_ssd_arrive_whole_in_many_orders() {
    for kind in DriverKind::ALL {
        for (seed, pinned) in [(1, true), (2, true), (3, false)] {
            let home = tempfile::tempdir().expect("a directory");
            let pin = if pinned { pin(kind) } else { DramPin::Off };
            let config = config(&home, pin);
            let store = open(&config);
            (0..30).for_each(|n| put(&store, n));
            store.close().expect("durable");
            // Objects 0 to 29 are on SSD, 30 to 49 in DRAM too, and 50 to 59 nowhere.
            let store = open(&config);
            (30..50).for_each(|n| put(&store, n));
            let script = format!("late={} seed={seed}", seed % 3);
            let bench = Bench::of(home, store, kind, &script);
            let numbers: Vec<usize> = (0..60).map(|at| at * 37 % 60).collect();
            let outcomes = get_all(&bench, &numbers);
            for (n, outcome) in numbers.iter().zip(outcomes) {
                let tier = match n {
                    0..30 => Tier::Ssd,
                    30..50 => Tier::Memory,
                    _ => {
                        assert_eq!(outcome, GetOutcome::Miss(MissCause::Absent), "n={n}");
                        continue;
                    }
                };
                let bytes = object(*n).len() as u64;
                assert_eq!(outcome, GetOutcome::Hit { tier, bytes }, "n={n}");
            }
            let stats = bench.store.stats();
            assert_eq!((stats.hits_memory, stats.hits_ssd), (20, 30));
            bench.end();
        }
    }
}

#[test]
fn range_of_object_arrives_from_both_tiers() {
    let bench = Bench::new(DriverKind::Cuda, "late=1");
    put(&bench.store, 1);
    let whole = object(1);
    for range in [0..1, 5_000..19_999, whole.len() as u64 - 7..whole.len() as u64] {
        let bytes = (range.end - range.start) as usize;
        let memory = bench.fake.memory(&bench.device, bytes);
        let pieces = [memory.range.clone()];
        let get = DeviceGet { key: key(1), range: Some(range.clone()), pieces: &pieces };
        let outcome = bench.store.get_to_device(&bench.device, None, &[get], Options::default());
        let hit = GetOutcome::Hit { tier: Tier::Memory, bytes: bytes as u64 };
        assert_eq!(outcome, [Ok(hit)]);
        assert_eq!(memory.bytes(), whole[range.start as usize..range.end as usize]);
    }
    bench.end();
}

#[test]
fn wrong_lengths_and_foreign_memory_are_refused_one_by_one() {
    let bench = Bench::new(DriverKind::Cuda, "");
    put(&bench.store, 1);
    let bytes = object(1).len();
    let (memory, right) = bench.memory(bytes);
    let short = [memory.range.slice(0, bytes - 1).expect("inside")];
    let large = [bench.fake.memory(&bench.device, 600 << 10).range.clone()];
    let other = bench.fake.driver().bind(0).expect("bound again");
    let foreign = [bench.fake.memory(&other, bytes).range.clone()];
    let get = |pieces| DeviceGet { key: key(1), range: None, pieces };
    let gets = [get(&short[..]), get(&[]), get(&large), get(&foreign), get(&right)];
    let outcomes = bench.store.get_to_device(&bench.device, None, &gets, Options::default());
    let expected = [
        "destination is shorter than the object",
        "destination is shorter than the object",
        "bytes exceed half of the staging memory; raise staging.bytes bytes=614400 max=524288",
        "memory was named through another handle",
    ];
    for (outcome, text) in outcomes.iter().zip(expected) {
        let error = outcome.as_ref().expect_err("refused");
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        assert!(error.message.contains(text), "{error}");
    }
    assert!(outcomes[4].as_ref().is_ok_and(GetOutcome::is_hit));
    assert!(memory.bytes() == object(1));
    let mut outcomes = bench.store.get_to_device(&other, None, &gets, Options::default());
    let group = [DevicePut { key: key(2), pieces: &foreign }];
    let groups = [DeviceGroup::new(&group)];
    let put = bench.store.put_from_device(&other, None, &groups, &[], Options::default()).remove(0);
    for error in [outcomes.remove(3).expect_err("no handle of it"), put.expect_err("the same")] {
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        assert!(error.message.contains("was not bound through this store"), "{error}");
    }
    drop((memory, right, short, large, foreign, other));
    bench.end();
}

/// Reads of a range need staging memory for whole blocks, as well as that of the destination.
#[test]
fn range_arrives_or_is_refused_at_once_however_near_half_of_staging() {
    let home = tempfile::tempdir().expect("a directory");
    let config = config(&home, pin(DriverKind::Cuda));
    let store = open(&config);
    let whole: Vec<u8> = (0..700_000).map(|at| ((at * 7) >> 3) as u8).collect();
    let object = PutSlice { key: key(1), pieces: &[&whole] };
    assert_eq!(store.put_batch(&[object], Options::default()), [Ok(PutOutcome::Stored)]);
    store.close().expect("durable");
    let bench = Bench::of(home, open(&config), DriverKind::Cuda, "");
    let most = (512 << 10) - (64 << 10);
    for (bytes, is_hit) in [(most, true), (most + 1, false), (512 << 10, false)] {
        let memory = bench.fake.memory(&bench.device, bytes);
        let (pieces, range) = ([memory.range.clone()], Some(32_767..32_767 + bytes as u64));
        let get = DeviceGet { key: key(1), range, pieces: &pieces };
        let got = bench.store.get_to_device(&bench.device, None, &[get], Options::default());
        match &got[0] {
            Ok(outcome) => {
                assert!(is_hit && outcome.is_hit(), "{outcome:?} bytes={bytes}");
                assert!(memory.bytes() == whole[32_767..][..bytes], "wrong bytes");
            }
            Err(error) => {
                let text = format!("raise staging.bytes bytes={bytes} max={most}");
                assert!(!is_hit && error.message.contains(&text), "{error}");
            }
        }
    }
    bench.end();
}

#[test]
fn groups_put_from_device_are_stored_whole_in_many_orders() {
    for kind in DriverKind::ALL {
        for seed in [1, 2, 3] {
            let bench = Bench::new(kind, &format!("late={} seed={seed}", seed % 3));
            put(&bench.store, 2);
            let memories: Vec<_> = (0..25).map(|n| bench.memory(object(n).len())).collect();
            memories.iter().enumerate().for_each(|(n, (memory, _))| memory.write(&object(n)));
            let puts: Vec<[DevicePut<'_>; 1]> = memories
                .iter()
                .enumerate()
                .map(|(n, (_, pieces))| [DevicePut { key: key(n), pieces }])
                .collect();
            let groups: Vec<_> = puts.iter().map(|group| DeviceGroup::new(group)).collect();
            let options = Options::default();
            let outcomes = bench.store.put_from_device(&bench.device, None, &groups, &[], options);
            for (n, outcome) in outcomes.iter().enumerate() {
                let expected = if n == 2 { PutOutcome::AlreadyPresent } else { PutOutcome::Stored };
                assert_eq!(outcome, &Ok(expected), "n={n}");
                let mut to = vec![0; object(n).len()];
                let get = GetSlice { key: key(n), range: None, pieces: &mut [&mut to] };
                let got = bench.store.get_batch(&mut [get], options).remove(0);
                assert!(got.is_ok_and(|got| got.is_hit()) && to == object(n), "n={n}");
            }
            drop(memories);
            bench.end();
        }
    }
}

/// The engine still writes the pages on its own stream when it has them put.
#[test]
fn put_begins_after_work_of_callers_stream() {
    for seed in 1..10 {
        let bench = Bench::new(DriverKind::Cuda, &format!("late=4 seed={seed}"));
        let memory = bench.fake.memory(&bench.device, 9_000);
        let stream = bench.fake.stream();
        memory.fill_later(7, stream);
        // SAFETY: the stream is of the bound context, and is never destroyed.
        let after = unsafe { bench.device.caller_stream(stream) };
        let pieces = [memory.range.clone()];
        let put = [DevicePut { key: key(1), pieces: &pieces }];
        let options = Options::default();
        let group = [DeviceGroup::new(&put)];
        let outcome =
            bench.store.put_from_device(&bench.device, Some(&after), &group, &[], options);
        assert_eq!(outcome, [Ok(PutOutcome::Stored)]);
        let mut to = vec![0; 9_000];
        let get = GetSlice { key: key(1), range: None, pieces: &mut [&mut to] };
        assert!(bench.store.get_batch(&mut [get], options)[0].as_ref().is_ok_and(|g| g.is_hit()));
        assert!(to == vec![7; 9_000], "seed={seed}");
    }
}

/// Threads that were never given a context, and share the staging memory.
#[test]
fn threads_get_and_put_concurrently() {
    let bench = Bench::new(DriverKind::Cuda, "late=1");
    (0..40).for_each(|n| put(&bench.store, n));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bench = &bench;
            scope.spawn(move || {
                for round in 0..5 {
                    let numbers: Vec<usize> = (0..20).map(|at| (at * 7 + thread) % 40).collect();
                    assert!(get_all(bench, &numbers).iter().all(GetOutcome::is_hit));
                    let n = 1_000 + thread * 10 + round;
                    let (memory, pieces) = bench.memory(object(n).len());
                    memory.write(&object(n));
                    let put = [DevicePut { key: key(n), pieces: &pieces }];
                    let outcome = bench.store.put_from_device(
                        &bench.device,
                        None,
                        &[DeviceGroup::new(&put)],
                        &[],
                        Options::default(),
                    );
                    assert_eq!(outcome, [Ok(PutOutcome::Stored)]);
                    assert!(get_all(bench, &[n])[0].is_hit());
                }
            });
        }
    });
    bench.end();
}
