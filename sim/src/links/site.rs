//! Machines with a store each, and the links to them: made, broken, and made again.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagelith::remote::Peer;
use pagelith::serve::Server;
use pagelith::transport::closed::Closed;
use pagelith::transport::dial::{Dial, Dialing, Dialled};
use pagelith::transport::limits::Limits;
use pagelith::transport::link::Link;
use pagelith::transport::shown::Regions;
use pagelith::{Facts, Options, Store};
use pagelith_io::runtime::{Env, Runtime, Step, Task};
use pagelith_io::shm::{CatalogView, Region, SteadyWords, View};
use pagelith_io::staging::StagingPool;
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::wire::Side;
use pagelith_layouts::wire::greeting::Feature;

use crate::clock::SimClock;
use crate::disk::{CrashMode, SimDisk};
use crate::entropy::{SimEntropy, SplitMix64};
use crate::explore::setup::Setup;
use crate::link::{Fates, LinkFaults, Plant, SimNet};
use crate::runtime::SimRuntime;

/// Bytes that a machine stages on their way to and from the disk.
const STAGING: usize = 8 << 20;
/// Longest that an idle server sleeps. Less than any time limit, so that it finds out about each.
const SLEEP: Duration = Duration::from_millis(5);
/// How long a busy one does: its disk says nothing by itself.
const BUSY: Duration = Duration::from_micros(20);
/// Of links between stores one of so many is slow, so that of several that are told something some are told long before others, who answer
/// over another link meanwhile; and how slow.
const SLOW_ONE_IN: u64 = 4;
const SLOW: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(4)];
/// After so long of silence a peer is dead: soon, so that runs meet it.
pub const DEAD_AFTER: Duration = Duration::from_millis(200);

/// A machine that serves its store, as long as it is up.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<Inner>>);

struct Inner {
    clock: SimClock,
    runtime: SimRuntime,
    entropy: Arc<SimEntropy>,
    questions: Arc<AtomicU64>,
    rng: SplitMix64,
    faults: LinkFaults,
    plant: Plant,
    /// It has not heard of holds.
    of_before: bool,
    setup: Setup,
    /// Of its store.
    peers: Vec<Peer>,
    disk: SimDisk,
    staging: StagingPool,
    /// What of it processes of its host are shown.
    transfer: Arc<Region>,
    /// The process, while it runs.
    up: Option<Up>,
    opening: bool,
    nets: Vec<SimNet>,
    dialled: u64,
    fates: Fates,
    trace: u64,
}

/// A process.
#[derive(Clone)]
struct Up {
    process: SimRuntime,
    store: Arc<Store>,
    /// What it shows processes of its host: none if its store does not.
    memory: Vec<(Arc<Region>, Arc<View>)>,
    /// What of the first of it is told to them.
    catalog: Option<Arc<CatalogView>>,
}

/// What all machines of a run share.
pub struct Ground {
    pub clock: SimClock,
    pub runtime: SimRuntime,
    pub entropy: Arc<SimEntropy>,
    /// What stores have asked their peers.
    pub questions: Arc<AtomicU64>,
}

impl Machine {
    /// One that is not up yet. Links to it fare as `faults` says.
    pub fn new(ground: &Ground, setup: Setup, faults: LinkFaults, seed: u64) -> Machine {
        let mut rng = SplitMix64::new(seed);
        let disk = SimDisk::new(ground.clock.clone(), setup.dirs, rng.next_u64());
        disk.set_latency(Duration::from_micros(setup.latency_us));
        let (staging, transfer) = StagingPool::shared(STAGING).expect("memory");
        Machine(Arc::new(Mutex::new(Inner {
            clock: ground.clock.clone(),
            runtime: ground.runtime.clone(),
            entropy: ground.entropy.clone(),
            questions: ground.questions.clone(),
            rng,
            faults,
            plant: Plant::None,
            of_before: false,
            setup,
            peers: Vec::new(),
            disk,
            staging,
            transfer,
            up: None,
            opening: false,
            nets: Vec::new(),
            dialled: 0,
            fates: Fates::default(),
            trace: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is of a build that has not heard of holds, on links that are made from now on.
    pub fn of_before(&self) {
        self.lock().of_before = true;
    }

    /// Its store has these peers, from its next start on.
    pub fn ask(&self, peers: Vec<Peer>) {
        self.lock().peers = peers;
    }

    /// Clients' ends of its links have this bug.
    pub fn plant(&self, plant: Plant) {
        self.lock().plant = plant;
    }

    /// Whether its store shows its memory to processes of its host.
    pub fn shows(&self) -> bool {
        self.lock().setup.shared
    }

    /// Whether its process runs.
    pub fn is_up(&self) -> bool {
        self.lock().up.is_some()
    }

    /// Start its process, unless it runs or is being started.
    ///
    /// # Panics
    /// If the store does not open: nothing happens to the disk of such a machine but crashes.
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
        // Others go on meanwhile, so not under the lock.
        let store =
            Store::open_in_with_peers(setup.config(), env, peers).expect("opens on a device without faults");
        let mut inner = self.lock();
        inner.opening = false;
        let transfer = store.shared_memory().map(|_| inner.transfer.clone());
        let memory = store.shared_memory().into_iter().chain(transfer).map(seen).collect();
        let catalog =
            store.shared_catalog().and_then(|catalog| CatalogView::of(seen(catalog).1)).map(Arc::new);
        inner.up = Some(Up { process, store: Arc::new(store), memory, catalog });
    }

    /// End its process, as a power cut or `kill -9` would; false if there was none.
    pub fn kill(&self) -> bool {
        let Up { process, store, .. } = {
            let mut inner = self.lock();
            let Some(up) = inner.up.take() else { return false };
            let mode =
                [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Random][inner.rng.below(3) as usize];
            let seed = inner.rng.next_u64();
            inner.disk.crash(mode, seed);
            up
        };
        process.kill();
        // The machine is gone, and its ends of the links with it.
        self.lock().nets.iter().for_each(SimNet::cut);
        drop(store);
        true
    }

    /// Break, deafen or part one of the links that stand.
    pub fn strike(&self, rng: &mut SplitMix64) {
        let mut inner = self.lock();
        inner.sweep();
        if inner.nets.is_empty() {
            return;
        }
        let net = &inner.nets[rng.below(inner.nets.len() as u64) as usize];
        let side = if rng.one_in(2) { Side::Client } else { Side::Server };
        match rng.below(4) {
            0 => net.cut(),
            1 => net.deafen(side),
            2 => net.partition(Duration::from_micros(rng.below(2 * DEAD_AFTER.as_micros() as u64))),
            _ => net.partition(Duration::from_micros(rng.below(20_000))),
        }
    }

    /// End all links.
    pub fn cut_all(&self) {
        self.lock().nets.iter().for_each(SimNet::cut);
    }

    /// Whether its store holds nothing for anybody, once all links have ended; true if it is not up.
    pub fn holds_nothing(&self) -> bool {
        let store = self.lock().up.as_ref().map(|up| up.store.clone());
        store.is_none_or(|store| store.stats().readers == 0)
    }

    /// Forget all of these, so that nothing is to lie in its store's memory any more.
    pub fn clear(&self, namespaces: impl Iterator<Item = NamespaceId>) {
        let store = self.lock().up.as_ref().map(|up| up.store.clone());
        if let Some(store) = store {
            // Invisible at once, whatever comes of the rest.
            namespaces.for_each(|namespace| drop(store.clear(namespace, Options::default())));
        }
    }

    /// Whether its arena is free; true if it is not up.
    pub fn is_empty(&self) -> bool {
        let store = self.lock().up.as_ref().map(|up| up.store.clone());
        store.is_none_or(|store| store.stats().dram_bytes == 0)
    }

    /// Links made so far.
    pub fn dialled(&self) -> u64 {
        self.lock().dialled
    }

    /// What became of packets so far, and a hash of what travelled.
    pub fn fates(&self) -> (Fates, u64) {
        let inner = self.lock();
        let all = inner.nets.iter().fold(inner.fates, |sum, net| sum.and(net.fates()));
        (all, inner.nets.iter().fold(inner.trace, |trace, net| trace.rotate_left(1) ^ net.trace()))
    }
}

impl Inner {
    /// Forget links that are over, but for what they came to.
    fn sweep(&mut self) {
        let (over, stand) = std::mem::take(&mut self.nets).into_iter().partition(SimNet::is_over);
        self.nets = stand;
        let over: Vec<SimNet> = over;
        for net in over {
            self.fates = self.fates.and(net.fates());
            self.trace = self.trace.rotate_left(1) ^ net.trace();
        }
    }
}

/// Memory, and how another process sees it.
fn seen(region: Arc<Region>) -> (Arc<Region>, Arc<View>) {
    let fd = region.as_fd().try_clone_to_owned().expect("a descriptor");
    (region, Arc::new(View::of(fd).expect("memory")))
}

impl Dial for Machine {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
        self.connect(None)
    }
}

/// A machine, as the stores dial it that have it for a peer.
pub struct OtherStore(pub Machine);

impl Dial for OtherStore {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
        let OtherStore(machine) = self;
        let made = machine.connect(None)?;
        let mut inner = machine.lock();
        let is_slow = inner.faults != LinkFaults::default() && inner.rng.one_in(SLOW_ONE_IN);
        if let Some(net) = inner.nets.last() {
            net.of_stores(inner.questions.clone());
            if is_slow {
                let [delay_min, delay_max] = SLOW;
                net.set_faults(LinkFaults { delay_min, delay_max, ..inner.faults });
            }
        }
        drop(inner);
        Ok(made)
    }
}

/// A process on a machine's host: it is shown the store's memory, and shows its own.
pub struct Neighbour {
    machine: Machine,
    memory: Vec<(Arc<Region>, Arc<View>)>,
}

impl Neighbour {
    /// One that has this memory.
    pub fn new(machine: &Machine, memory: Vec<Arc<Region>>) -> Neighbour {
        Neighbour { machine: machine.clone(), memory: memory.into_iter().map(seen).collect() }
    }
}

impl Dial for Neighbour {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
        self.machine.connect(Some(&self.memory))
    }
}

/// Each side's own memory and the other's.
fn regions(own: &[(Arc<Region>, Arc<View>)], theirs: &[(Arc<Region>, Arc<View>)]) -> Regions {
    let own = own.iter().map(|(region, _)| region.clone()).collect();
    let theirs = theirs.iter().map(|(_, view)| view.clone()).collect();
    Regions { own, theirs, ..Regions::default() }
}

impl Machine {
    /// Make a link; from a process of its host, that has this memory.
    fn connect(&self, neighbour: Option<&[(Arc<Region>, Arc<View>)]>) -> Result<Box<dyn Dialing>, Closed> {
        let mut inner = self.lock();
        let Some(Up { process, store, memory, catalog }) = inner.up.clone() else {
            return Err(Closed::Ended);
        };
        inner.dialled += 1;
        let limits = Limits { dead_after: DEAD_AFTER, ..Limits::default() };
        let runtime: Arc<dyn Runtime> = Arc::new(inner.runtime.clone());
        let (seed, clock) = (inner.rng.next_u64(), inner.clock.clone());
        let (net, client, server) = SimNet::new(seed, clock, &runtime, limits);
        net.set_faults(inner.faults);
        let (mut of_client, mut of_server) = (Regions::default(), Regions::default());
        if let Some(own) = neighbour {
            (of_client, of_server) = (regions(own, &memory), regions(&memory, own));
            // What is in memory is asked for on the other links.
            of_client.catalog = catalog.filter(|_| inner.rng.one_in(2));
            // What is put is vouched for by checksums on the other links.
            if inner.rng.one_in(2) {
                let words = SteadyWords::within();
                of_client.steady = Some(words.clone());
                of_server.steady = Some(words);
            }
        }
        let (mut client, mut server) = (client.sharing(of_client), server.sharing(of_server));
        if inner.of_before {
            (client, server) = (client.without(Feature::Holds), server.without(Feature::Holds));
        }
        let server = Server::new(&store, Box::new(server), inner.staging.clone());
        let serve = Serve(server.map_err(|_| Closed::Ended)?, net.clone());
        let spawned = process.spawn("server", Box::new(serve), net.signal(Side::Server));
        spawned.map_err(|_| Closed::Ended)?;
        inner.nets.push(net);
        Ok(Box::new(Made(Box::new(client.with(inner.plant)))))
    }
}

/// A server on its end of a link.
struct Serve(Server, SimNet);

impl Task for Serve {
    fn step(&mut self) -> Step {
        let Serve(server, net) = self;
        match (server.turn(), server.closed()) {
            (_, Some(_)) => Step::Done,
            (true, None) => Step::Again,
            (false, None) if server.ops() > 0 => Step::Idle(BUSY),
            (false, None) => Step::Idle(net.due(Side::Server).map_or(SLEEP, |due| due.min(SLEEP))),
        }
    }
}

struct Made(Box<dyn Link>);

impl Dialing for Made {
    fn poll(self: Box<Self>) -> Dialled {
        Dialled::Ready(self.0)
    }

    fn wait(self: Box<Self>, _timeout: Duration) -> Dialled {
        self.poll()
    }
}

/// What a store in front of peers is made like: DRAM alone, and little of it, so that much is asked of them.
pub fn front(dram_kib: u32) -> pagelith::ValidConfig {
    let mut config = pagelith::Config { deadline_ms: 2000, namespaces_max: 8, ..Default::default() };
    config.dram.bytes = pagelith::Size::kib(dram_kib);
    config.index.max_objects = Some(1024);
    let facts = Facts { memory_bytes: 1 << 40, memory_source: "simulated".into() };
    config.validate(&facts).expect("a valid configuration")
}
