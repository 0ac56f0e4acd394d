//! Operations of a queue that helper threads do for it: of a ring, what the kernel may need a worker thread of its own for.

use std::time::Duration;

use super::inbox::Inbox;
use super::pool::{Job, Pool};
use crate::disk::{Completion, Op};
use crate::files::DataFile;
use crate::sync::Arc;

/// One queue's operations with the helper threads.
pub(crate) struct Aside {
    pool: Arc<Pool>,
    inbox: Arc<Inbox>,
    out: usize,
}

impl Aside {
    /// None yet.
    pub(crate) fn new(pool: Arc<Pool>) -> Aside {
        Aside { pool, inbox: Arc::default(), out: 0 }
    }

    /// Operations with the threads, or done and not taken.
    pub(crate) fn out(&self) -> usize {
        self.out
    }

    /// Hand an operation to the threads.
    pub(crate) fn push(&mut self, token: u64, op: Op, file: Arc<DataFile>) {
        self.out += 1;
        self.pool.push(Job { token, op, file, inbox: Arc::clone(&self.inbox) });
    }

    /// Move what they have done to `done`.
    pub(crate) fn take(&mut self, done: &mut Vec<Completion>) {
        if self.out > 0 {
            self.out -= self.inbox.take(done);
        }
    }

    /// Wait until they have done something, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        self.inbox.wait(timeout);
    }
}
