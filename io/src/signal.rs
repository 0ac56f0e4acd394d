//! A counter that can be waited on: raised when something changed, never lost between look and wait.

use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, wait_while};

/// A shared event counter. Read [`Signal::value`], look at the state, then wait with the value read:
/// a raise in between ends the wait at once.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    value: u64,
    /// Who is in [`Signal::wait`]: to wake nobody takes a call of the kernel, too.
    waiting: usize,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the signal was raised.
    pub fn value(&self) -> u64 {
        self.lock().value
    }

    /// Raise it, ending every wait.
    pub fn raise(&self) {
        let mut state = self.lock();
        state.value += 1;
        // Whoever comes to wait from here on sees the new value.
        let waited_for = state.waiting > 0;
        drop(state);
        if waited_for {
            self.0.1.notify_all();
        }
    }

    /// Wait on this thread until the value differs from `seen` or `timeout` passed. For real runtimes;
    /// others wait through [`crate::runtime::Runtime::pause`].
    pub fn wait(&self, seen: u64, timeout: Duration) {
        let mut state = self.lock();
        if state.value != seen {
            return;
        }
        state.waiting += 1;
        let mut state = wait_while(&self.0.1, state, timeout, |s| s.value == seen);
        state.waiting -= 1;
    }
}
