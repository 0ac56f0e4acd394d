//! A gather list, taken from front to back.

use pagelith_io::fused::{BlockCopy, Stores};
use pagelith_layouts::checksum::Checksum;

/// What is left of a list.
pub(super) struct Gather<'a> {
    parts: &'a [&'a [u8]],
    /// Bytes of the first part that were taken already.
    taken: usize,
}

impl<'a> Gather<'a> {
    pub(super) fn new(parts: &'a [&'a [u8]]) -> Gather<'a> {
        Gather { parts, taken: 0 }
    }

    /// The next bytes that lie side by side, at most `most`; none at the end of the list.
    fn piece(&mut self, most: usize) -> Option<&'a [u8]> {
        while let Some((part, rest)) = self.parts.split_first() {
            let left = &part[self.taken..];
            if left.len() > most {
                self.taken += most;
                return Some(&left[..most]);
            }
            (self.parts, self.taken) = (rest, 0);
            if !left.is_empty() {
                return Some(left);
            }
        }
        None
    }

    /// Fill a block from the list, which the caller has checked to be long enough, past the cache; the checksum of what was copied.
    pub(super) fn fill(&mut self, mut block: &mut [u8]) -> Checksum {
        let mut copy = BlockCopy::new(block.len(), Stores::PastCache);
        while !block.is_empty()
            && let Some(piece) = self.piece(block.len())
        {
            let (now, later) = block.split_at_mut(piece.len());
            copy.piece(now, piece);
            block = later;
        }
        copy.finish().expect("the list is long enough")
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::checksum::checksum;

    use super::*;

    /// Lists of parts of these lengths, in blocks of `step` bytes.
    #[test]
    fn each_block_goes_on_where_the_last_one_stopped() {
        let bytes: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        for lengths in [vec![20_000], vec![1, 0, 4999, 5000, 10_000], vec![9999, 1, 10_000]] {
            let mut rest = &bytes[..];
            let cut = |len: &usize| rest.split_off(..*len).unwrap_or_default();
            let parts: Vec<&[u8]> = lengths.iter().map(cut).collect();
            for step in [1, 7, 4096, 5000, 9999, 20_000] {
                let mut gather = Gather::new(&parts);
                for (i, expected) in bytes.chunks(step).enumerate() {
                    let mut to = vec![0; expected.len()];
                    assert_eq!(gather.fill(&mut to), checksum(expected), "step={step} i={i}");
                    assert_eq!(to, expected, "step={step} i={i}");
                }
            }
        }
    }
}
