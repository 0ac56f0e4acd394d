//! Hints of objects that are to be read into DRAM ahead of a get, and the task that reads them.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::runtime::Join;
use pagelith_io::signal::Signal;
use pagelith_io::sync::{Mutex, MutexGuard, PoisonError};
use pagelith_layouts::align::align_up;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashSet;

/// An object to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub key: ObjectKey,
    /// Length in bytes.
    pub length: u64,
    pub at: Recency,
    /// The hint is useless after this.
    pub deadline: Mono,
}

/// Pending hints.
#[derive(Default)]
pub(crate) struct HintQueue {
    pub hints: VecDeque<Hint>,
    /// Keys that wait or are being read.
    pub known: FxHashSet<ObjectKey>,
    /// Arena bytes that they will take.
    pub bytes: u64,
}

impl HintQueue {
    /// A hint is finished or dropped.
    pub fn finish(&mut self, hint: &Hint) {
        if self.known.remove(&hint.key) {
            self.bytes -= align_up(hint.length);
        }
    }
}

/// The hints, and the task that reads them.
#[derive(Default)]
pub(crate) struct Prefetch {
    pub queue: Mutex<HintQueue>,
    /// Wakes the task.
    pub work: Signal,
    pub task: Mutex<Option<Box<dyn Join>>>,
}

impl Prefetch {
    pub fn queue(&self) -> MutexGuard<'_, HintQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of objects that wait or are being read.
    pub fn waiting(&self) -> u64 {
        self.queue().known.len() as u64
    }

    /// Wait for the task of a closed store to end; false if it did not end in time.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.work.raise();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.is_none_or(|task| task.join(timeout))
    }
}
