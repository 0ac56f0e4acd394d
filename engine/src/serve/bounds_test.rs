//! Each bound of what clients can have, over several clients: they are asked for more than it until it is met, and others go on.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::{OpId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::put::PutDraft;
use pagelith_layouts::wire::request::{self, Ask, GetItem, Terms};
use pagelith_layouts::wire::{Frame, Kind, List};
use pagelith_transport::address::Address;
use pagelith_transport::handshake::Admission;
use pagelith_transport::link::Link;
use pagelith_transport::rights::Rights;
use tempfile::TempDir;

use super::bounds::Bound;
use super::{Server, load, load_test};
use crate::batch::{Options, PutSlice};
use crate::config::{Config, Facts};
use crate::error::{ErrorKind, Result};
use crate::remote::caller::Caller;
use crate::remote::tests::{PATIENCE, Pair, object};
use crate::remote::{Reply, Told};
use crate::store::Store;

const CLIENTS: usize = 4;
const LEN: usize = 1_000_000;
/// Bytes that an object takes of the arena.
const PADDED: u64 = 1_003_520;

/// A store, and clients of it.
struct World {
    store: Store,
    clock: Arc<dyn Clock>,
    dir: TempDir,
    clients: Vec<(Server, Caller)>,
}

fn key(n: u64, part: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    crate::remote::tests::key(1, part).on_page(PrefixHash(hash))
}

impl World {
    /// Of so many objects; `local` clients are shown its memory.
    fn new(objects: u64, local: bool) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.dram.bytes = crate::Size::mib(64);
        config.dram.shared = local;
        config.index.max_objects = Some(10_000);
        let facts = Facts::of_this_machine().expect("facts");
        let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        for n in 0..objects {
            put(&store, n).expect("put");
        }
        let mut world = World { store, clock, dir, clients: Vec::new() };
        world.clients = (0..CLIENTS)
            .map(|n| Pair::meet(&world.store, &world.clock, world.address(n, local), Rights::all(), &[]))
            .collect();
        world
    }

    fn address(&self, n: usize, local: bool) -> Address {
        match local {
            true => Address::Unix(self.dir.path().join(format!("socket{n}"))),
            false => "tcp:127.0.0.1:0".parse().expect("an address"),
        }
    }

    fn most(&self, bound: Bound) -> u64 {
        bound.most(&self.store.shared.config)
    }

    fn told(&mut self, client: usize, ask: &Ask<'_>) -> Result<Told> {
        let (server, caller) = &mut self.clients[client];
        caller.tell(1, ask, Terms::default(), self.clock.now().after(PATIENCE)).expect("room");
        match replied(&*self.clock, server, caller) {
            Reply::Told(told) => told,
            other => panic!("another reply {other:?}"),
        }
    }

    /// Ask the clients in turn for one more of what `ask` makes of a number, until all of them are told that they are busy; how many each had.
    fn until_busy(&mut self, ask: impl Fn(u64, ObjectKey, &mut dyn FnMut(Ask<'_>))) -> [u64; CLIENTS] {
        let (mut had, mut busy, mut n) = ([0; CLIENTS], [false; CLIENTS], 0);
        while busy.contains(&false) {
            let client = n as usize % CLIENTS;
            n += 1;
            if busy[client] {
                continue;
            }
            let mut told = None;
            ask(n, key(n - 1, "k"), &mut |ask| told = Some(self.told(client, &ask)));
            match told.expect("asked") {
                Ok(_) => had[client] += 1,
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
                    busy[client] = true;
                }
            }
        }
        had
    }
}

fn put(store: &Store, n: u64) -> Result<crate::PutOutcome> {
    let bytes = object(n as u8, LEN);
    store.put_batch(&[PutSlice { key: key(n, "k"), pieces: &[&bytes] }], Options::default()).remove(0)
}

fn replied(clock: &dyn Clock, server: &mut Server, caller: &mut Caller) -> Reply {
    let mut replies = Vec::new();
    while replies.is_empty() {
        server.turn();
        caller.poll(clock.now(), &mut replies);
    }
    replies.remove(0).1
}

#[test]
fn each_bound_holds_over_several_clients() {
    for bound in Bound::ALL {
        match bound {
            Bound::Deadline => deadline(),
            Bound::LinkBytes | Bound::AllBytes => unread(),
            Bound::ClientBytes => {
                load_test::of_one_client(bound.most(&World::new(0, false).store.shared.config))
            }
            Bound::PinnedByLink => rows(),
            Bound::PinnedByClient | Bound::PinnedByAll => pinned(),
            Bound::ObjectsByClient | Bound::ObjectsByAll => pinned_objects(),
            Bound::Lease => lease(),
            Bound::Viewed => viewed(),
            Bound::GroupsOfLink | Bound::GroupsOfAll => groups(),
            Bound::Waiting => waiting(),
            Bound::Holds => holds(),
            Bound::Removing => removing(),
            Bound::Arriving => arriving(),
            Bound::Lent => lent(),
        }
    }
}

#[test]
fn each_bound_is_in_the_page_about_security() {
    let page = include_str!("../../../docs/security.md");
    for bound in Bound::ALL {
        assert!(page.contains(bound.name()), "docs/security.md does not name it: {}", bound.name());
    }
}

fn deadline() {
    let mut world = World::new(0, false);
    let most = Duration::from_millis(world.most(Bound::Deadline));
    for (server, _) in &mut world.clients {
        for deadline_ms in [0, 1, u32::MAX] {
            let manner = server.manner(Terms { deadline_ms, ..Terms::default() });
            assert!(manner.deadline <= world.store.shared.now().after(most), "deadline_ms={deadline_ms}");
            assert!(
                manner.options.timeout.is_none_or(|timeout| timeout <= most),
                "deadline_ms={deadline_ms}"
            );
        }
    }
}

/// Gets of a wrong length, whose outcomes are long and which nobody reads.
fn unread() {
    let world = World::new(1, false);
    let shared = &world.store.shared;
    let (link_most, all_most) = (world.most(Bound::LinkBytes), world.most(Bound::AllBytes));
    let items = vec![GetItem::new(key(0, "k"), None, 7); 6000];
    let body = request::encode(Terms::default(), &Ask::Get(List::of(&items)));
    let meet = |n| {
        let admission = Admission::Connection(Rights::all());
        let address = world.address(n, false);
        Pair::links(&world.store, &world.clock, address, admission, None, (&[], Vec::new()))
    };
    let mut hostile: Vec<(Server, Box<dyn Link>)> = (0..6).map(meet).collect();
    let mut top = 0;
    for op in 1..=200 {
        for (server, link) in &mut hostile {
            let _ = link.send(Frame::new(Kind::Request, OpId(op), body.clone()));
            link.send_on();
            server.turn();
            let unsent: usize = server.outbox.iter().map(|frame| frame.body.len()).sum();
            let queued = server.outcome_room.saturating_sub(server.link.room().frame_bytes);
            assert!((unsent + queued) as u64 <= link_most, "unsent={unsent} queued={queued}");
        }
        top = top.max(shared.served.bytes());
    }
    let firsts = hostile.len() as u64 * load::FIRST_BYTES_MAX;
    assert!(top > link_most && top <= all_most + firsts, "top={top} most={all_most}");
    // Somebody else goes on meanwhile.
    let mut world = world;
    assert_eq!(world.told(0, &Ask::Pin(1, List::of(&[key(0, "k")]))), Ok(Told::Number(1)));
    drop(hostile);
    let (server, _) = &mut world.clients[0];
    server.turn();
    assert_eq!(world.store.shared.served.bytes(), 0, "something is counted for nobody");
}

fn rows() {
    let mut world = World::new(1, false);
    let many = vec![key(0, "k"); 4096];
    let had = world.until_busy(|n, _, ask| ask(Ask::Pin(n, List::of(&many))));
    assert_eq!(had.map(|had| had * 4096), [world.most(Bound::PinnedByLink); CLIENTS]);
}

/// One by one; then others' puts find room.
fn pinned() {
    for leases in [false, true] {
        let mut world = World::new(60, false);
        let had = world.until_busy(|n, key, ask| match leases {
            true => ask(Ask::Lease(60_000, List::of(&[key]))),
            false => ask(Ask::Pin(n, List::of(&[key]))),
        });
        let (most, own) = (world.most(Bound::PinnedByAll), world.most(Bound::PinnedByClient));
        let all = had.iter().sum::<u64>() * PADDED;
        assert!(all <= most && all + PADDED > most, "{had:?}");
        assert!(had.iter().all(|had| had * PADDED <= own), "{had:?}");
        (100..160).for_each(|n| _ = put(&world.store, n).expect("room"));
        // One alone has its share, and not all.
        let mut world = World::new(60, false);
        let share = (0..60).take_while(|n| {
            let keys = [key(*n, "k")];
            let ask =
                if leases { Ask::Lease(60_000, List::of(&keys)) } else { Ask::Pin(n + 1, List::of(&keys)) };
            world.told(0, &ask).is_ok()
        });
        let share = share.count() as u64 * PADDED;
        assert!(share <= own && share + PADDED > own, "share={share} most={own}");
    }
}

fn pinned_objects() {
    let mut world = World::new(0, false);
    let keys: Vec<ObjectKey> = (0..8000).map(|n| key(n, "k")).collect();
    for keys in keys.chunks(500) {
        let puts: Vec<_> = keys.iter().map(|key| PutSlice { key: *key, pieces: &[b"x"] }).collect();
        world.store.put_batch(&puts, Options::default()).into_iter().for_each(|put| _ = put.expect("put"));
    }
    let mut held = [0; CLIENTS];
    for (n, some) in keys.chunks(100).enumerate() {
        let client = n % 3;
        match world.told(client, &Ask::Lease(60_000, List::of(some))) {
            Ok(_) => held[client] += some.len() as u64,
            Err(error) => assert_eq!(error.kind, ErrorKind::Busy),
        }
    }
    let (most, own) = (world.most(Bound::ObjectsByAll), world.most(Bound::ObjectsByClient));
    let all: u64 = held.iter().sum();
    assert!(all <= most && all > most - 300 && held.iter().all(|held| *held <= own), "{held:?}");
    (100_000..100_060).for_each(|n| _ = put(&world.store, n).expect("room"));
}

fn lease() {
    let mut world = World::new(1, false);
    let (most, keys) = (world.most(Bound::Lease), [key(0, "k")]);
    for client in 0..CLIENTS {
        assert!(world.told(client, &Ask::Lease(most, List::of(&keys))).is_ok());
        let refused = world.told(client, &Ask::Lease(most + 1, List::of(&keys))).expect_err("too long");
        assert_eq!(refused.kind, ErrorKind::Invalid);
    }
}

fn viewed() {
    let mut world = World::new(40, true);
    let had = world.until_busy(|n, key, ask| ask(Ask::View(n, List::of(&[key]))));
    let (most, viewed) = (world.most(Bound::Viewed), world.store.shared.viewed.load(Relaxed));
    assert!(
        viewed <= most && viewed + PADDED > most && viewed == had.iter().sum::<u64>() * PADDED,
        "{had:?}"
    );
}

fn groups() {
    let mut world = World::new(0, false);
    let names: Vec<String> = (0..1024).map(|n| format!("c{n}")).collect();
    let had = world.until_busy(|n, _, ask| {
        let keys: Vec<ObjectKey> = names.iter().map(|name| key(n, name)).collect();
        ask(Ask::Begin(n, List::of(&keys)));
    });
    let (most, own) = (world.most(Bound::GroupsOfAll), world.most(Bound::GroupsOfLink));
    assert_eq!(had.map(|had| had * 1024), [own; CLIENTS]);
    assert_eq!(own * CLIENTS as u64, most);
    let (server, mut caller) =
        Pair::meet(&world.store, &world.clock, world.address(9, false), Rights::all(), &[]);
    let keys = [key(999, "k")];
    let begin = Ask::Begin(1, List::of(&keys));
    let mut ask = |server: &mut Server| {
        caller.tell(1, &begin, Terms::default(), world.clock.now().after(PATIENCE)).expect("room");
        match replied(&*world.clock, server, &mut caller) {
            Reply::Told(told) => told,
            other => panic!("another reply {other:?}"),
        }
    };
    let mut server = server;
    assert_eq!(ask(&mut server).expect_err("one more").kind, ErrorKind::Busy);
    // Groups that others gave up leave room.
    world.clients.pop();
    assert_eq!(ask(&mut server), Ok(Told::Number(1)));
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
    caller.put(1, &draft, (lend, None), Terms::default(), deadline).expect("room");
    match replied(&*world.clock, server, caller) {
        Reply::Put(mut outcomes) => outcomes.remove(0),
        other => panic!("another reply {other:?}"),
    }
}

fn waiting() {
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

fn holds() {
    let mut world = World::new(0, false);
    let had = world.until_busy(|n, _, ask| ask(Ask::Hold(n)));
    assert_eq!(had, [world.most(Bound::Holds); CLIENTS]);
}

fn removing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::default();
    config.dram.bytes = crate::Size::mib(4);
    config.ssd.bytes = crate::Size::mib(64);
    config.ssd.dirs = vec![dir.path().to_owned()];
    config.index.max_objects = Some(10_000);
    let facts = Facts::of_this_machine().expect("facts");
    let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut world = World { store, clock, dir, clients: Vec::new() };
    for n in 0..2 {
        let client = Pair::meet(&world.store, &world.clock, world.address(n, false), Rights::all(), &[]);
        world.clients.push(client);
    }
    let most = world.most(Bound::Removing) as usize;
    // As if a device took nothing for a while.
    let waits = |store: &Store, objects: usize| {
        store.shared.lock().ssd.as_mut().expect("a tier").removing = objects;
    };
    let keys = [key(1, "k"), key(2, "k")];
    for client in 0..2 {
        waits(&world.store, most - 1);
        let refused = world.told(client, &Ask::Remove(List::of(&keys))).expect_err("too many");
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        waits(&world.store, 0);
        assert_eq!(world.told(client, &Ask::Remove(List::of(&keys))), Ok(Told::Number(0)));
        assert_eq!(world.store.shared.lock().ssd.as_ref().expect("a tier").removing, 0);
    }
}

/// Puts whose bytes do not come.
fn arriving() {
    let mut world = World::new(0, false);
    let most = world.most(Bound::Arriving);
    for n in 0..40u64 {
        let (server, caller) = &mut world.clients[n as usize % CLIENTS];
        let mut draft = PutDraft::new(BLOCK_BYTES);
        draft.group(None);
        let sums = vec![checksum(b"x"); LEN.div_ceil(BLOCK_BYTES as usize)];
        draft.object(key(n, "k"), LEN as u64, &sums);
        let lend = Box::new(|_| panic!("it is not asked"));
        caller
            .put(n + 1, &draft, (lend, None), Terms::default(), world.clock.now().after(PATIENCE))
            .expect("room");
        caller.send_on();
        while server.ops() <= n as usize / CLIENTS {
            server.turn();
        }
        let arriving = world.store.shared.arriving.load(Relaxed);
        assert!(arriving <= most, "arriving={arriving} most={most}");
    }
    assert!(world.store.shared.arriving.load(Relaxed) + PADDED > most);
    world.clients.clear();
    assert_eq!(world.store.shared.arriving.load(Relaxed), 0);
}

/// Gets that nobody reads keep little of what is cleared.
fn lent() {
    let mut world = World::new(40, false);
    for (server, caller) in &mut world.clients {
        let wanted = (0..40).map(|n| crate::remote::call::Wanted {
            key: key(n, "k"),
            range: None,
            parts: crate::remote::tests::parts(&[LEN]),
            sent: false,
        });
        let deadline = world.clock.now().after(PATIENCE);
        caller.get(1, wanted.collect(), Terms::default(), deadline).expect("room");
        caller.send_on();
        (0..200).for_each(|_| _ = server.turn());
    }
    world.store.clear(key(0, "k").namespace(), Options::default()).expect("cleared");
    let (held, most) = (world.store.stats().dram_bytes, world.most(Bound::Lent));
    assert!(held > 0 && held <= most * CLIENTS as u64, "held={held} most={most}");
}
