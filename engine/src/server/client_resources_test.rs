//! Pins, leases and groups of a client: misuse, and release when the client or its server
//! disappears.

use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::rights::{Namespaces, Rights};

use super::tests::{Pair, TIMEOUT, key, object};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::PutOutcome;
use crate::api::request::{Options, PutSlice};
use crate::rpc::call::{ControlReply, Response};

const LEN: usize = 5000;
const ALL: usize = 8;

fn pair(rights: Rights) -> (Pair, Vec<ObjectKey>) {
    let pair = Pair::at("tcp:127.0.0.1:0".parse().expect("an address"), rights, 1.0, &[]);
    let keys: Vec<ObjectKey> = (0..ALL as u8).map(|page| key(page, "k")).collect();
    for (key, seed) in keys.iter().zip(0..) {
        let bytes = object(seed, LEN);
        let put = PutSlice { key: *key, pieces: &[&bytes] };
        pair.store.put_batch(&[put], Options::default()).remove(0).expect("put");
    }
    (pair, keys)
}

fn ask(pair: &mut Pair, ask: &RequestBody<'_>) -> Result<u64> {
    let deadline = pair.clock.now().after(TIMEOUT);
    pair.caller.send_control(1, ask, RequestOptions::default(), deadline).expect("link capacity");
    match pair.reply() {
        Response::Control(Ok(ControlReply::Number(number))) => Ok(number),
        Response::Control(Err(error)) => Err(error),
        other => panic!("unexpected reply {other:?}"),
    }
}

fn refused(outcome: Result<u64>, kind: ErrorKind, message: &str) {
    assert_eq!(outcome, Err(Error::new(kind, message)));
}

fn pinned(pair: &Pair) -> (u64, u64) {
    let stats = pair.store.stats();
    (stats.objects_pinned, stats.objects_leased)
}

/// The client disconnects without a request: only its server can release its pins.
#[test]
fn pins_end_with_their_link_and_leases_remain() {
    for dies in ["the client", "the server"] {
        let (mut pair, keys) = pair(Rights::all());
        assert_eq!(ask(&mut pair, &RequestBody::Pin(1, List::of(&keys[..5]))), Ok(5));
        assert_eq!(ask(&mut pair, &RequestBody::Pin(2, List::of(&keys[3..]))), Ok(5));
        assert_eq!(ask(&mut pair, &RequestBody::Lease(60_000, List::of(&keys[..2]))), Ok(2));
        assert_eq!(pinned(&pair), (8, 2));
        assert_eq!(ask(&mut pair, &RequestBody::Unpin(1)), Ok(5));
        assert_eq!(pinned(&pair), (5, 2));
        let Pair { store, mut server, caller, .. } = pair;
        match dies {
            "the client" => {
                drop(caller);
                while server.closed().is_none() {
                    server.wait(TIMEOUT);
                }
            }
            _ => drop(server),
        }
        let stats = store.stats();
        assert_eq!((stats.objects_pinned, stats.objects_leased), (0, 2), "{dies}");
    }
}

/// Disconnects a client after each of its steps: nothing stays pinned.
#[test]
fn client_disconnected_at_any_step_leaves_no_pins() {
    for steps in 0..6 {
        let (mut pair, keys) = pair(Rights::all());
        let deadline = pair.clock.now().after(TIMEOUT);
        for (name, key) in (1..).zip(&keys) {
            let keys = [*key];
            pair.caller
                .send_control(
                    name,
                    &RequestBody::Pin(name, List::of(&keys)),
                    RequestOptions::default(),
                    deadline,
                )
                .expect("link capacity");
            pair.caller.poll(pair.clock.now(), &mut Vec::new());
            if name > steps {
                break;
            }
            pair.server.poll();
        }
        let Pair { store, mut server, caller, .. } = pair;
        drop(caller);
        while server.closed().is_none() {
            server.wait(TIMEOUT);
        }
        assert_eq!(store.stats().objects_pinned, 0, "steps={steps}");
    }
}

#[test]
fn pin_name_is_scoped_to_its_connection() {
    let (mut pair, keys) = pair(Rights::all());
    assert_eq!(ask(&mut pair, &RequestBody::Pin(7, List::of(&keys[..5]))), Ok(5));
    let message = "name is in use by a pin or view of this link name=7";
    refused(ask(&mut pair, &RequestBody::Pin(7, List::of(&keys))), ErrorKind::Invalid, message);
    // Another client uses the same name for a pin of its own.
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let (server, caller) = Pair::connect(&pair.store, &pair.clock, address, Rights::all(), &[]);
    let (server, caller) =
        (std::mem::replace(&mut pair.server, server), std::mem::replace(&mut pair.caller, caller));
    assert_eq!(ask(&mut pair, &RequestBody::Unpin(7)), Ok(0));
    assert_eq!(ask(&mut pair, &RequestBody::Pin(7, List::of(&keys))), Ok(ALL as u64));
    assert_eq!(ask(&mut pair, &RequestBody::Unpin(7)), Ok(ALL as u64));
    assert_eq!(pinned(&pair), (5, 0));
    (pair.server, pair.caller) = (server, caller);
    assert_eq!(ask(&mut pair, &RequestBody::Unpin(7)), Ok(5));
    assert_eq!(pinned(&pair), (0, 0));
}

#[test]
fn pins_and_leases_beyond_their_bounds_are_refused() {
    let (mut pair, keys) = pair(Rights::all());
    let day = 24 * 60 * 60 * 1000;
    assert_eq!(ask(&mut pair, &RequestBody::Lease(day, List::of(&keys))), Ok(ALL as u64));
    for ms in [day + 1, u64::MAX] {
        let message = format!("lease is too long ms={ms} max={day}");
        refused(
            ask(&mut pair, &RequestBody::Lease(ms, List::of(&keys))),
            ErrorKind::Invalid,
            &message,
        );
    }
    // Repeated pins of one object count for the connection, although the store holds one object.
    let many = vec![keys[0]; 4096];
    for name in 1..=16 {
        assert_eq!(
            ask(&mut pair, &RequestBody::Pin(name, List::of(&many))),
            Ok(4096),
            "name={name}"
        );
    }
    let message = "too much is pinned on this link objects=1 room=0";
    refused(ask(&mut pair, &RequestBody::Pin(99, List::of(&keys[..1]))), ErrorKind::Busy, message);
    assert_eq!(ask(&mut pair, &RequestBody::Unpin(99)), Ok(0), "the name holds no pin");
    assert_eq!(ask(&mut pair, &RequestBody::Unpin(16)), Ok(4096));
    assert_eq!(ask(&mut pair, &RequestBody::Pin(99, List::of(&keys[..1]))), Ok(1));
}

#[test]
fn key_outside_client_namespaces_is_denied() {
    let none = Rights::of(Namespaces::Listed([].into()));
    let (mut pair, keys) = pair(none);
    for asked in [
        RequestBody::Pin(1, List::of(&keys)),
        RequestBody::Lease(1000, List::of(&keys)),
        RequestBody::Begin(1, List::of(&keys)),
    ] {
        assert_eq!(
            ask(&mut pair, &asked).expect_err("denied").kind,
            ErrorKind::Denied,
            "{:?}",
            asked.verb()
        );
    }
    assert_eq!(pinned(&pair), (0, 0));
}

/// The two objects of a page that is absent.
fn page() -> [ObjectKey; 2] {
    [key(100, "k"), key(100, "v")]
}

/// Puts an object into the group with this name.
fn put_into(pair: &mut Pair, name: u64, key: ObjectKey) -> Result<PutOutcome> {
    let bytes = object(7, LEN);
    let mut draft = PutBuilder::for_open_group(BLOCK_BYTES, name);
    draft.group(None);
    draft.object(key, LEN as u64, &[checksum(&bytes)]);
    let deadline = pair.clock.now().after(TIMEOUT);
    let lend = Box::new(move |_| vec![Part::from_shared(Arc::from(&bytes[..]))]);
    pair.caller.put(1, &draft, lend, RequestOptions::default(), deadline).expect("link capacity");
    let Response::Put(mut outcomes) = pair.reply() else { panic!("unexpected reply") };
    outcomes.remove(0)
}

fn waiting(store: &crate::store::embedded::Store) -> (u64, u64, u64) {
    let stats = store.stats();
    (stats.groups_waiting, stats.waiting_bytes, stats.groups_dropped)
}

const GONE: &str = "group is not open: its deadline has passed, or its namespace was cleared";

#[test]
fn incomplete_group_ends_with_its_last_holder() {
    for joined in [false, true] {
        let (mut pair, _) = pair(Rights::all());
        assert_eq!(ask(&mut pair, &RequestBody::Begin(1, List::of(&page()))), Ok(2));
        assert_eq!(put_into(&mut pair, 1, page()[0]), Ok(PutOutcome::Waiting));
        assert_eq!(waiting(&pair.store), (1, 8192, 0));
        let Pair { store, mut server, caller, .. } = pair;
        let own = joined.then(|| store.begin_group(&page(), Options::default()).expect("joined"));
        drop(caller);
        while server.closed().is_none() {
            server.wait(TIMEOUT);
        }
        assert_eq!(waiting(&store), if joined { (1, 8192, 0) } else { (0, 0, 1) });
        if let Some(own) = own {
            assert_eq!(own.missing(), [page()[1]]);
            own.abort();
        }
        assert_eq!(store.stats().waiting_bytes, 0);
    }
}

#[test]
fn group_joined_by_two_connections_ends_with_the_last() {
    let (mut pair, _) = pair(Rights::all());
    assert_eq!(ask(&mut pair, &RequestBody::Begin(1, List::of(&page()))), Ok(2));
    assert_eq!(put_into(&mut pair, 1, page()[0]), Ok(PutOutcome::Waiting));
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let (server, caller) = Pair::connect(&pair.store, &pair.clock, address, Rights::all(), &[]);
    let first =
        (std::mem::replace(&mut pair.server, server), std::mem::replace(&mut pair.caller, caller));
    // No request of this connection can use the name.
    for asked in [RequestBody::Commit(1), RequestBody::Abort(1)] {
        refused(ask(&mut pair, &asked), ErrorKind::Unavailable, GONE);
    }
    let error = put_into(&mut pair, 1, page()[1]).expect_err("no such group");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Unavailable, GONE));
    assert_eq!(waiting(&pair.store), (1, 8192, 0));
    // Another connection that begins the same group joins it, under a name of its own.
    let turned = [page()[1], page()[0]];
    assert_eq!(ask(&mut pair, &RequestBody::Begin(1, List::of(&turned))), Ok(2));
    refused(
        ask(&mut pair, &RequestBody::Begin(1, List::of(&turned))),
        ErrorKind::Invalid,
        "name is in use by a group of this link name=1",
    );
    drop(first);
    assert_eq!(waiting(&pair.store), (1, 8192, 0));
    let deadline = pair.clock.now().after(TIMEOUT);
    pair.caller
        .send_control(1, &RequestBody::Missing(1), RequestOptions::default(), deadline)
        .expect("link capacity");
    let Response::Control(Ok(ControlReply::Bits(missing))) = pair.reply() else {
        panic!("unexpected reply")
    };
    assert_eq!(missing, [true, false], "in the order of the request");
    assert_eq!(ask(&mut pair, &RequestBody::Commit(1)), Ok(5), "waiting");
    assert_eq!(put_into(&mut pair, 1, page()[1]), Ok(PutOutcome::Waiting));
    assert_eq!(
        (ask(&mut pair, &RequestBody::Commit(1)), ask(&mut pair, &RequestBody::Commit(1))),
        (Ok(3), Ok(4))
    );
    assert_eq!(pair.store.exists_batch(&page(), Options::default()), [true, true]);
    drop(pair.server);
    assert_eq!(waiting(&pair.store), (0, 0, 0), "a committed group is not dropped");
}

#[test]
fn open_groups_of_a_connection_are_bounded() {
    let (mut pair, _) = pair(Rights::all());
    let names: Vec<String> = (0..100).map(|n| format!("c{n}")).collect();
    let group = |page| names.iter().map(|name| key(page, name)).collect::<Vec<_>>();
    for page in 0..163u8 {
        assert_eq!(
            ask(&mut pair, &RequestBody::Begin(u64::from(page) + 1, List::of(&group(page)))),
            Ok(100),
            "page={page}"
        );
    }
    let message = "open groups of this link require too many objects objects=16400 max=16384";
    refused(
        ask(&mut pair, &RequestBody::Begin(999, List::of(&group(200)))),
        ErrorKind::Busy,
        message,
    );
    assert_eq!(ask(&mut pair, &RequestBody::Abort(5)), Ok(100));
    assert_eq!(ask(&mut pair, &RequestBody::Begin(999, List::of(&group(200)))), Ok(100));
    drop(pair.server);
    assert_eq!(pair.store.stats().groups_waiting, 0);
}
