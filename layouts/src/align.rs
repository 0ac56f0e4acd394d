//! The one alignment unit of the format.

/// Unit of alignment of everything on disk and in the arena, in bytes: the largest logical block
/// size that drives report, and the page size of x86-64.
pub const ALIGN: u64 = 4096;

/// `n` rounded up to the next multiple of [`ALIGN`]; saturates at the largest multiple.
pub const fn align_up(n: u64) -> u64 {
    match n.checked_add(ALIGN - 1) {
        Some(v) => v & !(ALIGN - 1),
        None => !(ALIGN - 1),
    }
}

/// `n` rounded down to a multiple of [`ALIGN`].
pub const fn align_down(n: u64) -> u64 {
    n & !(ALIGN - 1)
}

/// Whether `n` is a multiple of [`ALIGN`].
pub const fn is_aligned(n: u64) -> bool {
    n & (ALIGN - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_at_boundaries_rounds_correctly() {
        assert_eq!([0, 1, 4095, 4096, 4097].map(align_up), [0, 4096, 4096, 4096, 8192]);
        assert_eq!([0, 1, 4095, 4096, 4097].map(align_down), [0, 0, 0, 4096, 4096]);
        assert_eq!(align_up(u64::MAX), u64::MAX - 4095);
        assert_eq!([0, 1, 4096].map(is_aligned), [true, false, true]);
    }
}
