//! The finished operations of a queue, until the queue takes them.

use std::time::Duration;

use crate::disk::Completion;
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError, wait_while};

/// Finished operations of one queue.
#[derive(Default)]
pub(super) struct CompletionQueue {
    finished: Mutex<Vec<Completion>>,
    arrived: Condvar,
}

impl CompletionQueue {
    fn lock(&self) -> MutexGuard<'_, Vec<Completion>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Add a completion, and wake the queue.
    pub(super) fn push(&self, completion: Completion) {
        self.lock().push(completion);
        self.arrived.notify_one();
    }

    /// Move all to `done`; returns how many.
    pub(super) fn take(&self, done: &mut Vec<Completion>) -> usize {
        let mut finished = self.lock();
        let n = finished.len();
        done.append(&mut finished);
        n
    }

    /// Wait until a completion exists, or `timeout` passed.
    pub(super) fn wait(&self, timeout: Duration) {
        drop(wait_while(&self.arrived, self.lock(), timeout, |finished| finished.is_empty()));
    }
}
