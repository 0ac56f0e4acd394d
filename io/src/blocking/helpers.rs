//! The operations of one queue that helper threads perform: on the blocking backend all, on
//! io_uring those for which the kernel might need a worker thread of its own.

use std::time::Duration;

use super::completions::CompletionQueue;
use super::pool::{Job, Pool};
use crate::disk::{Completion, Op};
use crate::files::DataFile;
use crate::sync::Arc;

/// The operations of one queue that helper threads perform.
pub(crate) struct HelperOps {
    pool: Arc<Pool>,
    completions: Arc<CompletionQueue>,
    outstanding: usize,
}

impl HelperOps {
    /// No operations yet.
    pub(crate) fn new(pool: Arc<Pool>) -> HelperOps {
        HelperOps { pool, completions: Arc::default(), outstanding: 0 }
    }

    /// The same threads, without operations.
    pub(crate) fn without_ops(&self) -> HelperOps {
        HelperOps::new(Arc::clone(&self.pool))
    }

    /// Operations that the threads have, or that are finished and not taken.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Hand an operation to the threads.
    pub(crate) fn push(&mut self, token: u64, op: Op, file: Arc<DataFile>) {
        self.outstanding += 1;
        self.pool.push(Job { token, op, file, completions: Arc::clone(&self.completions) });
    }

    /// Move the finished operations to `done`.
    pub(crate) fn take(&mut self, done: &mut Vec<Completion>) {
        if self.outstanding > 0 {
            self.outstanding -= self.completions.take(done);
        }
    }

    /// Wait until an operation has finished, at most `timeout`.
    pub(crate) fn wait(&self, timeout: Duration) {
        self.completions.wait(timeout);
    }
}
