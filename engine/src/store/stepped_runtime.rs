//! A runtime whose background tasks make progress only while a caller waits for them: for tests
//! that inspect a store between two steps.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::fault::IoFault;
use pagelith_io::probe::{BackendChoice, open_disk};
use pagelith_io::runtime::{Env, Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::system::{SystemClock, SystemEntropy};

use crate::config::{Config, MachineLimits, Size};
use crate::store::embedded::Store;

/// Limit of steps for a condition or a task.
const STEPS_MAX: usize = 100_000;

/// A runtime that steps its tasks on the waiting thread.
#[derive(Clone, Default)]
pub(crate) struct SteppedRuntime(Arc<Mutex<Vec<Box<dyn Task>>>>);

/// A store of 4 MiB of DRAM and 32 segments of 1 MiB in `dir`.
pub(crate) fn small_config(dir: &Path) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(32);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = vec![dir.to_owned()];
    config.index.max_objects = Some(1000);
    config
}

impl SteppedRuntime {
    /// Open a store in real directories, with its background tasks on this runtime.
    pub fn open(&self, config: &Config) -> Store {
        let config =
            config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
        let disk = Some(open_disk(config.ssd_dirs(), BackendChoice::Auto).expect("a disk"));
        let (clock, entropy) = (Arc::new(SystemClock::new()), Arc::new(SystemEntropy));
        let env = Env { disk, clock, entropy, runtime: Arc::new(self.clone()) };
        Store::open_in(config, env).expect("opened")
    }

    /// Step until `condition` is true. `what` names it in the panic message.
    pub fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let is_met = (0..STEPS_MAX).any(|_| {
            condition() || {
                self.step();
                false
            }
        });
        assert!(is_met, "condition not met after {STEPS_MAX} steps: {what}");
    }

    /// One step of each task.
    pub fn step(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain_mut(|task| task.step() != Step::Done);
    }
}

impl Runtime for SteppedRuntime {
    fn spawn(&self, _: &str, task: Box<dyn Task>, _: Signal) -> Result<Box<dyn Join>, IoFault> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(task);
        Ok(Box::new(self.clone()))
    }

    fn pause(&self, _: &Signal, _: u64, _: Duration) {
        self.step();
    }
}

impl Join for SteppedRuntime {
    fn join(&self, _: Duration) -> bool {
        (0..STEPS_MAX).any(|_| {
            self.step();
            self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
        })
    }
}
