//! A store with a peer that serves clients: clients get the answers of embedded callers, and
//! requests between stores are not forwarded.

use std::ops::Range;
use std::sync::OnceLock;

use pagelith::ErrorKind;
use pagelith::client::Client;
use pagelith::transport::dial::{Dial, Dialing};
use pagelith::transport::link_error::LinkError;

use super::*;

/// Longer than the piece that a server stages at a time.
const LONG: usize = (9 << 20) + 5;
/// Longer than all staging memory of the server.
const TOO_LONG: usize = 17 << 20;

fn client(process: &Process) -> Client {
    Client::to(&process.address, None, WAIT_MAX).expect("attached")
}

fn wide() -> Config {
    let mut config = memory();
    config.dram.bytes = Size::mib(64);
    config
}

fn never() -> Config {
    let mut config = wide();
    config.dram.promote = Promote::Never;
    config
}

/// Get a range of an object of `len` bytes; returns the outcome, after comparing the bytes.
fn got(
    client: &Client,
    key: ObjectKey,
    range: Option<Range<u64>>,
    len: usize,
) -> pagelith::Result<GetOutcome> {
    let wanted = range.clone().map_or(0..len, |r| r.start as usize..r.end as usize);
    let mut memory = vec![0xee; wanted.len()];
    let get = GetSlice { key, range, pieces: &mut [&mut memory] };
    let outcome = client.get_batch(&mut [get], Options::default()).remove(0);
    if outcome.as_ref().is_ok_and(GetOutcome::is_hit) {
        assert!(memory == content_of(&key, len)[wanted], "wrong bytes key={key}");
    }
    outcome
}

fn remote(bytes: usize) -> pagelith::Result<GetOutcome> {
    Ok(GetOutcome::Hit { tier: Tier::Remote, bytes: bytes as u64 })
}

fn put_of(store: &Store, key: ObjectKey, len: usize) {
    let bytes = content_of(&key, len);
    let put = PutSlice { key, pieces: &[&bytes] };
    assert_eq!(store.put_batch(&[put], Options::default()), [Ok(PutOutcome::Stored)]);
}

#[test]
fn clients_get_pages_of_a_peer() {
    let owner = Process::new(&wide());
    // Nothing is kept on the way, so that each answer comes from the peer.
    let middle = Process::of(owner.front(&never(), offer()));
    let client = client(&middle);
    let (short, long) = (key(1, "k"), key(2, "k"));
    put_of(&owner.store, short, LEN);
    put_of(&owner.store, long, LONG);
    for _ in 0..2 {
        assert_eq!(got(&client, short, None, LEN), remote(LEN));
        assert_eq!(got(&client, long, None, LONG), remote(LONG));
    }
    // Some ranges contain no whole block.
    let end = LEN as u64;
    for range in [5..105, 0..end, 0..1, end - 1..end, 32_768..65_536, 40_000..end, 32_767..65_537] {
        let bytes = (range.end - range.start) as usize;
        assert_eq!(got(&client, short, Some(range.clone()), LEN), remote(bytes), "{range:?}");
    }
    for range in [5..(5 << 20), (3 << 20) + 1..LONG as u64, (4 << 20)..(8 << 20) + 1] {
        let bytes = (range.end - range.start) as usize;
        assert_eq!(got(&client, long, Some(range.clone()), LONG), remote(bytes), "{range:?}");
    }
    for (key, len) in [(short, LEN - 1), (short, LEN + 1), (long, LONG - 1), (long, LONG + 1)] {
        let refused = got(&client, key, None, len).expect_err("another length");
        assert_eq!(refused.kind, ErrorKind::Invalid, "len={len}");
    }
    let (here, gone) = (key(3, "k"), key(4, "k"));
    put_of(&middle.store, here, LEN);
    let keys = [here, short, gone, long];
    assert_eq!(client.exists_batch(&keys, Options::default()), Ok(vec![true, true, false, true]));
    assert_eq!(client.exists_prefix(&keys, Options::default()), Ok(2));
    for len in [LEN, LONG] {
        assert_eq!(got(&client, gone, None, len), Ok(GetOutcome::Miss(MissCause::Absent)));
    }
    // There is never room to keep it.
    let too_long = key(5, "k");
    put_of(&owner.store, too_long, TOO_LONG);
    assert_eq!(got(&client, too_long, None, TOO_LONG), Ok(GetOutcome::Miss(MissCause::Absent)));
    assert_eq!(middle.store.stats().promoted, 0);
}

#[test]
fn page_got_by_a_client_from_a_peer_is_kept() {
    let owner = Process::new(&wide());
    let middle = Process::of(owner.front(&wide(), offer()));
    let client = client(&middle);
    let (page, long) = ([key(1, "k"), key(1, "v")], key(2, "k"));
    put(&owner.store, &page);
    put_of(&owner.store, long, LONG);
    let both = |client: &Client| {
        let mut memory = [vec![0; LEN], vec![0; LEN]];
        let [k, v] = &mut memory;
        let mut gets = [
            GetSlice { key: page[0], range: None, pieces: &mut [k] },
            GetSlice { key: page[1], range: None, pieces: &mut [v] },
        ];
        let outcomes = client.get_batch(&mut gets, Options::default());
        assert!(memory == [content(&page[0]), content(&page[1])], "wrong bytes");
        outcomes
    };
    let memory = |bytes: usize| Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: bytes as u64 });
    assert_eq!(both(&client), [remote(LEN), remote(LEN)]);
    assert_eq!(both(&client), [memory(LEN), memory(LEN)]);
    assert_eq!(got(&client, long, None, LONG), remote(LONG));
    assert_eq!(got(&client, long, None, LONG), memory(LONG));
    assert_eq!(middle.store.stats().promoted, 2);
}

/// Objects removed or cleared by a client of the store in the middle are gone at its peer too.
#[test]
fn page_removed_by_a_client_is_gone_at_the_peer() {
    let owner = Process::new(&memory());
    let middle = Process::of(owner.front(&memory(), offer()));
    let client = client(&middle);
    let [removed, cleared] = [key(1, "k"), key(2, "k")];
    put(&owner.store, &[removed]);
    put(&owner.store, &[cleared]);
    assert_eq!(got(&client, removed, None, LEN), remote(LEN));
    client.remove(&[removed], Options::default()).expect("removed");
    assert_eq!(client.exists_batch(&[removed, cleared], Options::default()), Ok(vec![false, true]));
    client.clear(NAMESPACE, Options::default()).expect("cleared");
    for key in [removed, cleared] {
        assert_eq!(got(&client, key, None, LEN), Ok(GetOutcome::Miss(MissCause::Absent)));
        assert_eq!(owner.store.exists_batch(&[key], Options::default()), [false]);
    }
}

/// A store whose address is known before it is served.
#[derive(Default)]
struct LateDial(OnceLock<SocketDial>);

impl Dial for LateDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.0.get().ok_or(LinkError::Disconnected)?.begin()
    }
}

#[test]
fn mutual_peers_do_not_forward_requests() {
    let later = Arc::new(LateDial::default());
    let peer = Peer { name: "b".into(), weight: 1.0, preferred: false, dial: later.clone() };
    let a = Process::of(Store::open_with_peers(valid(&memory()), vec![peer]).expect("opened"));
    let b = Process::of(a.front(&memory(), offer()));
    let dial = SocketDial::new(b.address.clone(), None, offer(), Arc::new(SystemClock::new()));
    later.0.set(dial).map_err(|_| "it was known").expect("unknown so far");
    // Each store asks the other once for a page that neither has.
    let client = client(&a);
    assert_eq!(got(&client, key(1, "k"), None, LEN), Ok(GetOutcome::Miss(MissCause::Absent)));
    assert_eq!(client.exists_batch(&[key(1, "k")], Options::default()), Ok(vec![false]));
    let misses = |process: &Process| process.store.stats().misses.values().sum::<u64>();
    assert_eq!((misses(&a), misses(&b)), (1, 1));
    // Each put is offered to the other store, and not back.
    put(&a.store, &[key(2, "k")]);
    until("the other has it", || b.store.stats().puts_stored == 1);
    // Sent after all earlier offers.
    a.store.remove(&[key(3, "k")], Options::default()).expect("removed");
    b.store.remove(&[key(4, "k")], Options::default()).expect("removed");
    let stats = a.store.stats();
    assert_eq!(
        (stats.puts_stored, stats.puts_present, stats.remote_stored),
        (1, 0, 1),
        "{stats:?}"
    );
    let stats = b.store.stats();
    assert_eq!((stats.remote_stored, stats.remote_skipped), (0, 0), "{stats:?}");
    assert_eq!(got(&client, key(2, "k"), None, LEN).map(|outcome| outcome.is_hit()), Ok(true));
    // A removal and a clear complete, and take effect at both.
    client.remove(&[key(2, "k")], Options::default()).expect("removed");
    assert_eq!(b.store.exists_batch(&[key(2, "k")], Options::default()), [false]);
    put(&b.store, &[key(5, "k")]);
    until("the other has it", || a.store.stats().puts_stored == 2);
    client.clear(NAMESPACE, Options::default()).expect("cleared");
    assert_eq!(a.store.exists_batch(&[key(5, "k")], Options::default()), [false]);
    assert_eq!(b.store.exists_batch(&[key(5, "k")], Options::default()), [false]);
}

/// A page whose requests are too long for the peer is not offered to it; later pages are.
#[test]
fn page_with_too_many_objects_for_one_request_stays_local() {
    let store = Store::open(valid(&memory())).expect("opened");
    let brief =
        Capabilities { control_bytes_max: 16 << 10, ..Capabilities::of_this_build([1; 16]) };
    let process = Process::offering(store, ClientAuth::Connection(Rights::all()), brief);
    let front = process.front(&memory(), offer());
    let keys: Vec<ObjectKey> = (0..500).map(|part| key(1, &format!("part-{part}"))).collect();
    let group: Vec<PutSlice<'_>> =
        keys.iter().map(|key| PutSlice { key: *key, pieces: &[b"x"] }).collect();
    assert_eq!(front.put_groups(&[&group], Options::default()), [Ok(PutOutcome::Stored)]);
    put(&front, &[key(2, "k")]);
    until("the peer has the other", || front.stats().remote_stored == 1);
    assert_eq!(front.stats().remote_skipped, 500);
    assert_eq!(
        process.store.exists_batch(&[keys[0], key(2, "k")], Options::default()),
        [false, true]
    );
}
