//! Which thread this is.

use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// A number of the calling thread that no other thread of this process has or had. The system's own are given again, and
/// an address of the thread's memory is too.
pub fn thread() -> u64 {
    NUMBER.with(|number| *number)
}
