//! How the stores and clients of a run stand to each other.

use std::sync::Arc;

use pagelith::attach::Attached;
use pagelith::remote::Peer;
use pagelith::transport::dial::Dial;
use pagelith_io::runtime::Env;

use super::TIMEOUT;
use super::client::Face;
use super::oracle::OBJECTS;
use super::site::{self, Ground, Machine, Neighbour, OtherStore};
use crate::entropy::SplitMix64;
use crate::explore::memory::Memory;
use crate::explore::setup::Setup;

/// Who stands where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Clients that are attached to a store process.
    Attached,
    /// The same, and the store has a peer itself.
    Behind,
    /// One store or two with the same two peers, and sessions of theirs.
    Fronts,
    /// Clients of a store process of their host, which shows them its memory, and is shown theirs.
    Shown,
    /// Two or three store processes that are each other's peers, and clients that are attached to each.
    Mutual,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 5] = [Shape::Attached, Shape::Behind, Shape::Fronts, Shape::Shown, Shape::Mutual];

    /// One of them.
    pub fn draw(rng: &mut SplitMix64) -> Shape {
        Shape::ALL[rng.below(Shape::ALL.len() as u64) as usize]
    }

    /// Whether there is one store, that no other offers anything.
    pub fn is_alone(self) -> bool {
        matches!(self, Shape::Attached | Shape::Shown)
    }

    /// Whether clients have several batches under way at once: not where what one of them removes is to meet what others are busy with.
    pub fn has_several(self) -> bool {
        matches!(self, Shape::Attached | Shape::Behind | Shape::Shown)
    }

    /// Within how many microseconds something goes wrong. A removal is acked where all peers are there: with more of them that takes longer.
    pub fn pace(self, rng: &mut SplitMix64) -> u64 {
        let slow = self == Shape::Mutual && !rng.one_in(3);
        if slow { 300_000 } else { 30_000 }
    }

    /// How many objects are asked for: few where what one store does is to meet what another does, more than SSD holds where that is to be
    /// used again and again.
    pub fn objects(self) -> usize {
        match self {
            Shape::Attached | Shape::Behind | Shape::Fronts => OBJECTS / 4,
            Shape::Shown => OBJECTS,
            Shape::Mutual => OBJECTS / 16,
        }
    }

    /// How many machines serve a store.
    pub fn machines(self, rng: &mut SplitMix64) -> usize {
        match self {
            Shape::Attached | Shape::Shown => 1,
            Shape::Behind | Shape::Fronts => 2,
            Shape::Mutual => 2 + usize::from(rng.one_in(2)),
        }
    }

    /// What a machine's store is made like.
    pub fn setup(self, rng: &mut SplitMix64) -> Setup {
        let mut setup = Setup::draw(rng, false);
        setup.dram_kib = setup.dram_kib.max(1024);
        // With one fingerprint for all keys a look-up says of any key that it is here.
        setup.constant = false;
        if self == Shape::Shown {
            setup.shared = true;
            // The less there is in DRAM, the sooner what is shown is used again.
            setup.promote = rng.one_in(3);
            setup.ssd_mib = if rng.one_in(3) { 0 } else { 5 };
            let most = if setup.ssd_mib > 0 { [0, 1024] } else { [256, 512] };
            setup.dram_kib = most[rng.below(2) as usize];
        }
        if self == Shape::Mutual && rng.one_in(2) {
            // What is missing here is asked of the others, and kept.
            (setup.ssd_mib, setup.promote) = (0, true);
            setup.dram_kib = [128, 256][rng.below(2) as usize];
        }
        setup
    }

    /// Whose peers the machines' stores are: to be called before these start.
    pub fn introduce(self, machines: &[Machine]) {
        let others = |own: usize| {
            let all = machines.iter().enumerate().filter(|(at, _)| *at != own);
            all.map(|(at, machine)| peer(at, machine)).collect()
        };
        match self {
            Shape::Behind => machines[0].ask(others(0)),
            Shape::Mutual => (0..machines.len()).for_each(|at| machines[at].ask(others(at))),
            Shape::Attached | Shape::Fronts | Shape::Shown => {}
        }
    }

    /// Who asks, and the memory that each asks with. The machines are up.
    pub fn faces(self, ground: &Ground, machines: &[Machine], rng: &mut SplitMix64) -> Vec<(Face, Memory)> {
        let clients = 1 + rng.below(3);
        match self {
            Shape::Attached | Shape::Behind => (0..clients)
                .map(|_| (attached(ground, Arc::new(machines[0].clone()), machines, 0), Memory::default()))
                .collect(),
            Shape::Shown => (0..clients)
                .map(|_| {
                    let (memory, regions) = Memory::shown();
                    let dial = Arc::new(Neighbour::new(&machines[0], regions));
                    (attached(ground, dial, machines, 0), memory)
                })
                .collect(),
            Shape::Mutual => (0..machines.len() * 2)
                .map(|at| at % machines.len())
                .map(|at| (attached(ground, Arc::new(machines[at].clone()), machines, at), Memory::default()))
                .collect(),
            Shape::Fronts => {
                let (fronts, dram_kib) = (1 + rng.below(2) as usize, [128, 256, 512][rng.below(3) as usize]);
                let all = (0..fronts).flat_map(|number| front(ground, machines, number, dram_kib));
                all.map(|face| (face, Memory::default())).collect()
            }
        }
    }
}

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(name: &str) -> Result<Shape, String> {
        let found = Shape::ALL.into_iter().find(|shape| format!("{shape:?}") == name);
        found.ok_or_else(|| format!("no such shape: {name}"))
    }
}

/// A client of the store of machine `number`.
fn attached(ground: &Ground, dial: Arc<dyn Dial>, machines: &[Machine], number: usize) -> Face {
    let attached = Attached::attach(dial, Arc::new(ground.clock.clone()), TIMEOUT).expect("it is up");
    Face::Attached(Arc::new(attached), machines[number].clone(), number)
}

fn peer(at: usize, machine: &Machine) -> Peer {
    let dial: Arc<dyn Dial> = Arc::new(OtherStore(machine.clone()));
    Peer { name: format!("peer{at}"), weight: 1.0, preferred: false, dial }
}

/// A store in front of all machines, and clients of it with a session each.
fn front(ground: &Ground, machines: &[Machine], number: usize, dram_kib: u32) -> Vec<Face> {
    let env = Env {
        disk: None,
        clock: Arc::new(ground.clock.clone()),
        entropy: ground.entropy.clone(),
        runtime: Arc::new(ground.runtime.fresh()),
    };
    let mut peers: Vec<Peer> = machines.iter().enumerate().map(|(at, machine)| peer(at, machine)).collect();
    // One is preferred in a third of the seeds.
    peers[0].preferred = dram_kib == 256;
    let store = pagelith::Store::open_in_with_peers(site::front(dram_kib), env, peers).expect("opens");
    let store = Arc::new(store);
    (0..2)
        .map(|_| Face::Front(store.clone(), Box::new(store.session().expect("a session")), number))
        .collect()
}
