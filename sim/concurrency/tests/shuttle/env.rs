//! The simulated machine of pagelith-sim with threads: each task has its own shuttle thread, and
//! waiting threads advance the clock.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pagelith::{Config, MachineLimits, Size, Store};
use pagelith_io::clock::Clock;
use pagelith_io::disk::{Completion, Disk, DiskFacts, FileId, Op, Queue};
use pagelith_io::fault::IoFault;
use pagelith_io::runtime::{Env, Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::sync::step;
use pagelith_sim::clock::SimClock;
use pagelith_sim::env::SimWorld;
use shuttle::rand::{Rng, thread_rng};

/// Time that passes at each check of a waiting thread.
const TURN: Duration = Duration::from_millis(2);

/// Tasks on shuttle's threads. Waiting threads advance the time: a thread that waits for a lost
/// raise reaches its deadline and reports it.
#[derive(Clone)]
pub struct ShuttleRuntime(pub SimClock);

struct TaskJoin(ShuttleRuntime, Signal);

impl Join for TaskJoin {
    fn join(&self, timeout: Duration) -> bool {
        self.0.pause(&self.1, 0, timeout);
        self.1.value() != 0
    }
}

impl Runtime for ShuttleRuntime {
    fn spawn(
        &self,
        _: &str,
        mut task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<Box<dyn Join>, IoFault> {
        let (finished, turns) = (Signal::default(), self.clone());
        let end = finished.clone();
        // Like `threads::drive`, except that a panic is a finding.
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
        Ok(Box::new(TaskJoin(self.clone(), finished)))
    }

    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration) {
        let until = self.0.now().after(timeout);
        while signal.value() == seen && self.0.now() < until {
            self.0.advance(TURN);
            shuttle::thread::yield_now();
        }
    }
}

/// The simulated disk with scheduling points at its operations: between the index lookup and the
/// read, and while a read is in flight.
struct SchedulingDisk(Arc<dyn Disk>, bool);

struct SchedulingQueue(Box<dyn Queue>, bool);

impl Disk for SchedulingDisk {
    fn facts(&self) -> DiskFacts {
        self.0.facts()
    }

    fn dirs(&self) -> usize {
        self.0.dirs()
    }

    fn dir_name(&self, dir: usize) -> String {
        self.0.dir_name(dir)
    }

    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        self.0.list(dir)
    }

    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault> {
        self.0.create(dir, name, len)
    }

    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault> {
        self.0.open(dir, name)
    }

    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault> {
        self.0.remove(dir, name)
    }

    fn check_names(&self) -> Result<(), IoFault> {
        self.0.check_names()
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        Ok(Box::new(SchedulingQueue(self.0.queue(depth)?, self.1)))
    }
}

impl Queue for SchedulingQueue {
    fn room(&self) -> usize {
        self.0.room()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        // Now and then a thread is descheduled for long, so that other threads may do much between
        // its index lookup and its read.
        let turns = match op {
            Op::Read { .. } if self.1 && thread_rng().gen_range(0..6) == 0 => 3000,
            Op::Read { .. } | Op::Write { .. } | Op::Sync { .. } => 0,
        };
        (0..turns).for_each(|_| shuttle::thread::yield_now());
        step();
        self.0.submit(token, op)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.0.poll(done);
    }

    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        if self.0.in_flight() > 0 {
            step();
        }
        self.0.wait(done, timeout);
    }
}

pub struct World {
    pub sim: SimWorld,
    /// Now and then threads are descheduled for long before their reads.
    pub slow_reads: bool,
}

impl World {
    pub fn new() -> World {
        World { sim: SimWorld::new(7), slow_reads: false }
    }

    fn env(&self) -> Env {
        let env = self.sim.env();
        let disk = env
            .disk
            .clone()
            .map(|disk| Arc::new(SchedulingDisk(disk, self.slow_reads)) as Arc<dyn Disk>);
        Env { disk, runtime: Arc::new(ShuttleRuntime(self.sim.clock.clone())), ..env }
    }

    pub fn open(&self, config: &Config) -> Arc<Store> {
        static FACTS: OnceLock<MachineLimits> = OnceLock::new();
        let facts = FACTS.get_or_init(|| MachineLimits::of_this_machine().expect("facts"));
        let config = config.validate(facts).unwrap_or_else(|e| panic!("{e}"));
        Arc::new(Store::open_in(config, self.env()).unwrap_or_else(|e| panic!("{e}")))
    }
}

/// DRAM only, of `bytes`.
pub fn memory(bytes: Size) -> Config {
    let mut c = Config::default();
    c.deadline_ms = 10_000;
    c.dram.bytes = bytes;
    c.staging.bytes = Size::kib(128);
    c.staging.chunk_bytes = Size::kib(64);
    c.namespaces_max = 4;
    c.index.max_objects = Some(64);
    c.memory.reserve = Size::ZERO;
    c
}

/// Like [`memory`], with an SSD tier of six segments of 1 MiB.
pub fn tiers(dram: Size) -> Config {
    let mut c = memory(dram);
    c.ssd.bytes = Size::kib(6 * 1024 + 512);
    c.ssd.segment_bytes = Some(Size::mib(1));
    c.ssd.dirs = vec!["/sim".into()];
    c
}
