//! What goes in lanes does go there, and what else a store promises holds there too. (Beside other threads: `engine/tests/puts_side_by_side.rs`,
//! `sim/concurrency`.)

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::namespace::Namespace;
use pagelith_layouts::shard::Shard;

use crate::{Config, Event, Facts, GetOutcome, GetSlice, Options, PutOutcome, PutSlice, Size, Store, Tier};

const LEN: usize = 8192;
/// Pages of one object that fit.
const ROOM: u32 = 128;

fn key(page: u32, component: &str) -> ObjectKey {
    let mut hash = [7; 32];
    hash[..4].copy_from_slice(&page.to_le_bytes());
    let namespace = Namespace::default().id();
    ObjectKey::new(namespace, PrefixHash(hash), Role::Target, "kv", component, Shard::Whole).expect("a key")
}

fn open(change: impl FnOnce(&mut Config)) -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(u64::from(ROOM) * LEN as u64);
    config.dram.lanes = Some(4);
    config.index.max_objects = Some(4096);
    change(&mut config);
    let facts = Facts { memory_bytes: 1 << 40, memory_source: "as the test has it".into() };
    Store::open(config.validate(&facts).expect("valid")).expect("a store")
}

/// What a page's object of so many bytes has.
fn bytes(page: u32, component: &str, len: usize) -> Vec<u8> {
    let first = u64::from(page) << 8 | u64::from(component.as_bytes()[0]);
    (0..len as u64).map(|i| (first.wrapping_mul(0x9e37_79b9) + i / 64) as u8).collect()
}

/// Put pages, each a group of these components and lengths, 32 a batch.
fn put(store: &Store, pages: std::ops::Range<u32>, of: &[(&str, usize)]) {
    for batch in pages.collect::<Vec<_>>().chunks(32) {
        let made = |page: &u32| {
            let each =
                |(component, len): &(&str, usize)| (key(*page, component), bytes(*page, component, *len));
            of.iter().map(each).collect::<Vec<_>>()
        };
        let made: Vec<_> = batch.iter().map(made).collect();
        let pieces: Vec<Vec<[&[u8]; 1]>> =
            made.iter().map(|group| group.iter().map(|(_, bytes)| [&bytes[..]]).collect()).collect();
        let groups: Vec<Vec<PutSlice<'_>>> = made
            .iter()
            .zip(&pieces)
            .map(|(group, pieces)| {
                group.iter().zip(pieces).map(|((key, _), pieces)| PutSlice { key: *key, pieces }).collect()
            })
            .collect();
        let groups: Vec<&[PutSlice<'_>]> = groups.iter().map(|group| &group[..]).collect();
        let outcomes = store.put_groups(&groups, Options::default());
        assert!(outcomes.iter().all(|o| *o == Ok(PutOutcome::Stored)), "{outcomes:?}");
    }
}

/// Which of these pages are here, all of whose objects have what was put, or of which none is.
fn here(store: &Store, pages: std::ops::Range<u32>, of: &[(&str, usize)]) -> Vec<u32> {
    let is_here = |page: &u32| {
        let found = of.iter().map(|(component, len)| {
            let mut to = vec![0; *len];
            let get = GetSlice { key: key(*page, component), range: None, pieces: &mut [&mut to[..]] };
            let outcome = store.get_batch(&mut [get], Options::default()).remove(0).expect("no error");
            assert!(!outcome.is_hit() || to == bytes(*page, component, *len), "wrong bytes of page {page}");
            matches!(outcome, GetOutcome::Hit { .. })
        });
        let found: Vec<bool> = found.collect();
        assert!(found.iter().all(|f| *f == found[0]), "half of page {page} is here");
        found[0]
    };
    pages.filter(is_here).collect()
}

/// How many of the objects that were stored had the core for it.
fn by_the_core(store: &Store) -> [u64; 2] {
    let core = store.shared.lock().counters.puts_stored;
    [core, store.stats().puts_stored]
}

#[test]
fn most_of_what_is_new_goes_in_lanes_whatever_its_size() {
    let kinds: [&[(&str, usize)]; 4] = [
        &[("k", LEN)],
        &[("k", LEN), ("v", LEN)],
        &[("k", 1000), ("v", 3 * 4096), ("w", 5000)],
        &[("k", 9000)],
    ];
    let store = open(|_| ());
    let (mut next, mut all) = (0, Vec::new());
    // One kind after the other, and then all of them by turns: what leaves is seldom as long as what comes.
    for round in 0..24 {
        let of = if round < 12 { kinds[round / 3] } else { kinds[round % 4] };
        put(&store, next..next + 64, of);
        all.push((next..next + 64, of));
        next += 64;
    }
    let found: Vec<usize> = all.iter().map(|(pages, of)| here(&store, pages.clone(), of).len()).collect();
    assert!(found.iter().sum::<usize>() > 20, "{found:?}");
    assert_eq!(found[..20].iter().sum::<usize>(), 0, "what is oldest has not left: {found:?}");
    let [core, stored] = by_the_core(&store);
    assert!(core * 4 < stored, "{core} of {stored} had the core");
    let keys: Vec<ObjectKey> = (0..next).flat_map(|page| ["k", "v", "w"].map(|c| key(page, c))).collect();
    store.remove(&keys, Options::default()).expect("removed");
    let stats = store.stats();
    assert_eq!((stats.objects, stats.dram_objects, stats.dram_bytes, stats.readers), (0, 0, 0, 0));
}

#[test]
fn what_is_pinned_leased_or_looked_at_stays() {
    let store = open(|_| ());
    put(&store, 0..4, &[("k", LEN)]);
    let pin = store.pin(&[key(0, "k")]);
    assert_eq!(store.lease(&[key(1, "k")], std::time::Duration::from_secs(3600)), 1);
    let view = store.view(&key(2, "k")).expect("open").expect("here");
    put(&store, 10..10 + 4 * ROOM, &[("k", LEN)]);
    assert_eq!(here(&store, 0..4, &[("k", LEN)]), [0, 1, 2]);
    drop((pin, view));
    put(&store, 1000..1000 + 4 * ROOM, &[("k", LEN)]);
    assert_eq!(here(&store, 0..4, &[("k", LEN)]), [1]);
    let [core, stored] = by_the_core(&store);
    assert!(core * 4 < stored, "{core} of {stored} had the core");
}

#[test]
fn what_comes_and_goes_in_lanes_is_told_in_its_order() {
    let store = open(|config| config.events.max = 100_000);
    let pages = 6 * ROOM;
    put(&store, 0..pages, &[("k", LEN), ("v", LEN)]);
    let [core, stored] = by_the_core(&store);
    assert!(core * 4 < stored, "{core} of {stored} had the core");
    let events = store.take_events(100_000);
    assert_eq!(events.lost, 0);
    let mut known = std::collections::BTreeSet::new();
    for event in events.events {
        match event {
            Event::Stored { tier: Tier::Memory, key, new: true } => assert!(known.insert(key), "twice"),
            Event::Removed { tier: Tier::Memory, key, gone: true } => {
                assert!(known.remove(&key), "not there")
            }
            other => panic!("{other:?}"),
        }
    }
    let found = here(&store, 0..pages, &[("k", LEN), ("v", LEN)]);
    let keys = found.iter().flat_map(|page| ["k", "v"].map(|c| key(*page, c)));
    assert_eq!(known, keys.collect());
}

#[test]
fn who_puts_what_is_there_hears_so_and_what_was_cleared_goes() {
    let store = open(|_| ());
    put(&store, 0..2 * ROOM, &[("k", LEN)]);
    let last = 2 * ROOM - 1;
    let again = bytes(last, "k", LEN);
    let pieces: [&[u8]; 1] = [&again];
    let object = PutSlice { key: key(last, "k"), pieces: &pieces };
    assert_eq!(store.put_batch(&[object], Options::default()), [Ok(PutOutcome::AlreadyPresent)]);
    store.clear(Namespace::default().id(), Options::default()).expect("cleared");
    assert!(here(&store, 0..2 * ROOM, &[("k", LEN)]).is_empty());
    assert_eq!(store.stats().dram_bytes, 0);
    put(&store, 0..2 * ROOM, &[("k", LEN)]);
    assert_eq!(here(&store, 0..2 * ROOM, &[("k", LEN)]).len(), ROOM as usize);
}
