//! A client whose store process ends, is restarted, or stops answering.
#![allow(clippy::disallowed_methods, reason = "store processes are played by threads")]

#[path = "attached_client/idle.rs"]
mod idle;
#[path = "attached_client/unflushed.rs"]
mod unflushed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::clock::Clock;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::rdma::rdma_use::RdmaUse;
use pagelith::transport::resolve::Resolver;
use pagelith::transport::rights::{Namespaces, Rights};
use pagelith::transport::shown::SharedRegions;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{
    Config, ErrorKind, Event, Events, GetOutcome, GetSlice, Hint, MachineLimits, MissCause,
    Options, PutOutcome, PutSlice, Size, Store, Tier,
};

const LEN: usize = 100_000;
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A store process; dropping it ends it abruptly, as a crash would.
struct Process {
    address: Address,
    stop: Arc<AtomicBool>,
    /// Whether it must stop answering while it still accepts connections, and whether it has
    /// stopped.
    stop_answering: Arc<AtomicBool>,
    has_stopped_answering: Arc<AtomicBool>,
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    fn at(address: &Address, instance: u8) -> Process {
        Process::offering(address, Capabilities::of_this_build([instance; 16]))
    }

    fn offering(address: &Address, offer: Capabilities) -> Process {
        Process::of(address, offer, Rights::all(), 1000)
    }

    /// A process that keeps `events` events, and whose clients have these rights.
    fn of(address: &Address, offer: Capabilities, rights: Rights, events: u32) -> Process {
        let mut config = Config::default();
        config.dram.bytes = Size::mib(16);
        config.index.max_objects = Some(1000);
        config.events.max = events;
        let valid =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
        let store = Arc::new(Store::open(valid).expect("opened"));
        let served = store.clone();
        let listen = ListenConfig {
            address: address.clone(),
            admission: ClientAuth::Connection(rights),
            allow_remote: false,
        };
        let clock = Arc::new(SystemClock::new());
        let mut listener =
            Listener::new(&listen, offer, Arc::new(SystemEntropy), clock, LinkLimits::default())
                .expect("listens");
        let address = listener.address().clone();
        let flag = || Arc::new(AtomicBool::new(false));
        let (stop, stop_answering, has_stopped_answering) = (flag(), flag(), flag());
        let (ends, hears_not, says_so) =
            (stop.clone(), stop_answering.clone(), has_stopped_answering.clone());
        let thread = std::thread::spawn(move || {
            let staging = StagingPool::new(16 << 20).expect("memory");
            let (mut arrivals, mut servers) = (Vec::new(), Vec::new());
            while !ends.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    servers.push(Server::new(&served, link, staging.clone()).expect("serves"));
                }
                let stop_answering = hears_not.load(Ordering::Relaxed);
                says_so.store(stop_answering, Ordering::Release);
                if !stop_answering {
                    servers.iter_mut().for_each(|server| while server.poll() {});
                }
            }
        });
        Process {
            address,
            stop,
            stop_answering,
            has_stopped_answering,
            store,
            thread: Some(thread),
        }
    }

    fn set_answering(&self, hears: bool) {
        self.stop_answering.store(!hears, Ordering::Relaxed);
        while self.has_stopped_answering.load(Ordering::Acquire) == hears {
            std::thread::yield_now();
        }
    }

    fn client(&self, timeout: Duration) -> Client {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let dial = SocketDial {
            address: self.address.clone(),
            offer: Capabilities::of_this_build([9; 16]),
            key: None,
            entropy: Arc::new(SystemEntropy),
            clock: clock.clone(),
            limits: LinkLimits::default(),
            shared_regions: SharedRegions::default(),
            resolver: Resolver::default(),
            rdma: RdmaUse::Off,
            local_hostname: None,
        };
        Client::attach(Arc::new(dial), clock, timeout).expect("attached")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn anywhere() -> Address {
    "tcp:127.0.0.1:0".parse().expect("an address")
}

fn key(page: u8) -> ObjectKey {
    let namespace = NamespaceId([5; 16]);
    ObjectKey::new(namespace, PrefixHash([page; 32]), Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

fn put(client: &Client, page: u8) -> pagelith::Result<PutOutcome> {
    put_with(client, page, Options::default())
}

fn put_with(client: &Client, page: u8, options: Options) -> pagelith::Result<PutOutcome> {
    let bytes = vec![page; LEN];
    client.put_batch(&[PutSlice { key: key(page), pieces: &[&bytes] }], options).remove(0)
}

fn get(client: &Client, page: u8) -> pagelith::Result<GetOutcome> {
    get_with(client, page, Options::default())
}

fn get_with(client: &Client, page: u8, options: Options) -> pagelith::Result<GetOutcome> {
    let mut bytes = vec![0xee; LEN];
    let get = GetSlice { key: key(page), range: None, pieces: &mut [&mut bytes] };
    let outcome = client.get_batch(&mut [get], options).remove(0);
    if outcome.as_ref().is_ok_and(GetOutcome::is_hit) {
        assert!(bytes.iter().all(|byte| *byte == page), "wrong bytes page={page}");
    }
    outcome
}

#[test]
fn dead_server_is_an_error_and_unresponsive_server_times_out() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(Duration::from_secs(30));
    let short = Options::default().timeout(Duration::from_millis(100));
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    process.set_answering(false);
    // The caller gets its memory back each time; five timeouts in a row open no breaker, since the
    // connection stays.
    for _ in 0..5 {
        assert_eq!(get_with(&client, 1, short), Ok(GetOutcome::Miss(MissCause::Late)));
    }
    let unavailable = |error: pagelith::Error| assert_eq!(error.kind, ErrorKind::Unavailable);
    unavailable(put_with(&client, 2, short).expect_err("no answer"));
    unavailable(client.exists_batch(&[key(1)], short).expect_err("no answer"));
    unavailable(client.exists_prefix(&[key(1)], short).expect_err("no answer"));
    unavailable(client.remove(&[key(1)], short).expect_err("no answer"));
    process.set_answering(true);
    client.ping(Options::default()).expect("it answers again");
    let stats = client.stats(Options::default()).expect("answered");
    assert!(stats.contains("\"puts_stored\":"));
    drop(process);
    unavailable(get(&client, 1).expect_err("no server"));
    unavailable(put(&client, 2).expect_err("no server"));
    unavailable(client.flush(Options::default()).expect_err("no server"));
}

#[test]
fn invalid_put_is_refused_locally_and_connection_survives() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(Duration::from_secs(30));
    let empty =
        client.put_batch(&[PutSlice { key: key(1), pieces: &[] }], Options::default()).remove(0);
    assert_eq!(empty.expect_err("no byte").kind, ErrorKind::Invalid);
    assert_eq!(
        client.put_groups(&[&[]], Options::default())[0].as_ref().expect_err("no object").kind,
        ErrorKind::Invalid
    );
    let nothing = GetSlice { key: key(1), range: None, pieces: &mut [] };
    let outcome = client.get_batch(&mut [nothing], Options::default()).remove(0);
    assert_eq!(outcome.expect_err("no byte").kind, ErrorKind::Invalid);
    let (mut ten, mut one) = ([0; 10], [0; 1]);
    let short = GetSlice { key: key(1), range: Some(0..20), pieces: &mut [&mut ten] };
    let (start, end) = (5, 4);
    let backwards = GetSlice { key: key(1), range: Some(start..end), pieces: &mut [&mut one] };
    for outcome in client.get_batch(&mut [short, backwards], Options::default()) {
        assert_eq!(outcome.expect_err("another length").kind, ErrorKind::Invalid);
    }
    assert_eq!(client.exists_batch(&[], Options::default()), Ok(Vec::new()));
    assert_eq!(client.exists_prefix(&[], Options::default()), Ok(0));
    assert_eq!(client.remove(&[], Options::default()), Ok(0));
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    assert!(get(&client, 1).is_ok_and(|outcome| outcome.is_hit()));
}

/// Put one of the two objects of a page's group.
fn put_part(client: &Client, object: &str) -> pagelith::Result<PutOutcome> {
    let named = |component| {
        ObjectKey::new(
            NamespaceId([1; 16]),
            PrefixHash([7; 32]),
            Role::Target,
            "kv",
            component,
            Shard::Whole,
        )
        .expect("names")
    };
    let bytes = vec![3; LEN];
    let part = [PutSlice { key: named(object), pieces: &[&bytes] }];
    client.put_parts(&[named("k"), named("v")], &[&part], Options::default()).remove(0)
}

#[test]
fn part_lost_with_a_server_is_put_again() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(Duration::from_secs(60));
    assert_eq!(put_part(&client, "v"), Ok(PutOutcome::Waiting));
    let address = process.address.clone();
    drop(process);
    let _process = Process::at(&address, 2);
    assert_eq!(put_part(&client, "k"), Ok(PutOutcome::Waiting), "it has lost the other part");
    assert_eq!(put_part(&client, "v"), Ok(PutOutcome::Stored));
    assert_eq!(put_part(&client, "v"), Ok(PutOutcome::AlreadyPresent));
}

#[test]
fn server_without_parts_is_named_and_connection_survives() {
    let old = Capabilities::of_this_build([1; 16]).without(Feature::Parts);
    let process = Process::offering(&anywhere(), old);
    let client = process.client(Duration::from_secs(60));
    let refused = put_part(&client, "k").expect_err("it cannot be asked");
    let expected = (ErrorKind::Incompatible, "the store does not support puts of parts of a group");
    assert_eq!((refused.kind, refused.message.as_str()), expected);
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
}

/// A counter of a store.
fn counter(client: &Client, name: &str) -> u64 {
    let text = client.stats(Options::default()).expect("answered");
    let value: serde_json::Value = serde_json::from_str(&text).expect("an object");
    value[name].as_u64().expect("a number")
}

#[test]
fn lost_pin_is_reported_and_not_released_over_a_new_connection() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(Duration::from_secs(60));
    for page in 0..3 {
        assert_eq!(put(&client, page), Ok(PutOutcome::Stored));
    }
    let keys = [key(0), key(1), key(2), key(9)];
    let lost = client.pin(&keys, Options::default()).expect("pinned");
    let empty = client.pin(&[], Options::default()).expect("nothing to pin");
    assert_eq!((lost.pinned(), lost.is_held(), empty.pinned()), (3, true, 0));
    drop(empty);
    assert_eq!(counter(&client, "objects_pinned"), 3);
    let address = process.address.clone();
    drop(process);
    let _process = Process::at(&address, 2);
    assert_eq!(put(&client, 0), Ok(PutOutcome::Stored));
    assert!(!lost.is_held(), "the store was restarted");
    assert_eq!(counter(&client, "objects_pinned"), 0);
    // The old pin is not affected by pins over the new connection.
    let pin = client.pin(&keys, Options::default()).expect("pinned");
    assert_eq!((pin.pinned(), pin.is_held(), lost.is_held()), (1, true, false));
    drop(lost);
    assert_eq!(counter(&client, "objects_pinned"), 1);
    drop(pin);
    assert_eq!(counter(&client, "objects_pinned"), 0);
    assert_eq!(client.lease(&keys, Duration::from_nanos(1), Options::default()), Ok(1));
    assert_eq!(counter(&client, "objects_leased"), 1);
}

#[test]
fn server_without_pins_is_named_and_connection_survives() {
    let old = Capabilities::of_this_build([1; 16]).without(Feature::Pins).without(Feature::Begun);
    let process = Process::offering(&anywhere(), old);
    let client = process.client(Duration::from_secs(60));
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    let expected =
        (ErrorKind::Incompatible, "the store does not support pins and leases by other processes");
    let pin =
        client.pin(&[key(1)], Options::default()).map(|pin| pin.pinned()).expect_err("no pins");
    let lease =
        client.lease(&[key(1)], Duration::from_secs(1), Options::default()).expect_err("no leases");
    assert_eq!((pin.kind, pin.message.as_str()), expected);
    assert_eq!((lease.kind, lease.message.as_str()), expected);
    let expected =
        (ErrorKind::Incompatible, "the store does not support open groups of other processes");
    let group =
        client.begin_group(&[key(7)], Options::default()).map(|_| ()).expect_err("no groups");
    assert_eq!((group.kind, group.message.as_str()), expected);
    assert!(get(&client, 1).is_ok_and(|outcome| outcome.is_hit()));
}

#[test]
fn server_without_hints_is_named_and_connection_survives() {
    let old = Capabilities::of_this_build([1; 16]).without(Feature::Hints);
    let process = Process::offering(&anywhere(), old);
    let client = process.client(Duration::from_secs(60));
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    let hint = client.hint(&[key(1)], Hint::Demote, Options::default()).expect_err("no hints");
    let expected = (ErrorKind::Incompatible, "the store does not support hints of other processes");
    assert_eq!((hint.kind, hint.message.as_str()), expected);
    assert!(get(&client, 1).is_ok_and(|outcome| outcome.is_hit()));
}

#[test]
fn server_without_prefill_rates_loads_gets_that_have_one() {
    let old = Capabilities::of_this_build([1; 16]).without(Feature::PrefillRate);
    let process = Process::offering(&anywhere(), old);
    let client = process.client(Duration::from_secs(60));
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    let rated = Options::default().prefill_tokens_per_s(u64::MAX);
    assert!(get_with(&client, 1, rated).is_ok_and(|outcome| outcome.is_hit()));
}

#[test]
fn hint_that_a_client_may_not_give_is_refused_and_connection_survives() {
    let (own, foreign) = (NamespaceId([6; 16]), key(1));
    let rights = Rights::of(Namespaces::Listed([own].into()));
    let process = Process::of(&anywhere(), Capabilities::of_this_build([1; 16]), rights, 1000);
    let client = process.client(Duration::from_secs(60));
    let denied = client.hint(&[foreign], Hint::Demote, Options::default()).expect_err("foreign");
    assert_eq!(denied.kind, ErrorKind::Denied);
    let expected = format!("namespace={} verb=Hint", foreign.namespace());
    assert!(denied.message.contains(&expected), "{denied}");
    let own =
        ObjectKey::new(own, foreign.hash(), Role::Target, "kv", "k", Shard::Whole).expect("names");
    let long = Hint::Retain(Duration::from_secs(86_401));
    let refused = client.hint(&[own], long, Options::default()).expect_err("too long");
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.starts_with("hint is too long"), "{refused}");
    assert_eq!(client.hint(&[own], Hint::SessionEnded, Options::default()), Ok(0));
}

#[test]
fn group_lost_with_its_server_is_reported() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(Duration::from_secs(60));
    let bytes = vec![7; LEN];
    let object = [PutSlice { key: key(7), pieces: &[&bytes] }];
    let group = client.begin_group(&[key(7)], Options::default()).expect("begun");
    assert_eq!(group.put(&object, Options::default()), [Ok(PutOutcome::Waiting)]);
    assert_eq!(
        (counter(&client, "groups_waiting"), group.missing(Options::default())),
        (1, Ok(Vec::new()))
    );
    let address = process.address.clone();
    drop(process);
    let _process = Process::at(&address, 2);
    let unavailable = |error: pagelith::Error| assert_eq!(error.kind, ErrorKind::Unavailable);
    unavailable(group.commit(Options::default()).expect_err("it is gone"));
    unavailable(group.put(&object, Options::default()).remove(0).expect_err("it is gone"));
    unavailable(group.missing(Options::default()).expect_err("it is gone"));
    drop(group);
    let again = client.begin_group(&[key(7)], Options::default()).expect("begun");
    assert_eq!(
        again.missing(Options::default()),
        Ok(vec![key(7)]),
        "earlier puts are lost, and reported"
    );
    assert_eq!(again.put(&object, Options::default()), [Ok(PutOutcome::Waiting)]);
    assert_eq!(again.commit(Options::default()), Ok(PutOutcome::Stored));
    assert!(get(&client, 7).is_ok_and(|outcome| outcome.is_hit()));
}

#[test]
fn client_receives_events_since_its_first_read() {
    let process = Process::at(&anywhere(), 1);
    let (client, other) = (process.client(WAIT_MAX), process.client(WAIT_MAX));
    let stores = |client: &Client, page| assert_eq!(put(client, page), Ok(PutOutcome::Stored));
    stores(&other, 1);
    assert_eq!(client.take_events(100, Options::default()), Ok(Events::default()));
    stores(&other, 2);
    stores(&other, 3);
    assert_eq!(other.remove(&[key(2)], Options::default()), Ok(1));
    let stored = |n| Event::Stored { tier: Tier::Memory, key: key(n), new: true };
    let removed = Event::Removed { tier: Tier::Memory, key: key(2), gone: true };
    let take = |most| client.take_events(most, Options::default()).expect("answered");
    assert_eq!(take(2), Events { events: vec![stored(2), stored(3)], lost: 0 });
    stores(&other, 4);
    assert_eq!(take(100), Events { events: vec![removed, stored(4)], lost: 0 });
    assert_eq!(take(100), Events::default());
    // Another process at the same address: its earlier events are not reported.
    let address = process.address.clone();
    drop(process);
    let again = Process::at(&address, 2);
    let next = again.client(WAIT_MAX);
    (5..9).for_each(|page| stores(&next, page));
    assert_eq!(take(100), Events { events: Vec::new(), lost: 1 });
    stores(&next, 9);
    assert_eq!(take(100), Events { events: vec![stored(9)], lost: 0 });
}

/// The caller looks up its objects again after a loss. Then it must not apply older events.
#[test]
fn events_before_a_loss_are_counted_as_lost() {
    let process = Process::at(&anywhere(), 1);
    let client = process.client(WAIT_MAX);
    let take = |most| client.take_events(most, Options::default()).expect("answered");
    assert_eq!(take(1), Events::default());
    (1..4).for_each(|page| assert_eq!(put(&client, page), Ok(PutOutcome::Stored)));
    let first = Event::Stored { tier: Tier::Memory, key: key(1), new: true };
    assert_eq!(take(1), Events { events: vec![first], lost: 0 });
    let address = process.address.clone();
    drop(process);
    let _again = Process::at(&address, 2);
    assert_eq!(take(100), Events { events: Vec::new(), lost: 3 });
}

#[test]
fn events_of_unreadable_namespaces_are_skipped() {
    let own = NamespaceId([5; 16]);
    let offer = Capabilities::of_this_build([1; 16]);
    let process =
        Process::of(&anywhere(), offer, Rights::of(Namespaces::Listed([own].into())), 3000);
    let client = process.client(WAIT_MAX);
    assert_eq!(client.take_events(1, Options::default()), Ok(Events::default()));
    let foreign = |n: u16| {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&n.to_le_bytes());
        ObjectKey::new(
            NamespaceId([6; 16]),
            PrefixHash(hash),
            Role::Target,
            "kv",
            "k",
            Shard::Whole,
        )
        .expect("names")
    };
    // More events than one response holds.
    for n in 0..800 {
        let put = PutSlice { key: foreign(n), pieces: &[&[1; 100]] };
        assert_eq!(process.store.put_batch(&[put], Options::default()), [Ok(PutOutcome::Stored)]);
        assert_eq!(process.store.remove(&[foreign(n)], Options::default()), Ok(1));
    }
    assert_eq!(put(&client, 1), Ok(PutOutcome::Stored));
    let stored = Event::Stored { tier: Tier::Memory, key: key(1), new: true };
    assert_eq!(
        client.take_events(100, Options::default()),
        Ok(Events { events: vec![stored], lost: 0 })
    );
}

#[test]
fn store_without_events_reports_it() {
    let none = Process::of(&anywhere(), Capabilities::of_this_build([1; 16]), Rights::all(), 0);
    let refused =
        none.client(WAIT_MAX).take_events(1, Options::default()).expect_err("none are kept");
    assert_eq!(
        (refused.kind, &refused.message[..33]),
        (ErrorKind::Incompatible, "the store keeps no events: its se")
    );
    let old = Process::offering(
        &anywhere(),
        Capabilities::of_this_build([1; 16]).without(Feature::Events),
    );
    let refused = old.client(WAIT_MAX).take_events(1, Options::default()).expect_err("no events");
    assert_eq!(refused.kind, ErrorKind::Incompatible);
    assert_eq!(refused.message, "the store keeps no events: set events.max on it");
}
