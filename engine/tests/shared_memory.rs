//! Clients of this host that share memory with the store: hits and puts pass by reference.
#![allow(clippy::disallowed_methods, reason = "store processes are played by threads")]

#[path = "shared_memory/arena_turnover.rs"]
mod arena_turnover;
#[path = "shared_memory/counting_link.rs"]
mod counting_link;
#[path = "shared_memory/from_ssd.rs"]
mod from_ssd;
#[path = "shared_memory/in_flight.rs"]
mod in_flight;
#[path = "shared_memory/views.rs"]
mod views;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::buffer::AlignedBuf;
use pagelith::io::shm::SharedRegion;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::shard::Shard;
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
    Config, GetOutcome, GetSlice, MachineLimits, Options, PutOutcome, PutSlice, Size, Store, Tier,
};
use tempfile::TempDir;

use counting_link::{CountingDial, LinkCounts};

const TIMEOUT: Duration = Duration::from_secs(60);
const STAGING: usize = 16 << 20;

/// A store process that serves one client at a time.
struct Process {
    dir: TempDir,
    store: Arc<Store>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    /// A store whose hits from DRAM only the client verifies.
    fn new(rights: Rights, ssd: bool) -> Process {
        Process::tuned(rights, ssd, |_| {})
    }

    fn tuned(rights: Rights, ssd: bool, tune: impl FnOnce(&mut Config)) -> Process {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.dram.bytes = Size::mib(16);
        config.dram.shared = true;
        config.dram.verify_ratio = 0.0;
        config.index.max_objects = Some(1000);
        if ssd {
            config.ssd.bytes = Size::mib(128);
            config.ssd.segment_bytes = Some(Size::mib(8));
            config.ssd.dirs = vec![dir.path().join("store")];
            config.dram.promote = pagelith::config::Promote::Never;
        }
        tune(&mut config);
        let valid =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
        let store = Arc::new(Store::open(valid).expect("opened"));
        let (staging, memory) = StagingPool::shared(STAGING).expect("memory");
        let arena = store.shared_memory().expect("dram.shared");
        let listen = ListenConfig {
            address: Address::Unix(dir.path().join("socket")),
            admission: ClientAuth::Connection(rights),
            allow_remote: false,
        };
        let offer = Capabilities::of_this_build([1; 16]);
        let (entropy, clock) = (Arc::new(SystemEntropy), Arc::new(SystemClock::new()));
        let mut listener = Listener::new(&listen, offer, entropy, clock, LinkLimits::default())
            .expect("listens")
            .with_shared_regions(vec![arena, memory]);
        let stop = Arc::new(AtomicBool::new(false));
        let (ends, served) = (stop.clone(), store.clone());
        let thread = std::thread::spawn(move || {
            let (mut arrivals, mut servers) = (Vec::new(), Vec::<Server>::new());
            while !ends.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    // A connection that ended in its greeting does not count.
                    let AdmissionResult::Link(link) = arrival else { continue };
                    servers.push(Server::new(&served, link, staging.clone()).expect("serves"));
                }
                servers.iter_mut().for_each(|server| while server.poll() {});
                servers.retain(|server| server.closed().is_none());
            }
        });
        Process { dir, store, stop, thread: Some(thread) }
    }

    fn client(&self, regions: Vec<Arc<SharedRegion>>) -> (Client, Arc<LinkCounts>) {
        self.client_within(TIMEOUT, regions)
    }

    fn client_within(
        &self,
        timeout: Duration,
        regions: Vec<Arc<SharedRegion>>,
    ) -> (Client, Arc<LinkCounts>) {
        let shared_regions = SharedRegions::default();
        assert!(regions.into_iter().all(|region| shared_regions.add(region)));
        let clock = Arc::new(SystemClock::new());
        let dial = SocketDial {
            address: Address::Unix(self.dir.path().join("socket")),
            offer: Capabilities::of_this_build([2; 16]),
            key: None,
            entropy: Arc::new(SystemEntropy),
            clock: clock.clone(),
            limits: LinkLimits::default(),
            shared_regions,
            resolver: Resolver::default(),
            rdma: RdmaUse::Off,
            local_hostname: None,
        };
        let seen = Arc::new(LinkCounts::default());
        let dial = CountingDial { dial, seen: seen.clone() };
        (Client::attach(Arc::new(dial), clock, timeout).expect("attached"), seen)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn key(page: u64) -> ObjectKey {
    part(page, "k")
}

fn part(page: u64, component: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(
        NamespaceId([5; 16]),
        PrefixHash(hash),
        Role::Target,
        "kv",
        component,
        Shard::Whole,
    )
    .expect("a key")
}

fn content(page: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at * 31 + at / 253 + page * 7) as u8).collect()
}

fn put(client: &Client, pages: &[u64], buffers: &[&[u8]]) -> Vec<pagelith::Result<PutOutcome>> {
    let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [*buffer]).collect();
    let puts: Vec<PutSlice<'_>> = pages
        .iter()
        .zip(&pieces)
        .map(|(page, pieces)| PutSlice { key: key(*page), pieces })
        .collect();
    client.put_batch(&puts, Options::default())
}

fn get(client: &Client, page: u64, len: usize) -> (pagelith::Result<GetOutcome>, Vec<u8>) {
    let mut bytes = vec![0xee; len];
    let get = GetSlice { key: key(page), range: None, pieces: &mut [&mut bytes] };
    let outcome = client.get_batch(&mut [get], Options::default()).remove(0);
    (outcome, bytes)
}

fn hit(tier: Tier, len: usize) -> pagelith::Result<GetOutcome> {
    Ok(GetOutcome::Hit { tier, bytes: len as u64 })
}

/// Lengths around multiples of blocks and pages.
const LENGTHS: [usize; 6] = [1, 4096, 32_768, 65_536, 100_001, 1 << 20];

#[test]
fn hits_and_puts_pass_shared_memory_by_reference() {
    let process = Process::new(Rights::all(), false);
    for (round, len) in LENGTHS.into_iter().enumerate() {
        let (mut buffers, region) = AlignedBuf::shown(4, len).expect("memory");
        let (client, seen) = process.client(vec![region]);
        let pages: Vec<u64> = (0..4).map(|i| round as u64 * 100 + i).collect();
        for (page, buffer) in pages.iter().zip(&mut buffers) {
            buffer.copy_from_slice(&content(*page, len));
        }
        let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
        assert_eq!(put(&client, &pages, &slices), vec![Ok(PutOutcome::Stored); 4], "len={len}");
        assert_eq!(seen.take(), [0, 0, 4, 0], "len={len}");
        for page in &pages {
            assert_eq!(
                get(&client, *page, len),
                (hit(Tier::Memory, len), content(*page, len)),
                "len={len}"
            );
        }
        assert_eq!(seen.take(), [4, 0, 0, 0], "len={len}");
        // Memory that is not shared is sent.
        let own = content(round as u64 * 100 + 50, len);
        assert_eq!(put(&client, &[round as u64 * 100 + 50], &[&own]), vec![Ok(PutOutcome::Stored)]);
        assert_eq!(seen.take(), [0, 0, 0, 1], "len={len}");
    }
    assert_eq!(process.store.stats().hits_unverified, 0, "the client has verified them");
}

/// Ten times the arena's size: memory in use by transfers is bounded, and all of it is released.
#[test]
fn full_store_keeps_serving_shared_memory() {
    const LEN: usize = 64 << 10;
    let process = Process::new(Rights::all(), false);
    let (mut buffers, region) = AlignedBuf::shown(32, LEN).expect("memory");
    let (client, seen) = process.client(vec![region]);
    for round in 0..80u64 {
        let pages: Vec<u64> = (0..32).map(|i| round * 32 + i).collect();
        for (page, buffer) in pages.iter().zip(&mut buffers) {
            buffer.fill(*page as u8);
        }
        let slices: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
        assert_eq!(
            put(&client, &pages, &slices),
            vec![Ok(PutOutcome::Stored); 32],
            "round={round}"
        );
        for page in [pages[0], pages[31]] {
            assert_eq!(get(&client, page, LEN), (hit(Tier::Memory, LEN), vec![page as u8; LEN]));
        }
    }
    assert_eq!(seen.take(), [160, 0, 80 * 32, 0]);
}

/// Two objects are looked up together with room for one: the first one gets it, since a prompt is
/// useful from its beginning. Objects in shared memory are put one after another.
#[test]
fn first_object_of_a_batch_without_room_is_put() {
    const LEN: usize = 64 << 10;
    let process = Process::new(Rights::all(), false);
    let (mut buffers, region) = AlignedBuf::shown(2, LEN).expect("memory");
    let (client, seen) = process.client(vec![region]);
    buffers.iter_mut().for_each(|buffer| buffer.fill(7));
    let full = (16 << 20) / LEN as u64;
    for page in 0..full {
        assert_eq!(put(&client, &[page], &[&buffers[0]]), [Ok(PutOutcome::Stored)]);
    }
    let kept: Vec<ObjectKey> = (0..full - 1).map(key).collect();
    let _pin = process.store.pin(&kept);
    seen.take();
    let own = vec![7; LEN];
    for (page, slices, both) in
        [(1000, [&own[..]; 2], false), (2000, [&buffers[0], &buffers[1]], true)]
    {
        let pieces = slices.map(|slice| [slice]);
        let put = |i: usize| PutSlice { key: key(page + i as u64), pieces: &pieces[i] };
        let options = Options::default().wait(Duration::ZERO);
        let outcomes = client.put_batch(&[put(0), put(1)], options);
        assert_eq!(outcomes[0], Ok(PutOutcome::Stored), "both={both} {outcomes:?}");
        assert_eq!(outcomes[1].is_ok(), both, "{outcomes:?}");
        let last = page + u64::from(both);
        assert_eq!(get(&client, last, LEN), (hit(Tier::Memory, LEN), vec![7; LEN]), "both={both}");
    }
}

#[test]
fn ssd_hits_are_passed_by_reference_from_staging() {
    let process = Process::new(Rights::all(), true);
    let (client, seen) = process.client(Vec::new());
    let pages: Vec<u64> = (0..40).collect();
    let contents: Vec<Vec<u8>> = pages.iter().map(|page| content(*page, 1_000_000)).collect();
    for (page, content) in pages.iter().zip(&contents) {
        assert_eq!(put(&client, &[*page], &[content]), vec![Ok(PutOutcome::Stored)]);
    }
    client.flush(Options::default()).expect("flushed");
    seen.take();
    let (mut of_ssd, mut of_memory) = (0, 0);
    for (page, content) in pages.iter().zip(&contents) {
        let (outcome, bytes) = get(&client, *page, content.len());
        assert!(bytes == *content, "page={page}");
        match outcome {
            Ok(GetOutcome::Hit { tier: Tier::Ssd, .. }) => of_ssd += 1,
            Ok(GetOutcome::Hit { tier: Tier::Memory, .. }) => of_memory += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(of_ssd > 20, "the arena holds 16 of them: {of_ssd}");
    assert_eq!(seen.take(), [of_ssd + of_memory, 0, 0, 0]);
    // An object longer than a chunk is passed in pieces, and arrives whole.
    let long = content(99, 5_000_000);
    assert_eq!(put(&client, &[99], &[&long]), vec![Ok(PutOutcome::Stored)]);
    client.flush(Options::default()).expect("flushed");
    for (page, content) in (100..).zip(&contents[..20]) {
        assert_eq!(put(&client, &[page], &[content]), vec![Ok(PutOutcome::Stored)]);
    }
    client.flush(Options::default()).expect("flushed");
    seen.take();
    let (outcome, bytes) = get(&client, 99, long.len());
    assert_eq!(outcome, hit(Tier::Ssd, long.len()));
    assert!(bytes == long);
    assert_eq!(seen.take(), [0, 1, 0, 0]);
}

/// A client that may not read everything maps none of the store's memory.
#[test]
fn client_restricted_to_namespaces_gets_no_shared_memory() {
    let process =
        Process::new(Rights::of(Namespaces::Listed([NamespaceId([5; 16])].into())), false);
    let (client, seen) = process.client(Vec::new());
    let bytes = content(1, 100_000);
    assert_eq!(put(&client, &[1], &[&bytes]), vec![Ok(PutOutcome::Stored)]);
    assert_eq!(get(&client, 1, 100_000), (hit(Tier::Memory, 100_000), bytes));
    assert_eq!(seen.take(), [0, 1, 0, 1]);
    assert_eq!(process.store.stats().hits_unverified, 0, "the client has verified it");
}

/// Memory whose file its owner truncates, or changes during the put, fails the put and crashes no
/// process.
#[test]
fn put_from_changed_or_truncated_memory_fails() {
    let process = Process::new(Rights::all(), false);
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::ftruncate(&fd, 1 << 20).expect("memory");
    let own = content(1, 1 << 20);
    // The client checksums other bytes than the file has, as if the file had changed in between.
    let other = fd.try_clone().expect("a descriptor");
    let region = SharedRegion::mapped(other, own.as_ptr() as usize, own.len()).expect("in memory");
    let (client, seen) = process.client(vec![Arc::new(region)]);
    let short = Options::default().timeout(Duration::from_secs(2));
    let try_put = |page, options| {
        let put = PutSlice { key: key(page), pieces: &[&own] };
        client.put_batch(&[put], options).remove(0)
    };
    assert!(try_put(1, short).is_err(), "other bytes were put");
    rustix::fs::ftruncate(&fd, 5).expect("shorter");
    assert!(try_put(2, short).is_err(), "bytes that are not there were put");
    assert!(seen.take()[2] >= 2);
    rustix::fs::ftruncate(&fd, 1 << 20).expect("as long as before");
    assert_eq!(rustix::io::pwrite(&fd, &own, 0), Ok(own.len()));
    let stored = Ok(PutOutcome::Stored);
    assert_eq!(try_put(3, Options::default()), stored, "the connection survives");
    assert_eq!(get(&client, 3, own.len()).1, own);
    assert_eq!(client.exists_batch(&[key(1), key(2)], Options::default()), Ok(vec![false, false]));
}
