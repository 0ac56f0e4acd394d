//! A session's buffers for record headers and unaligned tails.

use pagelith_io::buffer::Part;
use pagelith_io::staging::StagingPool;
use pagelith_layouts::align::ALIGN;

/// Capacity, bytes: twice the longest header.
const SCRATCH_BYTES: usize = 2 * pagelith_layouts::record::HEADER_BYTES_MAX as usize;

/// Aligned buffers: one sector, which fits nearly every header and tail, or longer. Returned
/// buffers of one sector are cached, because an allocation from the pool costs more than the
/// rest of an object's bookkeeping.
pub(crate) struct Scratch {
    pool: StagingPool,
    sectors: Vec<Part>,
}

impl Scratch {
    /// An instance with all memory free.
    pub fn new() -> std::io::Result<Scratch> {
        Ok(Scratch { pool: StagingPool::new(SCRATCH_BYTES)?, sectors: Vec::new() })
    }

    /// An exclusive buffer of `len` bytes, rounded up to 4096; `None` if too much is in use.
    pub fn take(&mut self, len: usize) -> Option<Part> {
        if len <= ALIGN as usize
            && let Some(sector) = self.sectors.pop()
        {
            return Some(sector);
        }
        self.pool.try_part(len).or_else(|| {
            // Cached buffers may use up or fragment the pool.
            self.sectors.clear();
            self.pool.try_part(len)
        })
    }

    /// Return a buffer. Dropping it instead is correct, but slower.
    pub fn give_back(&mut self, part: Part) {
        if part.len() == ALIGN as usize {
            self.sectors.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_sector_is_reused_and_does_not_block_larger_request() {
        let mut scratch = Scratch::new().expect("memory");
        let sectors = SCRATCH_BYTES / ALIGN as usize;
        let all: Vec<Part> = std::iter::from_fn(|| scratch.take(1)).collect();
        assert_eq!(all.len(), sectors);
        let addresses: std::collections::BTreeSet<usize> = all.iter().map(Part::addr).collect();
        assert_eq!(addresses.len(), sectors, "a sector is in use twice");
        all.into_iter().for_each(|part| scratch.give_back(part));
        let sector = scratch.take(1).expect("a sector");
        assert!(addresses.contains(&sector.addr()));
        scratch.give_back(sector);
        assert!(scratch.take(SCRATCH_BYTES).is_some(), "cached sectors block a larger request");
        assert_eq!(scratch.pool.in_use(), 0);
    }
}
