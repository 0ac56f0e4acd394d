//! Memory that the caller registers because it will be read into repeatedly. On io_uring the kernel
//! then looks its pages up once, and not at every read.
//!
//! Invariants:
//! - Registration changes only the cost of a read: the right to memory still comes from parts.
//! - A ring registers memory itself, when it first sees a new version of the list. After a
//!   [`Registration`] is dropped, no ring begins another read through it.
//! - The kernel keeps the registered pages of a ring until that ring registers again, or is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::{Mutex, PoisonError};

/// Most bytes of one registered buffer: the kernel accepts 1 GiB (io_uring/rsrc.c).
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// Most registered buffers of one ring: `IORING_MAX_REG_BUFFERS` (io_uring/rsrc.h).
const BUFFERS_MAX: usize = 1 << 14;

/// A range of memory, by address: the kernel's `struct iovec` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryRange {
    pub(crate) base: usize,
    pub(crate) len: usize,
}

impl MemoryRange {
    /// Whether the range does not wrap around, and is no longer than a ring can register.
    pub(crate) fn can_register(self) -> bool {
        self.base.checked_add(self.len).is_some()
            && self.len.div_ceil(BUFFER_BYTES_MAX) <= BUFFERS_MAX
    }

    /// The range split into buffers that the kernel accepts.
    pub(crate) fn buffers(self) -> impl Iterator<Item = MemoryRange> {
        (0..self.len.div_ceil(BUFFER_BYTES_MAX)).map(move |i| {
            let at = i * BUFFER_BYTES_MAX;
            MemoryRange { base: self.base + at, len: (self.len - at).min(BUFFER_BYTES_MAX) }
        })
    }
}

/// The memory registered with a disk.
#[derive(Debug, Default)]
pub(crate) struct RegisteredMemory {
    list: Mutex<List>,
    /// Incremented with each change of the list, so that rings detect changes without a lock.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    spans: Vec<(u64, MemoryRange)>,
}

impl RegisteredMemory {
    /// Add a range, until the registration is dropped.
    pub(crate) fn add(self: &Arc<Self>, span: MemoryRange) -> Registration {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let id = list.next;
        list.next += 1;
        list.spans.push((id, span));
        self.version.fetch_add(1, Ordering::Release);
        Registration { entry: Some((self.clone(), id)) }
    }

    /// The version of the list; 0 is the initial, empty list.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The version of the list and its buffers, without duplicates and sorted by address.
    pub(crate) fn buffers(&self) -> (u64, Vec<MemoryRange>) {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<MemoryRange> =
            list.spans.iter().flat_map(|(_, span)| span.buffers()).collect();
        all.sort_by_key(|span| (span.base, span.len));
        all.dedup();
        (self.version(), all)
    }
}

/// Keeps memory registered until it is dropped.
#[derive(Debug)]
#[must_use = "dropping this ends the registration"]
pub struct Registration {
    entry: Option<(Arc<RegisteredMemory>, u64)>,
}

impl Registration {
    /// A registration without effect, for backends that do not use registered memory.
    pub fn none() -> Registration {
        Registration { entry: None }
    }

    /// Whether reads use the registration.
    pub fn is_used(&self) -> bool {
        self.entry.is_some()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((registered, id)) = self.entry.take() {
            let mut list = registered.list.lock().unwrap_or_else(PoisonError::into_inner);
            list.spans.retain(|(other, _)| *other != id);
            registered.version.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_ranges_are_listed_once_in_address_order() {
        let all = Arc::new(RegisteredMemory::default());
        let span = |base, len| MemoryRange { base, len };
        assert_eq!(all.buffers(), (0, vec![]));
        let (long, twice) =
            (all.add(span(1 << 40, BUFFER_BYTES_MAX + 4096)), all.add(span(4096, 8192)));
        let again = all.add(span(4096, 8192));
        let (before, listed) = all.buffers();
        let rest = span((1 << 40) + BUFFER_BYTES_MAX, 4096);
        assert_eq!(listed, [span(4096, 8192), span(1 << 40, BUFFER_BYTES_MAX), rest]);
        drop(twice);
        assert_eq!(all.buffers().1, listed, "it is still registered by another");
        assert_ne!(all.version(), before);
        drop((again, long));
        assert_eq!(all.buffers().1, []);
        drop(Registration::none());
    }
}
