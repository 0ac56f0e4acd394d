//! How the stores and clients of a run are arranged.

use std::sync::Arc;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::rpc::Peer;
use pagelith::transport::dial::Dial;
use pagelith_io::runtime::Env;
use pagelith_io::shm::SharedRegion;

use super::machine::{
    self, LocalProcess, Machine, PeerDial, RdmaPeerDial, RdmaProcess, RunContext,
};
use super::oracle::OBJECTS;
use super::store_handle::StoreHandle;
use crate::entropy::SplitMix64;
use crate::explore::memory::Memory;
use crate::explore::setup::Setup;
use crate::link::RegisteredRegion;

/// Time limit of a client's call without its own timeout.
const TIMEOUT: Duration = Duration::from_secs(1);

/// An arrangement of stores and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Clients attached to a store process.
    Attached,
    /// The same, and the store has a peer itself.
    Behind,
    /// One or two stores with the same two peers, and sessions of these stores.
    Fronts,
    /// Clients on the host of a store process: both sides pass bytes by reference.
    Shown,
    /// Two or three store processes that are each other's peers, and clients attached to each.
    Mutual,
    /// Clients attached to a store process over RDMA; some over a stream alone, or on its host.
    Rdma,
    /// The same, and the store has a peer over RDMA itself.
    RdmaBehind,
    /// One or two stores with the same two peers over RDMA, and sessions of these stores.
    RdmaFronts,
}

impl Topology {
    /// All arrangements.
    pub const ALL: [Topology; 8] = [
        Topology::Attached,
        Topology::Behind,
        Topology::Fronts,
        Topology::Shown,
        Topology::Mutual,
        Topology::Rdma,
        Topology::RdmaBehind,
        Topology::RdmaFronts,
    ];

    /// A random arrangement.
    pub fn draw(rng: &mut SplitMix64) -> Topology {
        Topology::ALL[rng.below(Topology::ALL.len() as u64) as usize]
    }

    /// Whether there is one store, and no other store offers it anything.
    pub fn is_alone(self) -> bool {
        matches!(self, Topology::Attached | Topology::Shown | Topology::Rdma)
    }

    /// Whether there are links over RDMA.
    pub fn has_rdma(self) -> bool {
        matches!(self, Topology::Rdma | Topology::RdmaBehind | Topology::RdmaFronts)
    }

    /// Whether clients have several batches in progress at once: not where removals are to overlap
    /// with other clients' calls.
    pub fn has_batches(self) -> bool {
        match self {
            Topology::Attached | Topology::Behind | Topology::Shown => true,
            Topology::Rdma | Topology::RdmaBehind => true,
            Topology::Fronts | Topology::Mutual | Topology::RdmaFronts => false,
        }
    }

    /// Most microseconds between faults. A removal is acked only if all peers are reachable, which
    /// takes longer with more of them.
    pub fn pace(self, rng: &mut SplitMix64) -> u64 {
        let slow = self == Topology::Mutual && !rng.one_in(3);
        if slow { 300_000 } else { 30_000 }
    }

    /// Number of objects in use: few where operations of several stores are to overlap, and more
    /// than the SSD holds where its space is to be reused again and again.
    pub fn objects(self) -> usize {
        match self {
            Topology::Attached | Topology::Behind | Topology::Fronts => OBJECTS / 4,
            Topology::Rdma | Topology::RdmaBehind | Topology::RdmaFronts => OBJECTS / 4,
            Topology::Shown => OBJECTS,
            Topology::Mutual => OBJECTS / 16,
        }
    }

    /// Number of store processes.
    pub fn machines(self, rng: &mut SplitMix64) -> usize {
        match self {
            Topology::Attached | Topology::Shown | Topology::Rdma => 1,
            Topology::Behind | Topology::Fronts => 2,
            Topology::RdmaBehind | Topology::RdmaFronts => 2,
            Topology::Mutual => 2 + usize::from(rng.one_in(2)),
        }
    }

    /// A random setup of a machine's store.
    pub fn setup(self, rng: &mut SplitMix64) -> Setup {
        let mut setup = Setup::draw(rng, false);
        setup.dram_kib = setup.dram_kib.max(1024);
        // With one fingerprint for all keys, a lookup finds every key.
        setup.constant = false;
        if self == Topology::Shown {
            setup.shared = true;
            // Little DRAM makes referenced memory be reused soon.
            setup.promote = rng.one_in(3);
            setup.ssd_mib = if rng.one_in(3) { 0 } else { 5 };
            let most = if setup.ssd_mib > 0 { [0, 1024] } else { [256, 512] };
            setup.dram_kib = most[rng.below(2) as usize];
        }
        if self.has_rdma() {
            // The arena can be registered, and shared with clients on the host.
            setup.shared = true;
        }
        if self == Topology::Mutual && rng.one_in(2) {
            // A miss is requested from the peers and kept.
            (setup.ssd_mib, setup.promote) = (0, true);
            setup.dram_kib = [128, 256][rng.below(2) as usize];
        }
        setup
    }

    /// Sets the peers of the machines' stores; call before these start.
    pub fn connect_peers(self, machines: &[Machine]) {
        let others = |own: usize| {
            let all = machines.iter().enumerate().filter(|(at, _)| *at != own);
            all.map(|(at, machine)| peer(at, machine)).collect()
        };
        match self {
            Topology::Behind => machines[0].set_peers(others(0)),
            Topology::Mutual => {
                (0..machines.len()).for_each(|at| machines[at].set_peers(others(at)))
            }
            Topology::RdmaBehind => {
                let peer = rdma_peer(1, &machines[1], Some(&machines[0]), &[]);
                machines[0].set_peers(vec![peer]);
            }
            Topology::Attached | Topology::Fronts | Topology::Shown => {}
            Topology::Rdma | Topology::RdmaFronts => {}
        }
    }

    /// The clients, each with the memory for its calls. The machines are up.
    pub fn handles(
        self,
        ctx: &RunContext,
        machines: &[Machine],
        rng: &mut SplitMix64,
    ) -> Vec<(StoreHandle, Memory)> {
        let clients = 1 + rng.below(3);
        match self {
            Topology::Attached | Topology::Behind => (0..clients)
                .map(|_| {
                    (attached(ctx, Arc::new(machines[0].clone()), machines, 0), Memory::default())
                })
                .collect(),
            Topology::Shown => (0..clients)
                .map(|_| {
                    let (memory, regions) = Memory::shown();
                    let dial = Arc::new(LocalProcess::new(&machines[0], regions));
                    (attached(ctx, dial, machines, 0), memory)
                })
                .collect(),
            Topology::Mutual => (0..machines.len() * 2)
                .map(|at| at % machines.len())
                .map(|at| {
                    (attached(ctx, Arc::new(machines[at].clone()), machines, at), Memory::default())
                })
                .collect(),
            Topology::Rdma | Topology::RdmaBehind => (0..clients)
                .map(|at| match if at == 0 { 0 } else { rng.below(4) } {
                    0 | 1 => {
                        let (memory, regions) = Memory::shown();
                        let memory_of_client = registered(regions, rng);
                        let machine = machines[0].clone();
                        let dial = RdmaProcess { machine, memory: memory_of_client };
                        (attached(ctx, Arc::new(dial), machines, 0), memory)
                    }
                    2 => {
                        let (memory, regions) = Memory::shown();
                        let dial = Arc::new(LocalProcess::new(&machines[0], regions));
                        (attached(ctx, dial, machines, 0), memory)
                    }
                    _ => {
                        let dial = Arc::new(machines[0].clone());
                        (attached(ctx, dial, machines, 0), Memory::default())
                    }
                })
                .collect(),
            Topology::Fronts | Topology::RdmaFronts => {
                let (fronts, dram_kib) =
                    (1 + rng.below(2) as usize, [128, 256, 512][rng.below(3) as usize]);
                let mut all = Vec::new();
                for number in 0..fronts {
                    let (memories, peers) = match self {
                        Topology::RdmaFronts => rdma_peers(machines, rng),
                        _ => (Default::default(), peers(machines)),
                    };
                    all.extend(front(ctx, peers, number, dram_kib).into_iter().zip(memories));
                }
                all
            }
        }
    }
}

impl std::str::FromStr for Topology {
    type Err = String;

    fn from_str(name: &str) -> Result<Topology, String> {
        let found = Topology::ALL.into_iter().find(|shape| format!("{shape:?}") == name);
        found.ok_or_else(|| {
            let names: Vec<String> =
                Topology::ALL.into_iter().map(|shape| format!("{shape:?}")).collect();
            format!("unknown shape: {name}; use one of {}", names.join(", "))
        })
    }
}

/// A client of the store of machine `number`.
fn attached(
    ctx: &RunContext,
    dial: Arc<dyn Dial>,
    machines: &[Machine],
    number: usize,
) -> StoreHandle {
    let attached = Client::attach(dial, Arc::new(ctx.clock.clone()), TIMEOUT).expect("it is up");
    StoreHandle::Attached(Arc::new(attached), machines[number].clone(), number)
}

fn peer(at: usize, machine: &Machine) -> Peer {
    let dial: Arc<dyn Dial> = Arc::new(PeerDial(machine.clone()));
    Peer { name: format!("peer{at}"), weight: 1.0, preferred: false, dial }
}

/// A machine as a peer over RDMA of the store of `owner`, or of one with this memory.
fn rdma_peer(
    at: usize,
    machine: &Machine,
    owner: Option<&Machine>,
    memory: &[RegisteredRegion],
) -> Peer {
    let peer = PeerDial(machine.clone());
    let dial = RdmaPeerDial { peer, owner: owner.cloned(), memory: memory.to_vec() };
    Peer { name: format!("peer{at}"), weight: 1.0, preferred: false, dial: Arc::new(dial) }
}

/// All machines as peers.
fn peers(machines: &[Machine]) -> Vec<Peer> {
    machines.iter().enumerate().map(|(at, machine)| peer(at, machine)).collect()
}

/// The memory of a store's two clients, and all machines as peers over RDMA of that store.
fn rdma_peers(machines: &[Machine], rng: &mut SplitMix64) -> ([Memory; 2], Vec<Peer>) {
    let mut all = Vec::new();
    let memories = [(); 2].map(|()| {
        let (memory, regions) = Memory::shown();
        all.extend(registered(regions, rng));
        memory
    });
    let peers = machines.iter().enumerate();
    (memories, peers.map(|(at, machine)| rdma_peer(at, machine, None, &all)).collect())
}

/// These regions, registered: in half of the cases one of them only in part.
fn registered(regions: Vec<Arc<SharedRegion>>, rng: &mut SplitMix64) -> Vec<RegisteredRegion> {
    let part = rng.below(2 * regions.len() as u64) as usize;
    let region = |(at, region): (usize, Arc<SharedRegion>)| {
        let len = region.len() as u64;
        RegisteredRegion::new(region, if at == part { 1 + rng.below(len) } else { len })
    };
    regions.into_iter().enumerate().map(region).collect()
}

/// A store with these peers, and clients of it with one session each.
fn front(ctx: &RunContext, mut peers: Vec<Peer>, number: usize, dram_kib: u32) -> Vec<StoreHandle> {
    let env = Env {
        disk: None,
        clock: Arc::new(ctx.clock.clone()),
        entropy: ctx.entropy.clone(),
        runtime: Arc::new(ctx.runtime.fresh()),
    };
    // One peer is preferred in a third of the seeds.
    peers[0].preferred = dram_kib == 256;
    let store =
        pagelith::Store::open_in_with_peers(machine::front(dram_kib), env, peers).expect("opens");
    let store = Arc::new(store);
    (0..2)
        .map(|_| {
            StoreHandle::Front(store.clone(), Box::new(store.session().expect("a session")), number)
        })
        .collect()
}
