//! Stores and clients over simulated links, each run of one seed: clients attached to a store process, which may have a peer itself, or one
//! or two stores with the same peers. Packets are dropped, repeated, overtaken, changed and late; links break, fall silent and are parted; store
//! processes are killed and come back; clients give up at deadlines and use their memory again.
//!
//! Held against it: every byte of every hit, every object that is found, and memory that came back, which nothing may
//! write or have any more.

mod client;
mod lent;
mod looks;
mod oracle;
mod report;
mod several;
mod shape;
mod site;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::runtime::{Runtime, Step, Task};
use pagelith_io::signal::Signal;

use self::client::{Client, Shared};
use self::looks::Looks;
use self::oracle::{NAMESPACES, Oracle};
use self::site::{Ground, Machine};
use crate::clock::SimClock;
use crate::entropy::{SimEntropy, SplitMix64};
use crate::explore::{message, objects};
use crate::link::{LinkFaults, Plant};
use crate::runtime::SimRuntime;

pub use report::Tally;
pub use shape::Shape;

/// Simulated time after which a run that goes on is said to hang.
const TIME_MAX: Duration = Duration::from_secs(3600);
/// How long a call of a client that names no time may take.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Within so long what was held for who is gone is let go.
const LET_GO: Duration = Duration::from_secs(10);

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
    /// Who stands where, whatever the seed says.
    pub shape: Option<Shape>,
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
    /// The clients have ended.
    over: Arc<AtomicBool>,
    /// Something goes wrong within so many microseconds.
    pace: u64,
    rng: SplitMix64,
}

impl Task for Fate {
    fn step(&mut self) -> Step {
        if self.over.load(Ordering::Relaxed) {
            return Step::Done;
        }
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
                self.machines.iter().for_each(Machine::cut_all);
                let moment = self.shared.oracle().moment();
                self.cut.get_or_insert((moment, self.clock.now().after(UNDER_WAY)));
            }
            _ => machine.strike(&mut self.rng),
        }
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

/// Do a plan, and say what it came to.
pub fn run(plan: &Plan) -> Tally {
    let (oracle, tally) = (Mutex::new(Oracle::new()), Mutex::default());
    let (asked_last, put_last, removing) = Default::default();
    let shared = Shared { oracle: Arc::new(oracle), tally: Arc::new(tally), asked_last, put_last, removing };
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
    let ground = Ground {
        clock,
        runtime,
        entropy: Arc::new(SimEntropy::new(rng.next_u64())),
        questions: Arc::default(),
    };
    // Tasks hold the runtime that holds them.
    let _end = Ended(ground.runtime.clone());
    let drawn = (Shape::draw(&mut rng), faults(&mut rng));
    let shape = plan.shape.unwrap_or(drawn.0);
    let faults = if plan.calm { LinkFaults::default() } else { drawn.1 };
    let machines: Vec<Machine> = (0..shape.machines(&mut rng))
        .map(|_| {
            let setup = shape.setup(&mut rng);
            let machine = Machine::new(&ground, setup, faults, rng.next_u64());
            machine.plant(plan.plant);
            machine
        })
        .collect();
    shape.introduce(&machines);
    // What their peers remove they are told behind what was offered, and have to refuse by themselves.
    if shape == Shape::Fronts && rng.one_in(2) {
        machines.iter().for_each(Machine::of_before);
    }
    if shape == Shape::Mutual {
        shared.oracle().together();
    }
    machines.iter().for_each(Machine::start);
    let faces = shape.faces(&ground, &machines, &mut rng);
    let (left, of) = (plan.ops / faces.len() as u32, shape.objects());
    let mut joins = Vec::new();
    for (face, memory) in faces {
        let (own, shared, looks) = (SplitMix64::new(rng.next_u64()), shared.clone(), Looks::default());
        let questions = ground.questions.clone();
        let client = Client {
            face,
            shared,
            questions,
            rng: own,
            memory,
            looks,
            left,
            of,
            several: shape.has_several(),
            meets: shape == Shape::Mutual,
            stores: if shape == Shape::Mutual { machines.len() } else { 1 },
            put_last: Vec::new(),
            alone: false,
        };
        joins.push(ground.runtime.spawn("client", Box::new(client), Signal::default()).expect("alive"));
    }
    let over = Arc::new(AtomicBool::new(false));
    if !plan.calm {
        let (machines, shared) = (machines.clone(), shared.clone());
        let clock = ground.clock.clone();
        let (pace, over) = (shape.pace(&mut rng), over.clone());
        let rng = SplitMix64::new(rng.next_u64());
        let fate = Fate { machines, shared, clock, cut: None, over, pace, rng };
        ground.runtime.spawn("fate", Box::new(fate), Signal::default()).expect("alive");
    }
    for join in joins {
        if !join.join(TIME_MAX) {
            shared.tally().panics += 1;
            shared.tally().found("a client hangs".into());
        }
    }
    over.store(true, Ordering::Relaxed);
    let mut tally = shared.tally();
    for machine in &machines {
        let (fates, trace) = machine.fates();
        tally.travelled(fates);
        tally.links += machine.dialled();
        tally.trace = tally.trace.rotate_left(7) ^ trace;
    }
    drop(tally);
    leave(&ground, &machines, shape, shared);
}

/// Nobody asks any more: what stores hold for whom was there is let go within the time that an operation may take, and their memory is
/// free once all is cleared.
fn leave(ground: &Ground, machines: &[Machine], shape: Shape, shared: &Shared) {
    let left = |what: &str| {
        shared.tally().left += 1;
        shared.tally().found(what.to_owned());
    };
    if !soon(ground, machines, Machine::holds_nothing) {
        return left("a store holds something for clients that are gone");
    }
    // Others may be offered something still.
    if shape.is_alone() {
        machines[0].clear((0..NAMESPACES).map(objects::namespace));
        if !soon(ground, machines, Machine::is_empty) {
            left("memory of a store is lost");
        }
    }
}

/// Whether it is so of all machines, once their links have ended.
fn soon(ground: &Ground, machines: &[Machine], is_so: fn(&Machine) -> bool) -> bool {
    let until = ground.clock.now().after(LET_GO);
    loop {
        machines.iter().for_each(Machine::cut_all);
        match machines.iter().all(is_so) {
            true => return true,
            false if ground.clock.now() >= until => return false,
            false => ground.runtime.run_for(LET_GO / 100),
        }
    }
}

/// Ends every task with the run.
struct Ended(SimRuntime);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill_all();
    }
}
