//! Memory that a caller says will be read into over and over. A side that can (io_uring) has the kernel look its pages up
//! once, and not at every read.
//!
//! Invariants:
//! - What is registered changes nothing but the cost of a read: parts are what gives the right to memory, as without.
//! - A ring registers by itself, when it first meets a version of the list that it has not seen. Once a
//!   [`Registration`] is gone, no ring begins another read by it.
//! - The kernel keeps the pages of what a ring registered until that ring registers anew, or ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Mutex, PoisonError};

/// Most bytes of one registered stretch: the kernel takes 1 GiB (io_uring/rsrc.c).
const STRETCH_MAX: usize = 1 << 30;

/// Most stretches of one ring: `IORING_MAX_REG_BUFFERS` (io_uring/rsrc.h).
const STRETCHES_MAX: usize = 1 << 14;

/// A stretch of memory, by address: the kernel's `struct iovec` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

impl Span {
    /// Whether it is a stretch of addresses, and no longer than a ring can have.
    pub(crate) fn is_possible(self) -> bool {
        self.base.checked_add(self.len).is_some() && self.len.div_ceil(STRETCH_MAX) <= STRETCHES_MAX
    }

    /// It in stretches that the kernel takes.
    pub(crate) fn stretches(self) -> impl Iterator<Item = Span> {
        (0..self.len.div_ceil(STRETCH_MAX)).map(move |i| {
            let at = i * STRETCH_MAX;
            Span { base: self.base + at, len: (self.len - at).min(STRETCH_MAX) }
        })
    }
}

/// What is registered with a disk.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    list: Mutex<List>,
    /// Changes with the list, so that rings see without a lock that nothing did.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    spans: Vec<(u64, Span)>,
}

impl Registered {
    /// Add a span, until the registration is dropped.
    pub(crate) fn add(self: &Arc<Self>, span: Span) -> Registration {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let id = list.next;
        list.next += 1;
        list.spans.push((id, span));
        self.version.fetch_add(1, Ordering::Release);
        Registration { of: Some((self.clone(), id)) }
    }

    /// Which version of the list this is; 0 is an empty one.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The version and its stretches, each once, by address.
    pub(crate) fn stretches(&self) -> (u64, Vec<Span>) {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Span> = list.spans.iter().flat_map(|(_, span)| span.stretches()).collect();
        all.sort_by_key(|span| (span.base, span.len));
        all.dedup();
        (self.version(), all)
    }
}

/// Memory is registered for as long as this exists.
#[derive(Debug)]
#[must_use = "what is registered is so until this is dropped"]
pub struct Registration {
    of: Option<(Arc<Registered>, u64)>,
}

impl Registration {
    /// Of nothing: where a side has no use for it.
    pub fn none() -> Registration {
        Registration { of: None }
    }

    /// Whether reads are spared anything by it.
    pub fn is_used(&self) -> bool {
        self.of.is_some()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((of, id)) = self.of.take() {
            let mut list = of.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.spans.retain(|(other, _)| *other != id);
            of.version.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_is_listed_once_by_address_until_it_is_dropped() {
        let all = Arc::new(Registered::default());
        let span = |base, len| Span { base, len };
        assert_eq!(all.stretches(), (0, vec![]));
        let (long, twice) = (all.add(span(1 << 40, STRETCH_MAX + 4096)), all.add(span(4096, 8192)));
        let again = all.add(span(4096, 8192));
        let (before, listed) = all.stretches();
        let rest = span((1 << 40) + STRETCH_MAX, 4096);
        assert_eq!(listed, [span(4096, 8192), span(1 << 40, STRETCH_MAX), rest]);
        drop(twice);
        assert_eq!(all.stretches().1, listed, "it is still registered by another");
        assert_ne!(all.version(), before);
        drop((again, long));
        assert_eq!(all.stretches().1, []);
        drop(Registration::none());
    }
}
