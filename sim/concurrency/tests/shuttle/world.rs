//! The simulated machine of pagelith-sim with threads: shuttle's, each task its own, and a clock that they move while
//! they wait.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pagelith::{Config, Facts, Size, Store};
use pagelith_io::clock::Clock;
use pagelith_io::fault::IoFault;
use pagelith_io::runtime::{Env, Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_sim::clock::SimClock;
use pagelith_sim::env::SimWorld;

/// Time that passes each time a waiting thread is asked whether it still waits.
const TURN: Duration = Duration::from_millis(2);

/// Tasks on shuttle's threads. Waiting threads pass the time: whoever waits for a raise that was lost comes to the
/// end of its deadline, and says so.
#[derive(Clone)]
pub struct Turns(pub SimClock);

struct Running(Turns, Signal);

impl Join for Running {
    fn join(&self, timeout: Duration) -> bool {
        self.0.pause(&self.1, 0, timeout);
        self.1.value() != 0
    }
}

impl Runtime for Turns {
    fn spawn(&self, _: &str, mut task: Box<dyn Task>, wake: Signal) -> Result<Box<dyn Join>, IoFault> {
        let (finished, turns) = (Signal::default(), self.clone());
        let end = finished.clone();
        // As `threads::drive`, except that a panic is a finding.
        shuttle::thread::spawn(move || {
            loop {
                let seen = wake.value();
                match task.step() {
                    Step::Again => {}
                    Step::Idle(most) => turns.pause(&wake, seen, most),
                    Step::Done => break,
                }
            }
            drop(task);
            end.raise();
        });
        Ok(Box::new(Running(self.clone(), finished)))
    }

    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration) {
        let until = self.0.now().after(timeout);
        while signal.value() == seen && self.0.now() < until {
            self.0.advance(TURN);
            shuttle::thread::yield_now();
        }
    }
}

pub struct World {
    pub sim: SimWorld,
}

impl World {
    pub fn new() -> World {
        World { sim: SimWorld::new(7) }
    }

    fn env(&self) -> Env {
        Env { runtime: Arc::new(Turns(self.sim.clock.clone())), ..self.sim.env() }
    }

    pub fn open(&self, config: &Config) -> Arc<Store> {
        static FACTS: OnceLock<Facts> = OnceLock::new();
        let facts = FACTS.get_or_init(|| Facts::of_this_machine().expect("facts"));
        let config = config.validate(facts).unwrap_or_else(|e| panic!("{e}"));
        Arc::new(Store::open_in(config, self.env()).unwrap_or_else(|e| panic!("{e}")))
    }
}

/// DRAM alone, of `bytes`.
pub fn memory(bytes: Size) -> Config {
    let mut c = Config::default();
    c.deadline_ms = 60_000;
    c.dram.bytes = bytes;
    c.staging.bytes = Size::kib(128);
    c.staging.chunk_bytes = Size::kib(64);
    c.namespaces_max = 4;
    c.index.max_objects = Some(64);
    c.memory.reserve = Size::ZERO;
    c
}

/// As [`memory`], with an SSD tier of five segments of 1 MiB.
pub fn tiers(dram: Size) -> Config {
    let mut c = memory(dram);
    c.ssd.bytes = Size::kib(5 * 1024 + 512);
    c.ssd.segment_bytes = Some(Size::mib(1));
    c.ssd.dirs = vec!["/sim".into()];
    c
}
