//! What a client holds over its link, and what becomes of it when the client does wrong, or is gone.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::request::{Ask, Terms};
use pagelith_transport::rights::{Namespaces, Rights};

use super::call::{Reply, Told};
use super::tests::{PATIENCE, Pair, key, object};
use crate::batch::{Options, PutSlice};
use crate::error::{Error, ErrorKind, Result};

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

fn ask(pair: &mut Pair, ask: &Ask<'_>) -> Result<u64> {
    let deadline = pair.clock.now().after(PATIENCE);
    pair.caller.tell(1, ask, Terms::default(), deadline).expect("room");
    match pair.reply() {
        Reply::Told(Ok(Told::Number(number))) => Ok(number),
        Reply::Told(Err(error)) => Err(error),
        other => panic!("another reply {other:?}"),
    }
}

fn refused(outcome: Result<u64>, kind: ErrorKind, message: &str) {
    assert_eq!(outcome, Err(Error::new(kind, message)));
}

fn pinned(pair: &Pair) -> (u64, u64) {
    let stats = pair.store.stats();
    (stats.objects_pinned, stats.objects_leased)
}

/// The client goes without a word: nobody lets go for it but its server.
#[test]
fn pins_go_with_their_link_and_leases_do_not() {
    for dies in ["the client", "the server"] {
        let (mut pair, keys) = pair(Rights::all());
        assert_eq!(ask(&mut pair, &Ask::Pin(1, List::of(&keys[..5]))), Ok(5));
        assert_eq!(ask(&mut pair, &Ask::Pin(2, List::of(&keys[3..]))), Ok(5));
        assert_eq!(ask(&mut pair, &Ask::Lease(60_000, List::of(&keys[..2]))), Ok(2));
        assert_eq!(pinned(&pair), (8, 2));
        assert_eq!(ask(&mut pair, &Ask::Unpin(1)), Ok(5));
        assert_eq!(pinned(&pair), (5, 2));
        let Pair { store, mut server, caller, .. } = pair;
        match dies {
            "the client" => {
                drop(caller);
                while server.closed().is_none() {
                    server.wait(PATIENCE);
                }
            }
            _ => drop(server),
        }
        let stats = store.stats();
        assert_eq!((stats.objects_pinned, stats.objects_leased), (0, 2), "{dies}");
    }
}

/// A client is cut off at each of its steps: whatever the server had heard of it by then, it holds nothing afterwards.
#[test]
fn a_client_that_is_gone_at_any_step_holds_nothing() {
    for steps in 0..6 {
        let (mut pair, keys) = pair(Rights::all());
        let deadline = pair.clock.now().after(PATIENCE);
        for (name, key) in (1..).zip(&keys) {
            let keys = [*key];
            pair.caller
                .tell(name, &Ask::Pin(name, List::of(&keys)), Terms::default(), deadline)
                .expect("room");
            pair.caller.poll(pair.clock.now(), &mut Vec::new());
            if name > steps {
                break;
            }
            pair.server.turn();
        }
        let Pair { store, mut server, caller, .. } = pair;
        drop(caller);
        while server.closed().is_none() {
            server.wait(PATIENCE);
        }
        assert_eq!(store.stats().objects_pinned, 0, "steps={steps}");
    }
}

#[test]
fn a_name_is_of_one_connection_and_of_one_pin() {
    let (mut pair, keys) = pair(Rights::all());
    assert_eq!(ask(&mut pair, &Ask::Pin(7, List::of(&keys[..5]))), Ok(5));
    let message = "a pin of this link has this name name=7";
    refused(ask(&mut pair, &Ask::Pin(7, List::of(&keys))), ErrorKind::Invalid, message);
    // Another client guesses the name: it is one of its own.
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let (server, caller) = Pair::meet(&pair.store, &pair.clock, address, Rights::all(), &[]);
    let (server, caller) =
        (std::mem::replace(&mut pair.server, server), std::mem::replace(&mut pair.caller, caller));
    assert_eq!(ask(&mut pair, &Ask::Unpin(7)), Ok(0));
    assert_eq!(ask(&mut pair, &Ask::Pin(7, List::of(&keys))), Ok(ALL as u64));
    assert_eq!(ask(&mut pair, &Ask::Unpin(7)), Ok(ALL as u64));
    assert_eq!(pinned(&pair), (5, 0));
    (pair.server, pair.caller) = (server, caller);
    assert_eq!(ask(&mut pair, &Ask::Unpin(7)), Ok(5));
    assert_eq!(pinned(&pair), (0, 0));
}

#[test]
fn what_nobody_may_hold_is_refused_by_name() {
    let (mut pair, keys) = pair(Rights::all());
    let day = 24 * 60 * 60 * 1000;
    assert_eq!(ask(&mut pair, &Ask::Lease(day, List::of(&keys))), Ok(ALL as u64));
    for ms in [day + 1, u64::MAX] {
        let message = format!("a lease is too long ms={ms} max={day}");
        refused(ask(&mut pair, &Ask::Lease(ms, List::of(&keys))), ErrorKind::Invalid, &message);
    }
    // One object pinned again and again: what a connection has is counted, not what the store holds.
    let many = vec![keys[0]; 4096];
    for name in 1..=16 {
        assert_eq!(ask(&mut pair, &Ask::Pin(name, List::of(&many))), Ok(4096), "name={name}");
    }
    let message = "too much is pinned on this link objects=1 room=0";
    refused(ask(&mut pair, &Ask::Pin(99, List::of(&keys[..1]))), ErrorKind::Busy, message);
    assert_eq!(ask(&mut pair, &Ask::Unpin(99)), Ok(0), "it holds nothing");
    assert_eq!(ask(&mut pair, &Ask::Unpin(16)), Ok(4096));
    assert_eq!(ask(&mut pair, &Ask::Pin(99, List::of(&keys[..1]))), Ok(1));
}

#[test]
fn a_key_outside_the_namespaces_of_a_client_is_denied() {
    let none = Rights::of(Namespaces::These([].into()));
    let (mut pair, keys) = pair(none);
    for asked in [Ask::Pin(1, List::of(&keys)), Ask::Lease(1000, List::of(&keys))] {
        assert_eq!(ask(&mut pair, &asked).expect_err("denied").kind, ErrorKind::Denied, "{:?}", asked.verb());
    }
    assert_eq!(pinned(&pair), (0, 0));
}
