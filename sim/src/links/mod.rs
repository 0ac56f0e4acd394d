//! Stores and clients over simulated links, one run per seed: clients attached to a store process,
//! which may have a peer itself, or one or two stores with the same peers. Packets are dropped,
//! duplicated, overtaken, corrupted and delayed. Links break, fall silent and are partitioned.
//! Store processes are killed and restart. Clients give up at deadlines and reuse their memory.
//!
//! Checked are every byte of every hit, every object that is found, and returned memory, which
//! nothing may write or own any more.

mod batch_memory;
mod batches;
mod client;
mod machine;
mod object_keys;
mod oracle;
mod report;
mod shared;
mod store_handle;
mod topology;
mod views;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::{Runtime, Step, Task};
use pagelith_io::signal::Signal;

use self::client::{DropEnd, SimClient};
use self::machine::{Machine, RunContext};
use self::oracle::{NAMESPACES, Oracle};
use self::shared::Shared;
use self::views::Views;
use crate::clock::SimClock;
use crate::entropy::{SimEntropy, SplitMix64};
use crate::explore::{message, objects};
use crate::link::{LinkFaults, PlantedBug, RdmaFaults};
use crate::runtime::SimRuntime;

pub use report::Tally;
pub use topology::Topology;

/// Simulated time after which a run that has not ended counts as hanging.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// Time limit for a store to release the resources of clients that are gone.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// Time limit for a server to end after its link ended.
const SERVER_END_MAX: Duration = Duration::from_millis(100);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct LinksPlan {
    /// The seed.
    pub seed: u64,
    /// Operations of all clients together.
    pub ops: u32,
    /// No faults.
    pub calm: bool,
    /// Arrangement of stores and clients, in place of the seed's choice.
    pub shape: Option<Topology>,
    /// The planted bug of the clients' ends of links.
    pub plant: PlantedBug,
}

/// Injects faults while other tasks run.
struct FaultTask {
    machines: Vec<Machine>,
    shared: Shared,
    clock: SimClock,
    /// Puts that ended before this moment are settled at that time: every link of that moment has
    /// ended.
    cut: Option<(u64, Mono)>,
    /// All clients have ended.
    over: Arc<AtomicBool>,
    /// Most microseconds between faults.
    pace: u64,
    rng: SplitMix64,
}

impl Task for FaultTask {
    fn step(&mut self) -> Step {
        if self.over.load(Ordering::Relaxed) {
            return Step::Done;
        }
        let at = self.rng.below(self.machines.len() as u64) as usize;
        let machine = self.machines[at].clone();
        if let Some((moment, _)) = self.cut.take_if(|(_, at)| *at <= self.clock.now()) {
            self.shared.oracle().settle(moment);
        }
        let begun = self.shared.begin();
        match self.rng.below(60) {
            _ if !machine.is_up() => machine.start(),
            0 => {
                if machine.kill() {
                    self.shared.tally().kills += 1;
                }
            }
            1..5 => {
                self.machines.iter().for_each(Machine::cut_all);
                let moment = self.shared.oracle().moment();
                self.cut.get_or_insert((moment, self.clock.now().after(SERVER_END_MAX)));
            }
            _ => machine.strike(&mut self.rng),
        }
        self.shared.end_step(begun);
        Step::Idle(Duration::from_micros(self.rng.below(self.pace)))
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

fn rdma_faults(rng: &mut SplitMix64) -> RdmaFaults {
    let pick = |rng: &mut SplitMix64, of: &[u32]| of[rng.below(of.len() as u64) as usize];
    let micros = |us: u32| Duration::from_micros(us.into());
    RdmaFaults {
        landing_max: micros(pick(rng, &[20, 300, 3_000, 30_000])),
        stall: pick(rng, &[0, 1_000, 20_000]),
        flip: pick(rng, &[0, 0, 5_000, 50_000]),
        take_down_max: micros(pick(rng, &[1_000, 20_000, 80_000, 229_000])),
    }
}

/// Executes a plan and returns its counts.
pub fn run(plan: &LinksPlan) -> Tally {
    let (oracle, tally) = (Mutex::new(Oracle::new()), Mutex::default());
    let (asked_last, put_last, removing) = Default::default();
    let (clock, stepped) = (SimClock::new(), Arc::default());
    let (oracle, tally) = (Arc::new(oracle), Arc::new(tally));
    let shared = Shared { oracle, tally, asked_last, put_last, removing, clock, stepped };
    let ended = catch_unwind(AssertUnwindSafe(|| run_plan(plan, &shared)));
    let mut tally = shared.tally().clone();
    tally.seeds = 1;
    if let Err(panic) = ended {
        tally.panics += 1;
        tally.add_finding(format!("panicked: {}", message(&*panic)));
    }
    tally
}

fn run_plan(plan: &LinksPlan, shared: &Shared) {
    let mut rng = SplitMix64::new(plan.seed);
    let clock = shared.clock.clone();
    let runtime = SimRuntime::new(clock.clone(), rng.next_u64());
    let ctx = RunContext {
        clock,
        runtime,
        entropy: Arc::new(SimEntropy::new(rng.next_u64())),
        questions: Arc::default(),
    };
    // Tasks hold the runtime that holds them.
    let _end = KillOnDrop(ctx.runtime.clone());
    let drawn = (Topology::draw(&mut rng), faults(&mut rng));
    let shape = plan.shape.unwrap_or(drawn.0);
    let faults = if plan.calm { LinkFaults::default() } else { drawn.1 };
    let machines: Vec<Machine> = (0..shape.machines(&mut rng))
        .map(|_| {
            let setup = shape.setup(&mut rng);
            let machine = Machine::new(&ctx, setup, faults, rng.next_u64());
            machine.plant(plan.plant);
            machine
        })
        .collect();
    if shape.has_rdma() && !plan.calm {
        let faults = rdma_faults(&mut rng);
        machines.iter().for_each(|machine| machine.set_rdma_faults(faults));
    }
    shape.connect_peers(&machines);
    // Their peers send notifications of removals after offers, and they must refuse the offers
    // themselves.
    if matches!(shape, Topology::Fronts | Topology::RdmaFronts) && rng.one_in(2) {
        machines.iter().for_each(Machine::without_holds);
    }
    if shape == Topology::Mutual {
        shared.oracle().answer_together();
    }
    machines.iter().for_each(Machine::start);
    let handles = shape.handles(&ctx, &machines, &mut rng);
    let (left, objects_used) = (plan.ops / handles.len() as u32, shape.objects());
    let mut joins = Vec::new();
    for (handle, memory) in handles {
        let (own, shared, views) =
            (SplitMix64::new(rng.next_u64()), shared.clone(), Views::default());
        let questions = ctx.questions.clone();
        let drop_end = DropEnd { shared: shared.clone(), begun: None };
        let client = SimClient {
            handle,
            shared,
            questions,
            rng: own,
            memory,
            views,
            left,
            objects_used,
            has_batches: shape.has_batches(),
            overlaps_removals: shape == Topology::Mutual,
            stores: if shape == Topology::Mutual { machines.len() } else { 1 },
            put_last: Vec::new(),
            store_unavailable: false,
            drop_end,
        };
        joins
            .push(ctx.runtime.spawn("client", Box::new(client), Signal::default()).expect("alive"));
    }
    let over = Arc::new(AtomicBool::new(false));
    if !plan.calm {
        let (machines, shared) = (machines.clone(), shared.clone());
        let clock = ctx.clock.clone();
        let (pace, over) = (shape.pace(&mut rng), over.clone());
        let rng = SplitMix64::new(rng.next_u64());
        let faults_task = FaultTask { machines, shared, clock, cut: None, over, pace, rng };
        ctx.runtime.spawn("faults", Box::new(faults_task), Signal::default()).expect("alive");
    }
    for join in joins {
        if !join.join(TIME_MAX) {
            shared.tally().panics += 1;
            shared.tally().add_finding("client does not end".into());
        }
    }
    over.store(true, Ordering::Relaxed);
    let mut tally = shared.tally();
    for machine in &machines {
        let (net_stats, trace) = machine.net_stats();
        tally.add_net_stats(net_stats);
        tally.links += machine.dialled();
        tally.trace = tally.trace.rotate_left(7) ^ trace;
    }
    drop(tally);
    check_released(&ctx, &machines, shape, shared);
}

/// After the last call: stores release all resources of clients that are gone within the time limit
/// of an operation, and their memory is free once all namespaces are cleared.
fn check_released(ctx: &RunContext, machines: &[Machine], shape: Topology, shared: &Shared) {
    let left = |what: &str| {
        shared.tally().left += 1;
        shared.tally().add_finding(what.to_owned());
    };
    if !wait_until(ctx, machines, Machine::holds_nothing) {
        return left("store keeps resources of disconnected clients");
    }
    // Other arrangements may still receive offers from peers.
    if shape.is_alone() {
        machines[0].clear((0..NAMESPACES).map(objects::namespace));
        if !wait_until(ctx, machines, Machine::is_empty) {
            left("store memory leaked after clear");
        }
    }
}

/// Waits until `is_so` holds for all machines after their links ended; false after [`RELEASE_MAX`].
fn wait_until(ctx: &RunContext, machines: &[Machine], is_so: fn(&Machine) -> bool) -> bool {
    let until = ctx.clock.now().after(RELEASE_MAX);
    loop {
        machines.iter().for_each(Machine::cut_all);
        match machines.iter().all(is_so) {
            true => return true,
            false if ctx.clock.now() >= until => return false,
            false => ctx.runtime.run_for(RELEASE_MAX / 100),
        }
    }
}

/// Ends every task with the run.
struct KillOnDrop(SimRuntime);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill_all();
    }
}
