//! Prefetches of cache lines.

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetch the line in which `at` begins. Unlike a load it does not stall later instructions, so a
/// core can have as many in flight as it supports.
#[inline(always)]
pub fn line<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no visible effect and cannot fault, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(at);
}

/// As [`line`], for each line of the first `most` bytes.
#[inline(always)]
pub fn front(bytes: &[u8], most: usize) {
    bytes.iter().take(most).step_by(LINE).for_each(line);
}

/// As [`line`], for writing: the core then owns the line, so the write needs no second request.
#[inline(always)]
pub fn line_to_write<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as in `line`. Every x86-64 CPU accepts the instruction; one that does not support
        // it executes a no-op (Intel's manual, volume 2, PREFETCHW; the intrinsic would be a
        // prefetch for reading in a build for baseline x86-64).
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) std::ptr::from_ref(at), options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(at);
}

#[cfg(test)]
mod tests {
    #[test]
    fn prefetch_changes_no_memory() {
        let table = vec![7u64; 10_000];
        table.iter().for_each(super::line);
        super::front(&[7; 100], 200);
        super::front(&[], 200);
        table.iter().for_each(super::line_to_write);
        assert!(table.iter().all(|word| *word == 7));
    }
}
