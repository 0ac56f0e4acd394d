//! The store under test: embedded, or over a link to a server that takes the place of another
//! process.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pagelith::client::{self, Client};
use pagelith::io::clock::Clock;
use pagelith::io::runtime::{Join, Runtime, Step, Task};
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::io::verbs::RemoteAccess;
use pagelith::layouts::ids::{Generation, NamespaceId};
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::wire::LinkRole;
use pagelith::server::Server;
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::{Dial, DialProgress, Dialing, SocketDial};
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link::Link;
use pagelith::transport::link_error::LinkError;
use pagelith::transport::rdma::host::RdmaHost;
use pagelith::transport::rdma::rdma_use::RdmaUse;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener};
use pagelith::{
    ErrorKind, Events, FlushReport, GetOutcome, GetSlice, Options, PagesFound, PagesQuery, Put,
    PutGroup, PutOutcome, PutSlice, RequestEpoch, Result, Source,
};
use pagelith_sim::clock::SimClock;
use pagelith_sim::link::SimNet;
use tempfile::TempDir;

use super::rdma;

/// The transport between a behaviour and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Nothing.
    Embedded,
    /// TCP over loopback.
    Tcp,
    /// RDMA, for registered memory, and TCP over loopback for the rest.
    Rdma,
    /// Memory that both sides share, with a Unix socket.
    SharedRings,
    /// The same, and the store shares its arena and staging memory.
    SharedArena,
    /// The simulated link, in a simulated machine.
    Sim,
}

const SYNCS: &str = "which sync fails is counted, and a link leaves the store time for one more";

/// Behaviours that test nothing over a link, with the reason: they run embedded only.
pub const EMBEDDED_ONLY: &[(&str, &str)] = &[
    ("batches_in_flight::", "a client's sessions are others: `attached_session.rs`"),
    ("deadlines::calls_with_zero_timeout_return_at_once", "over a link nothing happens in no time"),
    (
        "damage_after_crash::segment_quarantined_during",
        "a call over a link takes longer than a checkpoint",
    ),
    ("headers::headers_are_read_once_and_cached", "the server reads into its own memory"),
    ("hits::session_answers_queries_at_once", "sessions are a thread's of the store's process"),
    ("failing_device::second_failed_sync_turns_tier_off_until_a_probe_succeeds", SYNCS),
    ("failing_device::lost_tombstone_write_is_detected", SYNCS),
    ("failing_segments::group_written_while_an_off_tier_is_purged_is_whole_or_gone", SYNCS),
];

/// Staging memory of a server: the least, since each store of a behaviour registers it.
const STAGING: usize = 8 << 20;

/// A store. Calls that a client has go over the link, if there is one; the rest (views, sessions,
/// counters) goes to the store itself.
pub struct Store {
    client: Option<Client>,
    serving: Option<Serving>,
    store: Arc<pagelith::Store>,
}

/// A group that was begun.
pub enum Group<'a> {
    Own(pagelith::Group<'a>),
    Attached(client::Group<'a>),
}

impl Group<'_> {
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        match self {
            Group::Own(group) => group.put(objects, options),
            // As of `Store::put_batch`.
            Group::Attached(group) if options.timeout == Some(Duration::ZERO) => {
                group.put(objects, Options { timeout: None, wait: Some(Duration::ZERO), ..options })
            }
            Group::Attached(group) => group.put(objects, options),
        }
    }

    pub fn missing(&self) -> Vec<ObjectKey> {
        match self {
            Group::Own(group) => group.missing(),
            Group::Attached(group) => group.missing(Options::default()).expect("the store answers"),
        }
    }

    pub fn commit(&self, options: Options) -> Result<PutOutcome> {
        match self {
            Group::Own(group) => group.commit(options),
            Group::Attached(group) => group.commit(options),
        }
    }

    pub fn abort(self) {
        match self {
            Group::Own(group) => group.abort(),
            Group::Attached(group) => group.abort().expect("the store answers"),
        }
    }
}

/// A pin.
pub enum Pin {
    Own(pagelith::Pin),
    Attached(client::Pin),
}

impl Pin {
    pub fn pinned(&self) -> usize {
        match self {
            Pin::Own(pin) => pin.pinned(),
            Pin::Attached(pin) => pin.pinned(),
        }
    }

    pub fn is_held(&self) -> bool {
        match self {
            Pin::Own(_) => true,
            Pin::Attached(pin) => pin.is_held(),
        }
    }
}

/// The server of a store.
enum Serving {
    Threads(Listening),
    Tasks(Arc<SimDial>),
}

/// A thread that accepts and serves connections; dropping it ends the thread.
struct Listening {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    address: Address,
    /// The devices of the server and of the client.
    hosts: Option<[Arc<RdmaHost>; 2]>,
    _dir: TempDir,
}

/// Each behaviour ends with it: every absence has one cause.
impl Drop for Store {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let stats = self.store.stats();
            let absent = stats.misses.get("absent").copied().unwrap_or(0);
            assert_eq!(stats.absent.values().sum::<u64>(), absent, "{stats:?}");
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the server panicked");
        self.hosts.iter().for_each(rdma::count);
    }
}

impl Store {
    pub fn embedded(store: pagelith::Store) -> Store {
        Store { client: None, serving: None, store: Arc::new(store) }
    }

    /// Over a socket: TCP, or with shared memory.
    pub fn socket(store: pagelith::Store, timeout: Duration, between: Transport) -> Store {
        let store = Arc::new(store);
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let dir = tempfile::tempdir().expect("a directory");
        let address = match between {
            Transport::SharedRings | Transport::SharedArena => {
                Address::Unix(dir.path().join("socket"))
            }
            Transport::Tcp | Transport::Rdma | Transport::Sim | Transport::Embedded => {
                "tcp:127.0.0.1:0".parse().expect("an address")
            }
        };
        let admission = ClientAuth::Connection(Rights::all());
        let listen = ListenConfig { address, admission, allow_remote: false };
        let (entropy, limits) = (Arc::new(SystemEntropy), LinkLimits::default());
        let offer = |instance| Capabilities::of_this_build([instance; 16]);
        let (staging, memory) = StagingPool::shared(STAGING).expect("memory");
        let regions = store.shared_memory().map(|arena| vec![arena, memory]);
        assert_eq!(regions.is_some(), matches!(between, Transport::SharedArena));
        let listener = Listener::new(&listen, offer(1), entropy.clone(), clock.clone(), limits)
            .expect("listens")
            .with_shared_regions(regions.unwrap_or_default());
        let hosts = (between == Transport::Rdma).then(rdma::hosts);
        let listener = match &hosts {
            Some([host, _]) => {
                store.register_rdma(host).expect("registered");
                host.register(Arc::new(staging.clone()), RemoteAccess::NONE).expect("registered");
                listener.with_rdma(host.clone())
            }
            None => listener,
        };
        let address = listener.address().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = Some(listen_on(listener, store.clone(), staging, stop.clone()));
        let rdma = hosts.as_ref().map_or(RdmaUse::Off, |[_, host]| RdmaUse::Demanded(host.clone()));
        let dial = SocketDial {
            limits,
            entropy,
            rdma,
            ..SocketDial::new(address.clone(), None, offer(2), clock)
        };
        let client = Client::over(dial, timeout).expect("attached");
        begin_listening(&client);
        let serving = Serving::Threads(Listening { stop, thread, address, hosts, _dir: dir });
        Store { client: Some(client), serving: Some(serving), store }
    }

    /// Over the simulated link.
    pub fn sim(
        store: pagelith::Store,
        timeout: Duration,
        clock: SimClock,
        runtime: Arc<dyn Runtime>,
    ) -> Store {
        let store = Arc::new(store);
        let staging = StagingPool::new(STAGING).expect("memory");
        let (links, tasks) = (std::sync::Mutex::new(0), std::sync::Mutex::new(Vec::new()));
        let own = runtime.clone();
        let dial = Arc::new(SimDial {
            store: store.clone(),
            clock: clock.clone(),
            runtime,
            staging,
            links,
            tasks,
        });
        let client = Client::attach(dial.clone(), Arc::new(clock), timeout).expect("attached");
        let client = client.with_runtime(own);
        begin_listening(&client);
        Store { client: Some(client), serving: Some(Serving::Tasks(dial)), store }
    }

    /// End the connections, and return the store.
    fn detach(mut self) -> pagelith::Store {
        drop(self.client.take());
        match self.serving.take() {
            Some(Serving::Threads(listening)) => drop(listening),
            Some(Serving::Tasks(dial)) => dial.join(),
            None => {}
        }
        let store = self.store.clone();
        drop(self);
        Arc::try_unwrap(store).unwrap_or_else(|_| panic!("a reference to the store still exists"))
    }

    pub fn close(self) -> Result<FlushReport> {
        self.detach().close()
    }

    pub fn abandon(self) {
        self.detach().abandon();
    }

    pub fn begin_request(&self) -> RequestEpoch {
        self.client.as_ref().map_or_else(|| self.store.begin_request(), Client::begin_request)
    }

    pub fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        match &self.client {
            // Over a link no call completes in no time: the timeout stands for not waiting for
            // room.
            Some(client) if options.timeout == Some(Duration::ZERO) => {
                let put = |put: &PutSlice<'_>| {
                    let source = Source::shared(put.pieces.concat().into());
                    PutGroup::new(vec![Put { key: put.key, source }])
                };
                let options = Options { timeout: None, ..options };
                let done = client.put(objects.iter().map(put).collect(), options);
                done.into_iter().map(|done| done.outcome).collect()
            }
            Some(client) => {
                let _registered = rdma::register_puts(client, objects);
                client.put_batch(objects, options)
            }
            None => self.store.put_batch(objects, options),
        }
    }

    pub fn put_groups(
        &self,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        match &self.client {
            Some(client) => {
                let _registered: Vec<_> =
                    groups.iter().map(|group| rdma::register_puts(client, group)).collect();
                client.put_groups(groups, options)
            }
            None => self.store.put_groups(groups, options),
        }
    }

    pub fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        match &self.client {
            Some(client) => client.put_attached(groups, options),
            None => self.store.put_attached(groups, options),
        }
    }

    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        match &self.client {
            Some(client) => client.put_parts(required, parts, options),
            None => self.store.put_parts(required, parts, options),
        }
    }

    pub fn get_batch(
        &self,
        gets: &mut [GetSlice<'_, '_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        match &self.client {
            Some(client) => {
                let _registered = rdma::register_gets(client, gets);
                client.get_batch(gets, options)
            }
            None => self.store.get_batch(gets, options),
        }
    }

    pub fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Vec<bool> {
        match &self.client {
            Some(client) => client.exists_batch(keys, options).expect("the store answers"),
            None => self.store.exists_batch(keys, options),
        }
    }

    pub fn take_events(&self, most: usize) -> Events {
        match &self.client {
            Some(client) => match client.take_events(most, Options::default()) {
                Err(error) if error.kind == ErrorKind::Incompatible => Events::default(),
                events => events.expect("the store answers"),
            },
            None => self.store.take_events(most),
        }
    }

    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> usize {
        match &self.client {
            Some(client) => client.prefetch(keys, options).expect("the store answers"),
            None => self.store.prefetch(keys, options),
        }
    }

    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> usize {
        match &self.client {
            Some(client) => client.exists_prefix(keys, options).expect("the store answers"),
            None => self.store.exists_prefix(keys, options),
        }
    }

    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        match &self.client {
            Some(client) => client.exists_groups(query, options),
            None => self.store.exists_groups(query, options),
        }
    }

    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        match &self.client {
            Some(client) => client.remove(keys, options),
            None => self.store.remove(keys, options),
        }
    }

    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        match &self.client {
            Some(client) => client.clear(namespace, options),
            None => self.store.clear(namespace, options),
        }
    }

    /// The client of a store reached over a link.
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("a store reached over a link")
    }

    /// The address of a server that listens on a socket.
    pub fn address(&self) -> &Address {
        match &self.serving {
            Some(Serving::Threads(listening)) => &listening.address,
            Some(Serving::Tasks(_)) | None => panic!("no socket"),
        }
    }

    /// The devices of a server and of its client.
    pub fn devices(&self) -> &[Arc<RdmaHost>; 2] {
        match &self.serving {
            Some(Serving::Threads(Listening { hosts: Some(hosts), .. })) => hosts,
            _ => panic!("no RDMA"),
        }
    }

    /// The store itself, for calls that need its process.
    pub fn own(&self) -> &pagelith::Store {
        &self.store
    }

    pub fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Group<'_>> {
        match &self.client {
            Some(client) => client.begin_group(required, options).map(Group::Attached),
            None => self.store.begin_group(required, options).map(Group::Own),
        }
    }

    pub fn pin(&self, keys: &[ObjectKey]) -> Pin {
        match &self.client {
            Some(client) => match client.pin(keys, Options::default()) {
                // More of so small a store than a client may.
                Err(error) if error.kind == ErrorKind::Busy => Pin::Own(self.store.pin(keys)),
                pin => Pin::Attached(pin.expect("the store answers")),
            },
            None => Pin::Own(self.store.pin(keys)),
        }
    }

    pub fn lease(&self, keys: &[ObjectKey], duration: Duration) -> usize {
        match &self.client {
            Some(client) => match client.lease(keys, duration, Options::default()) {
                Err(error) if error.kind == ErrorKind::Busy => self.store.lease(keys, duration),
                leased => leased.expect("the store answers"),
            },
            None => self.store.lease(keys, duration),
        }
    }

    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        match &self.client {
            Some(client) => client.flush(options),
            None => self.store.flush(options),
        }
    }
}

/// Request events once, so that they are recorded from now on, if at all.
fn begin_listening(client: &Client) {
    let begun = client.take_events(1, Options::default());
    assert!(begun.map_or_else(
        |error| error.kind == ErrorKind::Incompatible,
        |taken| taken.events.is_empty()
    ));
}

impl Deref for Store {
    type Target = pagelith::Store;
    fn deref(&self) -> &pagelith::Store {
        &self.store
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.store.fmt(f)
    }
}

fn listen_on(
    mut listener: Listener,
    store: Arc<pagelith::Store>,
    staging: StagingPool,
    stop: Arc<AtomicBool>,
) -> JoinHandle<()> {
    const WAIT: Duration = Duration::from_millis(10);
    std::thread::spawn(move || {
        std::thread::scope(|scope| {
            let mut arrivals = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                listener.wait(&mut arrivals, WAIT);
                for arrival in arrivals.drain(..) {
                    let AdmissionResult::Link(link) = arrival else { panic!("refused") };
                    let (store, stop, staging) = (&store, &stop, staging.clone());
                    scope.spawn(move || {
                        let mut server = Server::new(store, link, staging).expect("serves");
                        while server.closed().is_none() && !stop.load(Ordering::Relaxed) {
                            server.wait(WAIT);
                        }
                    });
                }
            }
        });
    })
}

/// Each link is a network of its own, and its server a task of the simulated machine.
struct SimDial {
    store: Arc<pagelith::Store>,
    clock: SimClock,
    runtime: Arc<dyn Runtime>,
    staging: StagingPool,
    links: std::sync::Mutex<u64>,
    tasks: std::sync::Mutex<Vec<Box<dyn Join>>>,
}

impl SimDial {
    fn join(&self) {
        for task in self.tasks.lock().expect("no panic").drain(..) {
            assert!(task.join(Duration::from_secs(60)), "a server outlives its connection");
        }
    }
}

impl Dial for SimDial {
    fn begin(&self) -> std::result::Result<Box<dyn Dialing>, LinkError> {
        let mut links = self.links.lock().expect("no panic");
        *links += 1;
        let (net, client, server) =
            SimNet::new(*links, self.clock.clone(), &self.runtime, LinkLimits::default());
        let server =
            Server::new(&self.store, Box::new(server), self.staging.clone()).expect("serves");
        let wake = net.signal(LinkRole::Server);
        let task =
            self.runtime.spawn("server", Box::new(Serve(server, net)), wake).expect("a task");
        self.tasks.lock().expect("no panic").push(task);
        Ok(Box::new(Made(Box::new(client))))
    }
}

struct Serve(Server, SimNet);

impl Task for Serve {
    fn step(&mut self) -> Step {
        let Serve(server, net) = self;
        match (server.poll(), server.closed()) {
            (_, Some(_)) => Step::Done,
            (true, None) => Step::Again,
            (false, None) if server.ops() > 0 => Step::Idle(Duration::from_micros(20)),
            // Idle until a packet arrives: minutes of simulated time are not worth millions of
            // steps.
            (false, None) => {
                Step::Idle(net.due(LinkRole::Server).unwrap_or(Duration::from_secs(1)))
            }
        }
    }
}

struct Made(Box<dyn Link>);

impl Dialing for Made {
    fn poll(self: Box<Self>) -> DialProgress {
        DialProgress::Ready(self.0)
    }

    fn wait(self: Box<Self>, _timeout: Duration) -> DialProgress {
        self.poll()
    }
}
