//! Each bound of `bounds.rs` with several clients: they make requests until the bound refuses them,
//! and other clients continue.

mod holds;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::List;
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{RequestBody, RequestOptions};
use pagelith_transport::address::Address;
use pagelith_transport::rights::Rights;
use tempfile::TempDir;

use super::bounds::Bound;
use super::{Server, cancelled_ops_test, load_test};
use crate::api::error::{ErrorKind, Result};
use crate::api::request::{Options, PutSlice};
use crate::config::{Config, MachineLimits};
use crate::rpc::client::RpcClient;
use crate::rpc::{ControlReply, Response};
use crate::server::tests::{Pair, TIMEOUT, object};
use crate::store::embedded::Store;

const CLIENTS: usize = 4;
/// Maximum number of requests of [`BoundsEnv::until_busy`].
const ASKED_MAX: u64 = 400;
const LEN: usize = 1_000_000;
/// Arena bytes of an object.
const PADDED: u64 = 1_003_520;

/// A store and its clients.
struct BoundsEnv {
    store: Store,
    clock: Arc<dyn Clock>,
    dir: TempDir,
    clients: Vec<(Server, RpcClient)>,
}

fn key(n: u64, part: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    crate::server::tests::key(1, part).on_page(PrefixHash(hash))
}

impl BoundsEnv {
    /// A store with `objects` objects; it shares its memory with clients if `local`.
    fn new(objects: u64, local: bool) -> BoundsEnv {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.dram.bytes = crate::Size::mib(64);
        config.dram.shared = local;
        config.index.max_objects = Some(10_000);
        let facts = MachineLimits::of_this_machine().expect("facts");
        let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        for n in 0..objects {
            put(&store, n).expect("put");
        }
        let mut env = BoundsEnv { store, clock, dir, clients: Vec::new() };
        (0..CLIENTS).for_each(|n| env.connect(n));
        env
    }

    /// Connects one more client, the `n`-th.
    fn connect(&mut self, n: usize) {
        let address = match self.store.shared_memory() {
            Some(_) => Address::Unix(self.dir.path().join(format!("socket{n}"))),
            None => "tcp:127.0.0.1:0".parse().expect("an address"),
        };
        self.clients.push(Pair::connect(&self.store, &self.clock, address, Rights::all(), &[]));
    }

    fn value(&self, bound: Bound) -> u64 {
        bound.value(&self.store.shared.config)
    }

    fn send(&mut self, client: usize, ask: &RequestBody<'_>) -> Result<ControlReply> {
        let (server, caller) = &mut self.clients[client];
        caller
            .send_control(1, ask, RequestOptions::default(), self.clock.now().after(TIMEOUT))
            .expect("link capacity");
        match wait_for_reply(&*self.clock, server, caller) {
            Response::Control(reply) => reply,
            other => panic!("unexpected reply {other:?}"),
        }
    }

    /// The first `clients` clients take turns to send the request that `ask` makes of a number,
    /// until each gets `Busy`. Returns the number of accepted requests of each.
    fn until_busy(
        &mut self,
        clients: usize,
        ask: impl Fn(u64, ObjectKey, &mut dyn FnMut(RequestBody<'_>)),
    ) -> Vec<u64> {
        let (mut accepted, mut busy, mut n) = (vec![0; clients], vec![false; clients], 0);
        while busy.contains(&false) {
            // A bound that does not hold must fail the test instead of running forever.
            assert!(n < ASKED_MAX, "no request was refused accepted={accepted:?}");
            let client = n as usize % clients;
            n += 1;
            if busy[client] {
                continue;
            }
            let mut reply = None;
            ask(n, key(n - 1, "k"), &mut |ask| reply = Some(self.send(client, &ask)));
            match reply.expect("ask sends a request") {
                Ok(_) => accepted[client] += 1,
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
                    busy[client] = true;
                }
            }
        }
        accepted
    }
}

fn put(store: &Store, n: u64) -> Result<crate::api::outcome::PutOutcome> {
    let bytes = object(n as u8, LEN);
    store
        .put_batch(&[PutSlice { key: key(n, "k"), pieces: &[&bytes] }], Options::default())
        .remove(0)
}

fn wait_for_reply(clock: &dyn Clock, server: &mut Server, caller: &mut RpcClient) -> Response {
    let mut replies = Vec::new();
    while replies.is_empty() {
        server.poll();
        caller.poll(clock.now(), &mut replies);
    }
    replies.remove(0).1
}

#[test]
fn each_bound_holds_over_several_clients() {
    let check = |bound: Bound| -> fn() {
        match bound {
            Bound::Deadline => deadline,
            Bound::Operations => cancelled_ops_test::operations_per_link,
            Bound::LinkBytes => load_test::bytes_per_link,
            Bound::ClientBytes => load_test::bytes_per_client,
            Bound::AllBytes => load_test::bytes_of_all_links,
            Bound::PinnedByLink => holds::pins_per_link,
            Bound::PinnedByClient => holds::pinned_by_one,
            Bound::PinnedByAll => holds::pinned_by_all,
            Bound::ObjectsByClient => holds::objects_of_one,
            Bound::ObjectsByAll => holds::objects_of_all,
            Bound::EarlyOfClient => holds::early_of_one,
            Bound::EarlyOfAll => holds::early_of_all,
            Bound::Lease => holds::lease,
            Bound::Viewed => holds::viewed,
            Bound::GroupsOfLink => holds::groups_of_link,
            Bound::GroupsOfAll => holds::groups_of_all,
            Bound::Waiting => holds::waiting,
            Bound::Holds => holds::holds,
            Bound::Removing => removing,
            Bound::Arriving => arriving,
            Bound::InFlight => in_flight,
        }
    };
    // Each check panics with its finding; the other checks still run.
    let fails = |bound: &&Bound| std::panic::catch_unwind(check(**bound)).is_err();
    let failed: Vec<&str> = Bound::ALL.iter().filter(fails).map(|bound| bound.name()).collect();
    assert!(failed.is_empty(), "bounds that do not hold: {failed:?}");
}

/// The value of a bound in the document's words, and as a number for a store with 10,000 objects
/// and an arena of `arena` bytes.
fn documented(bound: Bound, arena: u64) -> (&'static str, u64) {
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
        Bound::EarlyOfClient => ("16,384 and 65,536", 16_384),
        Bound::EarlyOfAll => ("16,384 and 65,536", 65_536),
        Bound::Lease => ("a day", 24 * 60 * 60 * 1000),
        Bound::Viewed => ("a quarter of the arena", arena / 4),
        Bound::GroupsOfLink => ("16,384 and 65,536", 16_384),
        Bound::GroupsOfAll => ("16,384 and 65,536", 65_536),
        Bound::Waiting => ("half of the arena", arena / 2),
        Bound::Holds => ("16, each until its deadline", 16),
        Bound::Removing => ("65,536", 65_536),
        Bound::Arriving => ("a quarter of the arena", arena / 4),
        Bound::InFlight => ("an eighth of the arena, 64 MiB at most", arena / 8),
    }
}

#[test]
fn each_bound_matches_docs_security() {
    let page = include_str!("../../../docs/security.md");
    let env = BoundsEnv::new(0, false);
    let arena = env.store.shared.config.arena_bytes();
    let is_wrong = |bound: &&Bound| {
        let (amount, most) = documented(**bound, arena);
        let says = |line: &str| {
            line.contains(" | ") && line.contains(bound.name()) && line.contains(amount)
        };
        !page.lines().any(says) || env.value(**bound) != most
    };
    let wrong: Vec<&str> = Bound::ALL.iter().filter(is_wrong).map(|bound| bound.name()).collect();
    assert!(wrong.is_empty(), "bounds that differ from docs/security.md: {wrong:?}");
}

fn deadline() {
    let mut env = BoundsEnv::new(0, false);
    let most = Duration::from_millis(env.value(Bound::Deadline));
    for (server, _) in &mut env.clients {
        for deadline_ms in [0, 1, u32::MAX] {
            let call =
                server.call_context(RequestOptions { deadline_ms, ..RequestOptions::default() });
            assert!(
                call.deadline <= env.store.shared.now().after(most),
                "deadline_ms={deadline_ms}"
            );
            assert!(
                call.options.timeout.is_none_or(|timeout| timeout <= most),
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
    let facts = MachineLimits::of_this_machine().expect("facts");
    let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut env = BoundsEnv { store, clock, dir, clients: Vec::new() };
    (0..2).for_each(|n| env.connect(n));
    let most = env.value(Bound::Removing) as usize;
    // As if the device accepted nothing for a while.
    let waits = |store: &Store, objects: usize| {
        store.shared.lock().ssd.as_mut().expect("a tier").queue.set_removals(objects);
    };
    let keys = [key(1, "k"), key(2, "k")];
    for client in 0..2 {
        waits(&env.store, most - 1);
        let refused =
            env.send(client, &RequestBody::Remove(List::of(&keys))).expect_err("too many");
        assert_eq!(refused.kind, ErrorKind::Busy, "{refused}");
        waits(&env.store, 0);
        assert_eq!(
            env.send(client, &RequestBody::Remove(List::of(&keys))),
            Ok(ControlReply::Number(0))
        );
        assert_eq!(env.store.shared.lock().ssd.as_ref().expect("a tier").queue.removals(), 0);
    }
}

/// Puts whose bytes do not arrive.
fn arriving() {
    let mut env = BoundsEnv::new(0, false);
    let most = env.value(Bound::Arriving);
    for n in 0..40u64 {
        let (server, caller) = &mut env.clients[n as usize % CLIENTS];
        let mut draft = PutBuilder::new(BLOCK_BYTES);
        draft.group(None);
        let sums = vec![checksum(b"x"); LEN.div_ceil(BLOCK_BYTES as usize)];
        draft.object(key(n, "k"), LEN as u64, &sums);
        let lend = Box::new(|_| panic!("no bytes are pulled"));
        caller
            .put(n + 1, &draft, lend, RequestOptions::default(), env.clock.now().after(TIMEOUT))
            .expect("link capacity");
        caller.flush_queue();
        while server.ops() <= n as usize / CLIENTS {
            server.poll();
        }
        let arriving = env.store.shared.bytes.reserved.load(Relaxed);
        assert!(arriving <= most, "arriving={arriving} most={most}");
    }
    assert!(env.store.shared.bytes.reserved.load(Relaxed) + PADDED > most);
    env.clients.clear();
    assert_eq!(env.store.shared.bytes.reserved.load(Relaxed), 0);
}

/// Gets that are not read, of more bytes than the kernel buffers, keep few of the removed objects.
fn in_flight() {
    let mut env = BoundsEnv::new(0, false);
    let most = env.value(Bound::InFlight);
    for client in 0..CLIENTS {
        let before = env.store.stats().dram_bytes;
        let pages = (0..30).map(|n| (client * 100 + n) as u64);
        pages.clone().for_each(|n| _ = put(&env.store, n).expect("put"));
        let keys: Vec<ObjectKey> = pages.map(|n| key(n, "k")).collect();
        let wanted = keys.iter().map(|key| crate::rpc::call::ItemRequest {
            key: *key,
            range: None,
            parts: crate::server::tests::parts(&[LEN]),
            by_value: false,
        });
        let (server, caller) = &mut env.clients[client];
        let deadline = env.clock.now().after(TIMEOUT);
        caller
            .get(1, wanted.collect(), RequestOptions::default(), deadline)
            .expect("link capacity");
        caller.flush_queue();
        (0..200).for_each(|_| _ = server.poll());
        env.store.remove(&keys, Options::default()).expect("removed");
        let held = env.store.stats().dram_bytes - before;
        assert!(held > 0 && held <= most, "client={client} held={held} most={most}");
    }
}
