//! Machines with one store each, and the links to them, which break and are made again.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith::rpc::Peer;
use pagelith::server::Server;
use pagelith::transport::dial::{Dial, DialProgress, Dialing};
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::link::Link;
use pagelith::transport::link_error::LinkError;
use pagelith::transport::shown::LinkRegions;
use pagelith::{MachineLimits, Options, Store};
use pagelith_io::runtime::{Env, Runtime, Step, Task};
use pagelith_io::shm::{PeerMemory, SharedRegion};
use pagelith_io::staging::StagingPool;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::wire::LinkRole;
use pagelith_layouts::wire::greeting::Feature;

use crate::clock::SimClock;
use crate::disk::{CrashMode, SimDisk};
use crate::entropy::{SimEntropy, SplitMix64};
use crate::explore::setup::Setup;
use crate::link::{
    LinkFaults, NetStats, PlantedBug, RdmaFaults, RegisteredRegion, SimLink, SimNet,
};
use crate::runtime::SimRuntime;

/// Staging bytes of a machine for transfers to and from the disk.
const STAGING: usize = 8 << 20;
/// Longest sleep of an idle server. Less than any time limit, so that it notices each.
const SLEEP: Duration = Duration::from_millis(5);
/// Sleep of a busy server: completions of its disk raise no signal.
const BUSY: Duration = Duration::from_micros(20);
/// One of this many links between stores is slow, so that some peers learn of a removal long before
/// others, and requests arrive over other links meanwhile. `SLOW` is the delay of a slow link.
const SLOW_ONE_IN: u64 = 4;
const SLOW: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(4)];
/// After this much silence a peer counts as dead: short, so that runs reach it.
pub const DEAD_AFTER: Duration = Duration::from_millis(200);

/// A machine that serves its store while it is up.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<Inner>>);

struct Inner {
    clock: SimClock,
    runtime: SimRuntime,
    entropy: Arc<SimEntropy>,
    questions: Arc<AtomicU64>,
    rng: SplitMix64,
    faults: LinkFaults,
    rdma_faults: RdmaFaults,
    plant: PlantedBug,
    /// Its links lack the feature `Holds`.
    without_holds: bool,
    setup: Setup,
    /// Peers of its store.
    peers: Vec<Peer>,
    disk: SimDisk,
    staging: StagingPool,
    /// Staging memory shared with processes on its host.
    transfer: Arc<SharedRegion>,
    /// The process, while it runs.
    up: Option<RunningProcess>,
    opening: bool,
    nets: Vec<SimNet>,
    dialled: u64,
    net_stats: NetStats,
    trace: u64,
}

/// A running process.
#[derive(Clone)]
struct RunningProcess {
    process: SimRuntime,
    store: Arc<Store>,
    /// Memory shared with processes on its host; empty if the store does not share.
    memory: Vec<(Arc<SharedRegion>, Arc<PeerMemory>)>,
}

/// State shared by all machines of a run.
pub struct RunContext {
    pub clock: SimClock,
    pub runtime: SimRuntime,
    pub entropy: Arc<SimEntropy>,
    /// Requests that stores have sent to their peers.
    pub questions: Arc<AtomicU64>,
}

impl Machine {
    /// A machine that is not up yet. Its links have `faults`.
    pub fn new(ctx: &RunContext, setup: Setup, faults: LinkFaults, seed: u64) -> Machine {
        let mut rng = SplitMix64::new(seed);
        let disk = SimDisk::new(ctx.clock.clone(), setup.dirs, rng.next_u64());
        disk.set_latency(Duration::from_micros(setup.latency_us));
        let (staging, transfer) = StagingPool::shared(STAGING).expect("memory");
        Machine(Arc::new(Mutex::new(Inner {
            clock: ctx.clock.clone(),
            runtime: ctx.runtime.clone(),
            entropy: ctx.entropy.clone(),
            questions: ctx.questions.clone(),
            rng,
            faults,
            rdma_faults: RdmaFaults::default(),
            plant: PlantedBug::None,
            without_holds: false,
            setup,
            peers: Vec::new(),
            disk,
            staging,
            transfer,
            up: None,
            opening: false,
            nets: Vec::new(),
            dialled: 0,
            net_stats: NetStats::default(),
            trace: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links made from now on lack the feature `Holds`, as those of an older build.
    pub fn without_holds(&self) {
        self.lock().without_holds = true;
    }

    /// Sets the store's peers, from its next start on.
    pub fn set_peers(&self, peers: Vec<Peer>) {
        self.lock().peers = peers;
    }

    /// Sets the delays of one-sided transfers on its links.
    pub fn set_rdma_faults(&self, faults: RdmaFaults) {
        self.lock().rdma_faults = faults;
    }

    /// The memory of its process that one-sided transfers may use: staging memory, and the arena
    /// while it shares it.
    fn regions(&self) -> Vec<RegisteredRegion> {
        let inner = self.lock();
        let arena = inner.up.as_ref().and_then(|up| up.store.shared_memory());
        let all = std::iter::once(inner.transfer.clone()).chain(arena);
        all.map(|region| RegisteredRegion::new(region, u64::MAX)).collect()
    }

    /// Plants a bug in its links.
    pub fn plant(&self, plant: PlantedBug) {
        self.lock().plant = plant;
    }

    /// Whether its store shares its memory with processes on its host.
    pub fn shares_memory(&self) -> bool {
        self.lock().setup.shared
    }

    /// Whether its process runs.
    pub fn is_up(&self) -> bool {
        self.lock().up.is_some()
    }

    /// Starts its process, unless it runs or is starting.
    ///
    /// # Panics
    /// If the store does not open: the disk of this machine has no faults except crashes.
    pub fn start(&self) {
        let (env, process, setup, peers) = {
            let mut inner = self.lock();
            if inner.up.is_some() || inner.opening {
                return;
            }
            inner.opening = true;
            let process = inner.runtime.fresh();
            let env = Env {
                disk: Some(inner.disk.connect()),
                clock: Arc::new(inner.clock.clone()),
                entropy: inner.entropy.clone(),
                runtime: Arc::new(process.clone()),
            };
            (env, process, inner.setup.clone(), inner.peers.clone())
        };
        // Other tasks run meanwhile, so not under the lock.
        let store = Store::open_in_with_peers(setup.config(), env, peers)
            .expect("opens on a device without faults");
        let mut inner = self.lock();
        inner.opening = false;
        let transfer = store.shared_memory().map(|_| inner.transfer.clone());
        let memory = store.shared_memory().into_iter().chain(transfer).map(with_view).collect();
        inner.up = Some(RunningProcess { process, store: Arc::new(store), memory });
    }

    /// Ends its process, as a power cut or `kill -9` would; false if none runs.
    pub fn kill(&self) -> bool {
        let RunningProcess { process, store, .. } = {
            let mut inner = self.lock();
            let Some(up) = inner.up.take() else { return false };
            let mode = [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Random]
                [inner.rng.below(3) as usize];
            let seed = inner.rng.next_u64();
            inner.disk.crash(mode, seed);
            up
        };
        self.lock().nets.iter().for_each(SimNet::crash_server);
        process.kill();
        // The machine is down, and with it its ends of the links.
        self.lock().nets.iter().for_each(SimNet::cut);
        drop(store);
        true
    }

    /// Breaks, deafens or partitions one of the open links.
    pub fn strike(&self, rng: &mut SplitMix64) {
        let mut inner = self.lock();
        inner.drop_finished_links();
        if inner.nets.is_empty() {
            return;
        }
        let net = &inner.nets[rng.below(inner.nets.len() as u64) as usize];
        let side = if rng.one_in(2) { LinkRole::Client } else { LinkRole::Server };
        match rng.below(4) {
            0 => net.cut(),
            1 => net.stop_receiving(side),
            2 => net.partition(Duration::from_micros(rng.below(2 * DEAD_AFTER.as_micros() as u64))),
            _ => net.partition(Duration::from_micros(rng.below(20_000))),
        }
    }

    /// Breaks all links.
    pub fn cut_all(&self) {
        self.lock().nets.iter().for_each(SimNet::cut);
    }

    /// Whether its store keeps nothing for any client, once all links have ended, and no queue pair
    /// is up.
    pub fn holds_nothing(&self) -> bool {
        if self.lock().nets.iter().any(SimNet::holds_queue_pairs) {
            return false;
        }
        let store = self.lock().up.as_ref().map(|up| up.store.clone());
        store.is_none_or(|store| store.stats().readers == 0)
    }

    /// Clears these namespaces, so that no object stays in its store's memory.
    pub fn clear(&self, namespaces: impl Iterator<Item = NamespaceId>) {
        let store = self.lock().up.as_ref().map(|up| up.store.clone());
        if let Some(store) = store {
            // Objects are invisible at once, even if the rest fails.
            namespaces.for_each(|namespace| drop(store.clear(namespace, Options::default())));
        }
    }

    /// Whether its arena is empty; true if it is not up.
    pub fn is_empty(&self) -> bool {
        let store = self.lock().up.as_ref().map(|up| up.store.clone());
        store.is_none_or(|store| store.stats().dram_bytes == 0)
    }

    /// Links made so far.
    pub fn dialled(&self) -> u64 {
        self.lock().dialled
    }

    /// The counters of packets so far, and a hash of all packets.
    pub fn net_stats(&self) -> (NetStats, u64) {
        let inner = self.lock();
        let all = inner.nets.iter().fold(inner.net_stats, |sum, net| sum.and(net.net_stats()));
        (all, inner.nets.iter().fold(inner.trace, |trace, net| trace.rotate_left(1) ^ net.trace()))
    }
}

impl Inner {
    /// The two ends of a new link of a client on `host`; the store shares `memory`.
    fn link(
        &mut self,
        host: ClientHost<'_>,
        memory: &[(Arc<SharedRegion>, Arc<PeerMemory>)],
    ) -> (SimNet, SimLink, SimLink) {
        let limits = LinkLimits { dead_after: DEAD_AFTER, ..LinkLimits::default() };
        let runtime: Arc<dyn Runtime> = Arc::new(self.runtime.clone());
        let (seed, clock) = (self.rng.next_u64(), self.clock.clone());
        let (net, client, server) = match &host {
            ClientHost::Rdma(memory) => {
                let least = [0, 0, 100, 4096][self.rng.below(4) as usize];
                let setup = (memory.clone(), least, self.rdma_faults);
                let made = SimNet::with_rdma(seed, clock, &runtime, limits, setup);
                made.0.set_faults(self.faults.of_stream());
                made
            }
            ClientHost::Other | ClientHost::Same(_) => {
                let made = SimNet::new(seed, clock, &runtime, limits);
                made.0.set_faults(self.faults);
                made
            }
        };
        let (client, server) = match host {
            ClientHost::Same(own) => {
                (client.sharing(regions(own, memory)), server.sharing(regions(memory, own)))
            }
            ClientHost::Other | ClientHost::Rdma(_) => (client, server),
        };
        match self.plant.is_of_server() {
            true => (net, client, server.with(self.plant)),
            false => (net, client.with(self.plant), server),
        }
    }

    /// Drops links that are over; keeps their counters.
    fn drop_finished_links(&mut self) {
        let (over, stand) = std::mem::take(&mut self.nets).into_iter().partition(SimNet::is_over);
        self.nets = stand;
        let over: Vec<SimNet> = over;
        for net in over {
            self.net_stats = self.net_stats.and(net.net_stats());
            self.trace = self.trace.rotate_left(1) ^ net.trace();
        }
    }
}

/// A region, and another process's view of it.
fn with_view(region: Arc<SharedRegion>) -> (Arc<SharedRegion>, Arc<PeerMemory>) {
    let fd = region.as_fd().try_clone_to_owned().expect("a descriptor");
    (region, Arc::new(PeerMemory::of(fd).expect("memory")))
}

impl Dial for Machine {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.connect(ClientHost::Other)
    }
}

/// Where a client is.
enum ClientHost<'a> {
    /// The client is on another host.
    Other,
    /// The client is on the machine, and shares this memory.
    Same(&'a [(Arc<SharedRegion>, Arc<PeerMemory>)]),
    /// The client is on another host that has RDMA, and has registered this memory.
    Rdma(Vec<RegisteredRegion>),
}

/// A process on another host that has RDMA.
pub struct RdmaProcess {
    pub machine: Machine,
    pub memory: Vec<RegisteredRegion>,
}

impl Dial for RdmaProcess {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.machine.connect(ClientHost::Rdma(self.memory.clone()))
    }
}

/// A machine, as dialled over RDMA by a store whose peer it is: a machine's, or one of which the
/// memory is given. One link in four is on the stream alone.
pub struct RdmaPeerDial {
    pub peer: PeerDial,
    pub owner: Option<Machine>,
    pub memory: Vec<RegisteredRegion>,
}

impl Dial for RdmaPeerDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        let PeerDial(machine) = &self.peer;
        if machine.lock().rng.one_in(4) {
            return self.peer.begin();
        }
        let mut memory = self.memory.clone();
        memory.extend(self.owner.iter().flat_map(Machine::regions));
        self.peer.dial(ClientHost::Rdma(memory))
    }
}

/// A machine, as dialled by stores whose peer it is.
pub struct PeerDial(pub Machine);

impl Dial for PeerDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.dial(ClientHost::Other)
    }
}

impl PeerDial {
    fn dial(&self, host: ClientHost<'_>) -> Result<Box<dyn Dialing>, LinkError> {
        let PeerDial(machine) = self;
        let is_stream = matches!(host, ClientHost::Rdma(_));
        let made = machine.connect(host)?;
        let mut inner = machine.lock();
        let is_slow = inner.faults != LinkFaults::default() && inner.rng.one_in(SLOW_ONE_IN);
        if let Some(net) = inner.nets.last() {
            net.count_requests(inner.questions.clone());
            if is_slow {
                let [delay_min, delay_max] = SLOW;
                let faults = LinkFaults { delay_min, delay_max, ..inner.faults };
                net.set_faults(if is_stream { faults.of_stream() } else { faults });
            }
        }
        drop(inner);
        Ok(made)
    }
}

/// A process on a machine's host: it reads the store's memory and shares its own
/// memory.
pub struct LocalProcess {
    machine: Machine,
    memory: Vec<(Arc<SharedRegion>, Arc<PeerMemory>)>,
}

impl LocalProcess {
    /// A process with this memory.
    pub fn new(machine: &Machine, memory: Vec<Arc<SharedRegion>>) -> LocalProcess {
        LocalProcess {
            machine: machine.clone(),
            memory: memory.into_iter().map(with_view).collect(),
        }
    }
}

impl Dial for LocalProcess {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        self.machine.connect(ClientHost::Same(&self.memory))
    }
}

/// The regions of one side: its own and the other's.
fn regions(
    own: &[(Arc<SharedRegion>, Arc<PeerMemory>)],
    theirs: &[(Arc<SharedRegion>, Arc<PeerMemory>)],
) -> LinkRegions {
    let own = own.iter().map(|(region, _)| region.clone()).collect();
    let theirs = theirs.iter().map(|(_, view)| view.clone()).collect();
    LinkRegions { own, theirs }
}

impl Machine {
    /// Makes a link of a client on `host`.
    fn connect(&self, host: ClientHost<'_>) -> Result<Box<dyn Dialing>, LinkError> {
        let mut inner = self.lock();
        let Some(RunningProcess { process, store, memory }) = inner.up.clone() else {
            return Err(LinkError::Disconnected);
        };
        inner.dialled += 1;
        let (net, mut client, mut server) = inner.link(host, &memory);
        if inner.without_holds {
            (client, server) = (client.without(Feature::Holds), server.without(Feature::Holds));
        }
        let server = Server::new(&store, Box::new(server), inner.staging.clone());
        let serve = Serve(server.map_err(|_| LinkError::Disconnected)?, net.clone());
        let spawned = process.spawn("server", Box::new(serve), net.signal(LinkRole::Server));
        spawned.map_err(|_| LinkError::Disconnected)?;
        inner.nets.push(net);
        Ok(Box::new(ReadyDial(Box::new(client))))
    }
}

/// A server on its end of a link.
struct Serve(Server, SimNet);

impl Task for Serve {
    fn step(&mut self) -> Step {
        let Serve(server, net) = self;
        match (server.poll(), server.closed()) {
            (_, Some(_)) => Step::Done,
            (true, None) => Step::Again,
            (false, None) if server.ops() > 0 => Step::Idle(BUSY),
            (false, None) => {
                Step::Idle(net.due(LinkRole::Server).map_or(SLEEP, |due| due.min(SLEEP)))
            }
        }
    }
}

struct ReadyDial(Box<dyn Link>);

impl Dialing for ReadyDial {
    fn poll(self: Box<Self>) -> DialProgress {
        DialProgress::Ready(self.0)
    }

    fn wait(self: Box<Self>, _timeout: Duration) -> DialProgress {
        self.poll()
    }
}

/// The configuration of a store with peers: only a little DRAM, so that it requests much from them.
pub fn front(dram_kib: u32) -> pagelith::ValidConfig {
    let mut config = pagelith::Config::default();
    config.deadline_ms = 2000;
    config.namespaces_max = 8;
    config.dram.bytes = pagelith::Size::kib(dram_kib);
    config.index.max_objects = Some(1024);
    let facts = MachineLimits::new(1 << 40, "simulated".into());
    config.validate(&facts).expect("a valid configuration")
}
