//! Events about objects that appear and disappear: a listener that applies them knows the store's
//! contents.

use std::collections::{BTreeMap, BTreeSet};

use super::harness::Store;
use pagelith::config::Promote;
use pagelith::layouts::key::ObjectKey;
use pagelith::{AlignedBuf, Config, Event, GetOutcome, Options, PutOutcome, PutSlice, Size, Tier};

use super::env::TestEnv;
use super::helpers::*;

/// The contents that a listener knows.
#[derive(Default)]
struct Known {
    memory: BTreeSet<ObjectKey>,
    ssd: BTreeSet<ObjectKey>,
    forgot: bool,
}

impl Known {
    fn tier(&mut self, tier: Tier) -> &mut BTreeSet<ObjectKey> {
        match tier {
            Tier::Memory => &mut self.memory,
            Tier::Ssd => &mut self.ssd,
            other => panic!("no event is of {other:?}"),
        }
    }

    /// The tier from which a get returns the key.
    fn at(&self, key: &ObjectKey) -> Option<Tier> {
        let memory = self.memory.contains(key).then_some(Tier::Memory);
        memory.or_else(|| self.ssd.contains(key).then_some(Tier::Ssd))
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Stored { tier, key, new } => {
                assert_eq!(*new, self.at(key).is_none(), "{event:?}");
                assert!(self.tier(*tier).insert(*key), "it was there {event:?}");
            }
            Event::Removed { tier, key, gone } => {
                assert!(self.tier(*tier).remove(key), "it was not there {event:?}");
                assert_eq!(*gone, self.at(key).is_none(), "{event:?}");
            }
            Event::Cleared { namespace } => {
                self.memory.retain(|key| key.namespace() != *namespace);
                self.ssd.retain(|key| key.namespace() != *namespace);
            }
            Event::Forgot { tier } => {
                assert_eq!(*tier, Tier::Ssd);
                self.forgot = true;
            }
            other => panic!("unknown event {other:?}"),
        }
    }

    /// Apply all events, and return the places of `key` in between.
    fn apply_events(&mut self, store: &Store, key: &ObjectKey) -> Vec<Option<Tier>> {
        let mut been = vec![self.at(key)];
        loop {
            let taken = store.take_events(100);
            assert_eq!(taken.lost, 0);
            if taken.events.is_empty() {
                return been;
            }
            for event in taken.events {
                self.note(&event);
                been.push(self.at(key));
            }
        }
    }
}

fn config(world: &TestEnv) -> Config {
    let mut config = world.config();
    config.events.max = 1 << 20;
    config
}

/// The tier from which a get returns an object; its bytes are correct.
#[track_caller]
fn found(store: &Store, key: ObjectKey, bytes: &[u8]) -> Option<Tier> {
    let mut to = AlignedBuf::new(bytes.len()).expect("memory");
    match get_into(store, key, &mut to) {
        Ok(GetOutcome::Hit { tier, .. }) => {
            assert!(to[..] == *bytes, "wrong bytes key={key}");
            Some(tier)
        }
        Ok(GetOutcome::Miss(_)) => None,
        Err(error) => panic!("key={key} {error}"),
    }
}

/// Through eviction, promotion, reclaim, removal, clear and groups: events and gets agree at each
/// moment.
pub fn events_report_where_every_object_is(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // The members of a group cannot be distinguished.
    }
    let mut config = config(world);
    config.dram.bytes = Size::mib(1);
    config.dram.promote = Promote::Always;
    let store = world.open(&config);
    let mut known = Known::default();
    // The last put of each key.
    let mut objects: BTreeMap<ObjectKey, Vec<u8>> = BTreeMap::new();
    let mut state = 42u64;
    let mut next = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let other = namespace("other");
    for turn in 0..1500 {
        let n = next(300);
        match next(20) {
            0 => {
                let keys = [key(n), key_in(namespace("m"), n, "c0")];
                store.remove(&keys, Options::default()).expect("removed");
            }
            1 if turn % 100 == 1 => {
                store.clear(other, Options::default()).expect("cleared");
            }
            2..=5 => {
                let members = group(n, 3);
                put_group(&store, &members).expect("put");
                objects.extend(members);
            }
            6..=8 => {
                let key = key_in(other, n, "k");
                put(&store, key, &bytes(n, 30_000)).expect("put");
                objects.insert(key, bytes(n, 30_000));
            }
            9..=14 => {
                put(&store, key(n), &bytes(n, 20_000 + n as usize * 100)).expect("put");
                objects.insert(key(n), bytes(n, 20_000 + n as usize * 100));
            }
            _ => {
                let Some((key, bytes)) = objects.iter().nth(n as usize % objects.len().max(1))
                else {
                    continue;
                };
                known.apply_events(&store, key);
                let found = found(&store, *key, bytes);
                let been = known.apply_events(&store, key);
                assert!(
                    been.contains(&found),
                    "turn={turn} key={key} found={found:?} events={been:?}"
                );
            }
        }
    }
    flush(&store);
    for (key, bytes) in &objects {
        known.apply_events(&store, key);
        let here = store.exists_batch(&[*key], Options::default())[0];
        let been = known.apply_events(&store, key);
        assert!(
            been.iter().any(|at| at.is_some() == here),
            "key={key} here={here} events={been:?}"
        );
        let found = found(&store, *key, bytes);
        let been = known.apply_events(&store, key);
        assert!(been.contains(&found), "key={key} found={found:?} events={been:?}");
    }
    assert!(!known.forgot, "nothing is wrong with the device");
    let stats = store.stats();
    assert!(
        stats.segments_reclaimed > 0 && stats.frames_evicted > 0 && stats.promoted > 0,
        "{stats:?}"
    );
}

pub fn no_events_without_events_max(world: &TestEnv) {
    let store = world.open(&world.config());
    store_pages(&store, 0..5, 1000);
    assert_eq!(store.take_events(100), pagelith::Events::default());
}

pub fn unread_events_are_dropped_and_counted(world: &TestEnv) {
    let mut config = world.memory_config(Size::mib(1));
    config.events.max = 3;
    let store = world.open(&config);
    store_pages(&store, 0..5, 1000);
    let taken = store.take_events(100);
    let stored = |n| Event::Stored { tier: Tier::Memory, key: key(n), new: true };
    assert_eq!((taken.events, taken.lost), (vec![stored(2), stored(3), stored(4)], 2));
    assert_eq!(put(&store, key(9), &bytes(9, 1000)), Ok(PutOutcome::Stored));
    assert_eq!(store.take_events(1).events, [stored(9)]);
    assert_eq!(store.take_events(1), pagelith::Events::default());
}

/// More events than are copied at a time, and as many as are requested.
pub fn many_events_are_read_in_one_call(world: &TestEnv) {
    let mut config = world.memory_config(Size::mib(1));
    config.events.max = 10_000;
    let store = world.open(&config);
    let objects: Vec<_> = (0..700).map(|n| (key(n), bytes(n, 100))).collect();
    for pages in objects.chunks(100) {
        let pieces: Vec<[&[u8]; 1]> = pages.iter().map(|(_, b)| [&b[..]]).collect();
        let puts: Vec<_> = pages
            .iter()
            .zip(&pieces)
            .map(|((key, _), pieces)| PutSlice { key: *key, pieces })
            .collect();
        assert!(
            store.put_batch(&puts, Options::default()).iter().all(|o| o == &Ok(PutOutcome::Stored))
        );
    }
    // The arena has room for a few hundred: the others were evicted.
    let taken = store.take_events(1100);
    let rest = store.take_events(100_000);
    assert_eq!((taken.events.len(), taken.lost, rest.lost), (1100, 0, 0));
    let stored = |event: &&Event| matches!(event, Event::Stored { .. });
    assert_eq!(taken.events.iter().chain(&rest.events).filter(stored).count(), 700);
    assert!(rest.events.len() > 10, "{}", rest.events.len());
}

/// Recovery reports no events; changes after the open do.
pub fn events_begin_with_the_open(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    let store = world.open(&config(world));
    store_pages(&store, 0..5, 1000);
    let store = world.reopen(store, &config(world));
    assert_eq!(store.take_events(100), pagelith::Events::default());
    assert_eq!(store.remove(&[key(3)], Options::default()), Ok(1));
    let removed = Event::Removed { tier: Tier::Ssd, key: key(3), gone: true };
    assert_eq!(store.take_events(100).events, [removed]);
}

/// Unreadable objects are reported by key if it is known; other members of the record only if a
/// header names them.
pub fn damage_is_reported_by_event(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return;
    }
    const LEN: usize = 100_000;
    let store = world.open(&config(world));
    store_pages(&store, 0..8, LEN);
    store.close().expect("closed");
    world.flip(0, "segments", find(world, key(3)).payload + 10);
    world.flip(0, "segments", find(world, key(5)).record + 70);
    let store = world.open(&config(world));
    let removed = |n| Event::Removed { tier: Tier::Ssd, key: key(n), gone: true };
    assert!(!is_page_present(&store, 3, LEN));
    assert_eq!(store.take_events(100).events, [removed(3)]);
    assert!(!is_page_present(&store, 5, LEN));
    assert_eq!(store.take_events(100).events, [removed(5), Event::Forgot { tier: Tier::Ssd }]);
}
