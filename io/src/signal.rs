//! A counter that threads can wait on. A raise between reading the value and waiting is never lost.

use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, wait_while};

/// A shared event counter. Read [`Signal::value`], check the state, then wait with the value read:
/// a raise in between ends the wait at once.
#[derive(Clone, Debug, Default)]
pub struct Signal(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    value: u64,
    /// Threads in [`Signal::wait`]. With none, a raise skips the system call that wakes them.
    waiters: usize,
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
        // A thread that begins to wait after this point sees the new value.
        let has_waiters = state.waiters > 0;
        drop(state);
        if has_waiters {
            self.0.1.notify_all();
        }
    }

    /// Block this thread until the value differs from `seen` or `timeout` passed. For real
    /// runtimes; others wait through [`crate::runtime::Runtime::pause`].
    pub fn wait(&self, seen: u64, timeout: Duration) {
        let mut state = self.lock();
        if state.value != seen {
            return;
        }
        state.waiters += 1;
        let mut state = wait_while(&self.0.1, state, timeout, |s| s.value == seen);
        state.waiters -= 1;
    }
}
