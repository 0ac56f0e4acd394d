//! Attached groups and peers: they are offered to the peer that has the base, are found and got
//! there, and disappear with the base.

use std::sync::Mutex;

use pagelith::client::Client;
use pagelith::transport::dial::{Dial, Dialing};
use pagelith::transport::link_error::LinkError;

use super::rules::{found, is, kv, object};
use super::*;

/// The parts of a page's state.
fn state(page: u64) -> [ObjectKey; 2] {
    [object(page, "mamba", "temporal"), object(page, "mamba", "conv_0")]
}

fn window(page: u64) -> [ObjectKey; 2] {
    [object(page, "swa", "k"), object(page, "swa", "v")]
}

fn attach(store: &Store, base: ObjectKey, keys: &[ObjectKey]) -> pagelith::Result<PutOutcome> {
    let bytes: Vec<Vec<u8>> = keys.iter().map(content).collect();
    let pieces: Vec<[&[u8]; 1]> = bytes.iter().map(|bytes| [&bytes[..]]).collect();
    let group: Vec<PutSlice<'_>> =
        keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
    store.put_attached(&[(base, &group)], Options::default()).remove(0)
}

/// All groups of a page: its base, its state and its window, each put separately.
fn put_all(store: &Store, page: u64) {
    put(store, &kv(page));
    assert_eq!(attach(store, kv(page)[0], &state(page)), Ok(PutOutcome::Stored));
    assert_eq!(attach(store, kv(page)[1], &window(page)), Ok(PutOutcome::Stored));
}

fn all_of(page: u64) -> Vec<ObjectKey> {
    [kv(page), state(page), window(page)].concat()
}

fn exist(store: &Store, keys: &[ObjectKey]) -> usize {
    store.exists_batch(keys, Options::default()).into_iter().filter(|here| *here).count()
}

fn ssd(dir: &TempDir, dram: Size) -> Config {
    let mut config = memory();
    config.dram.bytes = dram;
    config.ssd.bytes = Size::mib(64);
    config.ssd.segment_bytes = Some(Size::mib(4));
    config.ssd.dirs = vec![dir.path().join("store")];
    config
}

/// A store that is served at one address after another.
#[derive(Default)]
struct Moving(Mutex<Option<Arc<SocketDial>>>);

impl Moving {
    fn to(&self, process: &Process) {
        let dial =
            SocketDial::new(process.address.clone(), None, offer(), Arc::new(SystemClock::new()));
        *self.0.lock().expect("no panic") = Some(Arc::new(dial));
    }
}

impl Dial for Moving {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        let dial = self.0.lock().expect("no panic").clone();
        dial.ok_or(LinkError::Disconnected)?.begin()
    }
}

fn moving(config: &Config) -> (Arc<Moving>, Store) {
    let moving = Arc::new(Moving::default());
    let peer = Peer { name: "peer".into(), weight: 1.0, preferred: false, dial: moving.clone() };
    (moving, Store::open_with_peers(valid(config), vec![peer]).expect("opened"))
}

#[test]
fn attached_group_is_offered_after_its_base() {
    let mut wide = memory();
    wide.dram.bytes = Size::mib(64);
    let process = Process::new(&wide);
    let front = process.front(&wide, offer());
    // One after another, so that offers of bases are in flight when their attached groups are put.
    (0..30).for_each(|page| put_all(&front, page));
    until("the peer has all of it", || front.stats().remote_stored == 180);
    assert_eq!((front.stats().remote_skipped, process.store.stats().groups_waiting), (0, 0));
    let other = process.front(&memory(), offer());
    for page in 0..30 {
        let keys = all_of(page);
        assert_eq!(exist(&process.store, &keys), keys.len());
        assert_eq!(exist(&other, &keys), keys.len());
    }
    assert_eq!(get(&other, &state(7)), all(Tier::Remote, 2));
    assert_eq!(get(&other, &all_of(8)), all(Tier::Remote, 6));
    // A base that came from the peer, and a local group attached to it.
    put(&process.store, &kv(40));
    assert_eq!(get(&other, &kv(40)), all(Tier::Remote, 2));
    assert_eq!(attach(&other, kv(40)[0], &state(40)), Ok(PutOutcome::Stored));
    until("the peer has it", || exist(&process.store, &state(40)) == 2);
    // A client puts an attached group before its base.
    let served = Process::of(other);
    let client = Client::to(&served.address, None, WAIT_MAX).expect("attached");
    let bytes = content(&state(41)[0]);
    let group = [PutSlice { key: state(41)[0], pieces: &[&bytes] }];
    let waiting = client.put_attached(&[(kv(41)[0], &group)], Options::default());
    assert_eq!(waiting, [Ok(PutOutcome::Waiting)]);
    assert_eq!(exist(&process.store, &state(41)), 0);
    put(&served.store, &kv(41));
    until("the peer has it", || exist(&process.store, &state(41)) == 1);
}

#[test]
fn attached_group_from_a_peer_is_kept_with_its_base() {
    let process = Process::new(&memory());
    let page = all_of(1);
    put_all(&process.store, 1);
    // All at once, or the base first, or the attached groups in two steps.
    let batches: [&[&[ObjectKey]]; 3] =
        [&[&page], &[&page[..2], &page[2..]], &[&page[..2], &page[2..4], &page[4..]]];
    for batches in batches {
        let front = process.front(&memory(), offer());
        for batch in batches {
            assert_eq!(get(&front, batch), all(Tier::Remote, batch.len()));
        }
        assert_eq!(get(&front, &page), all(Tier::Memory, 6));
        // They have the same members as at the peer: a second put finds them present.
        assert_eq!(attach(&front, page[0], &state(1)), Ok(PutOutcome::AlreadyPresent));
        assert_eq!(attach(&front, page[1], &window(1)), Ok(PutOutcome::AlreadyPresent));
        let stats = front.stats();
        assert_eq!((stats.promoted, stats.puts_stored, stats.hits_remote), (3, 0, 6), "{stats:?}");
        // Removing the base removes it, and no later base restores it.
        front.remove(&page[1..2], Options::default()).expect("removed");
        assert_eq!((exist(&front, &page), exist(&process.store, &page)), (0, 0));
        put(&front, &kv(1));
        until("the peer has it", || front.stats().remote_stored == 2);
        assert_eq!(get(&front, &page[2..]), [None; 4]);
        front.remove(&page[..1], Options::default()).expect("removed");
        let stats = process.store.stats();
        assert_eq!((stats.puts_present, stats.groups_waiting), (0, 0), "{stats:?}");
        put_all(&process.store, 1);
    }
}

#[test]
fn attached_group_is_not_kept_in_part_or_without_its_base() {
    let process = Process::new(&memory());
    let front = process.front(&memory(), offer());
    put_all(&process.store, 1);
    for _ in 0..2 {
        assert_eq!(get(&front, &state(1)), all(Tier::Remote, 2));
    }
    assert_eq!(front.stats().promoted, 0);
    assert_eq!(get(&front, &kv(1)), all(Tier::Remote, 2));
    // Half of each of two groups has as many objects as either group.
    let halves = [state(1)[0], window(1)[0]];
    for _ in 0..2 {
        assert_eq!(get(&front, &halves[..1]), all(Tier::Remote, 1));
        assert_eq!(get(&front, &halves), all(Tier::Remote, 2));
    }
    assert_eq!(front.stats().promoted, 1);
    assert_eq!(get(&front, &[state(1), window(1)].concat()), all(Tier::Remote, 4));
    assert_eq!(get(&front, &[state(1), window(1)].concat()), all(Tier::Memory, 4));
    assert_eq!(front.stats().promoted, 3);
}

#[test]
fn attached_group_kept_from_a_peers_ssd_is_written_to_ssd() {
    let (dirs, page) = ([0; 3].map(|_| tempfile::tempdir().expect("a directory")), all_of(1));
    let warm = ssd(&dirs[0], Size::mib(16));
    let process = Process::new(&ssd(&dirs[1], Size::ZERO));
    put_all(&process.store, 1);
    process.store.flush(Options::default()).expect("flushed");
    let front = process.front(&warm, offer());
    assert_eq!(get(&front, &page), all(Tier::Remote, 6));
    assert_eq!(get(&front, &page), all(Tier::Memory, 6));
    let report = front.close().expect("closed");
    assert_eq!((report.durable_objects, report.lost_objects), (6, 0));
    let alone = Store::open(valid(&warm)).expect("opened");
    assert_eq!(get(&alone, &page), all(Tier::Ssd, 6));
    // A standalone record does not name the base to which it is attached.
    let front = process.front(&memory(), offer());
    assert_eq!(get(&front, &kv(1)), all(Tier::Remote, 2));
    for _ in 0..2 {
        assert_eq!(get(&front, &state(1)), all(Tier::Remote, 2));
    }
    // It does if the peer has the base in memory again.
    let process = Process::new(&ssd(&dirs[2], Size::mib(16)));
    put_all(&process.store, 1);
    let process = reopened(process, &ssd(&dirs[2], Size::mib(16)));
    let front = process.front(&memory(), offer());
    assert_eq!(get(&front, &kv(1)), all(Tier::Remote, 2));
    assert_eq!(get(&front, &state(1)), all(Tier::Remote, 2));
    assert_eq!(process.store.stats().hits_ssd, 4);
    assert_eq!(get(&front, &state(1)), all(Tier::Memory, 2));
}

/// The same store, served by another process.
fn reopened(process: Process, config: &Config) -> Process {
    let store = process.store.clone();
    drop(process);
    let store = Arc::into_inner(store).expect("the only owner");
    store.close().expect("closed");
    Process::new(config)
}

#[test]
fn restarted_peer_still_has_the_attached_group() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = ssd(&dir, Size::mib(16));
    let (moving, front) = moving(&memory());
    let process = Process::new(&config);
    moving.to(&process);
    put_all(&front, 1);
    until("the peer has it", || front.stats().remote_stored == 6);
    let process = reopened(process, &config);
    moving.to(&process);
    let other = process.front(&memory(), offer());
    assert_eq!((exist(&other, &all_of(1)), get(&other, &all_of(1))), (6, all(Tier::Remote, 6)));
    // A later attached group finds its base there over another connection; its first offer may have
    // used the one that had ended.
    let late = |n: u64| object(1, "indexer", &format!("x{n}"));
    let offered = || front.stats().remote_stored + front.stats().remote_skipped;
    for n in 0.. {
        let before = offered();
        assert_eq!(attach(&front, kv(1)[0], &[late(n)]), Ok(PutOutcome::Stored));
        until("it is offered", || offered() > before);
        if exist(&process.store, &[late(n)]) == 1 {
            break;
        }
    }
    // Nothing that was removed before the restart is present after it.
    front.remove(&kv(1)[..1], Options::default()).expect("removed");
    let process = reopened(process, &config);
    put(&process.store, &kv(1));
    assert_eq!(exist(&process.store, &all_of(1)), 2);
}

#[test]
fn attached_group_is_not_stored_at_a_peer_that_lost_its_base() {
    let process = Process::new(&memory());
    let (front, other) = (process.front(&memory(), offer()), process.front(&memory(), offer()));
    put(&front, &kv(1));
    assert_eq!(attach(&front, kv(1)[1], &state(1)), Ok(PutOutcome::Stored));
    until("the peer has it", || front.stats().remote_stored == 4);
    // The peer evicts the less used pages first.
    evict(&process.store, &kv(1), &state(1));
    assert_eq!((exist(&other, &all_of(1)), get(&other, &state(1))), (0, vec![None; 2]));
    assert_eq!(found_of(&other), 0);
    assert_eq!(attach(&front, kv(1)[0], &window(1)), Ok(PutOutcome::Stored));
    until("the peer has refused it", || front.stats().remote_skipped == 2);
    let stats = process.store.stats();
    assert_eq!((stats.groups_waiting, stats.puts_refused), (0, 2), "{stats:?}");
    // Another base of the same name makes waiting groups visible; refused groups are absent.
    put(&process.store, &kv(1));
    assert_eq!((exist(&other, &state(1)), exist(&other, &window(1))), (2, 0));
    evict(&process.store, &kv(1), &state(1));
    // Only this store has the base: removing one of its objects also removes groups attached to
    // another at the peer.
    front.remove(&kv(1)[..1], Options::default()).expect("removed");
    put(&process.store, &kv(1));
    assert_eq!(exist(&other, &all_of(1)), 2);
}

/// Put other pages to the peer until it has evicted these; `stay` is kept in use.
fn evict(store: &Store, go: &[ObjectKey], stay: &[ObjectKey]) {
    for _ in 0..240 {
        exist(store, stay);
        put(store, &[key(1000 + store.stats().puts_stored, "k")]);
    }
    assert_eq!(exist(store, go), 0);
}

/// Number of leading pages that can be restored with their state.
fn found_of(store: &Store) -> usize {
    found(|query| store.exists_groups(query, Options::default())).usable_pages
}

#[test]
fn attached_group_is_not_stored_after_its_base_was_refused() {
    let process = Process::new(&memory());
    let (moving, front) = moving(&memory());
    put_all(&front, 1);
    until("all offers are skipped", || front.stats().remote_skipped == 6);
    moving.to(&process);
    // The peer is not used for a while. The base stays, however many pages are put meanwhile.
    let _base = front.pin(&all_of(1));
    until("the peer is asked again", || {
        put(&front, &[key(front.stats().puts_stored, "k")]);
        std::thread::sleep(Duration::from_millis(20));
        front.stats().remote_stored > 0
    });
    let (skipped, late) = (front.stats().remote_skipped, [object(1, "indexer", "x")]);
    assert_eq!(attach(&front, kv(1)[0], &late), Ok(PutOutcome::Stored));
    until("the peer has refused it", || front.stats().remote_skipped == skipped + 1);
    let stats = process.store.stats();
    assert_eq!((stats.puts_refused, stats.groups_waiting, exist(&process.store, &late)), (1, 0, 0));
}

#[test]
fn attached_group_removed_or_cleared_is_gone_at_the_peer() {
    let process = Process::new(&memory());
    let (front, other) = (process.front(&memory(), offer()), process.front(&memory(), offer()));
    for clears in [false, true] {
        // Sent after the offers in flight.
        (0..10).for_each(|page| put_all(&front, page));
        match clears {
            true => _ = front.clear(NAMESPACE, Options::default()).expect("cleared"),
            false => {
                front.remove(&state(1)[..1], Options::default()).expect("removed");
                assert_eq!(exist(&other, &all_of(1)), 4, "the base stays");
                let bases: Vec<ObjectKey> = (0..10).map(|page| kv(page)[0]).collect();
                front.remove(&bases, Options::default()).expect("removed");
            }
        }
        for page in 0..10 {
            assert_eq!((exist(&other, &all_of(page)), exist(&front, &all_of(page))), (0, 0));
            put(&process.store, &kv(page));
            assert_eq!(exist(&other, &all_of(page)), 2, "clears={clears} page={page}");
        }
        front.clear(NAMESPACE, Options::default()).expect("cleared");
    }
    // More objects than a request can hold.
    put_all(&front, 1);
    let many: Vec<ObjectKey> = (0..20_000).map(|page| key(page, "k")).collect();
    front.remove(&many, Options::default()).expect("removed");
    assert_eq!((exist(&other, &all_of(1)), exist(&process.store, &all_of(1))), (0, 0));
}

/// Objects that the peer sent before it received the removal of their base arrive after it, and
/// must not stay.
#[test]
fn object_removed_during_its_transfer_is_not_kept() {
    for clears in [false, true] {
        let process = Process::new(&memory());
        let front = process.front(&memory(), offer());
        (0..30).for_each(|page| put_all(&process.store, page));
        (0..30).for_each(|page| assert_eq!(get(&front, &kv(page)), all(Tier::Remote, 2)));
        let mut session = front.session().expect("a session");
        assert_eq!(get_over(&mut session, state(0)[0]), Some(Tier::Remote));
        let before = process.store.stats().hits_memory;
        let mut asked = |page: u64| {
            let gets = state(page).map(|key| {
                let destination = Destination::owned(AlignedBuf::new(LEN).expect("memory"));
                Get { key, range: None, destination }
            });
            let ticket = session.submit_get(gets.into(), Options::default());
            session.poll().is_none().then_some((page, ticket))
        };
        let at = (1..30).find_map(&mut asked);
        let (page, ticket) = at.expect("an answer that takes longer than a look");
        until("the peer sends it", || process.store.stats().hits_memory == before + 2 * page);
        match clears {
            true => _ = front.clear(NAMESPACE, Options::default()).expect("cleared"),
            false => _ = front.remove(&kv(page)[..1], Options::default()).expect("removed"),
        }
        // The base has been put again when they arrive.
        put(&front, &kv(page));
        let Some(CompletedBatch::Get(done)) = session.wait(ticket, WAIT_MAX) else {
            panic!("it ends")
        };
        assert!(done.iter().all(|done| done.outcome.as_ref().is_ok_and(GetOutcome::is_hit)));
        assert_eq!(get(&front, &state(page)), [None; 2], "clears={clears}");
    }
}

#[test]
fn attached_group_is_not_exchanged_with_an_older_peer() {
    let process = Process::new(&memory());
    let front = process.front(&memory(), offer().without(Feature::Bases));
    put_all(&front, 1);
    until("it is not offered", || {
        (front.stats().remote_stored, front.stats().remote_skipped) == (2, 4)
    });
    assert_eq!((exist(&process.store, &all_of(1)), process.store.stats().groups_waiting), (2, 0));
    put_all(&process.store, 2);
    for tier in [Tier::Remote, Tier::Memory] {
        assert_eq!(get(&front, &kv(2)), all(tier, 2));
        assert_eq!(get(&front, &state(2)), all(Tier::Remote, 2));
    }
    assert_eq!(exist(&front, &all_of(2)), 6);
}

#[test]
fn hit_rules_find_attached_groups_at_peers() {
    let process = Process::new(&memory());
    let (front, other) = (process.front(&memory(), offer()), process.front(&memory(), offer()));
    for page in 0..4 {
        put(
            &front,
            &[kv(page), [object(page, "indexer", "x"), object(page, "indexer", "y")]].concat(),
        );
        if page % 2 == 0 {
            assert_eq!(attach(&front, kv(page)[0], &state(page)), Ok(PutOutcome::Stored));
        }
    }
    until("the peer has it", || front.stats().remote_stored == 20);
    let expected = is(3, 4, [3, 4], &[1, 3]);
    assert_eq!(found(|query| other.exists_groups(query, Options::default())), expected);
    let served = Process::of(other);
    let client = Client::to(&served.address, None, WAIT_MAX).expect("attached");
    assert_eq!(found(|query| client.exists_groups(query, Options::default())), expected);
    // Its base arrived here; it did not.
    let page = [&kv(2)[..], &[object(2, "indexer", "x"), object(2, "indexer", "y")]].concat();
    assert_eq!(get(&served.store, &page), all(Tier::Remote, 4));
    assert_eq!(get(&served.store, &page), all(Tier::Memory, 4));
    assert_eq!(found(|query| client.exists_groups(query, Options::default())), expected);
    process.store.remove(&kv(2)[..1], Options::default()).expect("removed");
    assert_eq!(found_of(&served.store), 1);
}

/// An object larger than any local segment is a hit, and is not kept.
#[test]
fn object_that_cannot_be_put_locally_is_not_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut small = ssd(&dir, Size::mib(16));
    small.ssd.segment_bytes = Some(Size::mib(1));
    let process = Process::new(&memory());
    let front = process.front(&small, offer());
    let long: Vec<ObjectKey> = (0..16).map(|at| key(1, &format!("k{at}"))).collect();
    put(&process.store, &long);
    for _ in 0..2 {
        assert_eq!(get(&front, &long), all(Tier::Remote, 16));
    }
    assert_eq!((front.stats().promoted, front.close().expect("closed").lost_objects), (0, 0));
}
