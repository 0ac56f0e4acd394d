//! A counter that can be waited on: raised when something changed, never lost between look and wait.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
        let guard = self.lock();
        let _ = self.0.1.wait_timeout_while(guard, timeout, |v| *v == seen);
    }
}
