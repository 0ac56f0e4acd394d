//! Asking for a line of memory ahead of its use.

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

#[cfg(test)]
mod tests {
    #[test]
    fn it_leaves_everything_as_it_is() {
        let table = vec![7u64; 10_000];
        table.iter().for_each(super::line);
        assert!(table.iter().all(|word| *word == 7));
    }
}
