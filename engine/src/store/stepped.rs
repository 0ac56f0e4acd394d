//! Background work that goes on only while somebody waits for it: for tests that look at a store
//! between its steps.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagelith_io::fault::IoFault;
use pagelith_io::probe::{SideChoice, open_disk};
use pagelith_io::runtime::{Env, Join, Runtime, Step, Task};
use pagelith_io::signal::Signal;
use pagelith_io::system::{SystemClock, SystemEntropy};

use crate::config::{Config, Facts};
use crate::store::embedded::Store;

/// Most steps that a task takes to its end.
const STEPS_MAX: usize = 100_000;

/// Tasks, stepped on the thread that waits.
#[derive(Clone, Default)]
pub(crate) struct SteppedRuntime(Arc<Mutex<Vec<Box<dyn Task>>>>);

impl SteppedRuntime {
    /// A store in real directories whose background work this is.
    pub fn open(&self, config: &Config) -> Store {
        let config = config.validate(&Facts::of_this_machine().expect("facts")).expect("valid");
        let disk = Some(open_disk(config.ssd_dirs(), SideChoice::Auto).expect("a disk"));
        let (clock, entropy) = (Arc::new(SystemClock::new()), Arc::new(SystemEntropy));
        let env = Env { disk, clock, entropy, runtime: Arc::new(self.clone()) };
        Store::open_in(config, env).expect("opened")
    }

    /// Step until this is so.
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let is_so_by_now = (0..STEPS_MAX).any(|_| {
            is_so() || {
                self.step();
                false
            }
        });
        assert!(is_so_by_now, "{STEPS_MAX} steps and not so: {what}");
    }

    /// One step of each task.
    pub fn step(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|task| task.step() != Step::Done);
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
