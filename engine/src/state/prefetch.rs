//! Prefetch hints: objects to be read into DRAM before a get. `store::prefetch` has the task that
//! reads them.
//!
//! Invariant: `HintQueue::bytes` is the sum of the padded lengths of the hints whose keys are in
//! `HintQueue::known`.

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
pub(crate) struct PrefetchHint {
    pub key: ObjectKey,
    /// Length in bytes.
    pub length: u64,
    pub at: Recency,
    /// The hint expires.
    pub deadline: Mono,
}

/// Pending hints.
#[derive(Default)]
pub(crate) struct HintQueue {
    pub hints: VecDeque<PrefetchHint>,
    /// Keys of pending hints and of hints whose objects are being read.
    pub known: FxHashSet<ObjectKey>,
    /// Arena bytes that these objects will take.
    pub bytes: u64,
}

impl HintQueue {
    /// Forget a hint that was processed or dropped.
    pub fn finish(&mut self, hint: &PrefetchHint) {
        if self.known.remove(&hint.key) {
            self.bytes -= align_up(hint.length);
        }
    }
}

/// The queue, and the task that processes it.
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

    /// Number of objects that are pending or being read.
    pub fn waiting(&self) -> u64 {
        self.queue().known.len() as u64
    }

    /// Wait for the task of a closed store to end; false if the timeout passed.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.work.raise();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.is_none_or(|task| task.join(timeout))
    }
}
