//! A simulated machine: disk, clock, randomness and scheduler from one seed.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use pagelith_io::runtime::Env;

use crate::clock::SimClock;
use crate::disk::{CrashMode, SimDisk};
use crate::entropy::{SimEntropy, SplitMix64};
use crate::runtime::SimRuntime;

/// The machine. Its parts are public, so that tests can inject faults, advance time and read logs.
pub struct SimWorld {
    /// The disk; survives crashes.
    pub disk: SimDisk,
    /// Time; crashes do not reset it.
    pub clock: SimClock,
    /// Randomness of all processes; crashes do not reset it.
    pub entropy: Arc<SimEntropy>,
    /// The scheduler, as a process of its own: tests use it to step tasks and to advance time.
    pub runtime: SimRuntime,
    /// Seeds of crashes. Separate from `entropy`, so that a store's draws do not change how it
    /// crashes.
    crashes: Mutex<SplitMix64>,
}

impl SimWorld {
    /// A machine with one empty directory.
    pub fn new(seed: u64) -> SimWorld {
        SimWorld::with_dirs(seed, 1)
    }

    /// A machine with `dirs` empty directories.
    pub fn with_dirs(seed: u64, dirs: usize) -> SimWorld {
        let mut rng = SplitMix64::new(seed);
        let clock = SimClock::new();
        SimWorld {
            disk: SimDisk::new(clock.clone(), dirs, rng.next_u64()),
            entropy: Arc::new(SimEntropy::new(rng.next_u64())),
            runtime: SimRuntime::new(clock.clone(), rng.next_u64()),
            crashes: Mutex::new(rng),
            clock,
        }
    }

    /// The environment that a store of a new process is opened with.
    pub fn env(&self) -> Env {
        Env {
            disk: Some(self.disk.connect()),
            clock: Arc::new(self.clock.clone()),
            entropy: self.entropy.clone(),
            runtime: Arc::new(self.runtime.fresh()),
        }
    }

    /// Crashes the machine with a seed of this world: every process made by [`SimWorld::env`] ends,
    /// and the disk is left as `mode` says. The test may drop the remains of a store later; that
    /// changes nothing.
    pub fn crash(&self, mode: CrashMode) {
        let seed = self.crashes.lock().unwrap_or_else(PoisonError::into_inner).next_u64();
        self.crash_seeded(mode, seed);
    }

    /// Like [`SimWorld::crash`], with an explicit seed.
    pub fn crash_seeded(&self, mode: CrashMode, seed: u64) {
        // The disk first: dropping tasks runs their code, which must find its process already dead.
        self.disk.crash(mode, seed);
        self.runtime.kill_others();
    }
}

impl Drop for SimWorld {
    /// Tasks usually hold the runtime that holds them; this breaks the reference cycle.
    fn drop(&mut self) {
        self.runtime.kill_all();
    }
}

impl fmt::Debug for SimWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimWorld(disk={:?}, runtime={:?})", self.disk, self.runtime)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pagelith_io::buffer::AlignedBuf;
    use pagelith_io::clock::{Clock, Mono};
    use pagelith_io::disk::{FileId, Op, Queue};
    use pagelith_io::fault::FaultKind;
    use pagelith_io::runtime::{Step, Task};
    use pagelith_io::signal::Signal;

    use super::*;

    /// A minimal store: writes block after block and syncs every eighth, until its disk refuses.
    struct Writer {
        queue: Box<dyn Queue>,
        file: FileId,
        next: u64,
        wake: Signal,
    }

    impl Task for Writer {
        fn step(&mut self) -> Step {
            let mut done = Vec::new();
            self.queue.wait(&mut done, Duration::from_millis(1));
            if done.iter().any(|c| c.result.is_err()) || self.next == 64 {
                return Step::Done;
            }
            let op = if self.next % 8 == 7 {
                Op::Sync { file: self.file }
            } else {
                let mut buf = AlignedBuf::new(4096).expect("memory");
                buf.fill(self.next as u8 + 1);
                Op::Write {
                    file: self.file,
                    offset: self.next * 4096,
                    parts: vec![buf.into_part()],
                }
            };
            self.queue.submit(self.next, op).expect("room");
            self.next += 1;
            Step::Again
        }
    }

    impl Drop for Writer {
        /// The last write that a dying store may try; after a crash it must not reach the disk.
        fn drop(&mut self) {
            let mut buf = AlignedBuf::new(4096).expect("memory");
            buf.fill(0xFF);
            let op = Op::Write { file: self.file, offset: 64 * 4096, parts: vec![buf.into_part()] };
            self.queue.submit(99, op).expect("room");
            self.queue.wait(&mut Vec::new(), Duration::from_secs(1));
            self.wake.raise();
        }
    }

    fn start(world: &SimWorld) -> Env {
        let env = world.env();
        let disk = env.disk.clone().expect("a disk");
        let file = disk.create(0, "f", 65 * 4096).expect("an empty disk");
        let queue = disk.queue(4).expect("a live process");
        let wake = Signal::default();
        let writer = Writer { queue, file, next: 0, wake: wake.clone() };
        env.runtime.spawn("writer", Box::new(writer), wake).expect("a live process");
        env
    }

    fn run_of(seed: u64, mode: CrashMode) -> (Vec<u8>, Vec<crate::disk::LoggedOp>, Mono) {
        let world = SimWorld::new(seed);
        let _env = start(&world);
        world.runtime.run_for(Duration::from_millis(2));
        world.crash(mode);
        (
            world.disk.peek(0, "f", 0, 65 * 4096).expect("the file"),
            world.disk.log(),
            world.clock.now(),
        )
    }

    #[test]
    fn world_same_seed_gives_same_run() {
        for mode in [CrashMode::KeepAll, CrashMode::DropAll, CrashMode::Random] {
            for seed in 0..10 {
                assert!(
                    run_of(seed, mode) == run_of(seed, mode),
                    "two runs of one seed differ seed={seed} mode={mode:?}"
                );
            }
        }
        let ends: std::collections::BTreeSet<_> =
            (0..10).map(|s| run_of(s, CrashMode::Random).0).collect();
        assert!(ends.len() > 5, "seeds give too few distinct ends distinct={}", ends.len());
    }

    #[test]
    fn crash_ends_processes_and_keeps_files() {
        for mode in [CrashMode::KeepAll, CrashMode::DropAll] {
            let world = SimWorld::new(1);
            let env = start(&world);
            world.runtime.run_for(Duration::from_millis(2));
            let ops = world.disk.ops_done();
            assert!(ops > 9, "the writer wrote and synced ops={ops}");
            world.crash(mode);
            assert_eq!(world.runtime.tasks(), Vec::<String>::new());
            assert_eq!(world.disk.peek(0, "f", 0, 1), Some(vec![1]), "synced mode={mode:?}");
            assert_eq!(
                world.disk.peek(0, "f", 64 * 4096, 1),
                Some(vec![0]),
                "written while dying mode={mode:?}"
            );
            let dead = env.disk.clone().expect("a disk");
            assert_eq!(dead.list(0).map_err(|f| f.kind), Err(FaultKind::Device));
        }
    }

    #[test]
    fn new_process_after_crash_opens_files_and_runs_tasks() {
        let world = SimWorld::new(1);
        let _dead = start(&world);
        world.crash(CrashMode::KeepAll);
        let next = world.env();
        let opened = next.disk.clone().expect("a disk").open(0, "f").map(|(_, len)| len);
        assert_eq!(opened, Ok(65 * 4096));
        let signal = Signal::default();
        next.runtime
            .spawn("raiser", Box::new(Raiser(signal.clone())), signal.clone())
            .expect("a live process");
        next.runtime.pause(&signal, 0, Duration::from_secs(1));
        assert_eq!((signal.value(), next.clock.now()), (1, Mono(1_000)));
    }

    /// Raises a signal once.
    struct Raiser(Signal);

    impl Task for Raiser {
        fn step(&mut self) -> Step {
            self.0.raise();
            Step::Done
        }
    }
}
