//! How many system calls queues make, for benches: beside the bytes it is what a host pays for a transfer.

use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// System calls that the queues of this process have made so far: entries into rings, and transfers and syncs of the
/// blocking side. Waiting for its helper threads is not in it.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// One more.
pub(crate) fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}
