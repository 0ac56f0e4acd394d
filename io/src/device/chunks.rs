//! Chunks in which memory of the host is locked.

/// Memory is locked in chunks that end where the address is a multiple of this: a driver's call
/// then takes milliseconds, and a failure undoes them one by one.
pub const CHUNK_BYTES: usize = 64 << 20;

/// A range of the host by runs that are not in two chunks: offset and length of each. A driver
/// refuses a copy out of memory that was locked by two calls.
pub(super) fn runs(base: usize, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut offset = 0;
    std::iter::from_fn(move || {
        let room = CHUNK_BYTES - (base + offset) % CHUNK_BYTES;
        let run = (offset, room.min(bytes - offset));
        offset += run.1;
        (run.1 > 0).then_some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_edges_of_chunks() {
        let all = |base, bytes| runs(base, bytes).collect::<Vec<_>>();
        assert_eq!(all(4096, 8192), [(0, 8192)]);
        assert_eq!(all(CHUNK_BYTES - 1, 3), [(0, 1), (1, 2)]);
        let edges = [(0, 5), (5, CHUNK_BYTES), (CHUNK_BYTES + 5, 1)];
        assert_eq!(all(3 * CHUNK_BYTES - 5, CHUNK_BYTES + 6), edges);
        assert_eq!(all(CHUNK_BYTES, 0), []);
    }
}
