//! The blocking backend: positioned reads and writes on the disk's helper threads, for kernels,
//! containers and file systems that refuse io_uring or O_DIRECT, and for queues that get no ring.
//! It has the same contract, no unsafe code, and less speed.
//!
//! Invariant: a helper thread owns an operation's memory from its submission until the system call
//! has returned, so a queue that is dropped early never frees memory that the kernel may access.

mod completions;
mod helpers;
mod pool;
mod transfer;

use std::time::{Duration, Instant};

pub(crate) use self::helpers::HelperOps;
pub(crate) use self::pool::Pool;
use crate::disk::{Completion, Op, Queue};
use crate::files::Files;
use crate::op_check::{Alignment, check, refused};
use crate::sync::Arc;

/// How long a dropped queue waits for its operations before it leaves them to their threads.
const DROP_WAIT: Duration = Duration::from_secs(30);

/// A queue over the helper threads of its disk.
pub(crate) struct BlockingQueue {
    files: Arc<Files>,
    align: Alignment,
    helpers: HelperOps,
    /// Completions that need no thread.
    ready: Vec<Completion>,
    depth: usize,
    drop_wait: Duration,
}

impl BlockingQueue {
    /// A queue for up to `depth` operations, at least 1.
    pub(crate) fn new(
        files: Arc<Files>,
        align: Alignment,
        pool: Arc<Pool>,
        depth: usize,
    ) -> BlockingQueue {
        let (helpers, depth) = (HelperOps::new(pool), depth.max(1));
        BlockingQueue { files, align, helpers, ready: Vec::new(), depth, drop_wait: DROP_WAIT }
    }
}

impl Queue for BlockingQueue {
    fn room(&self) -> usize {
        self.depth - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.helpers.outstanding() + self.ready.len()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.room() == 0 {
            return Err(op);
        }
        match check(|id| self.files.get(id), self.align, &op) {
            Ok(file) => self.helpers.push(token, op, file),
            Err(fault) => self.ready.push(refused(token, op, fault)),
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        self.helpers.take(done);
    }

    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        let before = done.len();
        self.poll(done);
        if done.len() == before && self.helpers.outstanding() > 0 && !timeout.is_zero() {
            self.helpers.wait(timeout);
            self.poll(done);
        }
    }

    fn set_drop_timeout(&mut self, wait: Duration) {
        self.drop_wait = wait.min(DROP_WAIT);
    }
}

impl Drop for BlockingQueue {
    fn drop(&mut self) {
        let start = Instant::now();
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            let left = self.drop_wait.saturating_sub(start.elapsed());
            if left.is_zero() {
                tracing::error!(
                    stuck = self.helpers.outstanding(),
                    "queue dropped with operations stuck, their threads keep the memory"
                );
                return;
            }
            self.wait(&mut done, left);
            done.clear();
        }
    }
}
