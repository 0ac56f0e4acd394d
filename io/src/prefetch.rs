//! Asking for a line of memory ahead of its use.

/// Bytes of one.
const LINE: usize = 64;

/// Start bringing the line that `at` begins in into the cache. Unlike a load it waits for nothing and holds nothing up behind
/// it, so that a core has as many of them under way as it can.
#[inline(always)]
pub fn line<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program could see and cannot fault, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(at);
}

/// As [`line`], of each that the first `most` bytes lie in.
#[inline(always)]
pub fn front(bytes: &[u8], most: usize) {
    bytes.iter().take(most).step_by(LINE).for_each(line);
}

/// As [`line`], for who writes there: no other core has the line then, and to write takes no second request for it.
#[inline(always)]
pub fn line_to_write<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as in `line`. The instruction is of every x86-64: where a CPU does not know it, it does nothing (Intel's manual, volume 2,
        // PREFETCHW; the intrinsic would be a prefetch to read in a build for baseline x86-64).
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
    fn it_leaves_everything_as_it_is() {
        let table = vec![7u64; 10_000];
        table.iter().for_each(super::line);
        super::front(&[7; 100], 200);
        super::front(&[], 200);
        table.iter().for_each(super::line_to_write);
        assert!(table.iter().all(|word| *word == 7));
    }
}
