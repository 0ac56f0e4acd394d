//! Each bound of what clients can have, over several clients: they ask for more than it until it is
//! met, and others go on.

mod kept;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutDraft;
use pagelith_layouts::wire::request::{Ask, Terms};
use pagelith_transport::address::Address;
use pagelith_transport::rights::Rights;
use tempfile::TempDir;

use super::bounds::Bound;
use super::{Server, given_up_test, load_test};
use crate::api::error::{ErrorKind, Result};
use crate::api::request::{Options, PutSlice};
use crate::config::{Config, Facts};
use crate::rpc::client::Caller;
use crate::rpc::{Reply, Told};
use crate::server::tests::{PATIENCE, Pair, object};
use crate::store::store::Store;

const CLIENTS: usize = 4;
/// Most that [`World::until_busy`] asks for.
const ASKED_MAX: u64 = 400;
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
    crate::server::tests::key(1, part).on_page(PrefixHash(hash))
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
        (0..CLIENTS).for_each(|n| world.meet(n));
        world
    }

    /// One more client, the `n`-th.
    fn meet(&mut self, n: usize) {
        let address = match self.store.shared_memory() {
            Some(_) => Address::Unix(self.dir.path().join(format!("socket{n}"))),
            None => "tcp:127.0.0.1:0".parse().expect("an address"),
        };
        self.clients.push(Pair::meet(&self.store, &self.clock, address, Rights::all(), &[]));
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

    /// The first `clients` ask in turn for one more of what `ask` makes of a number, until each of them is
    /// told that it is busy; how many each had.
    fn until_busy(
        &mut self,
        clients: usize,
        ask: impl Fn(u64, ObjectKey, &mut dyn FnMut(Ask<'_>)),
    ) -> Vec<u64> {
        let (mut had, mut busy, mut n) = (vec![0; clients], vec![false; clients], 0);
        while busy.contains(&false) {
            // A bound that does not hold is a failure, and no test without an end.
            assert!(n < ASKED_MAX, "they have all that they ask for had={had:?}");
            let client = n as usize % clients;
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
    let check = |bound: Bound| -> fn() {
        match bound {
            Bound::Deadline => deadline,
            Bound::Operations => given_up_test::of_a_link,
            Bound::LinkBytes => load_test::of_one_link,
            Bound::ClientBytes => load_test::of_one_client,
            Bound::AllBytes => load_test::of_all_clients,
            Bound::PinnedByLink => kept::rows,
            Bound::PinnedByClient => kept::pinned_by_one,
            Bound::PinnedByAll => kept::pinned_by_all,
            Bound::ObjectsByClient => kept::objects_of_one,
            Bound::ObjectsByAll => kept::objects_of_all,
            Bound::Lease => kept::lease,
            Bound::Viewed => kept::viewed,
            Bound::GroupsOfLink => kept::groups_of_link,
            Bound::GroupsOfAll => kept::groups_of_all,
            Bound::Waiting => kept::waiting,
            Bound::Holds => kept::holds,
            Bound::Removing => removing,
            Bound::Arriving => arriving,
            Bound::Lent => lent,
        }
    };
    // Each panics with what it found; the others are looked at all the same.
    let fails = |bound: &&Bound| std::panic::catch_unwind(check(**bound)).is_err();
    let failed: Vec<&str> = Bound::ALL.iter().filter(fails).map(|bound| bound.name()).collect();
    assert!(failed.is_empty(), "bounds that do not hold: {failed:?}");
}

/// What the page says of a bound, and how much that is of a store with 10,000 objects and an arena of
/// so many bytes.
fn of_the_page(bound: Bound, arena: u64) -> (&'static str, u64) {
    match bound {
        Bound::Deadline => ("`deadline_ms`", Config::default().deadline_ms),
        Bound::Operations => ("1,024", 1024),
        Bound::LinkBytes => ("32 MiB", 32 << 20),
        Bound::ClientBytes => ("64 MiB", 64 << 20),
        Bound::AllBytes => ("128 MiB", 128 << 20),
        Bound::PinnedByLink => ("65,536", 65_536),
        Bound::PinnedByClient => ("a quarter and half of the arena", arena / 4),
        Bound::PinnedByAll => ("a quarter and half of the arena", arena / 2),
        Bound::ObjectsByClient => ("a quarter and half of `index.max_objects`", 2500),
        Bound::ObjectsByAll => ("a quarter and half of `index.max_objects`", 5000),
        Bound::Lease => ("a day", 24 * 60 * 60 * 1000),
        Bound::Viewed => ("a quarter of the arena", arena / 4),
        Bound::GroupsOfLink => ("16,384 and 65,536", 16_384),
        Bound::GroupsOfAll => ("16,384 and 65,536", 65_536),
        Bound::Waiting => ("half of the arena", arena / 2),
        Bound::Holds => ("16, each until its deadline", 16),
        Bound::Removing => ("65,536", 65_536),
        Bound::Arriving => ("a quarter of the arena", arena / 4),
        Bound::Lent => ("an eighth of the arena, 64 MiB at most", arena / 8),
    }
}

#[test]
fn each_bound_is_what_the_page_about_security_says() {
    let page = include_str!("../../../docs/security.md");
    let world = World::new(0, false);
    let arena = world.store.shared.config.arena_bytes();
    let is_wrong = |bound: &&Bound| {
        let (amount, most) = of_the_page(**bound, arena);
        let says = |line: &str| line.starts_with('|') && line.contains(bound.name()) && line.contains(amount);
        !page.lines().any(says) || world.most(**bound) != most
    };
    let wrong: Vec<&str> = Bound::ALL.iter().filter(is_wrong).map(|bound| bound.name()).collect();
    assert!(wrong.is_empty(), "bounds of which docs/security.md says something else: {wrong:?}");
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
    (0..2).for_each(|n| world.meet(n));
    let most = world.most(Bound::Removing) as usize;
    // As if a device took nothing for a while.
    let waits = |store: &Store, objects: usize| {
        store.shared.lock().ssd.as_mut().expect("a tier").queued_removals = objects;
    };
    let keys = [key(1, "k"), key(2, "k")];
    for client in 0..2 {
        waits(&world.store, most - 1);
        let refused = world.told(client, &Ask::Remove(List::of(&keys))).expect_err("too many");
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        waits(&world.store, 0);
        assert_eq!(world.told(client, &Ask::Remove(List::of(&keys))), Ok(Told::Number(0)));
        assert_eq!(world.store.shared.lock().ssd.as_ref().expect("a tier").queued_removals, 0);
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
        caller.put(n + 1, &draft, lend, Terms::default(), world.clock.now().after(PATIENCE)).expect("room");
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

/// Gets that nobody reads keep little of what is removed, and more of them than the kernel takes.
fn lent() {
    let mut world = World::new(0, false);
    let most = world.most(Bound::Lent);
    for client in 0..CLIENTS {
        let before = world.store.stats().dram_bytes;
        let pages = (0..30).map(|n| (client * 100 + n) as u64);
        pages.clone().for_each(|n| _ = put(&world.store, n).expect("put"));
        let keys: Vec<ObjectKey> = pages.map(|n| key(n, "k")).collect();
        let wanted = keys.iter().map(|key| crate::rpc::call::Wanted {
            key: *key,
            range: None,
            parts: crate::server::tests::parts(&[LEN]),
            sent: false,
        });
        let (server, caller) = &mut world.clients[client];
        let deadline = world.clock.now().after(PATIENCE);
        caller.get(1, wanted.collect(), Terms::default(), deadline).expect("room");
        caller.send_on();
        (0..200).for_each(|_| _ = server.turn());
        world.store.remove(&keys, Options::default()).expect("removed");
        let held = world.store.stats().dram_bytes - before;
        assert!(held > 0 && held <= most, "client={client} held={held} most={most}");
    }
}
