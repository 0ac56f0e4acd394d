//! Bounds of what clients keep beyond their operations: pins, leases, views, open groups and holds.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutDraft;
use pagelith_layouts::wire::request::{Ask, Terms};

use super::{CLIENTS, LEN, PADDED, World, key, put, replied};
use crate::api::error::{ErrorKind, Result};
use crate::api::request::{Options, PutSlice};
use crate::rpc::{ControlReply, Response};
use crate::server::bounds::Bound;
use crate::server::tests::{PATIENCE, object};

/// A client that has nothing yet gets something.
fn another_goes_on(world: &mut World, client: usize) {
    let told = world.told(client, &Ask::Pin(9, List::of(&[key(0, "k")])));
    assert_eq!(told, Ok(ControlReply::Number(1)), "client={client}");
}

pub(crate) fn rows() {
    let mut world = World::new(1, false);
    let many = vec![key(0, "k"); 4096];
    let had = world.until_busy(CLIENTS - 1, |n, _, ask| ask(Ask::Pin(n, List::of(&many))));
    assert_eq!(had, [world.most(Bound::PinnedByLink) / 4096; CLIENTS - 1]);
    another_goes_on(&mut world, CLIENTS - 1);
}

/// So many clients pin or lease objects one by one; the bytes that each has then.
fn pinned(world: &mut World, clients: usize, leases: bool) -> Vec<u64> {
    let had = world.until_busy(clients, |n, key, ask| match leases {
        true => ask(Ask::Lease(60_000, List::of(&[key]))),
        false => ask(Ask::Pin(n, List::of(&[key]))),
    });
    had.into_iter().map(|had| had * PADDED).collect()
}

pub(crate) fn pinned_by_one() {
    for leases in [false, true] {
        let mut world = World::new(60, false);
        let (most, has) = (world.most(Bound::PinnedByClient), pinned(&mut world, 1, leases)[0]);
        assert!(has <= most && has + PADDED > most, "has={has} most={most}");
        another_goes_on(&mut world, 1);
    }
}

/// Others' puts find room whatever they have.
pub(crate) fn pinned_by_all() {
    for leases in [false, true] {
        let mut world = World::new(60, false);
        let (most, has) = (world.most(Bound::PinnedByAll), pinned(&mut world, CLIENTS, leases));
        let all = has.iter().sum::<u64>();
        assert!(all <= most && all + PADDED > most, "has={has:?} most={most}");
        (100..160).for_each(|n| _ = put(&world.store, n).expect("room"));
    }
}

/// So many clients lease objects, a hundred at a time; how many each has then.
fn leased(world: &mut World, clients: usize) -> Vec<u64> {
    let keys: Vec<ObjectKey> = (0..8000).map(|n| key(n, "k")).collect();
    for keys in keys.chunks(500) {
        let puts: Vec<_> = keys.iter().map(|key| PutSlice { key: *key, pieces: &[b"x"] }).collect();
        world.store.put_batch(&puts, Options::default()).into_iter().for_each(|put| _ = put.expect("put"));
    }
    let mut has = vec![0; clients];
    for (n, some) in keys.chunks(100).enumerate() {
        match world.told(n % clients, &Ask::Lease(60_000, List::of(some))) {
            Ok(_) => has[n % clients] += some.len() as u64,
            Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
        }
    }
    has
}

pub(crate) fn objects_of_one() {
    let mut world = World::new(0, false);
    let (most, has) = (world.most(Bound::ObjectsByClient), leased(&mut world, 1)[0]);
    assert!(has <= most && has + 100 > most, "has={has} most={most}");
    another_goes_on(&mut world, 1);
}

pub(crate) fn objects_of_all() {
    let mut world = World::new(0, false);
    let (most, has) = (world.most(Bound::ObjectsByAll), leased(&mut world, 3));
    let all: u64 = has.iter().sum();
    assert!(all <= most && all + 100 > most, "has={has:?} most={most}");
    (100_000..100_060).for_each(|n| _ = put(&world.store, n).expect("room"));
}

pub(crate) fn lease() {
    let mut world = World::new(1, false);
    let (most, keys) = (world.most(Bound::Lease), [key(0, "k")]);
    for client in 0..CLIENTS {
        assert!(world.told(client, &Ask::Lease(most, List::of(&keys))).is_ok());
        let refused = world.told(client, &Ask::Lease(most + 1, List::of(&keys))).expect_err("too long");
        assert_eq!(refused.kind, ErrorKind::Invalid);
    }
}

pub(crate) fn viewed() {
    let mut world = World::new(40, true);
    let had = world.until_busy(CLIENTS, |n, key, ask| ask(Ask::View(n, List::of(&[key]))));
    let (most, viewed) = (world.most(Bound::Viewed), world.store.shared.viewed.load(Relaxed));
    assert!(viewed <= most && viewed + PADDED > most, "viewed={viewed} most={most}");
    assert_eq!(viewed, had.iter().sum::<u64>() * PADDED, "{had:?}");
}

/// So many clients begin groups of 1024 objects until each is busy; the objects that each has then.
fn begun(world: &mut World, clients: usize) -> Vec<u64> {
    let names: Vec<String> = (0..1024).map(|n| format!("c{n}")).collect();
    let had = world.until_busy(clients, |n, _, ask| {
        let keys: Vec<ObjectKey> = names.iter().map(|name| key(n, name)).collect();
        ask(Ask::Begin(n, List::of(&keys)));
    });
    had.into_iter().map(|had| had * 1024).collect()
}

pub(crate) fn groups_of_link() {
    let mut world = World::new(0, false);
    assert_eq!(begun(&mut world, 1), [world.most(Bound::GroupsOfLink)]);
    let keys = [key(999, "k")];
    assert_eq!(world.told(1, &Ask::Begin(1, List::of(&keys))), Ok(ControlReply::Number(1)));
}

pub(crate) fn groups_of_all() {
    let mut world = World::new(0, false);
    // As many clients as have all of it, and one more.
    world.meet(CLIENTS);
    let begun = begun(&mut world, CLIENTS);
    assert_eq!(begun.iter().sum::<u64>(), world.most(Bound::GroupsOfAll), "{begun:?}");
    let keys = [key(999, "k")];
    let begin = Ask::Begin(1, List::of(&keys));
    assert_eq!(world.told(CLIENTS, &begin).expect_err("one more").kind, ErrorKind::Busy);
    // Groups that others gave up leave room.
    drop(world.clients.remove(0));
    assert_eq!(world.told(CLIENTS - 1, &begin), Ok(ControlReply::Number(1)));
}

/// Put an object of a group that is begun and not committed.
fn put_into(world: &mut World, client: usize, n: u64) -> Result<crate::PutOutcome> {
    let bytes = object(7, LEN);
    let mut draft = PutDraft::into_open(BLOCK_BYTES, n + 1);
    draft.group(None);
    let sums: Vec<_> = bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
    draft.object(key(n, "k"), LEN as u64, &sums);
    let (server, caller) = &mut world.clients[client];
    let lend = Box::new(move |_| vec![Part::from_shared(Arc::from(&bytes[..]))]);
    let deadline = world.clock.now().after(PATIENCE);
    caller.put(1, &draft, lend, Terms::default(), deadline).expect("room");
    match replied(&*world.clock, server, caller) {
        Response::Put(mut outcomes) => outcomes.remove(0),
        other => panic!("another reply {other:?}"),
    }
}

pub(crate) fn waiting() {
    let mut world = World::new(0, false);
    for n in 0..60 {
        let client = n as usize % CLIENTS;
        let keys = [key(n, "k"), key(n, "v")];
        world.told(client, &Ask::Begin(n + 1, List::of(&keys))).expect("begun");
    }
    let mut stored = 0;
    for n in 0..60 {
        let client = n as usize % CLIENTS;
        match put_into(&mut world, client, n) {
            Ok(_) => stored += 1,
            Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
        }
    }
    let (most, waits) = (world.most(Bound::Waiting), world.store.stats().waiting_bytes);
    assert!(waits == stored * PADDED && waits <= most + PADDED && waits + PADDED > most, "waits={waits}");
    (100..130).for_each(|n| _ = put(&world.store, n).expect("the other half"));
}

pub(crate) fn holds() {
    let mut world = World::new(0, false);
    let had = world.until_busy(CLIENTS, |n, _, ask| ask(Ask::Hold(n)));
    assert_eq!(had, [world.most(Bound::Holds); CLIENTS]);
}
