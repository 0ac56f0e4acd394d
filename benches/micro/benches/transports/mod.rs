//! One store, used embedded and by clients over links; its server is a thread of this process.
#![allow(dead_code, reason = "one bench needs less of it than the other")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::shm::SharedRegion;
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::wire::greeting::Feature;
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::rights::Rights;
use pagelith::transport::shown::SharedRegions;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{
    AlignedBuf, CompletedBatch, Config, Destination, Get, GetSlice, MachineLimits, Options,
    PageSession, PageStore, Put, PutGroup, PutSlice, Size, Source, Store,
};

/// Objects per get or put.
pub const BATCH: usize = 32;
/// Batches in flight from one thread.
pub const DEPTH: usize = 4;
/// Bytes of the objects that gets choose from.
pub const DATA: usize = 256 << 20;
const WAIT: Duration = Duration::from_millis(10);
const TIME_LIMIT: Duration = Duration::from_secs(30);

pub fn store() -> Store {
    let mut config = Config::default();
    config.dram.bytes = Size::from_bytes(2 * DATA as u64);
    config.dram.shared = true;
    config.index.max_objects = Some(65_536);
    let config = config
        .validate(&MachineLimits::of_this_machine().expect("facts"))
        .expect("room for half a GiB");
    Store::open(config).expect("a store")
}

/// A store, embedded or attached over a link.
pub enum StoreUnderTest<'a> {
    Embedded(&'a Store),
    Attached(Box<Client>),
}

impl StoreUnderTest<'_> {
    fn pages(&self) -> &dyn PageStore {
        match self {
            StoreUnderTest::Embedded(store) => *store,
            StoreUnderTest::Attached(store) => &**store,
        }
    }

    pub fn get(&self, keys: &[ObjectKey], buffers: &mut [AlignedBuf]) {
        let mut pieces: Vec<[&mut [u8]; 1]> = buffers.iter_mut().map(|b| [&mut b[..]]).collect();
        let mut gets: Vec<_> = keys
            .iter()
            .zip(&mut pieces)
            .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
            .collect();
        let outcomes = self.pages().get_batch(&mut gets, Options::default());
        assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(pagelith::GetOutcome::is_hit)));
    }

    pub fn put<B: std::ops::Deref<Target = [u8]>>(&self, keys: &[ObjectKey], buffers: &[B]) {
        let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [&buffer[..]]).collect();
        let puts: Vec<_> =
            keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
        let outcomes = self.pages().put_batch(&puts, Options::default());
        let failed = outcomes.iter().find(|outcome| outcome.is_err());
        assert!(failed.is_none(), "{failed:?}");
    }

    pub fn exists(&self, keys: &[ObjectKey]) -> bool {
        self.pages().exists_batch(keys, Options::default()).expect("an answer")[0]
    }
}

/// Batches in flight, and buffers for as many.
pub struct InFlightBatches {
    session: Box<dyn PageSession>,
    idle: Vec<Vec<AlignedBuf>>,
}

impl InFlightBatches {
    pub fn new(side: &StoreUnderTest<'_>, buffers: &mut Vec<AlignedBuf>) -> InFlightBatches {
        let session = side.pages().session().expect("a session");
        let mut idle: Vec<Vec<AlignedBuf>> = (0..DEPTH).map(|_| Vec::new()).collect();
        idle.iter_mut().for_each(|idle| *idle = buffers.split_off(buffers.len() - BATCH));
        InFlightBatches { session, idle }
    }

    /// Unused buffers; if there are none, those of the first batch that completes.
    fn buffers(&mut self) -> Vec<AlignedBuf> {
        if let Some(buffers) = self.idle.pop() {
            return buffers;
        }
        match self.session.wait_any(TIME_LIMIT).expect("done").1 {
            CompletedBatch::Get(done) => done
                .into_iter()
                .map(|done| {
                    assert!(done.outcome.is_ok_and(|outcome| outcome.is_hit()));
                    done.destination.into_buffer().expect("its buffer")
                })
                .collect(),
            CompletedBatch::Put(done) => done
                .into_iter()
                .map(|done| {
                    assert!(done.outcome.is_ok());
                    done.source.into_buffer().expect("its buffer")
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    pub fn get(&mut self, keys: &[ObjectKey]) {
        let get = |(key, buffer): (&ObjectKey, AlignedBuf)| Get {
            key: *key,
            range: None,
            destination: Destination::owned(buffer),
        };
        let gets = keys.iter().zip(self.buffers()).map(get).collect();
        self.session.submit_get(gets, Options::default());
    }

    pub fn put(&mut self, keys: &[ObjectKey]) {
        let put = |(key, buffer): (&ObjectKey, AlignedBuf)| {
            PutGroup::new(vec![Put { key: *key, source: Source::owned(buffer) }])
        };
        let groups = keys.iter().zip(self.buffers()).map(put).collect();
        self.session.submit_put(groups, Options::default());
    }

    /// All buffers, once nothing is in flight.
    pub fn land(mut self) -> Vec<AlignedBuf> {
        (0..DEPTH).flat_map(|_| self.buffers()).collect()
    }
}

/// Memory that a client and the server share.
#[derive(Clone, Copy, PartialEq)]
pub enum SharedMemoryUse {
    Nothing,
    /// The rings that the bytes go through.
    Rings,
    /// The arena and the staging memory too.
    Arena,
}

impl SharedMemoryUse {
    fn has_arena(self) -> bool {
        !matches!(self, SharedMemoryUse::Nothing | SharedMemoryUse::Rings)
    }
}

/// Serves `store` at `address` until `stop` is set, and attaches a client to it.
pub fn attach<'s, 'e>(
    scope: &'s std::thread::Scope<'s, 'e>,
    store: &'e Store,
    (address, shares): (Address, SharedMemoryUse),
    memory: &Arc<SharedRegion>,
    stop: &'e AtomicBool,
) -> Box<Client> {
    let clock = Arc::new(SystemClock::new());
    let entropy = Arc::new(SystemEntropy);
    let offer = |instance| match Capabilities::of_this_build([instance; 16]) {
        offer if shares == SharedMemoryUse::Nothing => offer.without(Feature::SharedMemory),
        offer => offer,
    };
    let listen = ListenConfig {
        address,
        admission: ClientAuth::Connection(Rights::all()),
        allow_remote: false,
    };
    let mut listener =
        Listener::new(&listen, offer(1), entropy.clone(), clock.clone(), LinkLimits::default())
            .expect("listens");
    let (staging, staging_memory) = StagingPool::shared(256 << 20).expect("memory");
    // As `pagelith serve` does.
    staging_memory.prefault().expect("memory");
    if shares.has_arena() {
        listener = listener.with_shared_regions(
            store.shared_memory().into_iter().chain([staging_memory]).collect(),
        );
    }
    let address = listener.address().clone();
    scope.spawn(move || {
        let mut arrivals = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            listener.wait(&mut arrivals, WAIT);
            for arrival in arrivals.drain(..) {
                let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                let staging = staging.clone();
                // One thread per link, as in `pagelith serve`.
                scope.spawn(move || {
                    let mut server = Server::new(store, link, staging).expect("serves");
                    while server.closed().is_none() && !stop.load(Ordering::Relaxed) {
                        server.wait(WAIT);
                    }
                });
            }
        }
    });
    let limits = LinkLimits::default();
    let shared_regions = SharedRegions::default();
    if shares.has_arena() {
        assert!(shared_regions.add(memory.clone()));
    }
    let dial = SocketDial {
        entropy,
        limits,
        shared_regions,
        ..SocketDial::new(address, None, offer(2), clock.clone())
    };
    Box::new(Client::attach(Arc::new(dial), clock, Duration::from_secs(30)).expect("attached"))
}
