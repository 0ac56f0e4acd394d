//! Staging memory: one mapped region, handed out in page runs for transfers that cannot use the
//! caller's memory directly.
//!
//! Invariant: a byte of the region belongs to at most one part at a time. The run allocator records
//! the owner, and a part returns its run only when it is dropped, which is after every operation
//! that held it.

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use crate::buffer::{AlignedBuf, Part};
use crate::page_allocator::{PAGE, Runs};
use crate::shm;
use crate::signal::Signal;
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, PoisonError};
use crate::verbs::DeviceMemory;

/// A bounded pool of staging memory; clones share it.
#[derive(Clone)]
pub struct StagingPool {
    state: Arc<PoolState>,
}

struct PoolState {
    base: NonNull<u8>,
    bytes: usize,
    /// Owns the mapping; its bytes are reached through `base` alone.
    _memory: Memory,
    runs: Mutex<Runs>,
    released: Signal,
}

enum Memory {
    Own(#[expect(dead_code, reason = "held for its drop")] AlignedBuf),
    Shared(#[expect(dead_code, reason = "held for its drop")] Arc<shm::SharedRegion>),
}

// SAFETY: `base` points into the mapping that `_memory` owns, which any thread may use. Bytes are
// accessed only through parts, whose runs are disjoint; the other fields are a Mutex or Sync by
// themselves.
unsafe impl Send for PoolState {}
// SAFETY: as for Send: a shared PoolState gives access to bytes only through disjoint parts.
unsafe impl Sync for PoolState {}

impl PoolState {
    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of several users of a pool, none of which can take all of it.
#[derive(Debug)]
pub struct StagingUser {
    pool: StagingPool,
    /// Pages of its parts; changed under the lock of the runs.
    pages: Arc<AtomicU32>,
}

impl StagingUser {
    /// As [`StagingPool::try_part`], but `None` also if this user would then have more memory than
    /// is free, unless it has none. One user that keeps what it gets leaves half of the pool to the
    /// others, a second one half of that, and so on.
    pub fn try_part(&self, len: usize) -> Option<Part> {
        self.pool.take(len, Some(&self.pages))
    }

    /// The pool.
    pub fn pool(&self) -> &StagingPool {
        &self.pool
    }
}

/// An allocated run; held by its part.
struct StagingRun {
    state: Arc<PoolState>,
    start: u32,
    pages: u32,
    /// Pages of its user.
    used: Option<Arc<AtomicU32>>,
}

impl Drop for StagingRun {
    fn drop(&mut self) {
        let mut runs = self.state.runs();
        runs.free(self.start, self.pages);
        if let Some(used) = &self.used {
            used.fetch_sub(self.pages, Ordering::Relaxed);
        }
        drop(runs);
        self.state.released.raise();
    }
}

fn pages_of(bytes: usize) -> io::Result<u32> {
    let pages = u32::try_from(bytes / PAGE).ok().filter(|n| *n > 0 && bytes.is_multiple_of(PAGE));
    pages.ok_or_else(|| {
        let text = format!("staging memory must be a positive multiple of 4096: bytes={bytes}");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

impl StagingPool {
    /// A pool of `bytes` bytes, mapped and zeroed now (pages become resident as they are used).
    /// Fails with kind `InvalidInput` unless `bytes` is a positive multiple of 4096 below 16 TiB,
    /// and if the system has no memory.
    pub fn new(bytes: usize) -> io::Result<StagingPool> {
        let pages = pages_of(bytes)?;
        // A new mapping: one from the buffer cache would have to be cleared as a whole.
        let mut buf = AlignedBuf::many(1, bytes)?.pop().ok_or(io::ErrorKind::OutOfMemory)?;
        buf.exclude_from_fork();
        let base = NonNull::from(&mut buf[..]).cast();
        Ok(StagingPool::with_memory(base, bytes, pages, Memory::Own(buf)))
    }

    /// As [`StagingPool::new`], in a region that can be shared with other processes. Returns the
    /// region too.
    pub fn shared(bytes: usize) -> io::Result<(StagingPool, Arc<shm::SharedRegion>)> {
        let pages = pages_of(bytes)?;
        let memory = Arc::new(shm::SharedRegion::new(bytes)?);
        memory.exclude_from_fork();
        // In this process only the pool's parts read or write the region; its other users handle
        // offsets and lengths only.
        let base = NonNull::new(memory.base()).ok_or(io::ErrorKind::OutOfMemory)?;
        let pool = StagingPool::with_memory(base, bytes, pages, Memory::Shared(memory.clone()));
        Ok((pool, memory))
    }

    fn with_memory(base: NonNull<u8>, bytes: usize, pages: u32, memory: Memory) -> StagingPool {
        let runs = Mutex::new(Runs::new(pages));
        let state = PoolState { base, bytes, _memory: memory, runs, released: Signal::default() };
        StagingPool { state: Arc::new(state) }
    }

    /// Exclusive memory of `len` bytes rounded up to 4096, page-aligned; `None` if no run that long
    /// is free now, or for 0. It holds zeros or the bytes of its last user. Dropping the part frees
    /// the memory and raises [`StagingPool::released`].
    pub fn try_part(&self, len: usize) -> Option<Part> {
        self.take(len, None)
    }

    /// One more user of the pool.
    pub fn user(&self) -> StagingUser {
        StagingUser { pool: self.clone(), pages: Arc::new(AtomicU32::new(0)) }
    }

    fn take(&self, len: usize, used: Option<&Arc<AtomicU32>>) -> Option<Part> {
        let pages = u32::try_from(len.div_ceil(PAGE)).ok()?;
        let mut runs = self.state.runs();
        if let Some(used) = used {
            let has = used.load(Ordering::Relaxed);
            let left = runs.free_pages().checked_sub(pages)?;
            if has > 0 && has + pages > left {
                return None;
            }
        }
        let start = runs.alloc(pages)?;
        if let Some(used) = used {
            used.fetch_add(pages, Ordering::Relaxed);
        }
        drop(runs);
        let loan = StagingRun { state: Arc::clone(&self.state), start, pages, used: used.cloned() };
        // SAFETY: the run is inside the mapping, because the allocator counts exactly its pages.
        let ptr = unsafe { self.state.base.add(start as usize * PAGE) };
        // SAFETY: the mapping is zeroed, so initialised. `loan` keeps the mapping alive and the run
        // allocated until the part is dropped, so no other part of this pool covers these bytes,
        // and nothing else accesses them.
        Some(unsafe { Part::exclusive(ptr, pages as usize * PAGE, Some(Arc::new(loan))) })
    }

    /// Bytes of the pool.
    pub fn capacity(&self) -> usize {
        self.state.bytes
    }

    /// Allocated bytes.
    pub fn in_use(&self) -> usize {
        self.capacity() - self.state.runs().free_pages() as usize * PAGE
    }

    /// Bytes of the longest part that [`StagingPool::try_part`] could give now.
    pub fn largest_free(&self) -> usize {
        self.state.runs().largest_free() as usize * PAGE
    }

    /// Raised each time a part is dropped.
    pub fn released(&self) -> &Signal {
        &self.state.released
    }
}

// SAFETY: the pool keeps its mapping, and both functions return its constants. Bytes are accessed
// through parts alone; an exclusive part belongs to the link while a device may write them.
unsafe impl DeviceMemory for StagingPool {
    fn base(&self) -> NonNull<u8> {
        self.state.base
    }

    fn bytes(&self) -> usize {
        self.state.bytes
    }
}

impl fmt::Debug for StagingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagingPool(capacity={}, in_use={})", self.capacity(), self.in_use())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staging_parts_are_zeroed_aligned_and_disjoint() {
        let pool = StagingPool::new(8 * PAGE).unwrap();
        let mut parts: Vec<Part> = (0..4).map(|_| pool.try_part(PAGE + 1).unwrap()).collect();
        assert!(pool.try_part(1).is_none());
        assert_eq!(pool.in_use(), pool.capacity());
        for (i, part) in parts.iter_mut().enumerate() {
            assert_eq!((part.len(), part.addr() % PAGE), (2 * PAGE, 0));
            assert!(part.bytes().iter().all(|b| *b == 0));
            part.bytes_mut().unwrap().fill(i as u8 + 1);
        }
        for (i, part) in parts.iter().enumerate() {
            assert!(
                part.bytes().iter().all(|b| *b == i as u8 + 1),
                "part={i} was written by another"
            );
        }
    }

    #[test]
    fn dropped_staging_part_is_freed_and_raises_signal() {
        let pool = StagingPool::new(4 * PAGE).unwrap();
        let part = pool.try_part(4 * PAGE).unwrap();
        let seen = pool.released().value();
        assert!(pool.clone().try_part(1).is_none());
        drop(part);
        assert_eq!(pool.released().value(), seen + 1);
        assert_eq!((pool.in_use(), pool.largest_free()), (0, 4 * PAGE));
    }

    #[test]
    fn users_that_keep_their_parts_leave_memory_to_another() {
        let pool = StagingPool::new(12 * PAGE).unwrap();
        let users: Vec<StagingUser> = (0..3).map(|_| pool.user()).collect();
        let take = |user: &StagingUser| -> Vec<Part> {
            std::iter::from_fn(|| user.try_part(PAGE)).collect()
        };
        let mut parts: Vec<Vec<Part>> = users.iter().map(take).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [6, 3, 1]);
        parts[0].truncate(1);
        assert_eq!(take(&users[2]).len(), 3, "what is returned is for all");
        parts.clear();
        assert_eq!(pool.in_use(), 0);
        assert!(users[0].try_part(12 * PAGE).is_some(), "one that has none may take all");
    }

    #[test]
    fn staging_part_outlives_pool() {
        let pool = StagingPool::new(PAGE).unwrap();
        let mut part = pool.try_part(1).unwrap();
        drop(pool);
        part.bytes_mut().unwrap().fill(7);
        assert_eq!(part.bytes()[PAGE - 1], 7);
    }

    #[test]
    fn unaligned_pool_size_is_refused() {
        for bytes in [0, 1, PAGE - 1, PAGE + 1] {
            let refused = StagingPool::new(bytes).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "bytes={bytes}");
        }
        let pool = StagingPool::new(PAGE).unwrap();
        assert!(pool.try_part(0).is_none());
        assert!(pool.try_part(usize::MAX).is_none());
    }
}
