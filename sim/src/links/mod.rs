//! Stores and clients over simulated links, each run of one seed: clients attached to a store process, which may have a peer itself, or one
//! or two stores with the same peers. Packets are dropped, repeated, overtaken, changed and late; links break, fall silent and are parted; store
//! processes are killed and come back; clients give up at deadlines and use their memory again.
//!
//! Held against it: every byte of every hit, every object that is found, and memory that came back, which nothing may
//! write or have any more.

mod client;
mod oracle;
mod report;
mod site;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith::attach::Attached;
use pagelith::remote::Peer;
use pagelith::transport::dial::Dial;
use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::{Env, Runtime, Step, Task};
use pagelith_io::signal::Signal;

use self::client::{Client, Face, Shared};
use self::oracle::Oracle;
use self::site::{Ground, Machine};
use crate::clock::SimClock;
use crate::entropy::{SimEntropy, SplitMix64};
use crate::explore::memory::Memory;
use crate::explore::message;
use crate::explore::setup::Setup;
use crate::link::{LinkFaults, Plant};
use crate::runtime::SimRuntime;

pub use report::Tally;

/// Simulated time after which a run that goes on is said to hang.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// How long a call of a client that names no time may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// After so long a server whose link is gone is gone, too.
const UNDER_WAY: Duration = Duration::from_millis(100);

/// What a seed stands for, beside its number.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its number.
    pub seed: u64,
    /// Operations of all clients together.
    pub ops: u32,
    /// Nothing goes wrong.
    pub calm: bool,
    /// Stores with peers, whatever the seed says.
    pub peers: bool,
    /// The bug that clients' ends of links have.
    pub plant: Plant,
}

/// What goes wrong in between, in whatever another task is doing.
struct Fate {
    machines: Vec<Machine>,
    shared: Shared,
    clock: SimClock,
    /// What ended before this moment is settled at that time: every link of then is gone.
    cut: Option<(u64, Mono)>,
    rng: SplitMix64,
}

impl Task for Fate {
    fn step(&mut self) -> Step {
        let at = self.rng.below(self.machines.len() as u64) as usize;
        let machine = self.machines[at].clone();
        if let Some((moment, _)) = self.cut.take_if(|(_, at)| *at <= self.clock.now()) {
            self.shared.oracle().settle(moment);
        }
        match self.rng.below(60) {
            _ if !machine.is_up() => machine.start(),
            0 => {
                if machine.kill() {
                    self.shared.tally().kills += 1;
                }
            }
            1..5 => {
                // At the first clients are attached.
                self.machines[0].cut_all();
                machine.cut_all();
                let moment = self.shared.oracle().moment();
                self.cut.get_or_insert((moment, self.clock.now().after(UNDER_WAY)));
            }
            _ => machine.strike(&mut self.rng),
        }
        Step::Idle(Duration::from_micros(self.rng.below(30_000)))
    }
}

fn faults(rng: &mut SplitMix64) -> LinkFaults {
    let pick = |rng: &mut SplitMix64, of: &[u32]| of[rng.below(of.len() as u64) as usize];
    let mut micros = |of: &[u32]| Duration::from_micros(pick(rng, of).into());
    let (delay_min, delay_max, hold_max) =
        (micros(&[1, 5, 20]), micros(&[20, 50, 200, 500]), micros(&[0, 20, 300]));
    LinkFaults {
        delay_min,
        delay_max,
        hold_max,
        drop: pick(rng, &[0, 2_000, 20_000]),
        duplicate: pick(rng, &[0, 20_000, 100_000, 300_000]),
        reorder: pick(rng, &[0, 50_000, 200_000, 400_000]),
        cut: pick(rng, &[0, 0, 200, 1_000]),
        flip: pick(rng, &[0, 0, 5_000, 50_000]),
    }
}

/// Do a plan, and say what it came to.
pub fn run(plan: &Plan) -> Tally {
    let shared =
        Shared { oracle: Arc::new(Mutex::new(Oracle::new())), tally: Arc::new(Mutex::new(Tally::default())) };
    let ended = catch_unwind(AssertUnwindSafe(|| go(plan, &shared)));
    let mut tally = shared.tally().clone();
    tally.seeds = 1;
    if let Err(panic) = ended {
        tally.panics += 1;
        tally.found(format!("panicked: {}", message(&*panic)));
    }
    tally
}

fn go(plan: &Plan, shared: &Shared) {
    let mut rng = SplitMix64::new(plan.seed);
    let clock = SimClock::new();
    let runtime = SimRuntime::new(clock.clone(), rng.next_u64());
    let ground = Ground { clock, runtime, entropy: Arc::new(SimEntropy::new(rng.next_u64())) };
    // Tasks hold the runtime that holds them.
    let _end = Ended(ground.runtime.clone());
    let with_peers = rng.one_in(3) | plan.peers;
    let drawn = faults(&mut rng);
    let faults = if plan.calm { LinkFaults::default() } else { drawn };
    let has_peer = !with_peers && rng.one_in(2);
    let machines: Vec<Machine> = (0..if with_peers || has_peer { 2 } else { 1 })
        .map(|_| {
            let mut setup = Setup::draw(&mut rng, false);
            setup.dram_kib = setup.dram_kib.max(1024);
            // With one fingerprint for all keys a look-up says of any key that it is here.
            setup.constant = false;
            let machine = Machine::new(&ground, setup, faults, rng.next_u64());
            machine.plant(plan.plant);
            machine
        })
        .collect();
    if has_peer {
        machines[0].ask(vec![peer(1, &machines[1])]);
    }
    machines.iter().for_each(Machine::start);
    let faces: Vec<Face> = match with_peers {
        true => {
            let (fronts, dram_kib) = (1 + rng.below(2) as usize, [128, 256, 512][rng.below(3) as usize]);
            (0..fronts).flat_map(|n| with_peers_of(&ground, &machines, n, dram_kib)).collect()
        }
        false => {
            let clock = Arc::new(ground.clock.clone());
            let attach = |_| Attached::attach(Arc::new(machines[0].clone()), clock.clone(), TIMEOUT);
            let face = |attached| Face::Attached(Box::new(attached), machines[0].clone());
            (0..1 + rng.below(3)).map(attach).map(|a| face(a.expect("it is up"))).collect()
        }
    };
    let left = plan.ops / faces.len() as u32;
    let mut joins = Vec::new();
    for face in faces {
        let (memory, own, shared) = (Memory::default(), SplitMix64::new(rng.next_u64()), shared.clone());
        let client = Client { face, shared, rng: own, memory, left, alone: false };
        joins.push(ground.runtime.spawn("client", Box::new(client), Signal::default()).expect("alive"));
    }
    if !plan.calm {
        let (machines, shared) = (machines.clone(), shared.clone());
        let clock = ground.clock.clone();
        let fate = Fate { machines, shared, clock, cut: None, rng: SplitMix64::new(rng.next_u64()) };
        ground.runtime.spawn("fate", Box::new(fate), Signal::default()).expect("alive");
    }
    for join in joins {
        if !join.join(TIME_MAX) {
            shared.tally().panics += 1;
            shared.tally().found("a client hangs".into());
        }
    }
    let mut tally = shared.tally();
    for machine in &machines {
        let (fates, trace) = machine.fates();
        tally.travelled(fates);
        tally.links += machine.dialled();
        tally.trace = tally.trace.rotate_left(7) ^ trace;
    }
}

fn peer(at: usize, machine: &Machine) -> Peer {
    Peer { name: format!("peer{at}"), weight: 1.0, dial: Arc::new(machine.clone()) as Arc<dyn Dial> }
}

/// A store in front of all machines, and clients of it with a session each.
fn with_peers_of(ground: &Ground, machines: &[Machine], number: usize, dram_kib: u32) -> Vec<Face> {
    let env = Env {
        disk: None,
        clock: Arc::new(ground.clock.clone()),
        entropy: ground.entropy.clone(),
        runtime: Arc::new(ground.runtime.fresh()),
    };
    let peers = machines.iter().enumerate().map(|(at, machine)| peer(at, machine)).collect();
    let store = pagelith::Store::open_in_with_peers(site::front(dram_kib), env, peers).expect("opens");
    let store = Arc::new(store);
    (0..2)
        .map(|_| Face::Front(store.clone(), Box::new(store.session().expect("a session")), number))
        .collect()
}

/// Ends every task with the run.
struct Ended(SimRuntime);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill_all();
    }
}
