//! The arena's space for several threads at once.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::arena::{ArenaSpace, Extent};

/// An [`ArenaSpace`] behind a lock of its own, had for as long as one extent comes or goes. What is had is the space of all who have a
/// clone.
#[derive(Clone, Debug)]
pub struct SharedSpace(Arc<Space>);

#[derive(Debug)]
struct Space {
    space: Mutex<ArenaSpace>,
    /// Bytes that are free, as of when the lock was last given back: where none are, nobody needs to ask.
    free: AtomicU64,
}

impl SharedSpace {
    /// Of this space.
    pub fn new(space: ArenaSpace) -> SharedSpace {
        let free = AtomicU64::new(space.free_bytes());
        SharedSpace(Arc::new(Space { space: Mutex::new(space), free }))
    }

    fn lock(&self) -> MutexGuard<'_, ArenaSpace> {
        self.0.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut ArenaSpace) -> T) -> T {
        let mut space = self.lock();
        let changed = change(&mut space);
        self.0.free.store(space.free_bytes(), Relaxed);
        changed
    }

    /// As [`ArenaSpace::alloc`].
    pub fn alloc(&self, bytes: u64) -> Option<Extent> {
        // Other threads' changes may not be seen yet: then they were made a moment later.
        (self.free_bytes() >= bytes).then(|| self.change(|space| space.alloc(bytes))).flatten()
    }

    /// As [`ArenaSpace::free`].
    ///
    /// # Panics
    /// As that.
    pub fn free(&self, extent: Extent) {
        self.change(|space| space.free(extent));
    }

    /// As [`ArenaSpace::capacity_bytes`].
    pub fn capacity_bytes(&self) -> u64 {
        self.lock().capacity_bytes()
    }

    /// As [`ArenaSpace::free_bytes`].
    pub fn free_bytes(&self) -> u64 {
        self.0.free.load(Relaxed)
    }

    /// As [`ArenaSpace::in_use_bytes`].
    pub fn in_use_bytes(&self) -> u64 {
        self.lock().in_use_bytes()
    }

    /// As [`ArenaSpace::peak_bytes`].
    pub fn peak_bytes(&self) -> u64 {
        self.lock().peak_bytes()
    }
}
