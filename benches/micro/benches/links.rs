//! What a link costs: the same gets, puts and look-ups embedded, through shared memory, over a Unix socket without it and
//! over TCP, of a store of DRAM alone; client and server are two threads of one process. Gets and puts also with four batches in flight
//! from one thread, embedded and shown: a time is that of one batch then.
//!
//! `cargo bench -p pagelith-micro --bench links`. Beside them stands what TCP allows: a thread that sends as many bytes for
//! each byte that asks for them, and one that receives them into the same buffers, and checksums them. Gets from SSD are of a store below the
//! system's directory for temporary files (`TMPDIR`), through shared memory: staged by the server, and read by the client.
#![allow(missing_docs, reason = "criterion's macros")]
#![allow(clippy::disallowed_methods, reason = "threads are what is measured, by the real clock")]

mod common;

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pagelith::attach::Attached;
use pagelith::io::shm::Region;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::serve::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Offer;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::handshake::Admission;
use pagelith::transport::limits::Limits;
use pagelith::transport::rights::Rights;
use pagelith::transport::shown::Shows;
use pagelith::transport::socket::{Arrival, Listen, Listener};
use pagelith::{
    AlignedBuf, Config, Destination, Done, Facts, Get, GetSlice, Options, Put, PutGroup, PutSlice, Session,
    Size, Source, Store, attach,
};

use common::{keys, mix};

/// Objects of a get or put.
const BATCH: usize = 32;
/// Batches in flight from one thread.
const DEPTH: usize = 4;
/// Bytes of objects that gets choose from.
const DATA: usize = 256 << 20;
const WAIT: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(30);

fn store() -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(2 * DATA as u64);
    config.dram.shared = true;
    config.index.max_objects = Some(65_536);
    let config = config.validate(&Facts::of_this_machine().expect("facts")).expect("room for half a GiB");
    Store::open(config).expect("a store")
}

/// A store as its user sees it.
enum Side<'a> {
    Embedded(&'a Store),
    Attached(Box<Attached>),
}

impl Side<'_> {
    fn get(&self, keys: &[ObjectKey], buffers: &mut [AlignedBuf]) {
        let mut pieces: Vec<[&mut [u8]; 1]> = buffers.iter_mut().map(|b| [&mut b[..]]).collect();
        let mut gets: Vec<_> = keys
            .iter()
            .zip(&mut pieces)
            .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
            .collect();
        let outcomes = match self {
            Side::Embedded(store) => store.get_batch(&mut gets, Options::default()),
            Side::Attached(store) => store.get_batch(&mut gets, Options::default()),
        };
        assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(pagelith::GetOutcome::is_hit)));
    }

    fn put(&self, keys: &[ObjectKey], buffers: &[AlignedBuf]) {
        let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [&buffer[..]]).collect();
        let puts: Vec<_> =
            keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
        let outcomes = match self {
            Side::Embedded(store) => store.put_batch(&puts, Options::default()),
            Side::Attached(store) => store.put_batch(&puts, Options::default()),
        };
        let failed = outcomes.iter().find(|outcome| outcome.is_err());
        assert!(failed.is_none(), "{failed:?}");
    }

    fn exists(&self, keys: &[ObjectKey]) -> bool {
        match self {
            Side::Embedded(store) => store.exists_batch(keys, Options::default())[0],
            Side::Attached(store) => store.exists_batch(keys, Options::default()).expect("an answer")[0],
        }
    }
}

/// A thread's way in, with several batches in flight.
enum Way<'a> {
    Embedded(Box<Session>),
    Attached(attach::Session<'a>),
}

/// Batches in flight, and buffers for as many.
struct Flights<'a> {
    way: Way<'a>,
    idle: Vec<Vec<AlignedBuf>>,
}

impl<'a> Flights<'a> {
    fn new(side: &'a Side<'_>, buffers: &mut Vec<AlignedBuf>) -> Flights<'a> {
        let way = match side {
            Side::Embedded(store) => Way::Embedded(Box::new(store.session().expect("a session"))),
            Side::Attached(store) => Way::Attached(store.session()),
        };
        let mut idle: Vec<Vec<AlignedBuf>> = (0..DEPTH).map(|_| Vec::new()).collect();
        idle.iter_mut().for_each(|idle| *idle = buffers.split_off(buffers.len() - BATCH));
        Flights { way, idle }
    }

    /// Buffers that are not in use: those of whichever batch is done first, if all are.
    fn buffers(&mut self) -> Vec<AlignedBuf> {
        if let Some(buffers) = self.idle.pop() {
            return buffers;
        }
        let done = match &mut self.way {
            Way::Embedded(session) => session.wait_any(PATIENCE),
            Way::Attached(session) => session.wait_any(PATIENCE),
        };
        match done.expect("done").1 {
            Done::Get(done) => done
                .into_iter()
                .map(|done| {
                    assert!(done.outcome.is_ok_and(|outcome| outcome.is_hit()));
                    done.destination.into_buffer().expect("its buffer")
                })
                .collect(),
            Done::Put(done) => done
                .into_iter()
                .map(|done| {
                    assert!(done.outcome.is_ok());
                    done.source.into_buffer().expect("its buffer")
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn get(&mut self, keys: &[ObjectKey]) {
        let get = |(key, buffer): (&ObjectKey, AlignedBuf)| Get {
            key: *key,
            range: None,
            destination: Destination::owned(buffer),
        };
        let gets = keys.iter().zip(self.buffers()).map(get).collect();
        match &mut self.way {
            Way::Embedded(session) => session.submit_get(gets, Options::default()),
            Way::Attached(session) => session.submit_get(gets, Options::default()),
        };
    }

    fn put(&mut self, keys: &[ObjectKey]) {
        let put = |(key, buffer): (&ObjectKey, AlignedBuf)| {
            PutGroup::new(vec![Put { key: *key, source: Source::owned(buffer) }])
        };
        let groups = keys.iter().zip(self.buffers()).map(put).collect();
        match &mut self.way {
            Way::Embedded(session) => session.submit_put(groups, Options::default()),
            Way::Attached(session) => session.submit_put(groups, Options::default()),
        };
    }

    /// All buffers, once nothing is in flight.
    fn land(mut self) -> Vec<AlignedBuf> {
        (0..DEPTH).flat_map(|_| self.buffers()).collect()
    }
}

/// What a client and the server have in common beside the bytes on their way.
#[derive(Clone, Copy, PartialEq)]
enum Shares {
    Nothing,
    /// The rings that the bytes go through.
    Rings,
    /// The arena and the staging memory too.
    Arena,
    /// And the files that segments lie in.
    Files,
}

/// Serve `store` at `address` until told to stop, and attach to it.
fn attach<'s, 'e>(
    scope: &'s std::thread::Scope<'s, 'e>,
    store: &'e Store,
    (address, shares): (Address, Shares),
    memory: &Arc<Region>,
    stop: &'e AtomicBool,
) -> Box<Attached> {
    let clock = Arc::new(SystemClock::new());
    let entropy = Arc::new(SystemEntropy);
    let offer = |who| match Offer::of_this_build([who; 16]) {
        offer if shares == Shares::Nothing => offer.without(Feature::SharedMemory),
        offer => offer,
    };
    let listen = Listen { address, admission: Admission::Connection(Rights::all()), beyond_this_host: false };
    let mut listener =
        Listener::new(&listen, offer(1), entropy.clone(), clock.clone(), Limits::default()).expect("listens");
    let (staging, staging_memory) = StagingPool::shared(256 << 20).expect("memory");
    if matches!(shares, Shares::Arena | Shares::Files) {
        listener = listener.showing(store.shared_memory().into_iter().chain([staging_memory]).collect());
    }
    if shares == Shares::Files {
        listener = listener.lending(store.shared_files());
    }
    let address = listener.address().clone();
    scope.spawn(move || {
        let mut arrivals = Vec::new();
        // One client at a time, which comes again when its link was idle for too long.
        while !stop.load(Ordering::Relaxed) {
            listener.wait(&mut arrivals, WAIT);
            for arrival in arrivals.drain(..) {
                let Arrival::Link(link) = arrival else { panic!("refused") };
                let mut server = Server::new(store, link, staging.clone()).expect("serves");
                while server.closed().is_none() && !stop.load(Ordering::Relaxed) {
                    server.wait(WAIT);
                }
            }
        }
    });
    let limits = Limits::default();
    let shows = Shows::default();
    if matches!(shares, Shares::Arena | Shares::Files) {
        assert!(shows.add(memory.clone()));
    }
    let dial =
        SocketDial { address, offer: offer(2), key: None, entropy, clock: clock.clone(), limits, shows };
    Box::new(Attached::attach(Arc::new(dial), clock, Duration::from_secs(30)).expect("attached"))
}

/// A client that asks with a byte and receives so many objects, checksummed where they land.
fn bare_get(stream: &mut TcpStream, buffers: &mut [AlignedBuf]) {
    stream.write_all(&[1]).expect("asked");
    for buffer in buffers {
        stream.read_exact(buffer).expect("received");
        for block in buffer.chunks(BLOCK_BYTES as usize) {
            black_box(checksum(block));
        }
    }
}

fn bare_server(listener: TcpListener, object_bytes: usize) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    stream.set_nodelay(true).expect("set");
    let objects = DATA / object_bytes;
    let mut far = AlignedBuf::many(objects, object_bytes).expect("memory");
    far.iter_mut().for_each(|object| object.fill(1));
    let (mut asked, mut turn) = ([0], 0u64);
    while stream.read_exact(&mut asked).is_ok() {
        for i in 0..BATCH as u64 {
            turn += 1;
            if stream.write_all(&far[(mix(turn + i) % objects as u64) as usize]).is_err() {
                return;
            }
        }
    }
}

fn links(c: &mut Criterion) {
    let dir = std::env::temp_dir().join(format!("pagelith-links-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    let unix = |name: &str| Address::Unix(dir.join(name));
    let tcp = || "tcp:127.0.0.1:0".parse().expect("an address");
    for object_bytes in [64 << 10, 1 << 20] {
        let (store, stop) = (store(), AtomicBool::new(false));
        let (mut buffers, memory) = AlignedBuf::shown((1 + DEPTH) * BATCH, object_bytes).expect("memory");
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let mut in_flight = buffers.split_off(BATCH);
        std::thread::scope(|scope| {
            let sides = [
                ("embedded", Side::Embedded(&store)),
                (
                    "shown",
                    Side::Attached(attach(scope, &store, (unix("shown"), Shares::Arena), &memory, &stop)),
                ),
                (
                    "shared memory",
                    Side::Attached(attach(scope, &store, (unix("shared"), Shares::Rings), &memory, &stop)),
                ),
                (
                    "unix socket",
                    Side::Attached(attach(scope, &store, (unix("socket"), Shares::Nothing), &memory, &stop)),
                ),
                ("tcp", Side::Attached(attach(scope, &store, (tcp(), Shares::Nothing), &memory, &stop))),
            ];
            let objects = (DATA / object_bytes) as u64;
            for batch in keys(0..objects).chunks(BATCH) {
                sides[0].1.put(batch, &buffers[..batch.len()]);
            }
            let asked = keys((0..objects * 4).map(|i| mix(i) % objects));
            let batch = |turn: u64| &asked[(mix(turn) as usize % (asked.len() / BATCH)) * BATCH..][..BATCH];

            let mut group = c.benchmark_group(format!("get {BATCH} of {} KiB", object_bytes >> 10));
            group.throughput(Throughput::Bytes((BATCH * object_bytes) as u64));
            for (name, side) in &sides {
                let mut turn = 0;
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        turn += 1;
                        side.get(batch(turn), &mut buffers);
                    });
                });
            }
            for (name, side) in &sides[..2] {
                let (mut turn, mut flights) = (0, Flights::new(side, &mut in_flight));
                group.bench_function(
                    BenchmarkId::from_parameter(format!("{name}, {DEPTH} in flight")),
                    |b| {
                        b.iter(|| {
                            turn += 1;
                            flights.get(batch(turn));
                        });
                    },
                );
                in_flight = flights.land();
            }
            let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
            let address = listener.local_addr().expect("an address");
            let bare = scope.spawn(move || bare_server(listener, object_bytes));
            let mut stream = TcpStream::connect(address).expect("connected");
            stream.set_nodelay(true).expect("set");
            group.bench_function(BenchmarkId::from_parameter("limit: bare tcp and checksum"), |b| {
                b.iter(|| bare_get(&mut stream, &mut buffers));
            });
            drop(stream);
            bare.join().expect("no panic");
            group.finish();

            let mut group = c.benchmark_group(format!("put {BATCH} of {} KiB", object_bytes >> 10));
            group.throughput(Throughput::Bytes((BATCH * object_bytes) as u64));
            let next = AtomicU64::new(1 << 40);
            for (name, side) in &sides {
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                        side.put(&keys(first..first + BATCH as u64), &buffers);
                    });
                });
            }
            for (name, side) in &sides[..2] {
                let mut flights = Flights::new(side, &mut in_flight);
                group.bench_function(
                    BenchmarkId::from_parameter(format!("{name}, {DEPTH} in flight")),
                    |b| {
                        b.iter(|| {
                            let first = next.fetch_add(BATCH as u64, Ordering::Relaxed);
                            flights.put(&keys(first..first + BATCH as u64));
                        });
                    },
                );
                in_flight = flights.land();
            }
            group.finish();

            let mut group = c.benchmark_group(format!("exists of 1, objects of {} KiB", object_bytes >> 10));
            for (name, side) in &sides {
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| side.exists(&asked[..1]))
                });
            }
            group.finish();
            stop.store(true, Ordering::Relaxed);
        });
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// Gets of what is on SSD alone: nothing is kept in DRAM.
fn from_ssd(c: &mut Criterion) {
    let dir = std::env::temp_dir().join(format!("pagelith-links-ssd-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a directory");
    for object_bytes in [64 << 10, 1 << 20] {
        let mut config = Config::default();
        config.dram.bytes = Size::ZERO;
        config.dram.shared = true;
        config.dram.promote = pagelith::config::Promote::Never;
        config.ssd.bytes = Size::from_bytes(8 * DATA as u64);
        config.ssd.dirs = vec![dir.join(object_bytes.to_string())];
        config.ssd.shared = true;
        let config = config.validate(&Facts::of_this_machine().expect("facts")).expect("room");
        let (store, stop) = (Store::open(config).expect("a store"), AtomicBool::new(false));
        let (mut buffers, memory) = AlignedBuf::shown(BATCH, object_bytes).expect("memory");
        let mut huge = AlignedBuf::many(BATCH, object_bytes).expect("memory");
        buffers.iter_mut().for_each(|buffer| buffer.fill(1));
        let objects = (4 * DATA / object_bytes) as u64;
        for batch in keys(0..objects).chunks(BATCH) {
            Side::Embedded(&store).put(batch, &buffers[..batch.len()]);
        }
        store.flush(Options::default()).expect("flushed");
        std::thread::scope(|scope| {
            let side = |name, shares| {
                Side::Attached(attach(scope, &store, (Address::Unix(dir.join(name)), shares), &memory, &stop))
            };
            let sides = [
                ("embedded", Side::Embedded(&store)),
                ("read by the client", side("files", Shares::Files)),
                ("staged and shown", side("arena", Shares::Arena)),
            ];
            let mut group = c.benchmark_group(format!("get {BATCH} of {} KiB from ssd", object_bytes >> 10));
            group.throughput(Throughput::Bytes((BATCH * object_bytes) as u64));
            for (name, side) in &sides {
                let mut turn = 0;
                group.bench_function(BenchmarkId::from_parameter(name), |b| {
                    b.iter(|| {
                        turn += BATCH as u64;
                        side.get(&keys((turn..turn + BATCH as u64).map(|i| mix(i) % objects)), &mut huge);
                    });
                });
            }
            group.finish();
            stop.store(true, Ordering::Relaxed);
        });
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}

criterion_group!(benches, links, from_ssd);
criterion_main!(benches);
