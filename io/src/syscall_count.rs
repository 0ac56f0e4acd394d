//! A count of the system calls that queues make, for benches: besides the bytes themselves they are
//! the cost of a transfer to the host.

use std::sync::atomic::{AtomicU64, Ordering};

static CALLS: AtomicU64 = AtomicU64::new(0);

/// System calls that the queues of this process have made so far: entries into io_uring, and
/// transfers and syncs by helper threads. Waits for helper threads are not counted.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Count one system call.
pub(crate) fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}
