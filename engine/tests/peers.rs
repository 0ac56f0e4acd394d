//! A store with a peer: objects from the peer are kept, and removed objects stay removed.
#![allow(clippy::disallowed_methods, reason = "store processes are played by threads")]

#[path = "peers/attached.rs"]
mod attached;
#[path = "peers/configured.rs"]
mod configured;
#[path = "peers/idle.rs"]
mod idle;
#[path = "peers/preferred.rs"]
mod preferred;
#[path = "suite/random_queries.rs"]
mod random_queries;
#[path = "peers/removals.rs"]
mod removals;
#[path = "peers/rules.rs"]
mod rules;
#[path = "peers/served.rs"]
mod served;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagelith::config::Promote;
use pagelith::io::clock::Clock;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::rpc::Peer;
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{
    AlignedBuf, CompletedBatch, Config, Destination, Get, GetOutcome, GetSlice, MachineLimits,
    MissCause, Options, PutOutcome, PutSlice, Size, Store, Tier, ValidConfig,
};
use tempfile::TempDir;

const LEN: usize = 70_001;
const WAIT_MAX: Duration = Duration::from_secs(60);
const NAMESPACE: NamespaceId = NamespaceId([5; 16]);

/// The peer.
struct Process {
    store: Arc<Store>,
    address: Address,
    stop: Arc<AtomicBool>,
    /// How often it polled its connections, and how many it had then.
    turns: Arc<AtomicU64>,
    links: Arc<AtomicU64>,
    /// Whether it must end them.
    cut: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    fn new(config: &Config) -> Process {
        Process::of(Store::open(valid(config)).expect("opened"))
    }

    /// A peer that serves this store.
    fn of(store: Store) -> Process {
        Process::admitting(store, ClientAuth::Connection(Rights::all()))
    }

    fn admitting(store: Store, admission: ClientAuth) -> Process {
        Process::offering(store, admission, Capabilities::of_this_build([1; 16]))
    }

    fn offering(store: Store, admission: ClientAuth, offer: Capabilities) -> Process {
        Process::timed(store, admission, offer, Arc::new(SystemClock::new()))
    }

    /// The clock of its connections.
    fn timed(
        store: Store,
        admission: ClientAuth,
        offer: Capabilities,
        clock: Arc<dyn Clock>,
    ) -> Process {
        let store = Arc::new(store);
        let listen = ListenConfig {
            address: "tcp:127.0.0.1:0".parse().expect("an address"),
            admission,
            allow_remote: false,
        };
        let entropy = Arc::new(SystemEntropy);
        let mut listener =
            Listener::new(&listen, offer, entropy, clock, LinkLimits::default()).expect("listens");
        let address = listener.address().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, served) = (stop.clone(), store.clone());
        let turns = Arc::new(AtomicU64::new(0));
        let links = Arc::new(AtomicU64::new(0));
        let cut = Arc::new(AtomicBool::new(false));
        let (turned, open, is_cut) = (turns.clone(), links.clone(), cut.clone());
        let staging = StagingPool::new(16 << 20).expect("memory");
        let thread = std::thread::spawn(move || {
            let (mut arrivals, mut servers) = (Vec::new(), Vec::<Server>::new());
            while !ends.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    servers.push(Server::new(&served, link, staging.clone()).expect("serves"));
                }
                servers.iter_mut().for_each(|server| while server.poll() {});
                servers.retain(|server| server.closed().is_none());
                if is_cut.swap(false, Ordering::Relaxed) {
                    servers.clear();
                }
                open.store(servers.len() as u64, Ordering::Release);
                turned.fetch_add(1, Ordering::Release);
            }
        });
        Process { store, address, stop, turns, links, cut, thread: Some(thread) }
    }

    /// A store that uses this peer with this offer.
    fn front(&self, config: &Config, offer: Capabilities) -> Store {
        let dial = SocketDial::new(self.address.clone(), None, offer, Arc::new(SystemClock::new()));
        let peer =
            Peer { name: "peer".into(), weight: 1.0, preferred: false, dial: Arc::new(dial) };
        Store::open_with_peers(valid(config), vec![peer]).expect("opened")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn valid(config: &Config) -> ValidConfig {
    config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid")
}

/// A configuration with DRAM only.
fn memory() -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(16);
    // Tests evict the pages that were used longest ago.
    config.dram.policy = pagelith::config::DramPolicy::Lru;
    config.index.max_objects = Some(1000);
    config
}

fn offer() -> Capabilities {
    Capabilities::of_this_build([2; 16])
}

fn key(page: u64, component: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(NAMESPACE, PrefixHash(hash), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

fn content(key: &ObjectKey) -> Vec<u8> {
    content_of(key, LEN)
}

fn content_of(key: &ObjectKey, len: usize) -> Vec<u8> {
    let seed = u64::from(
        key.as_bytes().iter().fold(7u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte)),
    );
    (0..len as u64).map(|at| (at * 31 + at / 253 + seed) as u8).collect()
}

fn put(store: &Store, keys: &[ObjectKey]) {
    let bytes: Vec<Vec<u8>> = keys.iter().map(content).collect();
    let pieces: Vec<[&[u8]; 1]> = bytes.iter().map(|bytes| [&bytes[..]]).collect();
    let group: Vec<PutSlice<'_>> =
        keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
    assert_eq!(store.put_groups(&[&group], Options::default()), [Ok(PutOutcome::Stored)]);
}

/// Get these in one batch; returns the tier of each, after comparing its bytes.
fn get(store: &Store, keys: &[ObjectKey]) -> Vec<Option<Tier>> {
    let mut memory: Vec<Vec<u8>> = keys.iter().map(|_| vec![0xee; LEN]).collect();
    let mut lent: Vec<[&mut [u8]; 1]> = memory.iter_mut().map(|memory| [&mut memory[..]]).collect();
    let mut gets: Vec<GetSlice<'_, '_>> = keys
        .iter()
        .zip(&mut lent)
        .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
        .collect();
    let outcomes = store.get_batch(&mut gets, Options::default());
    let tier =
        |((outcome, key), bytes): ((&pagelith::Result<GetOutcome>, &ObjectKey), &Vec<u8>)| {
            match outcome.as_ref().expect("no error") {
                GetOutcome::Hit { tier, .. } => {
                    assert!(*bytes == content(key), "wrong bytes key={key}");
                    Some(*tier)
                }
                GetOutcome::Miss(_) => None,
            }
        };
    outcomes.iter().zip(keys).zip(&memory).map(tier).collect()
}

fn all(tier: Tier, count: usize) -> Vec<Option<Tier>> {
    vec![Some(tier); count]
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WAIT_MAX, "timed out waiting until {what}");
        std::thread::yield_now();
    }
}

#[test]
fn object_from_a_peer_is_kept_and_not_offered_back() {
    let process = Process::new(&memory());
    let front = process.front(&memory(), offer());
    let (single, page) = (key(1, "k"), [key(2, "k"), key(2, "v"), key(2, "i")]);
    put(&process.store, &[single]);
    put(&process.store, &page);
    assert_eq!(get(&front, &[single]), all(Tier::Remote, 1));
    assert_eq!(get(&front, &[single]), all(Tier::Memory, 1));
    // A part of an object, or of a page, is not kept.
    let mut part = [0; 100];
    let range = GetSlice { key: page[0], range: Some(5..105), pieces: &mut [&mut part] };
    assert!(
        front.get_batch(&mut [range], Options::default())[0].as_ref().is_ok_and(GetOutcome::is_hit)
    );
    for _ in 0..2 {
        assert_eq!(get(&front, &page[..2]), all(Tier::Remote, 2));
    }
    assert_eq!(get(&front, &page), all(Tier::Remote, 3));
    assert_eq!(get(&front, &page), all(Tier::Memory, 3));
    // The page has the same members here as there: a second put finds it present.
    let bytes: Vec<Vec<u8>> = page.iter().map(content).collect();
    let pieces: Vec<[&[u8]; 1]> = bytes.iter().map(|bytes| [&bytes[..]]).collect();
    let group: Vec<PutSlice<'_>> =
        page.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
    assert_eq!(front.put_groups(&[&group], Options::default()), [Ok(PutOutcome::AlreadyPresent)]);
    let stats = front.stats();
    assert_eq!((stats.promoted, stats.puts_stored, stats.hits_remote), (2, 0, 9), "{stats:?}");
    front.close().expect("closed");
    let stats = process.store.stats();
    assert_eq!((stats.puts_stored, stats.puts_present), (4, 0), "{stats:?}");
}

#[test]
fn kept_object_is_written_to_ssd() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = memory();
    config.ssd.bytes = Size::mib(64);
    config.ssd.segment_bytes = Some(Size::mib(4));
    config.ssd.dirs = vec![dir.path().join("store")];
    let process = Process::new(&memory());
    let front = process.front(&config, offer());
    let page = [key(2, "k"), key(2, "v")];
    put(&process.store, &page);
    assert_eq!(get(&front, &page), all(Tier::Remote, 2));
    let report = front.close().expect("closed");
    assert_eq!((report.durable_objects, report.lost_objects), (2, 0));
    let alone = Store::open(valid(&config)).expect("opened");
    assert_eq!(get(&alone, &page), all(Tier::Ssd, 2));
    drop(alone);
    // The peer's SSD tier tells them apart as well.
    let served: TempDir = tempfile::tempdir().expect("a directory");
    let mut cold = config.clone();
    cold.dram.bytes = Size::ZERO;
    cold.ssd.dirs = vec![served.path().join("store")];
    let process = Process::new(&cold);
    put(&process.store, &page);
    process.store.flush(Options::default()).expect("flushed");
    let front = process.front(&memory(), offer());
    assert_eq!(get(&front, &page[..1]), all(Tier::Remote, 1));
    assert_eq!(get(&front, &page), all(Tier::Remote, 2));
    assert_eq!(get(&front, &page), all(Tier::Memory, 2));
    assert!(process.store.stats().hits_ssd > 0);
}

#[test]
fn object_is_not_kept_with_promote_never_or_without_metadata() {
    let process = Process::new(&memory());
    put(&process.store, &[key(1, "k")]);
    let mut never = memory();
    never.dram.promote = Promote::Never;
    let old = Capabilities { features: offer().features & !Feature::Members.bit(), ..offer() };
    for (config, offer) in [(never, offer()), (memory(), old)] {
        let front = process.front(&config, offer);
        for _ in 0..2 {
            assert_eq!(get(&front, &[key(1, "k")]), all(Tier::Remote, 1));
        }
        assert_eq!(front.stats().promoted, 0);
    }
}

/// Objects that the peer sent before it received the removal arrive after it, and must not stay.
#[test]
fn object_removed_during_its_transfer_is_not_kept() {
    for clears in [false, true] {
        let process = Process::new(&memory());
        let front = process.front(&memory(), offer());
        let keys: Vec<ObjectKey> = (0..50).map(|page| key(page, "k")).collect();
        keys.iter().for_each(|key| put(&process.store, &[*key]));
        let mut session = front.session().expect("a session");
        // The connection exists then.
        assert_eq!(get_over(&mut session, keys[0]), Some(Tier::Remote));
        let mut asked = |key: &ObjectKey| {
            let destination = Destination::owned(AlignedBuf::new(LEN).expect("memory"));
            let get = Get { key: *key, range: None, destination };
            let ticket = session.submit_get(vec![get], Options::default());
            // The request is sent; a response that arrives at once would not test anything.
            session.poll().is_none().then_some((*key, ticket))
        };
        let at = keys[1..].iter().find_map(&mut asked);
        let (key_asked, ticket) = at.expect("an answer that takes longer than a look");
        let before = keys.iter().take_while(|key| **key != key_asked).count() as u64;
        until("the peer sends it", || process.store.stats().hits_memory == before + 1);
        match clears {
            true => _ = front.clear(NAMESPACE, Options::default()).expect("cleared"),
            false => _ = front.remove(&[key_asked], Options::default()).expect("removed"),
        }
        let Some(CompletedBatch::Get(done)) = session.wait(ticket, WAIT_MAX) else {
            panic!("it ends")
        };
        assert_eq!(done[0].outcome, Ok(GetOutcome::Hit { tier: Tier::Remote, bytes: LEN as u64 }));
        assert_eq!(get(&front, &[key_asked]), [None], "clears={clears}");
        assert_eq!(front.stats().promoted, before, "clears={clears}");
        // Later objects are kept again.
        put(&process.store, &[key(99, "k")]);
        assert_eq!(get(&front, &[key(99, "k")]), all(Tier::Remote, 1));
        assert_eq!(get(&front, &[key(99, "k")]), all(Tier::Memory, 1));
    }
}

fn get_over(session: &mut pagelith::Session, key: ObjectKey) -> Option<Tier> {
    let destination = Destination::owned(AlignedBuf::new(LEN).expect("memory"));
    let ticket =
        session.submit_get(vec![Get { key, range: None, destination }], Options::default());
    let Some(CompletedBatch::Get(done)) = session.wait(ticket, WAIT_MAX) else { panic!("it ends") };
    match done[0].outcome.as_ref().expect("no error") {
        GetOutcome::Hit { tier, .. } => Some(*tier),
        GetOutcome::Miss(cause) => {
            assert_eq!(*cause, MissCause::Absent);
            None
        }
    }
}
