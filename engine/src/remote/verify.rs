//! Whether bytes that a peer sent are those that it vouches for, where they landed.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, StreamChecksum};

use crate::scatter;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Whether `parts` hold the bytes `stretch` of an object: `sums` has one checksum for each block that the stretch lies
/// in, of those of the block's bytes that are in the stretch.
pub(super) fn holds(
    parts: &[Part],
    stretch: &Range<u64>,
    sums: impl ExactSizeIterator<Item = Checksum>,
) -> bool {
    let blocks = stretch.start / BLOCK..stretch.end.div_ceil(BLOCK);
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if sums.len() as u64 != blocks.end - blocks.start || bytes != stretch.end - stretch.start {
        return false;
    }
    let mut stream = StreamChecksum::new();
    blocks.zip(sums).all(|(block, sum)| {
        let (lo, hi) = ((block * BLOCK).max(stretch.start), ((block + 1) * BLOCK).min(stretch.end));
        let inside = lo - stretch.start..hi - stretch.start;
        let fed: Result<(), ()> = scatter::visit(parts, inside, |bytes| {
            stream.update(bytes);
            Ok(())
        });
        fed.is_ok() && stream.finish() == sum
    })
}

#[cfg(test)]
mod tests {
    use pagelith_io::buffer::AlignedBuf;
    use pagelith_layouts::checksum::checksum;

    use super::*;

    fn scattered(bytes: &[u8], step: usize) -> Vec<Part> {
        let part = |piece: &[u8]| {
            let mut buf = AlignedBuf::new(piece.len()).expect("memory");
            buf.copy_from_slice(piece);
            buf.into_part()
        };
        bytes.chunks(step).map(part).collect()
    }

    #[test]
    fn any_stretch_in_any_pieces_is_told_from_one_with_a_bit_changed() {
        let object: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for stretch in [0..100_000u64, 1..100_000, 32_768..65_536, 32_767..32_769, 70_000..70_010, 0..1] {
            let blocks = stretch.start / BLOCK..stretch.end.div_ceil(BLOCK);
            let sums: Vec<Checksum> = blocks
                .map(|b| ((b * BLOCK).max(stretch.start), ((b + 1) * BLOCK).min(stretch.end)))
                .map(|(lo, hi)| checksum(&object[lo as usize..hi as usize]))
                .collect();
            let mut bytes = object[stretch.start as usize..stretch.end as usize].to_vec();
            for step in [1000, 32_768, 33_333, 100_000] {
                assert!(
                    holds(&scattered(&bytes, step), &stretch, sums.iter().copied()),
                    "{stretch:?} {step}"
                );
                assert!(
                    !holds(&scattered(&bytes, step), &stretch, sums.iter().skip(1).copied()),
                    "a sum short"
                );
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                assert!(
                    !holds(&scattered(&bytes, step), &stretch, sums.iter().copied()),
                    "{stretch:?} {step}"
                );
                bytes[last] ^= 1;
            }
            bytes.pop();
            assert!(!holds(&scattered(&bytes, 1000), &stretch, sums.iter().copied()), "a byte short");
        }
    }
}
