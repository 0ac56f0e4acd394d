//! A session's own memory for headers and ragged ends.

use pagelith_io::buffer::Part;
use pagelith_io::staging::StagingPool;
use pagelith_layouts::align::ALIGN;

/// Bytes: room for the longest header twice.
const SCRATCH_BYTES: usize = 2 * pagelith_layouts::record::HEADER_BYTES_MAX as usize;

/// Aligned memory in pieces of 4096 bytes, which nearly every header and ragged end fits, and of any length. Those of
/// one page are kept when they come back: taking one from the pool costs more than the rest of an object's
/// bookkeeping.
pub(crate) struct Scratch {
    pool: StagingPool,
    pages: Vec<Part>,
}

impl Scratch {
    /// All of it free.
    pub fn new() -> std::io::Result<Scratch> {
        Ok(Scratch { pool: StagingPool::new(SCRATCH_BYTES)?, pages: Vec::new() })
    }

    /// Exclusive memory of `len` bytes rounded up to 4096; `None` if too much is lent out.
    pub fn take(&mut self, len: usize) -> Option<Part> {
        if len <= ALIGN as usize
            && let Some(page) = self.pages.pop()
        {
            return Some(page);
        }
        self.pool.try_part(len).or_else(|| {
            // What is kept may be all that is in the way.
            self.pages.clear();
            self.pool.try_part(len)
        })
    }

    /// Memory that is no longer needed. Dropping it is as good, only slower.
    pub fn give_back(&mut self, part: Part) {
        if part.len() == ALIGN as usize {
            self.pages.push(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_back_is_lent_again_and_stands_in_nobodys_way() {
        let mut scratch = Scratch::new().expect("memory");
        let pages = SCRATCH_BYTES / ALIGN as usize;
        let all: Vec<Part> = std::iter::from_fn(|| scratch.take(1)).collect();
        assert_eq!(all.len(), pages);
        let addresses: std::collections::BTreeSet<usize> = all.iter().map(Part::addr).collect();
        assert_eq!(addresses.len(), pages, "a page is lent twice");
        all.into_iter().for_each(|part| scratch.give_back(part));
        let page = scratch.take(1).expect("a page");
        assert!(addresses.contains(&page.addr()));
        scratch.give_back(page);
        assert!(scratch.take(SCRATCH_BYTES).is_some(), "pages that are kept are in the way");
        assert_eq!(scratch.pool.in_use(), 0);
    }
}
