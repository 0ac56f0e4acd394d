//! The blocking side: positioned reads and writes on the disk's helper threads, for kernels, containers and
//! file systems that refuse io_uring or O_DIRECT. Same contract, no unsafe code, less speed.
//!
//! Invariant: a helper thread owns an operation's memory from the moment it is submitted until its system
//! call has returned, so a queue that is dropped early never frees memory under the kernel's hands.

mod inbox;
mod pool;
mod transfer;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::inbox::Inbox;
use self::pool::Job;
pub(crate) use self::pool::Pool;
use crate::check::{Align, check, refused};
use crate::disk::{Completion, Op, Queue};
use crate::files::Files;

/// How long a dropped queue waits for its operations before it leaves them to their threads.
const DROP_WAIT: Duration = Duration::from_secs(30);

/// A queue over the helper threads of its disk.
pub(crate) struct BlockingQueue {
    files: Arc<Files>,
    align: Align,
    pool: Arc<Pool>,
    inbox: Arc<Inbox>,
    /// Completions that need no thread.
    ready: Vec<Completion>,
    /// Operations with the threads or in the inbox.
    out: usize,
    depth: usize,
}

impl BlockingQueue {
    /// A queue for up to `depth` operations, at least 1.
    pub(crate) fn new(files: Arc<Files>, align: Align, pool: Arc<Pool>, depth: usize) -> BlockingQueue {
        let inbox = Arc::new(Inbox::default());
        BlockingQueue { files, align, pool, inbox, ready: Vec::new(), out: 0, depth: depth.max(1) }
    }
}

impl Queue for BlockingQueue {
    fn room(&self) -> usize {
        self.depth - self.in_flight()
    }

    fn in_flight(&self) -> usize {
        self.out + self.ready.len()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.room() == 0 {
            return Err(op);
        }
        match check(|id| self.files.get(id), self.align, &op) {
            Ok(file) => {
                self.out += 1;
                self.pool.push(Job { token, op, file, inbox: Arc::clone(&self.inbox) });
            }
            Err(fault) => self.ready.push(refused(token, op, fault)),
        }
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.ready);
        self.out -= self.inbox.take(done);
    }

    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration) {
        let before = done.len();
        self.poll(done);
        if done.len() == before && self.out > 0 && !timeout.is_zero() {
            self.inbox.wait(timeout);
            self.poll(done);
        }
    }
}

impl Drop for BlockingQueue {
    fn drop(&mut self) {
        let start = Instant::now();
        let mut done = Vec::new();
        while self.in_flight() > 0 {
            let left = DROP_WAIT.saturating_sub(start.elapsed());
            if left.is_zero() {
                tracing::error!(
                    stuck = self.out,
                    "queue dropped with operations stuck, their threads keep the memory"
                );
                return;
            }
            self.wait(&mut done, left);
            done.clear();
        }
    }
}
