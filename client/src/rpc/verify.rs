//! Checksums of bytes received from a peer, computed in their destination.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::{Copier, CopyMode, copy_blocks};
use pagelith_layouts::checksum::{
    BLOCK_BYTES, Checksums, StreamChecksum, block_lengths, blocks_in, checksum,
};
use pagelith_transport::shown::ShmRef;

use crate::rpc::scatter;

/// The checksums of `parts`, which hold the bytes `range` of an object: one for each block that
/// overlaps the range, over the overlapping bytes. `None` if the parts have another length.
pub fn block_checksums(parts: &[Part], range: &Range<u64>) -> Option<Checksums> {
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if bytes != range.end - range.start {
        return None;
    }
    let mut stream = StreamChecksum::new();
    let sum = |block: Range<u64>| {
        let inside = block.start - range.start..block.end - range.start;
        if let [part] = parts {
            return checksum(&part.bytes()[inside.start as usize..inside.end as usize]);
        }
        let fed: Result<(), ()> = scatter::visit(parts, inside, |bytes| {
            stream.update(bytes);
            Ok(())
        });
        debug_assert!(fed.is_ok(), "visit cannot fail");
        stream.finish()
    };
    Some(blocks_in(range.clone(), BLOCK_BYTES).map(sum).collect())
}

/// Copy the referenced bytes `range` of an object into `parts`; returns [`block_checksums`] of the
/// copy. `None` if the lengths differ.
pub fn copy_and_checksum(
    parts: &mut [Part],
    range: &Range<u64>,
    shown: &ShmRef,
    stores: CopyMode,
) -> Option<Checksums> {
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if bytes != range.end - range.start || bytes != shown.length() {
        return None;
    }
    let lengths = block_lengths(range.clone(), BLOCK_BYTES);
    let mut checksums = Checksums::with_capacity(lengths.size_hint().0);
    // A read-only part ends the destination.
    let to = parts.iter_mut().map_while(Part::bytes_mut);
    copy_blocks(to, shown.pieces(), lengths, stores, |sum| checksums.push(sum)).then_some(checksums)
}

/// As [`copy_and_checksum`], for a whole object into private memory, with a copier that is used for
/// several copies; appends to `checksums`. False if the lengths differ.
pub fn copy_whole_and_checksum(
    to: &mut [u8],
    shown: &ShmRef,
    copier: &mut Copier,
    checksums: &mut Checksums,
) -> bool {
    let bytes = to.len() as u64;
    bytes == shown.length()
        && copier.copy([to], shown.pieces(), block_lengths(0..bytes, BLOCK_BYTES), |sum| {
            checksums.push(sum)
        })
}

#[cfg(test)]
mod tests {
    use pagelith_io::buffer::AlignedBuf;

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
    fn checksums_of_any_range_and_pieces_detect_a_bit_flip() {
        let object: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for range in
            [0..100_000u64, 1..100_000, 32_768..65_536, 32_767..32_769, 70_000..70_010, 0..1]
        {
            let sums: Checksums = blocks_in(range.clone(), BLOCK_BYTES)
                .map(|block| checksum(&object[block.start as usize..block.end as usize]))
                .collect();
            let mut bytes = object[range.start as usize..range.end as usize].to_vec();
            for step in [1000, 32_768, 33_333, 100_000] {
                let found = |bytes: &[u8]| super::block_checksums(&scattered(bytes, step), &range);
                assert_eq!(found(&bytes).as_ref(), Some(&sums), "{range:?} {step}");
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                assert!(found(&bytes).is_some_and(|found| found != sums), "{range:?} {step}");
                bytes[last] ^= 1;
            }
            bytes.pop();
            assert_eq!(
                super::block_checksums(&scattered(&bytes, 1000), &range),
                None,
                "a byte short"
            );
        }
    }
}
