//! Bounds of objects that clients use beyond their operations: pins, leases, views, open groups and
//! holds.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::hint::WireHint;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};

use super::{BoundsEnv, CLIENTS, LEN, PADDED, key, put, wait_for_reply};
use crate::api::error::{ErrorKind, Result};
use crate::api::request::{Options, PutSlice};
use crate::rpc::{ControlReply, Response};
use crate::server::bounds::Bound;
use crate::server::tests::{TIMEOUT, object};

/// A client without pins can still pin.
fn check_another_client_can_pin(env: &mut BoundsEnv, client: usize) {
    let reply = env.send(client, &RequestBody::Pin(9, List::of(&[key(0, "k")])));
    assert_eq!(reply, Ok(ControlReply::Number(1)), "client={client}");
}

pub(crate) fn pins_per_link() {
    let mut env = BoundsEnv::new(1, false);
    let many = vec![key(0, "k"); 4096];
    let accepted =
        env.until_busy(CLIENTS - 1, |n, _, ask| ask(RequestBody::Pin(n, List::of(&many))));
    assert_eq!(accepted, [env.value(Bound::PinnedByLink) / 4096; CLIENTS - 1]);
    check_another_client_can_pin(&mut env, CLIENTS - 1);
}

/// `clients` clients pin or lease objects one by one; returns the bytes of each.
fn pinned(env: &mut BoundsEnv, clients: usize, leases: bool) -> Vec<u64> {
    let accepted = env.until_busy(clients, |n, key, ask| match leases {
        true => ask(RequestBody::Lease(60_000, List::of(&[key]))),
        false => ask(RequestBody::Pin(n, List::of(&[key]))),
    });
    accepted.into_iter().map(|accepted| accepted * PADDED).collect()
}

pub(crate) fn pinned_by_one() {
    for leases in [false, true] {
        let mut env = BoundsEnv::new(60, false);
        let (most, has) = (env.value(Bound::PinnedByClient), pinned(&mut env, 1, leases)[0]);
        assert!(has <= most && has + PADDED > most, "has={has} most={most}");
        check_another_client_can_pin(&mut env, 1);
    }
}

/// Puts of others still find memory.
pub(crate) fn pinned_by_all() {
    for leases in [false, true] {
        let mut env = BoundsEnv::new(60, false);
        let (most, has) = (env.value(Bound::PinnedByAll), pinned(&mut env, CLIENTS, leases));
        let all = has.iter().sum::<u64>();
        assert!(all <= most && all + PADDED > most, "has={has:?} most={most}");
        (100..160).for_each(|n| _ = put(&env.store, n).expect("arena has room"));
    }
}

/// `clients` clients lease objects, a hundred at a time; returns the number of each.
fn leased(env: &mut BoundsEnv, clients: usize) -> Vec<u64> {
    let keys: Vec<ObjectKey> = (0..8000).map(|n| key(n, "k")).collect();
    for keys in keys.chunks(500) {
        let puts: Vec<_> = keys.iter().map(|key| PutSlice { key: *key, pieces: &[b"x"] }).collect();
        env.store
            .put_batch(&puts, Options::default())
            .into_iter()
            .for_each(|put| _ = put.expect("put"));
    }
    let mut has = vec![0; clients];
    for (n, some) in keys.chunks(100).enumerate() {
        match env.send(n % clients, &RequestBody::Lease(60_000, List::of(some))) {
            Ok(_) => has[n % clients] += some.len() as u64,
            Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
        }
    }
    has
}

pub(crate) fn objects_of_one() {
    let mut env = BoundsEnv::new(0, false);
    let (most, has) = (env.value(Bound::ObjectsByClient), leased(&mut env, 1)[0]);
    assert!(has <= most && has + 100 > most, "has={has} most={most}");
    check_another_client_can_pin(&mut env, 1);
}

pub(crate) fn objects_of_all() {
    let mut env = BoundsEnv::new(0, false);
    let (most, has) = (env.value(Bound::ObjectsByAll), leased(&mut env, 3));
    let all: u64 = has.iter().sum();
    assert!(all <= most && all + 100 > most, "has={has:?} most={most}");
    (100_000..100_060).for_each(|n| _ = put(&env.store, n).expect("arena has room"));
}

/// `clients` clients retain absent objects, 1024 at a time, until each gets `Busy`; returns the
/// objects of each.
fn retained_early(env: &mut BoundsEnv, clients: usize) -> Vec<u64> {
    let hint = WireHint::Retain { ms: 60_000 }.number();
    let accepted = env.until_busy(clients, |n, _, ask| {
        let keys: Vec<ObjectKey> = (n * 1024..(n + 1) * 1024).map(|n| key(n, "k")).collect();
        ask(RequestBody::Hint(hint, List::of(&keys)));
    });
    accepted.into_iter().map(|accepted| accepted * 1024).collect()
}

pub(crate) fn early_of_one() {
    let mut env = BoundsEnv::new(0, false);
    assert_eq!(retained_early(&mut env, 1), [env.value(Bound::EarlyOfClient)]);
    let hint = WireHint::Retain { ms: 60_000 }.number();
    let other = env.send(1, &RequestBody::Hint(hint, List::of(&[key(999_999, "k")])));
    assert_eq!(other, Ok(ControlReply::Number(0)), "another client");
}

pub(crate) fn early_of_all() {
    let mut env = BoundsEnv::new(0, false);
    // As many clients as reach the bound together, and one more.
    env.connect(CLIENTS);
    let retained = retained_early(&mut env, CLIENTS);
    assert_eq!(retained.iter().sum::<u64>(), env.value(Bound::EarlyOfAll), "{retained:?}");
    let hint = WireHint::Retain { ms: 60_000 }.number();
    let one_more = env.send(CLIENTS, &RequestBody::Hint(hint, List::of(&[key(999_999, "k")])));
    assert_eq!(one_more.expect_err("one more").kind, ErrorKind::Busy);
}

pub(crate) fn lease() {
    let mut env = BoundsEnv::new(1, false);
    let (most, keys) = (env.value(Bound::Lease), [key(0, "k")]);
    for client in 0..CLIENTS {
        assert!(env.send(client, &RequestBody::Lease(most, List::of(&keys))).is_ok());
        let refused =
            env.send(client, &RequestBody::Lease(most + 1, List::of(&keys))).expect_err("too long");
        assert_eq!(refused.kind, ErrorKind::Invalid);
        let hint = WireHint::Retain { ms: most + 1 }.number();
        let refused = env.send(client, &RequestBody::Hint(hint, List::of(&keys)));
        assert_eq!(refused.expect_err("too long").kind, ErrorKind::Invalid);
    }
}

pub(crate) fn viewed() {
    let mut env = BoundsEnv::new(40, true);
    let accepted =
        env.until_busy(CLIENTS, |n, key, ask| ask(RequestBody::View(n, List::of(&[key]))));
    let (most, viewed) = (env.value(Bound::Viewed), env.store.shared.bytes.viewed.load(Relaxed));
    assert!(viewed <= most && viewed + PADDED > most, "viewed={viewed} most={most}");
    assert_eq!(viewed, accepted.iter().sum::<u64>() * PADDED, "{accepted:?}");
}

/// `clients` clients begin groups of 1024 objects until each gets `Busy`; returns the objects of
/// each.
fn begun(env: &mut BoundsEnv, clients: usize) -> Vec<u64> {
    let names: Vec<String> = (0..1024).map(|n| format!("c{n}")).collect();
    let accepted = env.until_busy(clients, |n, _, ask| {
        let keys: Vec<ObjectKey> = names.iter().map(|name| key(n, name)).collect();
        ask(RequestBody::Begin(n, List::of(&keys)));
    });
    accepted.into_iter().map(|accepted| accepted * 1024).collect()
}

pub(crate) fn groups_of_link() {
    let mut env = BoundsEnv::new(0, false);
    assert_eq!(begun(&mut env, 1), [env.value(Bound::GroupsOfLink)]);
    let keys = [key(999, "k")];
    assert_eq!(env.send(1, &RequestBody::Begin(1, List::of(&keys))), Ok(ControlReply::Number(1)));
}

pub(crate) fn groups_of_all() {
    let mut env = BoundsEnv::new(0, false);
    // As many clients as reach the bound together, and one more.
    env.connect(CLIENTS);
    let begun = begun(&mut env, CLIENTS);
    assert_eq!(begun.iter().sum::<u64>(), env.value(Bound::GroupsOfAll), "{begun:?}");
    let keys = [key(999, "k")];
    let begin = RequestBody::Begin(1, List::of(&keys));
    assert_eq!(env.send(CLIENTS, &begin).expect_err("one more").kind, ErrorKind::Busy);
    // Groups of a client that disconnects free their share.
    drop(env.clients.remove(0));
    assert_eq!(env.send(CLIENTS - 1, &begin), Ok(ControlReply::Number(1)));
}

/// Puts an object of a group that is begun and not committed.
fn put_into(env: &mut BoundsEnv, client: usize, n: u64) -> Result<crate::api::outcome::PutOutcome> {
    let bytes = object(7, LEN);
    let mut draft = PutBuilder::for_open_group(BLOCK_BYTES, n + 1);
    draft.group(None);
    let sums: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
    draft.object(key(n, "k"), LEN as u64, &sums);
    let (server, caller) = &mut env.clients[client];
    let lend = Box::new(move |_| vec![Part::from_shared(Arc::from(&bytes[..]))]);
    let deadline = env.clock.now().after(TIMEOUT);
    caller.put(1, &draft, lend, RequestOptions::default(), deadline).expect("link capacity");
    match wait_for_reply(&*env.clock, server, caller) {
        Response::Put(mut outcomes) => outcomes.remove(0),
        other => panic!("unexpected reply {other:?}"),
    }
}

pub(crate) fn waiting() {
    let mut env = BoundsEnv::new(0, false);
    for n in 0..60 {
        let client = n as usize % CLIENTS;
        let keys = [key(n, "k"), key(n, "v")];
        env.send(client, &RequestBody::Begin(n + 1, List::of(&keys))).expect("begun");
    }
    let mut stored = 0;
    for n in 0..60 {
        let client = n as usize % CLIENTS;
        match put_into(&mut env, client, n) {
            Ok(_) => stored += 1,
            Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
        }
    }
    let (most, waits) = (env.value(Bound::Waiting), env.store.stats().waiting_bytes);
    assert!(
        waits == stored * PADDED && waits <= most + PADDED && waits + PADDED > most,
        "waits={waits}"
    );
    (100..130).for_each(|n| _ = put(&env.store, n).expect("the rest of the arena is free"));
}

pub(crate) fn holds() {
    let mut env = BoundsEnv::new(0, false);
    let accepted = env.until_busy(CLIENTS, |n, _, ask| ask(RequestBody::Hold(n)));
    assert_eq!(accepted, [env.value(Bound::Holds); CLIENTS]);
}
