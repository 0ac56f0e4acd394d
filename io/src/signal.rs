//! A counter that can be waited on: raised when something changed, never lost between look and wait.

use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, wait_while};

/// A shared event counter. Read [`Signal::value`], look at the state, then wait with the value read:
/// a raise in between ends the wait at once.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<(Mutex<u64>, Condvar)>);

impl Signal {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the signal was raised.
    pub fn value(&self) -> u64 {
        *self.lock()
    }

    /// Raise it, ending every wait.
    pub fn raise(&self) {
        *self.lock() += 1;
        self.0.1.notify_all();
    }

    /// Wait on this thread until the value differs from `seen` or `timeout` passed. For real runtimes;
    /// others wait through [`crate::runtime::Runtime::pause`].
    pub fn wait(&self, seen: u64, timeout: Duration) {
        drop(wait_while(&self.0.1, self.lock(), timeout, |v| *v == seen));
    }
}
