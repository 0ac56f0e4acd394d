//! A semaphore that bounds the links that a server serves at a time.
//!
//! Invariant: a permit is acquired before the peer learns that it is admitted, and released when
//! its link is dropped. `in_use <= capacity`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Permits for links, and how many are in use.
#[derive(Debug)]
pub(crate) struct LinkPermits {
    capacity: usize,
    in_use: AtomicUsize,
}

/// The permit of one link, released on drop.
#[derive(Debug)]
pub(crate) struct LinkPermit(Arc<LinkPermits>);

impl LinkPermits {
    pub fn new(capacity: usize) -> Arc<LinkPermits> {
        Arc::new(LinkPermits { capacity, in_use: AtomicUsize::new(0) })
    }

    /// Acquire a permit; `None` if all are in use.
    pub fn try_acquire(self: &Arc<LinkPermits>) -> Option<LinkPermit> {
        let one_more = |in_use: usize| (in_use < self.capacity).then_some(in_use + 1);
        self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(LinkPermit(self.clone()))
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn in_use(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}

impl Drop for LinkPermit {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_beyond_capacity_are_refused_until_one_is_dropped() {
        let permits = LinkPermits::new(2);
        let (first, second) = (permits.try_acquire(), permits.try_acquire());
        assert!(first.is_some() && second.is_some() && permits.try_acquire().is_none());
        drop(first);
        assert_eq!(permits.in_use(), 1);
        assert!(permits.try_acquire().is_some());
    }
}
