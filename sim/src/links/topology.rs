//! How the stores and clients of a run are arranged.

use std::sync::Arc;
use std::time::Duration;

use pagelith::client::Client;
use pagelith::rpc::Peer;
use pagelith::transport::dial::Dial;
use pagelith_io::runtime::Env;

use super::machine::{self, LocalProcess, Machine, PeerDial, RunContext};
use super::oracle::OBJECTS;
use super::store_handle::StoreHandle;
use crate::entropy::SplitMix64;
use crate::explore::memory::Memory;
use crate::explore::setup::Setup;

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
}

impl Topology {
    /// All arrangements.
    pub const ALL: [Topology; 5] =
        [Topology::Attached, Topology::Behind, Topology::Fronts, Topology::Shown, Topology::Mutual];

    /// A random arrangement.
    pub fn draw(rng: &mut SplitMix64) -> Topology {
        Topology::ALL[rng.below(Topology::ALL.len() as u64) as usize]
    }

    /// Whether there is one store, and no other store offers it anything.
    pub fn is_alone(self) -> bool {
        matches!(self, Topology::Attached | Topology::Shown)
    }

    /// Whether clients have several batches in progress at once: not where removals are to overlap
    /// with other clients' calls.
    pub fn has_batches(self) -> bool {
        matches!(self, Topology::Attached | Topology::Behind | Topology::Shown)
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
            Topology::Shown => OBJECTS,
            Topology::Mutual => OBJECTS / 16,
        }
    }

    /// Number of store processes.
    pub fn machines(self, rng: &mut SplitMix64) -> usize {
        match self {
            Topology::Attached | Topology::Shown => 1,
            Topology::Behind | Topology::Fronts => 2,
            Topology::Mutual => 2 + usize::from(rng.one_in(2)),
        }
    }

    /// A random setup of a machine's store.
    pub fn setup(self, rng: &mut SplitMix64) -> Setup {
        let mut setup = Setup::draw(rng, false);
        setup.dram_kib = setup.dram_kib.max(1024);
        // With one fingerprint for all keys, a look-up finds every key.
        setup.constant = false;
        if self == Topology::Shown {
            setup.shared = true;
            // Little DRAM makes referenced memory be reused soon.
            setup.promote = rng.one_in(3);
            setup.ssd_mib = if rng.one_in(3) { 0 } else { 5 };
            let most = if setup.ssd_mib > 0 { [0, 1024] } else { [256, 512] };
            setup.dram_kib = most[rng.below(2) as usize];
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
            Topology::Attached | Topology::Fronts | Topology::Shown => {}
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
            Topology::Fronts => {
                let (fronts, dram_kib) =
                    (1 + rng.below(2) as usize, [128, 256, 512][rng.below(3) as usize]);
                let all = (0..fronts).flat_map(|number| front(ctx, machines, number, dram_kib));
                all.map(|handle| (handle, Memory::default())).collect()
            }
        }
    }
}

impl std::str::FromStr for Topology {
    type Err = String;

    fn from_str(name: &str) -> Result<Topology, String> {
        let found = Topology::ALL.into_iter().find(|shape| format!("{shape:?}") == name);
        found.ok_or_else(|| {
            format!("unknown shape: {name}; use Attached, Behind, Fronts, Shown or Mutual")
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

/// A store whose peers are all machines, and clients of it with one session each.
fn front(ctx: &RunContext, machines: &[Machine], number: usize, dram_kib: u32) -> Vec<StoreHandle> {
    let env = Env {
        disk: None,
        clock: Arc::new(ctx.clock.clone()),
        entropy: ctx.entropy.clone(),
        runtime: Arc::new(ctx.runtime.fresh()),
    };
    let mut peers: Vec<Peer> =
        machines.iter().enumerate().map(|(at, machine)| peer(at, machine)).collect();
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
