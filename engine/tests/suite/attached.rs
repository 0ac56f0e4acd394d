//! Objects of pools that a page need not have (a Mamba checkpoint, a sliding window): visible only
//! with the base group to which they are attached.

use super::harness::Store;
use pagelith::layouts::key::ObjectKey;
use pagelith::{Config, ErrorKind, Options, PutOutcome, PutSlice, Result, Size};

use super::env::TestEnv;
use super::helpers::*;

type Object = (ObjectKey, Vec<u8>);

/// A checkpoint of page `n`: three objects.
fn checkpoint(n: u64) -> Vec<Object> {
    ["temporal", "conv_0", "conv_1"]
        .iter()
        .zip([60_000, 5000, 700])
        .map(|(part, len)| (key_in(namespace("m"), n, part), bytes(n * 7 + len as u64, len)))
        .collect()
}

pub fn attach(store: &Store, base: ObjectKey, objects: &[Object]) -> Result<PutOutcome> {
    let pieces: Vec<[&[u8]; 1]> = objects.iter().map(|(_, b)| [&b[..]]).collect();
    let slices: Vec<_> = objects
        .iter()
        .zip(&pieces)
        .map(|((key, _), pieces)| PutSlice { key: *key, pieces })
        .collect();
    store.put_attached(&[(base, &slices)], Options::default()).remove(0)
}

fn present_count(store: &Store, group: &[Object]) -> usize {
    group.iter().filter(|(key, bytes)| is_present(store, *key, bytes)).count()
}

fn in_world(world: &TestEnv, mut config: Config) -> Config {
    config.ssd.dirs = world.paths();
    config
}

/// The configurations of a behaviour, each with its own world. With a constant fingerprint the
/// index cannot tell bases apart; then only bytes are checked, in
/// `attached_group_is_visible_with_its_base`.
fn worlds(world: &TestEnv) -> Vec<(TestEnv, Config)> {
    if !world.tells_keys_apart() {
        return Vec::new();
    }
    [world.config(), world.cold_config()]
        .into_iter()
        .map(|config| {
            let world = world.fresh(1);
            let config = in_world(&world, config);
            (world, config)
        })
        .collect()
}

pub fn attached_group_is_visible_with_its_base(world: &TestEnv) {
    for config in [world.config(), world.cold_config()] {
        let world = world.fresh(1);
        let config = in_world(&world, config);
        let store = world.open(&config);
        let (base, state) = (group(1, 2), checkpoint(1));
        assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
        assert_eq!(attach(&store, base[1].0, &state), Ok(PutOutcome::Stored));
        assert_eq!((present_count(&store, &base), present_count(&store, &state)), (2, 3));
        assert_eq!(attach(&store, base[1].0, &state), Ok(PutOutcome::AlreadyPresent));
        flush(&store);
        assert_eq!((present_count(&store, &base), present_count(&store, &state)), (2, 3));
        let store = world.crash(store, &config);
        assert_eq!(
            (present_count(&store, &base), present_count(&store, &state)),
            (2, 3),
            "from the log"
        );
        assert_eq!(attach(&store, base[1].0, &state), Ok(PutOutcome::AlreadyPresent));
        let store = world.reopen(store, &config);
        let store = world.reopen(store, &config);
        assert_eq!(
            (present_count(&store, &base), present_count(&store, &state)),
            (2, 3),
            "from a checkpoint"
        );
        if world.tells_keys_apart() {
            assert_eq!(store.stats().objects, 5);
        }
        assert_eq!(store.remove(&[state[1].0], Options::default()), Ok(1));
        assert_eq!(
            (present_count(&store, &base), present_count(&store, &state)),
            (2, 0),
            "the base stays"
        );
    }
}

pub fn attached_group_waits_for_its_base(world: &TestEnv) {
    for (world, config) in worlds(world) {
        let store = world.open(&config);
        let (base, state) = (group(1, 2), checkpoint(1));
        assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Waiting));
        assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Waiting), "put counts once");
        state.iter().for_each(|(key, bytes)| assert_absent(&world, &store, *key, bytes.len()));
        assert!(store.view(&state[0].0).expect("asked").is_none());
        assert_eq!((store.stats().groups_waiting, store.pin(&[state[0].0]).pinned()), (1, 0));
        flush(&store);
        assert_eq!(present_count(&store, &state), 0);
        assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
        assert_eq!((present_count(&store, &base), present_count(&store, &state)), (2, 3));
        assert_eq!((store.stats().groups_waiting, store.stats().waiting_bytes), (0, 0));
        flush(&store);
        let store = world.crash(store, &config);
        assert_eq!((present_count(&store, &base), present_count(&store, &state)), (2, 3));
    }
}

pub fn attached_group_without_base_is_dropped_at_its_deadline(world: &TestEnv) {
    for (world, mut config) in worlds(world) {
        let store = world.open(&config);
        let (base, state) = (group(1, 2), checkpoint(1));
        assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Waiting));
        flush(&store);
        store.close().expect("closed");
        config.groups.deadline_ms = 1;
        let store = world.open(&config);
        assert_eq!(store.stats().objects, 0);
        assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
        assert_eq!(
            (present_count(&store, &base), present_count(&store, &state)),
            (2, 0),
            "dropped at the end"
        );
        let later = checkpoint(2);
        assert_eq!(attach(&store, group(2, 1)[0].0, &later), Ok(PutOutcome::Waiting));
        while store.stats().groups_waiting > 0 {
            flush(&store);
        }
        assert_eq!((store.stats().groups_dropped, store.stats().waiting_bytes), (1, 0));
        assert_eq!(put_group(&store, &group(2, 1)), Ok(PutOutcome::Stored));
        assert_eq!(present_count(&store, &later), 0, "dropped at its deadline");
    }
    // Without an SSD tier no background task drops it.
    let Some(sim) = world.sim() else { return };
    let mut config = world.memory_config(Size::mib(4));
    config.groups.deadline_ms = 1;
    let store = world.open(&config);
    let state = checkpoint(1);
    assert_eq!(attach(&store, group(1, 1)[0].0, &state), Ok(PutOutcome::Waiting));
    sim.runtime.run_for(std::time::Duration::from_millis(10));
    assert_eq!(put_group(&store, &group(1, 1)), Ok(PutOutcome::Stored));
    assert_eq!(present_count(&store, &state), 0, "dropped at its deadline");
    assert_eq!((store.stats().groups_dropped, store.stats().waiting_bytes), (1, 0));
}

pub fn attached_group_is_removed_with_its_base(world: &TestEnv) {
    for (world, config) in worlds(world) {
        for checkpointed in [false, true] {
            let world = world.fresh(1);
            let config = in_world(&world, config.clone());
            let mut store = world.open(&config);
            let (base, state) = (group(1, 2), checkpoint(1));
            let (other, its) = (group(2, 2), checkpoint(2));
            for (base, state) in [(&base, &state), (&other, &its)] {
                assert_eq!(put_group(&store, base), Ok(PutOutcome::Stored));
                assert_eq!(attach(&store, base[0].0, state), Ok(PutOutcome::Stored));
            }
            flush(&store);
            if checkpointed {
                store = world.reopen(store, &config);
            }
            assert_eq!(store.remove(&[base[1].0], Options::default()), Ok(1));
            state.iter().for_each(|(key, bytes)| assert_absent(&world, &store, *key, bytes.len()));
            // It does not return with a later base either, at once or after a crash.
            assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
            flush(&store);
            state.iter().for_each(|(key, bytes)| assert_absent(&world, &store, *key, bytes.len()));
            let store = world.crash(store, &config);
            assert_eq!(present_count(&store, &base), 2);
            state.iter().for_each(|(key, bytes)| assert_absent(&world, &store, *key, bytes.len()));
            assert_eq!((present_count(&store, &other), present_count(&store, &its)), (2, 3));
            assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Stored));
            flush(&store);
            let store = world.crash(store, &config);
            assert_eq!(present_count(&store, &state), 3, "later puts are not hidden");
        }
    }
}

pub fn attached_group_is_evicted_from_memory_with_its_base(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // The index cannot tell bases apart.
    }
    let store = world.open(&world.memory_config(Size::mib(1)));
    let pages = 40;
    let mut both = 0;
    for n in 0..pages {
        let (base, state) = (group(n, 2), checkpoint(n));
        assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored), "n={n}");
        assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Stored), "n={n}");
    }
    for n in 0..pages {
        let counts = (present_count(&store, &group(n, 2)), present_count(&store, &checkpoint(n)));
        assert!([(0, 0), (2, 0), (2, 3)].contains(&counts), "n={n} {counts:?}");
        both += usize::from(counts == (2, 3));
    }
    assert!(both > 0 && both < pages as usize, "both={both}");
}

pub fn attached_group_is_reclaimed_with_its_base(world: &TestEnv) {
    for (world, config) in worlds(world) {
        let mut config = config;
        config.ssd.policy = pagelith::config::SsdPolicy::Recency;
        let mut store = world.open(&config);
        let pages = 60;
        for n in 0..pages {
            let (base, state) = (group(n, 2), checkpoint(n));
            assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored), "n={n}");
            // Pages between them move the two into different segments.
            store_page(&store, 10_000 + n, 400 << 10);
            assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Stored), "n={n}");
            if n % 20 == 19 {
                flush(&store);
                store = world.crash(store, &config);
            }
            for n in (0..=n).filter(|m| (n - m) % 7 == 0) {
                // One call: reclaim runs between calls.
                let keys: Vec<_> =
                    group(n, 2).iter().chain(&checkpoint(n)).map(|(key, _)| *key).collect();
                let found = store.exists_batch(&keys, Options::default());
                let count = |found: &[bool]| found.iter().filter(|here| **here).count();
                let counts = (count(&found[..2]), count(&found[2..]));
                assert!([(0, 0), (2, 0), (2, 3)].contains(&counts), "n={n} {counts:?}");
                // Objects that are still present are correct.
                present_count(&store, &checkpoint(n));
            }
        }
        assert_eq!(present_count(&store, &checkpoint(pages - 1)), 3);
    }
}

pub fn mismatched_attached_groups_are_refused(world: &TestEnv) {
    for (world, config) in worlds(world) {
        let store = world.open(&config);
        let (base, state) = (group(1, 2), checkpoint(1));
        let elsewhere = group(2, 1)[0].0;
        let message = format!("base is of another page key={} base={elsewhere}", state[0].0);
        refused(attach(&store, elsewhere, &state), ErrorKind::Invalid, &message);
        let message = format!("an object is attached to itself key={}", state[0].0);
        refused(attach(&store, state[0].0, &state), ErrorKind::Invalid, &message);
        assert_eq!(put_group(&store, &base), Ok(PutOutcome::Stored));
        assert_eq!(attach(&store, base[0].0, &state), Ok(PutOutcome::Stored));
        flush(&store);
        let (has, given) = (
            "kv/temporal/whole,kv/conv_0/whole,kv/conv_1/whole",
            "kv/temporal/whole,kv/conv_0/whole",
        );
        let message = format!(
            "an object is in a group of other objects key={} has={has} given={given}",
            state[0].0
        );
        refused(attach(&store, base[0].0, &state[..2]), ErrorKind::Invalid, &message);
        refused(put_group(&store, &state[..2]), ErrorKind::Invalid, &message);
        // An attached object cannot be a base.
        let window = [(key_in(namespace("m"), 1, "w"), bytes(5, 100))];
        assert_eq!(attach(&store, state[0].0, &window), Ok(PutOutcome::Waiting));
        assert_eq!((present_count(&store, &state), present_count(&store, &window)), (3, 0));
    }
}

pub fn attached_group_may_have_a_standalone_base(world: &TestEnv) {
    for (world, config) in worlds(world) {
        let store = world.open(&config);
        store_page(&store, 1, 9000);
        let state = checkpoint(1);
        assert_eq!(attach(&store, key(1), &state), Ok(PutOutcome::Stored));
        flush(&store);
        let store = world.crash(store, &config);
        assert_eq!(present_count(&store, &state), 3);
        assert_eq!(store.remove(&[key(1)], Options::default()), Ok(1));
        assert_eq!(present_count(&store, &state), 0);
    }
}
