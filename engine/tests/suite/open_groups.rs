//! Groups that are put in several calls: invisible until the commit, then whole.

use super::harness::{Group, Store};
use pagelith::layouts::key::ObjectKey;
use pagelith::{Config, ErrorKind, Options, PutOutcome, PutSlice, Result, Size};

use super::env::TestEnv;
use super::helpers::*;

type Object = (ObjectKey, Vec<u8>);

fn keys(objects: &[Object]) -> Vec<ObjectKey> {
    objects.iter().map(|(key, _)| *key).collect()
}

fn begin(store: &Store, objects: &[Object]) -> Group {
    store.begin_group(&keys(objects), Options::default()).expect("begun")
}

fn put_into(group: &Group, (key, bytes): &Object) -> Result<PutOutcome> {
    group.put(&[PutSlice { key: *key, pieces: &[bytes] }], Options::default()).remove(0)
}

fn commit(group: &Group) -> Result<PutOutcome> {
    group.commit(Options::default())
}

fn present_count(store: &Store, group: &[Object]) -> usize {
    group.iter().filter(|(key, bytes)| is_present(store, *key, bytes)).count()
}

pub fn begun_group_is_visible_only_after_commit(world: &TestEnv) {
    for config in [world.config(), world.cold_config()] {
        let world = world.fresh(1);
        let config = in_world(&world, config);
        let store = world.open(&config);
        let page = group(1, 10);
        let begun = begin(&store, &page);
        for i in [3, 9, 0, 1, 8, 2, 7, 4, 6] {
            assert_eq!(put_into(&begun, &page[i]), Ok(PutOutcome::Waiting), "i={i}");
            page.iter().for_each(|(key, bytes)| assert_absent(&world, &store, *key, bytes.len()));
        }
        assert!(store.view(&page[3].0).expect("asked").is_none());
        assert_eq!(put_into(&begun, &page[3]), Ok(PutOutcome::AlreadyPresent), "put counts once");
        assert_eq!(begun.missing(), [page[5].0]);
        assert_eq!(commit(&begun), Ok(PutOutcome::Waiting));
        flush(&store);
        assert_eq!((present_count(&store, &page), store.stats().groups_waiting), (0, 1));
        assert_eq!(put_into(&begun, &page[5]), Ok(PutOutcome::Waiting));
        assert_eq!(present_count(&store, &page), 0);
        assert_eq!(commit(&begun), Ok(PutOutcome::Stored));
        assert_eq!(present_count(&store, &page), 10);
        let stats = store.stats();
        assert_eq!((stats.groups_waiting, stats.waiting_bytes, stats.groups_dropped), (0, 0, 0));
        if world.tells_keys_apart() {
            assert_eq!(commit(&begun), Ok(PutOutcome::AlreadyPresent));
        }
        flush(&store);
        drop(begun);
        let store = world.crash(store, &config);
        assert_eq!(present_count(&store, &page), 10);
        let again = begin(&store, &page);
        assert_eq!(commit(&again), Ok(PutOutcome::AlreadyPresent), "present objects count as put");
    }
}

/// `config`, in the directories of `world`.
fn in_world(world: &TestEnv, config: Config) -> Config {
    {
        let mut config = config;
        config.ssd.dirs = world.paths();
        config
    }
}

pub fn group_is_put_by_several_threads(world: &TestEnv) {
    if world.sim().is_some() {
        return; // Simulated time passes while any thread waits: deadlines would expire at random.
    }
    let store = world.open(&world.config());
    for n in 0..world.many(40) as u64 {
        let page = group(n, 8);
        let stored: usize = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4usize)
                .map(|t| {
                    let (store, page) = (&store, &page);
                    scope.spawn(move || {
                        let group = begin(store, page);
                        for object in page.iter().skip(t % 2).step_by(2) {
                            let outcome = put_into(&group, object).expect("put");
                            assert!(
                                [PutOutcome::Waiting, PutOutcome::AlreadyPresent]
                                    .contains(&outcome)
                            );
                        }
                        usize::from(commit(&group) == Ok(PutOutcome::Stored))
                    })
                })
                .collect();
            writers.into_iter().map(|w| w.join().expect("joined")).sum()
        });
        // The last put may return while the others are still being copied.
        if stored == 0 {
            assert_eq!(commit(&begin(&store, &page)), Ok(PutOutcome::Stored), "n={n}");
        }
        assert!(stored <= 1, "n={n} stored={stored}");
        assert_eq!(present_count(&store, &page), 8, "n={n}");
    }
}

pub fn standalone_object_counts_as_put_and_keeps_its_bytes(world: &TestEnv) {
    for config in [world.config(), world.cold_config()] {
        let world = world.fresh(1);
        let config = in_world(&world, config);
        let store = world.open(&config);
        let (page, mut other) = (group(1, 3), group(2, 3));
        for alone in [&page[1], &other[0], &other[2]] {
            assert_eq!(put(&store, alone.0, &alone.1), Ok(PutOutcome::Stored));
        }
        flush(&store);
        // A begun group need not put it at all.
        if world.tells_keys_apart() {
            let begun = begin(&store, &page);
            assert_eq!(begun.missing(), [page[0].0, page[2].0]);
            assert_eq!(put_into(&begun, &page[0]), Ok(PutOutcome::Waiting));
            assert_eq!(put_into(&begun, &page[1]), Ok(PutOutcome::AlreadyPresent));
            let longer = (page[1].0, bytes(1, page[1].1.len() + 1));
            let refused = put_into(&begun, &longer).map_err(|error| error.kind);
            assert_eq!(refused, Err(ErrorKind::Invalid), "present with another length");
            assert_eq!(put_into(&begun, &page[2]), Ok(PutOutcome::Waiting));
            assert_eq!(commit(&begun), Ok(PutOutcome::Stored));
            drop(begun);
        } else {
            assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
        }
        // A one-call group does not read its bytes.
        let first = std::mem::replace(&mut other[0].1, bytes(77, 1000));
        assert_eq!(put_group(&store, &other), Ok(PutOutcome::Stored));
        other[0].1 = first;
        assert_eq!((present_count(&store, &page), present_count(&store, &other)), (3, 3));
        if world.tells_keys_apart() {
            assert_eq!(store.stats().objects, 6, "none is counted twice");
        }
        flush(&store);
        let store = world.crash(store, &config);
        assert_eq!((present_count(&store, &page), present_count(&store, &other)), (3, 3));
        assert_eq!(store.remove(&[page[0].0], Options::default()), Ok(1));
        assert_eq!(present_count(&store, &page), 0, "they are one group now");
        let store = world.crash(store, &config);
        assert_eq!((present_count(&store, &page), present_count(&store, &other)), (0, 3));
    }
}

pub fn second_base_set_of_a_page_is_refused(world: &TestEnv) {
    for config in [world.config(), world.cold_config()] {
        let world = world.fresh(1);
        let store = world.open(&in_world(&world, config));
        let page = group(1, 3);
        let (kv, kx) = (&page[..2], &[page[0].clone(), page[2].clone()]);
        let message = |has: &str, given: &str| {
            let key = page[0].0;
            format!("an object is in a group of other objects key={key} has={has} given={given}")
        };
        let (c0, c1, c2) = ("kv/c0/whole", "kv/c1/whole", "kv/c2/whole");
        let (has, given) = (format!("{c0},{c1}"), format!("{c0},{c2}"));
        let begun = begin(&store, kv);
        let refusal = message(&has, &given);
        let other = store.begin_group(&keys(kx), Options::default());
        refused(other.map(|_| ()), ErrorKind::Invalid, &refusal);
        refused(put_group(&store, kx), ErrorKind::Invalid, &refusal);
        let foreign = put_into(&begun, &page[2]);
        refused(
            foreign,
            ErrorKind::Invalid,
            &format!("the group does not require the object key={}", page[2].0),
        );
        kv.iter().for_each(|object| assert_eq!(put_into(&begun, object), Ok(PutOutcome::Waiting)));
        assert_eq!(commit(&begun), Ok(PutOutcome::Stored));
        flush(&store);
        refused(put_group(&store, kx), ErrorKind::Invalid, &refusal);
        refused(
            put_group(&store, &page),
            ErrorKind::Invalid,
            &message(&has, &format!("{c0},{c1},{c2}")),
        );
        // For groups on SSD only a header can tell, at the latest at the commit.
        let late = store.begin_group(&keys(kx), Options::default());
        let late = late.and_then(|g| put_into(&g, &kx[1]).and_then(|_| commit(&g)));
        refused(late, ErrorKind::Invalid, &refusal);
        assert_eq!(
            (present_count(&store, kv), is_present(&store, page[2].0, &page[2].1)),
            (2, false)
        );
    }
}

pub fn object_that_cannot_be_put_is_named(world: &TestEnv) {
    let store = world.open(&world.config());
    let page: Vec<Object> =
        group(1, 4).into_iter().map(|(key, _)| (key, bytes(1, 300_000))).collect();
    let begun = begin(&store, &page);
    page[..3]
        .iter()
        .for_each(|object| assert_eq!(put_into(&begun, object), Ok(PutOutcome::Waiting)));
    // Four payloads of 303,104 bytes and a header of one block, against a segment less header and
    // footer.
    let key = page[3].0;
    let remedy = "raise ssd.segment_bytes";
    let too_large = format!(
        "group is larger than a segment's payload; {remedy} key={key} bytes=1216512 max=1040384"
    );
    refused(put_into(&begun, &page[3]), ErrorKind::Invalid, &too_large);
    let empty = format!("object has no bytes key={key} length=0");
    refused(put_into(&begun, &(key, Vec::new())), ErrorKind::Invalid, &empty);
    let longer = (page[0].0, bytes(1, 300_001));
    let message =
        format!("key is present with another length key={} present=300000 given=300001", page[0].0);
    refused(put_into(&begun, &longer), ErrorKind::Invalid, &message);
    assert_eq!(
        put_into(&begun, &(key, bytes(1, 1000))),
        Ok(PutOutcome::Waiting),
        "a smaller one fits"
    );
    begun.abort();
    let stats = store.stats();
    assert_eq!((stats.groups_waiting, stats.waiting_bytes, stats.groups_dropped), (0, 0, 0));
    let (a, b) = (group(1, 2), group(2, 1));
    let message = format!("a group has objects of two pages key={} other={}", b[0].0, a[0].0);
    let mixed = store.begin_group(&[a[0].0, b[0].0], Options::default());
    refused(mixed.map(|_| ()), ErrorKind::Invalid, &message);
    let message = format!("a group has a key twice key={}", a[0].0);
    let twice = store.begin_group(&[a[0].0, a[1].0, a[0].0], Options::default());
    refused(twice.map(|_| ()), ErrorKind::Invalid, &message);
    let none: Result<()> = store.begin_group(&[], Options::default()).map(|_| ());
    refused(none, ErrorKind::Invalid, "a group requires no object");
}

pub fn incomplete_group_is_dropped_at_its_deadline(world: &TestEnv) {
    let mut config = world.config();
    config.groups.deadline_ms = 1;
    let store = world.open(&config);
    let page = group(1, 3);
    let begun = begin(&store, &page);
    // The deadline may have passed already.
    let _ = put_into(&begun, &page[0]);
    while store.stats().groups_waiting > 0 {
        // The flusher drops it by itself; on a simulated machine time passes only while a thread
        // waits.
        flush(&store);
    }
    assert_eq!((store.stats().groups_dropped, store.stats().waiting_bytes), (1, 0));
    let message = "group is not open: its deadline has passed, or its namespace was cleared";
    refused(put_into(&begun, &page[1]), ErrorKind::Unavailable, message);
    refused(commit(&begun), ErrorKind::Unavailable, message);
    assert_eq!(present_count(&store, &page), 0);
    drop(begun);
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
}

pub fn uncommitted_group_is_absent_after_close_and_crash(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    let (open, done) = (group(1, 5), group(2, 5));
    let (half, whole) = (begin(&store, &open), begin(&store, &done));
    open.iter().for_each(|object| assert_eq!(put_into(&half, object), Ok(PutOutcome::Waiting)));
    done.iter().for_each(|object| assert_eq!(put_into(&whole, object), Ok(PutOutcome::Waiting)));
    assert_eq!(commit(&whole), Ok(PutOutcome::Stored));
    flush(&store);
    drop((half, whole));
    let store = world.crash(store, &config);
    assert_eq!((present_count(&store, &open), present_count(&store, &done)), (0, 5));
    let half = begin(&store, &open);
    open.iter().for_each(|object| assert_eq!(put_into(&half, object), Ok(PutOutcome::Waiting)));
    drop(half);
    let store = world.reopen(store, &config);
    assert_eq!((present_count(&store, &open), present_count(&store, &done)), (0, 5));
}

pub fn clear_drops_waiting_groups(world: &TestEnv) {
    let store = world.open(&world.config());
    let page = group(1, 3);
    let begun = begin(&store, &page);
    page.iter().for_each(|object| assert_eq!(put_into(&begun, object), Ok(PutOutcome::Waiting)));
    store.clear(namespace("m"), Options::default()).expect("cleared");
    assert_eq!((store.stats().groups_waiting, store.stats().waiting_bytes), (0, 0));
    let message = "group is not open: its deadline has passed, or its namespace was cleared";
    refused(commit(&begun), ErrorKind::Unavailable, message);
    assert_eq!(present_count(&store, &page), 0);
}

pub fn waiting_groups_take_at_most_half_of_the_arena(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::mib(4)));
    let mut stored = 0u64;
    for n in 0..8 {
        let page = [
            (key_in(namespace("m"), n, "k"), bytes(n, 512 << 10)),
            (key_in(namespace("m"), n, "v"), vec![1]),
        ];
        let begun = begin(&store, &page);
        let outcome =
            begun.put(&[PutSlice { key: page[0].0, pieces: &[&page[0].1] }], NOW).remove(0);
        stored += u64::from(outcome == Ok(PutOutcome::Waiting));
        if let Err(error) = outcome {
            let bytes = stored << 19;
            let message = format!(
                "incomplete groups use too much memory waiting={bytes} bytes=524288 max=2097152"
            );
            assert_eq!((error.kind, error.message), (ErrorKind::Busy, message));
        }
    }
    assert_eq!(stored, 4);
    // Visible pages have the other half.
    for n in 100..110 {
        store_page(&store, n, 128 << 10);
    }
}
