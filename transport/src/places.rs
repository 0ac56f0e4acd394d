//! Places of links that are served at a time.
//!
//! Invariant: a place is taken before the peer hears that it is let in, and free again when its link is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many links there may be, and how many there are.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: AtomicUsize,
}

/// The place of a link, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Places {
    pub fn new(most: usize) -> Arc<Places> {
        Arc::new(Places { most, taken: AtomicUsize::new(0) })
    }

    /// One of them; `None` if all are taken.
    pub fn take(self: &Arc<Places>) -> Option<Place> {
        let one_more = |taken: usize| (taken < self.most).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Place(self.clone()))
    }

    pub fn most(&self) -> usize {
        self.most
    }

    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_up_to_the_bound_and_given_back() {
        let places = Places::new(2);
        let (first, second) = (places.take(), places.take());
        assert!(first.is_some() && second.is_some() && places.take().is_none());
        drop(first);
        assert_eq!(places.taken(), 1);
        assert!(places.take().is_some());
    }
}
