//! Groups, and objects that wait for one, while other calls put, remove and clear the same objects.

use std::collections::BTreeMap;
use std::time::Duration;

use super::harness::Store;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    CompletedBatch, ErrorKind, Options, Put, PutGroup, PutOutcome, PutSlice, Result, Size, Source,
};

use super::env::TestEnv;
use super::helpers::*;

type Object = (ObjectKey, Vec<u8>);

fn object(n: u64, part: &str, seed: u64, len: usize) -> Object {
    (key_in(namespace("m"), n, part), bytes(seed, len))
}

fn attach(store: &Store, base: ObjectKey, (key, bytes): &Object) -> Result<PutOutcome> {
    let slices = [PutSlice { key: *key, pieces: &[bytes] }];
    store.put_attached(&[(base, &slices)], Options::default()).remove(0)
}

fn is(store: &Store, (key, bytes): &Object) -> bool {
    is_present(store, *key, bytes)
}

/// Hot and cold stores whose index tells keys apart.
fn stores(world: &TestEnv) -> Vec<(TestEnv, Store)> {
    if !world.tells_keys_apart() {
        return Vec::new(); // Bases cannot be distinguished.
    }
    [world.config(), world.cold_config()]
        .into_iter()
        .map(|mut config| {
            let world = world.fresh(1);
            config.ssd.dirs = world.paths();
            let store = world.open(&config);
            (world, store)
        })
        .collect()
}

pub fn waiting_group_yields_to_a_concurrent_put(world: &TestEnv) {
    for (_world, store) in stores(world) {
        let (k, t, u) = (object(1, "k", 1, 5000), object(1, "t", 2, 6000), object(1, "u", 3, 7000));
        assert_eq!(attach(&store, k.0, &(t.0, bytes(99, 6000))), Ok(PutOutcome::Waiting));
        assert_eq!(put_group(&store, &[t.clone(), u.clone()]), Ok(PutOutcome::Stored));
        let (b, alone) = (object(2, "k", 1, 5000), object(2, "t", 4, 300));
        assert_eq!(attach(&store, b.0, &(alone.0, bytes(98, 6000))), Ok(PutOutcome::Waiting));
        assert_eq!(put(&store, alone.0, &alone.1), Ok(PutOutcome::Stored));
        flush(&store);
        for base in [&k, &b] {
            assert_eq!(put(&store, base.0, &base.1), Ok(PutOutcome::Stored));
        }
        assert!(
            [&k, &t, &u, &b, &alone].iter().all(|object| is(&store, object)),
            "first writer wins"
        );
        assert_eq!((store.stats().groups_dropped, store.stats().waiting_bytes), (2, 0));
    }
}

pub fn attached_puts_may_name_any_member_of_the_base(world: &TestEnv) {
    for (_world, store) in stores(world) {
        let (k, v, t) = (object(1, "k", 1, 5000), object(1, "v", 5, 5000), object(1, "t", 2, 6000));
        assert_eq!(put_group(&store, &[k.clone(), v.clone()]), Ok(PutOutcome::Stored));
        assert_eq!(attach(&store, k.0, &t), Ok(PutOutcome::Stored));
        flush(&store);
        assert_eq!(attach(&store, v.0, &(t.0, bytes(99, 6000))), Ok(PutOutcome::AlreadyPresent));
        assert!(is(&store, &t));
    }
}

pub fn attached_group_with_evicted_base_does_not_block_put(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Bases cannot be distinguished.
    }
    // Without an SSD tier a base disappears with its frame.
    let store = world.open(&world.memory_config(Size::mib(1)));
    let (k, t) = (object(1, "k", 1, 60_000), object(1, "t", 2, 6000));
    assert_eq!(put(&store, k.0, &k.1), Ok(PutOutcome::Stored));
    assert_eq!(attach(&store, k.0, &t), Ok(PutOutcome::Stored));
    for n in 100..130 {
        assert!(is_present(&store, t.0, &t.1) || !is(&store, &k), "n={n}");
        store_page(&store, n, 60_000);
    }
    assert!(!is(&store, &k) && !is(&store, &t));
    let alone = (t.0, bytes(7, 6000));
    assert_eq!(put(&store, alone.0, &alone.1), Ok(PutOutcome::Stored));
    assert!(is(&store, &alone), "a put of an invisible object is stored");
}

/// Number of polls before the other thread's call.
const POLLS: std::ops::Range<usize> = 0..8;

pub fn object_removed_or_cleared_while_a_group_adopts_it_stays_gone(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // A begun group cannot rely on present objects.
    }
    for clear in [false, true] {
        for polls in POLLS {
            let world = world.fresh(1);
            let mut config = world.cold_config();
            config.ssd.dirs = world.paths();
            let store = world.open(&config);
            let (k, v) = (object(1, "k", 1, 900_000), object(1, "v", 5, 5000));
            assert_eq!(put(&store, k.0, &k.1), Ok(PutOutcome::Stored));
            flush(&store);
            // A session commits the group, so it must be in this process.
            let group = store.own().begin_group(&[k.0, v.0], Options::default()).expect("begun");
            let slices = [PutSlice { key: v.0, pieces: &[&v.1] }];
            assert_eq!(group.put(&slices, Options::default()), [Ok(PutOutcome::Waiting)]);
            let mut session = store.session().expect("a session");
            let ticket = session.submit_commit(group.id(), Options::default());
            let done = (0..polls).find_map(|_| session.poll());
            if clear {
                store.clear(namespace("m"), Options::default()).expect("cleared");
            } else {
                assert_eq!(store.remove(&[k.0], Options::default()), Ok(1));
            }
            let done = done
                .map(|(_, done)| done)
                .or_else(|| session.wait(ticket, Duration::from_secs(30)));
            let Some(CompletedBatch::Put(done)) = done else { panic!("no outcome") };
            assert!(!is(&store, &k), "clear={clear} polls={polls} {done:?}");
            assert!(!is(&store, &v), "clear={clear} polls={polls} {done:?}");
            flush(&store);
            drop((session, group));
            let store = world.crash(store, &config);
            assert!(
                !is(&store, &k) && !is(&store, &v),
                "clear={clear} polls={polls} after a crash"
            );
        }
    }
}

pub fn object_cleared_while_a_one_call_group_adopts_it_stays_gone(world: &TestEnv) {
    for polls in POLLS {
        let world = world.fresh(1);
        let mut config = world.cold_config();
        config.ssd.dirs = world.paths();
        let store = world.open(&config);
        let (k, v) = (object(1, "k", 1, 900_000), object(1, "v", 5, 5000));
        let new = (k.0, bytes(77, 900_000));
        assert_eq!(put(&store, k.0, &k.1), Ok(PutOutcome::Stored));
        flush(&store);
        let mut session = store.session().expect("a session");
        let one =
            |(key, bytes): &Object| Put { key: *key, source: Source::shared(bytes.clone().into()) };
        let ticket =
            session.submit_put(vec![PutGroup::new(vec![one(&new), one(&v)])], Options::default());
        let early = (0..polls).find_map(|_| {
            // A simulated device makes progress only with simulated time.
            world.sim().inspect(|sim| sim.runtime.run_for(Duration::from_micros(50)));
            session.poll()
        });
        store.clear(namespace("m"), Options::default()).expect("cleared");
        if early.is_none() {
            session.wait(ticket, Duration::from_secs(30)).expect("an outcome");
        }
        let mut found = vec![0; k.1.len()];
        let hit = get_into(&store, k.0, &mut found).expect("asked").is_hit();
        assert!(!hit || found == new.1, "a cleared object is visible polls={polls}");
        assert_eq!(hit, is(&store, &v), "polls={polls}");
    }
}

pub fn remove_drops_waiting_groups(world: &TestEnv) {
    for (_world, store) in stores(world) {
        let (k, t, s) = (object(1, "k", 1, 5000), object(1, "t", 2, 6000), object(1, "s", 3, 100));
        for waiting in [&t, &s] {
            assert_eq!(attach(&store, k.0, waiting), Ok(PutOutcome::Waiting));
        }
        assert_eq!(store.remove(&[t.0], Options::default()), Ok(0), "it was not visible");
        assert_eq!(put(&store, k.0, &k.1), Ok(PutOutcome::Stored));
        assert!(!is(&store, &t) && is(&store, &s));
        let (a, b) = (object(2, "a", 1, 5000), object(2, "b", 2, 6000));
        let group = store.begin_group(&[a.0, b.0], Options::default()).expect("begun");
        for (key, bytes) in [&a, &b] {
            let slices = [PutSlice { key: *key, pieces: &[bytes] }];
            assert_eq!(group.put(&slices, Options::default()), [Ok(PutOutcome::Waiting)]);
        }
        assert_eq!(store.remove(&[a.0], Options::default()), Ok(0));
        assert_eq!(
            (group.commit(Options::default()), group.missing()),
            (Ok(PutOutcome::Waiting), vec![a.0])
        );
        group.abort();
        assert_eq!((store.stats().groups_waiting, store.stats().waiting_bytes), (0, 0));
    }
}

pub fn groups_are_committed_by_several_threads(world: &TestEnv) {
    if world.sim().is_some() {
        return; // Simulated time passes while any thread waits: deadlines would expire at random.
    }
    let store = world.open(&world.config());
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..world.many(200) as u64 {
        let page = group(n, 3);
        let keys: Vec<_> = page.iter().map(|(key, _)| *key).collect();
        let begun = store.begin_group(&keys, Options::default()).expect("begun");
        let put = |(key, bytes): &Object| {
            begun.put(&[PutSlice { key: *key, pieces: &[bytes] }], Options::default()).remove(0)
        };
        page.iter().for_each(|object| assert_eq!(put(object), Ok(PutOutcome::Waiting)));
        let barrier = std::sync::Barrier::new(3);
        std::thread::scope(|scope| {
            let commit = || {
                barrier.wait();
                begun.commit(Options::default())
            };
            let threads = [scope.spawn(commit), scope.spawn(commit)];
            barrier.wait();
            // A member that is present already, in any state.
            let again = put(&page[0]);
            if world.tells_keys_apart() {
                assert_eq!(again, Ok(PutOutcome::AlreadyPresent), "n={n}");
            }
            for thread in threads {
                let outcome = thread.join().expect("joined");
                *outcomes.entry(format!("{outcome:?}")).or_default() += 1;
            }
        });
        assert!(page.iter().all(|object| is(&store, object)), "n={n}");
    }
    if world.tells_keys_apart() {
        assert_eq!(
            outcomes,
            BTreeMap::from([("Ok(AlreadyPresent)".into(), 200), ("Ok(Stored)".into(), 200)])
        );
    }
    assert_eq!((store.stats().groups_waiting, store.stats().waiting_bytes), (0, 0));
}

pub fn oldest_of_many_waiting_groups_can_complete(world: &TestEnv) {
    let store = world.open(&world.config());
    // Five groups of 1 MB in an arena of 4 MiB, of which 2 MiB may wait.
    let pages: Vec<Vec<Object>> = (0..5)
        .map(|n| (0..3).map(|i| object(n, &format!("c{i}"), n * 3 + i, 330_000)).collect())
        .collect();
    let keys = |page: &[Object]| page.iter().map(|(key, _)| *key).collect::<Vec<_>>();
    let groups: Vec<_> = pages
        .iter()
        .map(|p| store.begin_group(&keys(p), Options::default()).expect("begun"))
        .collect();
    let mut busy = 0;
    for i in 0..3 {
        for (n, (group, page)) in groups.iter().zip(&pages).enumerate() {
            let (key, bytes) = &page[i];
            let outcome = group.put(&[PutSlice { key: *key, pieces: &[bytes] }], NOW).remove(0);
            match outcome {
                Ok(outcome) => assert_eq!(outcome, PutOutcome::Waiting),
                Err(error) => {
                    assert_eq!((error.kind, n > 0), (ErrorKind::Busy, true), "{error}");
                    busy += 1;
                }
            }
        }
    }
    assert!(busy > 0, "all of them fit");
    assert_eq!(groups[0].commit(Options::default()), Ok(PutOutcome::Stored));
    assert!(pages[0].iter().all(|object| is(&store, object)));
}

pub fn pin_of_an_attached_object_keeps_its_base(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Bases cannot be distinguished.
    }
    let store = world.open(&world.memory_config(Size::mib(1)));
    let (k, t) = (object(1, "k", 1, 5000), object(1, "t", 2, 6000));
    assert_eq!(put(&store, k.0, &k.1), Ok(PutOutcome::Stored));
    assert_eq!(attach(&store, k.0, &t), Ok(PutOutcome::Stored));
    let pin = store.pin(&[t.0]);
    assert_eq!(pin.pinned(), 1);
    for n in 100..140 {
        store_page(&store, n, 100_000);
    }
    assert!(is(&store, &k) && is(&store, &t));
    drop(pin);
    for n in 200..240 {
        store_page(&store, n, 100_000);
    }
    assert!(!is(&store, &k));
}

pub fn checkpoint_has_room_for_every_link(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Constant fingerprints take no checkpoints.
    }
    let mut config = world.cold_config();
    config.index.max_objects = Some(1 << 20);
    let store = world.open(&config);
    for n in 0..60 {
        let base = object(n, "k", n, 100);
        let many: Vec<Object> = (0..50).map(|i| object(n, &format!("t{i}"), i, 100)).collect();
        let pieces: Vec<[&[u8]; 1]> = many.iter().map(|(_, b)| [&b[..]]).collect();
        let slices: Vec<_> = many
            .iter()
            .zip(&pieces)
            .map(|((key, _), pieces)| PutSlice { key: *key, pieces })
            .collect();
        assert_eq!(put(&store, base.0, &base.1), Ok(PutOutcome::Stored));
        assert_eq!(
            store.put_attached(&[(base.0, &slices)], Options::default()),
            [Ok(PutOutcome::Stored)],
            "n={n}"
        );
    }
    flush(&store);
    let store = world.reopen(store, &config);
    assert!(store.opened().from_checkpoint);
    for n in 50..60 {
        (0..50)
            .for_each(|i| assert!(is(&store, &object(n, &format!("t{i}"), i, 100)), "n={n} i={i}"));
    }
}
