//! An array of 64-bit atomics in mapped memory, which threads read while another writes it.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::buffer::AlignedBuf;

/// 64-bit atomics, initially zero. The memory is mapped like an [`AlignedBuf`]: pages become
/// resident when first touched, and failure to allocate is an error instead of an abort.
pub struct AtomicArray {
    base: NonNull<AtomicU64>,
    count: usize,
    /// Keeps the mapping; the words are accessed through `base` only.
    memory: AlignedBuf,
}

// SAFETY: the words are atomics, and this value owns the memory.
unsafe impl Send for AtomicArray {}
// SAFETY: as above; a shared borrow gives atomics, which any thread may read and write.
unsafe impl Sync for AtomicArray {}

impl AtomicArray {
    /// An array of `count` words. Fails if the system has no memory.
    pub fn new(count: usize) -> std::io::Result<AtomicArray> {
        let bytes =
            count.checked_mul(size_of::<AtomicU64>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let mut memory = AlignedBuf::new(bytes)?;
        memory.exclude_from_fork();
        // The memory does not move with the buffer's handle.
        Ok(AtomicArray { base: NonNull::from(&mut memory[..]).cast(), count, memory })
    }

    /// Make all pages resident now ([`AlignedBuf::prefault`]).
    pub fn prefault(&self) -> std::io::Result<()> {
        self.memory.prefault()
    }
}

impl Deref for AtomicArray {
    type Target = [AtomicU64];
    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `new` mapped `count` zeroed, page-aligned words, and `memory` keeps the mapping.
        // They are accessed through this slice only, whose elements may change under a shared
        // borrow.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.count) }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "two threads are what is tested")]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn atomic_array_is_zero_and_writable_by_all_threads() {
        assert!(AtomicArray::new(0).expect("memory").is_empty());
        let words = AtomicArray::new(10_000).expect("memory");
        assert!(words.iter().all(|word| word.load(Relaxed) == 0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let words = &words;
                scope.spawn(move || {
                    (thread..10_000).step_by(2).for_each(|at| words[at].store(at as u64, Relaxed));
                });
            }
        });
        let moved = words;
        assert!(moved.iter().enumerate().all(|(at, word)| word.load(Relaxed) == at as u64));
    }

    #[test]
    fn array_larger_than_memory_is_an_error() {
        assert!(AtomicArray::new(usize::MAX).is_err());
        assert!(AtomicArray::new(usize::MAX / 16).is_err());
    }
}
