//! A client with several batches in flight over one connection, while the store stops answering,
//! ends, or is restarted.
#![allow(clippy::disallowed_methods, reason = "store processes are played by threads")]

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
use pagelith::layouts::wire::greeting::Feature;
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{
    CompletedBatch, Config, Destination, ErrorKind, Get, GetOutcome, MachineLimits, MissCause,
    Options, Put, PutGroup, PutOutcome, Size, Source, Store, Ticket, Tier,
};

/// Two blocks and a part, in whole pages: a client does not read such an object from SSD itself,
/// for there is none.
const LEN: usize = 73_728;
const OBJECTS: u64 = 8;
const WAIT_MAX: Duration = Duration::from_secs(60);

/// State of both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    /// A Unix socket, and nothing else.
    Socket,
    /// The rings, and all memory.
    SharedArena,
}

const WAYS: [Transport; 3] = [Transport::Tcp, Transport::Socket, Transport::SharedArena];

/// A store process; dropping it ends it abruptly, as a crash would.
struct Process {
    way: Transport,
    address: Address,
    stop: Arc<AtomicBool>,
    /// Whether it must stop answering, and whether it has stopped.
    stop_answering: Arc<AtomicBool>,
    has_stopped_answering: Arc<AtomicBool>,
    /// Connections that clients made so far.
    links: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    fn at(way: Transport, address: &Address, instance: u8) -> Process {
        let mut config = Config::default();
        config.dram.bytes = Size::mib(64);
        config.dram.shared = true;
        config.index.max_objects = Some(10_000);
        let valid =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
        let store = Store::open(valid).expect("opened");
        let (address, admission) = (address.clone(), ClientAuth::Connection(Rights::all()));
        let listen = ListenConfig { address, admission, allow_remote: false };
        let (clock, offer) = (Arc::new(SystemClock::new()), offer(way, instance));
        let (staging, memory) = StagingPool::shared(16 << 20).expect("memory");
        let mut listener =
            Listener::new(&listen, offer, Arc::new(SystemEntropy), clock, LinkLimits::default())
                .expect("listens");
        if way == Transport::SharedArena {
            listener = listener
                .with_shared_regions(store.shared_memory().into_iter().chain([memory]).collect());
        }
        let address = listener.address().clone();
        let flag = || Arc::new(AtomicBool::new(false));
        let (stop, stop_answering, has_stopped_answering, links) =
            (flag(), flag(), flag(), Arc::new(AtomicUsize::new(0)));
        let (ends, hears_not, says_so, counts) =
            (stop.clone(), stop_answering.clone(), has_stopped_answering.clone(), links.clone());
        let thread = std::thread::spawn(move || {
            let (mut arrivals, mut servers) = (Vec::new(), Vec::new());
            while !ends.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, Duration::from_micros(200));
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    servers.push(Server::new(&store, link, staging.clone()).expect("serves"));
                    counts.fetch_add(1, Ordering::Relaxed);
                }
                let stop_answering = hears_not.load(Ordering::Relaxed);
                says_so.store(stop_answering, Ordering::Release);
                if !stop_answering {
                    servers.iter_mut().for_each(|server| while server.poll() {});
                }
            }
        });
        Process {
            way,
            address,
            stop,
            stop_answering,
            has_stopped_answering,
            links,
            thread: Some(thread),
        }
    }

    fn set_answering(&self, hears: bool) {
        self.stop_answering.store(!hears, Ordering::Relaxed);
        while self.has_stopped_answering.load(Ordering::Acquire) == hears {
            std::thread::yield_now();
        }
    }

    /// A client, and buffers that the store maps if the transport allows.
    fn client(&self, buffers: usize) -> (Client, Vec<AlignedBuf>) {
        let client = Client::to(&self.address, None, WAIT_MAX).expect("attached");
        let (buffers, region) = AlignedBuf::shown(buffers, LEN).expect("memory");
        if self.way == Transport::SharedArena {
            client.share(region).expect("shared");
        }
        (client, buffers)
    }

    /// End it abruptly.
    fn end(mut self) -> (Transport, Address) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join).expect("once").expect("no panic");
        (self.way, self.address.clone())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn offer(way: Transport, instance: u8) -> Capabilities {
    match Capabilities::of_this_build([instance; 16]) {
        offer if way == Transport::SharedArena => offer,
        offer => offer.without(Feature::SharedMemory),
    }
}

/// A directory for a store process's socket.
fn place(way: Transport) -> (Address, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    match way {
        Transport::Tcp => ("tcp:127.0.0.1:0".parse().expect("an address"), dir),
        Transport::Socket | Transport::SharedArena => {
            (Address::Unix(dir.path().join("socket")), dir)
        }
    }
}

fn key(page: u64) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(NamespaceId([5; 16]), PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole)
        .expect("a key")
}

fn content(page: u64) -> Vec<u8> {
    (0..LEN as u64).map(|at| (at * 31 + at / 253 + page * 7) as u8).collect()
}

/// Pages of batch `n`.
fn pages(n: u64) -> std::ops::Range<u64> {
    n * OBJECTS..(n + 1) * OBJECTS
}

/// The last `count` buffers.
fn taken(buffers: &mut Vec<AlignedBuf>) -> Vec<AlignedBuf> {
    buffers.split_off(buffers.len() - OBJECTS as usize)
}

fn puts(n: u64, buffers: Vec<AlignedBuf>) -> Vec<PutGroup> {
    let put = |(page, mut buffer): (u64, AlignedBuf)| {
        buffer.copy_from_slice(&content(page));
        PutGroup::new(vec![Put { key: key(page), source: Source::owned(buffer) }])
    };
    pages(n).zip(buffers).map(put).collect()
}

fn gets(n: u64, buffers: Vec<AlignedBuf>) -> Vec<Get> {
    let get = |(page, mut buffer): (u64, AlignedBuf)| {
        buffer.fill(0xee);
        Get { key: key(page), range: None, destination: Destination::owned(buffer) }
    };
    pages(n).zip(buffers).map(get).collect()
}

/// Outcomes of a put, and its buffers.
fn was_put(done: Option<CompletedBatch>) -> (Vec<pagelith::Result<PutOutcome>>, Vec<AlignedBuf>) {
    let Some(CompletedBatch::Put(done)) = done else { panic!("not a put: {done:?}") };
    done.into_iter()
        .map(|done| (done.outcome, done.source.into_buffer().expect("its buffer")))
        .unzip()
}

/// The same for a get; the bytes of hits are correct.
fn was_got(
    n: u64,
    done: Option<CompletedBatch>,
) -> (Vec<pagelith::Result<GetOutcome>>, Vec<AlignedBuf>) {
    let Some(CompletedBatch::Get(done)) = done else { panic!("not a get: {done:?}") };
    assert_eq!(done.len() as u64, OBJECTS);
    for (page, done) in pages(n).zip(&done) {
        if done.outcome.as_ref().is_ok_and(GetOutcome::is_hit) {
            assert!(done.destination.pieces().flatten().copied().eq(content(page)), "page={page}");
        }
    }
    done.into_iter()
        .map(|done| (done.outcome, done.destination.into_buffer().expect("its buffer")))
        .unzip()
}

fn all<T: Clone>(outcome: T) -> Vec<T> {
    vec![outcome; OBJECTS as usize]
}

fn hit() -> pagelith::Result<GetOutcome> {
    Ok(GetOutcome::Hit { tier: Tier::Memory, bytes: LEN as u64 })
}

fn addresses(buffers: &[AlignedBuf]) -> Vec<*const u8> {
    buffers.iter().map(|buffer| buffer.as_ptr()).collect()
}

#[test]
fn each_batch_completes_once_with_its_own_bytes() {
    for way in WAYS {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(6 * OBJECTS as usize);
        let mut session = client.session();
        let (mut under_way, mut at) = (BTreeMap::new(), BTreeMap::new());
        for n in 0..6 {
            let taken = taken(&mut buffers);
            let places = addresses(&taken);
            let ticket = session.submit_put(puts(n, taken), Options::default());
            at.insert(ticket, places);
            assert!(under_way.insert(ticket, n).is_none(), "tickets differ");
        }
        while let Some((ticket, done)) = session.wait_any(WAIT_MAX) {
            let (outcomes, back) = was_put(Some(done));
            assert!(under_way.remove(&ticket).is_some(), "{way:?}: a ticket comes once");
            assert_eq!(outcomes, all(Ok(PutOutcome::Stored)), "{way:?}");
            assert_eq!(addresses(&back), at[&ticket], "{way:?}: another's buffers");
            buffers.extend(back);
        }
        assert!(under_way.is_empty(), "{way:?}: {under_way:?}");
        // Gets and puts together: present, absent, and already present objects. The last batch is
        // waited for first.
        let mut submit = |n| session.submit_get(gets(n, taken(&mut buffers)), Options::default());
        let got: Vec<Ticket> = [4, 0, 99, 2].map(&mut submit).into();
        let again = session.submit_put(puts(1, taken(&mut buffers)), Options::default());
        let new = session.submit_put(puts(50, taken(&mut buffers)), Options::default());
        assert_eq!(was_put(session.wait(new, WAIT_MAX)).0, all(Ok(PutOutcome::Stored)), "{way:?}");
        assert!(session.wait(new, WAIT_MAX).is_none(), "handed out already");
        assert_eq!(was_got(2, session.wait(got[3], WAIT_MAX)).0, all(hit()), "{way:?}");
        let mut seen = BTreeMap::new();
        while seen.len() < 4 {
            if let Some((ticket, done)) = session.poll() {
                assert!(seen.insert(ticket, done).is_none(), "{way:?}: a ticket comes once");
            }
        }
        assert_eq!(was_put(seen.remove(&again)).0, all(Ok(PutOutcome::AlreadyPresent)), "{way:?}");
        let absent = Ok(GetOutcome::Miss(MissCause::Absent));
        for (ticket, n, outcome) in [(got[0], 4, hit()), (got[1], 0, hit()), (got[2], 99, absent)] {
            assert_eq!(was_got(n, seen.remove(&ticket)).0, all(outcome), "{way:?} n={n}");
        }
        assert!(
            session.wait_any(WAIT_MAX).is_none() && session.poll().is_none(),
            "nothing is under way"
        );
        drop(session);
        let links = process.links.load(Ordering::Relaxed);
        assert_eq!(client.ping(Options::default()), Ok(()));
        assert_eq!(
            process.links.load(Ordering::Relaxed),
            links,
            "{way:?}: the link is there for the next call"
        );
    }
}

/// Batches lost with a connection are all repeated once over the next one.
#[test]
fn requests_lost_with_a_connection_go_to_the_next_server() {
    for way in WAYS {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(7 * OBJECTS as usize);
        let mut session = client.session();
        let first = session.submit_put(puts(0, taken(&mut buffers)), Options::default());
        let (outcomes, back) = was_put(session.wait(first, WAIT_MAX));
        assert_eq!(outcomes, all(Ok(PutOutcome::Stored)), "{way:?}");
        buffers.extend(back);
        process.set_answering(false);
        let mut get = |n| session.submit_get(gets(n, taken(&mut buffers)), Options::default());
        let lost: Vec<Ticket> = (0..5).map(&mut get).collect();
        let put = session.submit_put(puts(6, taken(&mut buffers)), Options::default());
        assert!(session.poll().is_none(), "the server does not answer");
        let (way, address) = process.end();
        let _process = Process::at(way, &address, 2);
        for (n, ticket) in (0..).zip(lost) {
            let (outcomes, _) = was_got(n, session.wait(ticket, WAIT_MAX));
            assert_eq!(outcomes, all(Ok(GetOutcome::Miss(MissCause::Absent))), "{way:?} n={n}");
        }
        assert_eq!(was_put(session.wait(put, WAIT_MAX)).0, all(Ok(PutOutcome::Stored)), "{way:?}");
        let error = client.flush(Options::default()).expect_err("the first batch is gone");
        assert!(error.message.contains("the store process was restarted"), "{way:?}: {error}");
        let get = session.submit_get(gets(6, taken(&mut buffers)), Options::default());
        assert_eq!(was_got(6, session.wait(get, WAIT_MAX)).0, all(hit()), "{way:?}");
    }
}

#[test]
fn dead_server_fails_each_batch_and_returns_its_memory() {
    for way in WAYS {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(4 * OBJECTS as usize);
        let mut session = client.session();
        process.set_answering(false);
        let got =
            [0, 1].map(|n| session.submit_get(gets(n, taken(&mut buffers)), Options::default()));
        let put =
            [2, 3].map(|n| session.submit_put(puts(n, taken(&mut buffers)), Options::default()));
        process.end();
        let unavailable = |error: &pagelith::Error| error.kind == ErrorKind::Unavailable;
        for (n, ticket) in (0..).zip(got) {
            let (outcomes, back) = was_got(n, session.wait(ticket, WAIT_MAX));
            assert!(
                outcomes.iter().all(|o| o.as_ref().is_err_and(unavailable)),
                "{way:?} {outcomes:?}"
            );
            buffers.extend(back);
        }
        for ticket in put {
            let (outcomes, back) = was_put(session.wait(ticket, WAIT_MAX));
            assert!(
                outcomes.iter().all(|o| o.as_ref().is_err_and(unavailable)),
                "{way:?} {outcomes:?}"
            );
            buffers.extend(back);
        }
        assert_eq!(buffers.len() as u64, 4 * OBJECTS);
    }
}

/// Memory is something else's as soon as a batch is over, also one whose time is up while the store
/// copies: none of that is ever here under the keys of the batch.
#[test]
fn memory_reused_after_a_put_does_not_change_the_stored_bytes() {
    for way in WAYS {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(2 * OBJECTS as usize);
        let mut session = client.session();
        let mut stored = 0;
        for n in 0..200 {
            // Some have all the time that they need, on a busy machine too.
            let timeout = if n % 50 == 49 { WAIT_MAX } else { Duration::from_micros(n % 50 * 20) };
            let options = Options::default().timeout(timeout);
            let ticket = session.submit_put(puts(n, taken(&mut buffers)), options);
            let (outcomes, mut back) = was_put(session.wait(ticket, WAIT_MAX));
            back.iter_mut().for_each(|buffer| buffer.fill(0xc3));
            stored += outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            let ticket = session.submit_get(gets(n, taken(&mut buffers)), Options::default());
            let (found, more) = was_got(n, session.wait(ticket, WAIT_MAX));
            for (put, got) in outcomes.iter().zip(found) {
                let hit = got.as_ref().is_ok_and(GetOutcome::is_hit);
                assert!(put.is_err() || hit, "{way:?} n={n}: {put:?}, and then {got:?}");
            }
            buffers.extend(back.into_iter().chain(more));
        }
        assert!(stored > 0, "{way:?}: nothing was in time");
    }
}

/// Each batch has its own deadline, independent of the number in flight.
#[test]
fn batch_past_its_deadline_is_late_and_others_continue() {
    for way in WAYS {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(7 * OBJECTS as usize);
        let mut session = client.session();
        // A connection takes time too.
        let first = session.submit_get(gets(0, taken(&mut buffers)), Options::default());
        buffers.extend(was_got(0, session.wait(first, WAIT_MAX)).1);
        process.set_answering(false);
        let soon = Options::default().timeout(Duration::from_millis(20));
        // More than it takes for a store to be let alone, were each of them a failure of the link.
        let late: Vec<Ticket> =
            (0..5).map(|n| session.submit_get(gets(n, taken(&mut buffers)), soon)).collect();
        let put = session.submit_put(puts(5, taken(&mut buffers)), soon);
        let patient = session.submit_get(gets(6, taken(&mut buffers)), Options::default());
        assert!(session.wait(patient, Duration::ZERO).is_none(), "the server does not answer");
        for (n, ticket) in (0..).zip(late) {
            let (outcomes, back) = was_got(n, session.wait(ticket, WAIT_MAX));
            assert_eq!(outcomes, all(Ok(GetOutcome::Miss(MissCause::Late))), "{way:?} n={n}");
            buffers.extend(back);
        }
        let (outcomes, back) = was_put(session.wait(put, WAIT_MAX));
        assert!(outcomes.iter().all(Result::is_err), "{way:?} {outcomes:?}");
        buffers.extend(back);
        // The memory of an expired batch belongs to the caller again, whatever the store does with
        // the request.
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xcc));
        process.set_answering(true);
        let absent = Ok(GetOutcome::Miss(MissCause::Absent));
        assert_eq!(was_got(6, session.wait(patient, WAIT_MAX)).0, all(absent), "{way:?}");
        let put = session.submit_put(puts(5, taken(&mut buffers)), Options::default());
        assert!(was_put(session.wait(put, WAIT_MAX)).0.iter().all(Result::is_ok), "{way:?}");
        assert!(
            buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == 0xcc)),
            "{way:?}: written to"
        );
    }
}

/// A store that is too slow for its clients keeps being used, however many earlier requests
/// expired: a connection carries at most 256 requests, and requests beyond that wait until their
/// deadline as well.
#[test]
fn connection_full_of_late_batches_recovers() {
    for way in WAYS {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(OBJECTS as usize);
        let mut session = client.session();
        let mut put = |session: &mut pagelith::client::Session, n, options| {
            let ticket = session.submit_put(puts(n, taken(&mut buffers)), options);
            let (outcomes, back) = was_put(session.wait(ticket, WAIT_MAX));
            buffers.extend(back);
            outcomes
        };
        assert_eq!(
            put(&mut session, 0, Options::default()),
            all(Ok(PutOutcome::Stored)),
            "{way:?}"
        );
        process.set_answering(false);
        let soon = Options::default().timeout(Duration::from_micros(100));
        for _ in 0..300 {
            assert!(
                put(&mut session, 1, soon).iter().all(Result::is_err),
                "{way:?}: the server does not answer"
            );
        }
        process.set_answering(true);
        assert_eq!(
            put(&mut session, 2, Options::default()),
            all(Ok(PutOutcome::Stored)),
            "{way:?}"
        );
    }
}

/// After a session is dropped, no other party uses its memory, whether the store answers or not,
/// and the connection works as before.
#[test]
fn dropped_session_releases_caller_memory() {
    for (way, hears) in WAYS.iter().flat_map(|way| [(*way, false), (*way, true)]) {
        let (address, _dir) = place(way);
        let process = Process::at(way, &address, 1);
        let (client, mut buffers) = process.client(5 * OBJECTS as usize);
        let mut session = client.session();
        let put = session.submit_put(puts(0, taken(&mut buffers)), Options::default());
        assert_eq!(was_put(session.wait(put, WAIT_MAX)).0, all(Ok(PutOutcome::Stored)), "{way:?}");
        process.set_answering(hears);
        let guard = Arc::new(());
        let mut targets = vec![vec![0xee_u8; LEN]; 3 * OBJECTS as usize];
        for targets in targets.chunks_mut(OBJECTS as usize) {
            let get = |(page, target): (u64, &mut Vec<u8>)| {
                let pieces = [(NonNull::from(&mut target[..]).cast(), LEN)];
                // SAFETY: they live longer than the session, and nothing looks at them before it is
                // dropped.
                let destination = unsafe { Destination::borrowed(&pieces, Some(guard.clone())) };
                Get { key: key(page), range: None, destination }
            };
            session.submit_get(pages(0).zip(targets).map(get).collect(), Options::default());
        }
        let bytes: Arc<[u8]> = content(77).into();
        for page in 70..74 {
            let put = Put { key: key(page), source: Source::shared(bytes.clone()) };
            session.submit_put(vec![PutGroup::new(vec![put])], Options::default());
        }
        assert!(hears || Arc::strong_count(&guard) > 1 && Arc::strong_count(&bytes) > 1);
        drop(session);
        assert_eq!(
            (Arc::strong_count(&guard), Arc::strong_count(&bytes)),
            (1, 1),
            "{way:?} hears={hears}"
        );
        targets.iter_mut().for_each(|target| target.fill(0xcc));
        process.set_answering(true);
        let links = process.links.load(Ordering::Relaxed);
        let mut session = client.session();
        let get = session.submit_get(gets(0, taken(&mut buffers)), Options::default());
        assert_eq!(was_got(0, session.wait(get, WAIT_MAX)).0, all(hit()), "{way:?} hears={hears}");
        assert_eq!(process.links.load(Ordering::Relaxed), links, "{way:?}: it is made anew");
        assert!(
            targets.iter().flatten().all(|byte| *byte == 0xcc),
            "{way:?} hears={hears}: written to"
        );
    }
}

/// A connection exports the memory that was shared when it was made: later memory is exported over
/// later connections only.
#[test]
fn memory_shared_during_a_session_is_exported_over_later_connections() {
    let (address, _dir) = place(Transport::SharedArena);
    let process = Process::at(Transport::SharedArena, &address, 1);
    let (client, _) = process.client(1);
    let mut session = client.session();
    let put = |session: &mut pagelith::client::Session, n, buffers| {
        let ticket = session.submit_put(puts(n, buffers), Options::default());
        was_put(session.wait(ticket, WAIT_MAX))
    };
    let (buffers, region): (Vec<AlignedBuf>, Arc<SharedRegion>) =
        AlignedBuf::shown(OBJECTS as usize, LEN).expect("memory");
    let (outcomes, buffers) = put(&mut session, 1, buffers);
    assert_eq!(outcomes, all(Ok(PutOutcome::Stored)));
    let links = process.links.load(Ordering::Relaxed);
    client.share(region).expect("shared");
    drop(session);
    let (outcomes, _) = put(&mut client.session(), 2, buffers);
    assert_eq!(outcomes, all(Ok(PutOutcome::Stored)));
    assert_eq!(process.links.load(Ordering::Relaxed), links + 1, "one that knows of it");
}
