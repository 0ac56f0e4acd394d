//! The store under test: embedded, or over a link to a server that takes the place of another
//! process.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::clock::Clock;
use pagelith::io::runtime::{Join, Runtime, Step, Task};
use pagelith::io::staging::StagingPool;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::ids::{Generation, NamespaceId};
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::wire::LinkRole;
use pagelith::server::{Server, Serving};
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::{Dial, DialProgress, Dialing, SocketDial};
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link::Link;
use pagelith::transport::link_error::LinkError;
use pagelith::transport::rdma::host::RdmaHost;
use pagelith::transport::rdma::rdma_use::RdmaUse;
use pagelith::{
    ErrorKind, Events, FlushReport, GetOutcome, GetSlice, Hint, Options, PageGroup, PagePin,
    PageStore, PagesFound, PagesQuery, Put, PutGroup, PutOutcome, PutSlice, RequestEpoch, Result,
    Size, Source,
};
use pagelith_sim::clock::SimClock;
use pagelith_sim::link::SimNet;
use tempfile::TempDir;

use super::device::BoundDevice;
use super::fake_device;
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
    (
        "bases::state_of_a_base_that_a_limit_refused_is_not_written",
        "a server may write the first base before it stores the second",
    ),
    (
        "tenants::one_put_passes_over_a_bounded_number_of_requested_pages",
        "a server puts as the store does",
    ),
    ("hits::superseded_state", "over a link, lookups cannot distinguish the states"),
    ("headers::headers_are_read_once_and_cached", "the server reads into its own memory"),
    ("hits::session_answers_queries_at_once", "sessions are a thread's of the store's process"),
    ("failing_device::second_failed_sync_turns_tier_off_until_a_probe_succeeds", SYNCS),
    ("failing_device::lost_tombstone_write_is_detected", SYNCS),
    ("failing_segments::group_written_while_an_off_tier_is_purged_is_whole_or_gone", SYNCS),
];

/// Staging memory of a server: the least, since each store of a behaviour registers it.
const STAGING: Size = Size::mib(8);

/// Memory of a client through which it copies to and from a device: that of an embedded store.
const DEVICE_STAGING: usize = 8 << 20;

/// A store. The calls of [`PageStore`] go over the link, if there is one; the rest (views,
/// sessions, counters) goes to the store itself.
pub struct Store {
    client: Option<Client>,
    serving: Option<ServedBy>,
    store: pagelith::Store,
    /// Gets and puts use its memory.
    device: Option<BoundDevice>,
}

/// A group that was begun.
pub struct Group {
    group: Box<dyn PageGroup>,
    is_remote: bool,
}

impl Group {
    pub fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        // As of `Store::put_batch`.
        let options = match options.timeout == Some(Duration::ZERO) && self.is_remote {
            true => options.timeout(None).wait(Duration::ZERO),
            false => options,
        };
        self.group.put(objects, options)
    }

    pub fn missing(&self) -> Vec<ObjectKey> {
        self.group.missing(Options::default()).expect("the store answers")
    }

    pub fn commit(&self, options: Options) -> Result<PutOutcome> {
        self.group.commit(options)
    }

    pub fn abort(self) {
        self.group.abort().expect("the store answers");
    }
}

/// The server of a store.
enum ServedBy {
    Threads(Listening),
    Tasks(Arc<SimDial>),
}

/// A store that is served at a socket.
struct Listening {
    serving: Option<Serving>,
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
        let ended = self.serving.take().map(Serving::end);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "{ended:?}");
        self.hosts.iter().for_each(rdma::count);
    }
}

impl Store {
    pub fn embedded(store: pagelith::Store) -> Store {
        Store { client: None, serving: None, store, device: None }
    }

    /// Over a socket: TCP, or with shared memory.
    pub fn socket(store: pagelith::Store, timeout: Duration, between: Transport) -> Store {
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
        let (entropy, limits) = (Arc::new(SystemEntropy), LinkLimits::default());
        let is_shared = store.shared_memory().is_some();
        assert_eq!(is_shared, matches!(between, Transport::SharedArena));
        let serving = Serving::builder(&store, address).staging(STAGING);
        let hosts = (between == Transport::Rdma).then(rdma::hosts);
        let serving = match &hosts {
            Some([host, _]) => {
                store.register_rdma(host).expect("registered");
                serving.rdma(host.clone())
            }
            None => serving,
        };
        let serving = serving.start().expect("listens");
        let (address, offer) = (serving.address().clone(), Capabilities::of_this_build([2; 16]));
        let rdma = hosts.as_ref().map_or(RdmaUse::Off, |[_, host]| RdmaUse::Demanded(host.clone()));
        let dial =
            SocketDial { limits, entropy, rdma, ..SocketDial::new(address, None, offer, clock) };
        let client = Client::over(dial, timeout).expect("attached");
        let client = client.with_device_staging(DEVICE_STAGING);
        begin_listening(&client);
        let serving = ServedBy::Threads(Listening { serving: Some(serving), hosts, _dir: dir });
        Store { client: Some(client), serving: Some(serving), store, device: None }
    }

    /// Over the simulated link.
    pub fn sim(
        store: pagelith::Store,
        timeout: Duration,
        clock: SimClock,
        runtime: Arc<dyn Runtime>,
    ) -> Store {
        let staging = StagingPool::new(STAGING.bytes() as usize).expect("memory");
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
        let client = client.with_runtime(own).with_device_staging(DEVICE_STAGING);
        begin_listening(&client);
        Store { client: Some(client), serving: Some(ServedBy::Tasks(dial)), store, device: None }
    }

    /// Let gets and puts use memory of a device.
    pub fn over_device(mut self, fake: Arc<fake_device::Fake>) -> Store {
        self.device = Some(BoundDevice::new(fake, self.pages()));
        self
    }

    /// End the connections, and return the store.
    fn detach(mut self) -> pagelith::Store {
        drop(self.client.take());
        match self.serving.take() {
            Some(ServedBy::Threads(listening)) => drop(listening),
            Some(ServedBy::Tasks(dial)) => dial.join(),
            None => {}
        }
        self.store.clone()
    }

    pub fn close(self) -> Result<FlushReport> {
        self.detach().close()
    }

    pub fn abandon(self) {
        self.detach().abandon();
    }

    /// The store as behaviours use it: behind the link, if there is one.
    fn pages(&self) -> &dyn PageStore {
        match &self.client {
            Some(client) => client,
            None => &self.store,
        }
    }

    pub fn begin_request(&self) -> RequestEpoch {
        self.pages().begin_request()
    }

    pub fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        if let Some(device) = &self.device {
            let groups: Vec<_> = objects.chunks(1).map(|object| (None, object)).collect();
            return device.put(self.pages(), &groups, &[], options);
        }
        let _registered = self.client.as_ref().map(|client| rdma::register_puts(client, objects));
        match &self.client {
            // Over a link no call completes in no time: the timeout stands for not waiting for
            // room.
            Some(client) if options.timeout == Some(Duration::ZERO) => {
                let put = |put: &PutSlice<'_>| {
                    let source = Source::shared(put.pieces.concat().into());
                    PutGroup::new(vec![Put { key: put.key, source }])
                };
                let options = options.timeout(None);
                let done = client.put(objects.iter().map(put).collect(), options);
                done.into_iter().map(|done| done.outcome).collect()
            }
            Some(_) | None => self.pages().put_batch(objects, options),
        }
    }

    pub fn put_groups(
        &self,
        groups: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        if let Some(device) = &self.device {
            let groups: Vec<_> = groups.iter().map(|group| (None, *group)).collect();
            return device.put(self.pages(), &groups, &[], options);
        }
        let register = |client| -> Vec<_> {
            groups.iter().map(|group| rdma::register_puts(client, group)).collect()
        };
        let _registered = self.client.as_ref().map(register);
        self.pages().put_groups(groups, options)
    }

    pub fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        if let Some(device) = &self.device {
            let groups: Vec<_> = groups.iter().map(|(base, group)| (Some(*base), *group)).collect();
            return device.put(self.pages(), &groups, &[], options);
        }
        self.pages().put_attached(groups, options)
    }

    pub fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        if let Some(device) = &self.device
            && !required.is_empty()
        {
            let parts: Vec<_> = parts.iter().map(|part| (None, *part)).collect();
            return device.put(self.pages(), &parts, required, options);
        }
        self.pages().put_parts(required, parts, options)
    }

    pub fn get_batch(
        &self,
        gets: &mut [GetSlice<'_, '_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        if let Some(device) = &self.device {
            return device.get(self.pages(), gets, options);
        }
        let _registered = self.client.as_ref().map(|client| rdma::register_gets(client, gets));
        self.pages().get_batch(gets, options)
    }

    pub fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Vec<bool> {
        self.pages().exists_batch(keys, options).expect("the store answers")
    }

    pub fn take_events(&self, most: usize) -> Events {
        match self.pages().take_events(most, Options::default()) {
            Err(error) if error.kind == ErrorKind::Incompatible => Events::default(),
            events => events.expect("the store answers"),
        }
    }

    pub fn prefetch(&self, keys: &[ObjectKey], options: Options) -> usize {
        self.pages().prefetch(keys, options).expect("the store answers")
    }

    pub fn hint(&self, keys: &[ObjectKey], hint: Hint) -> Result<usize> {
        self.pages().hint(keys, hint, Options::default())
    }

    pub fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> usize {
        self.pages().exists_prefix(keys, options).expect("the store answers")
    }

    pub fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        self.pages().exists_groups(query, options)
    }

    pub fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        self.pages().remove(keys, options)
    }

    pub fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        self.pages().clear(namespace, options)
    }

    pub fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Group> {
        let group = self.pages().begin_group(required, options)?;
        Ok(Group { group, is_remote: self.client.is_some() })
    }

    pub fn pin(&self, keys: &[ObjectKey]) -> Box<dyn PagePin> {
        match self.pages().pin(keys, Options::default()) {
            // More of so small a store than a client may.
            Err(error) if error.kind == ErrorKind::Busy => Box::new(self.store.pin(keys)),
            pin => pin.expect("the store answers"),
        }
    }

    pub fn lease(&self, keys: &[ObjectKey], duration: Duration) -> usize {
        match self.pages().lease(keys, duration, Options::default()) {
            Err(error) if error.kind == ErrorKind::Busy => self.store.lease(keys, duration),
            leased => leased.expect("the store answers"),
        }
    }

    pub fn flush(&self, options: Options) -> Result<FlushReport> {
        self.pages().flush(options)
    }

    /// The client of a store reached over a link.
    pub fn client(&self) -> &Client {
        self.client.as_ref().expect("a store reached over a link")
    }

    /// The address of a server that listens on a socket.
    pub fn address(&self) -> &Address {
        match &self.serving {
            Some(ServedBy::Threads(Listening { serving: Some(serving), .. })) => serving.address(),
            Some(_) | None => panic!("no socket"),
        }
    }

    /// The devices of a server and of its client.
    pub fn devices(&self) -> &[Arc<RdmaHost>; 2] {
        match &self.serving {
            Some(ServedBy::Threads(Listening { hosts: Some(hosts), .. })) => hosts,
            _ => panic!("no RDMA"),
        }
    }

    /// The store itself, for calls that need its process.
    pub fn own(&self) -> &pagelith::Store {
        &self.store
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

/// Each link is a network of its own, and its server a task of the simulated machine.
struct SimDial {
    store: pagelith::Store,
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
