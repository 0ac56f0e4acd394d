//! Whether bytes that a peer sent are those that it vouches for, where they landed.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::fused::{Copier, Stores, copy_blocks};
use pagelith_layouts::checksum::{
    BLOCK_BYTES, Checksums, StreamChecksum, block_lengths, blocks_in, checksum,
};
use pagelith_transport::shown::Shown;

use crate::rpc::scatter;

/// The checksums of the bytes `stretch` of an object, which lie in `parts`: one for each block that the stretch lies in, of
/// those of the block's bytes that are in the stretch. `None` if the parts are of another length.
pub(crate) fn sums(parts: &[Part], stretch: &Range<u64>) -> Option<Checksums> {
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if bytes != stretch.end - stretch.start {
        return None;
    }
    let mut stream = StreamChecksum::new();
    let sum = |block: Range<u64>| {
        let inside = block.start - stretch.start..block.end - stretch.start;
        if let [part] = parts {
            return checksum(&part.bytes()[inside.start as usize..inside.end as usize]);
        }
        let fed: Result<(), ()> = scatter::visit(parts, inside, |bytes| {
            stream.update(bytes);
            Ok(())
        });
        debug_assert!(fed.is_ok(), "it never fails");
        stream.finish()
    };
    Some(blocks_in(stretch.clone(), BLOCK_BYTES).map(sum).collect())
}

/// Copy what is shown of the bytes `stretch` of an object into `parts`, and [`sums`] of the copy. `None` if it is of another length.
pub(crate) fn copied(
    parts: &mut [Part],
    stretch: &Range<u64>,
    shown: &Shown,
    stores: Stores,
) -> Option<Checksums> {
    let bytes: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if bytes != stretch.end - stretch.start || bytes != shown.length() {
        return None;
    }
    let lengths = block_lengths(stretch.clone(), BLOCK_BYTES);
    let mut sums = Checksums::with_capacity(lengths.size_hint().0);
    // One that is not to be written ends them.
    let to = parts.iter_mut().map_while(Part::bytes_mut);
    copy_blocks(to, shown.pieces(), lengths, stores, |sum| sums.push(sum)).then_some(sums)
}

/// The same of a whole object into memory that is its alone, by a copier that copies more, behind the checksums that are there. False if it is
/// of another length.
pub(crate) fn copied_whole(to: &mut [u8], shown: &Shown, copier: &mut Copier, sums: &mut Checksums) -> bool {
    let bytes = to.len() as u64;
    bytes == shown.length()
        && copier.copy([to], shown.pieces(), block_lengths(0..bytes, BLOCK_BYTES), |sum| sums.push(sum))
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
    fn any_stretch_in_any_pieces_is_told_from_one_with_a_bit_changed() {
        let object: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for stretch in [0..100_000u64, 1..100_000, 32_768..65_536, 32_767..32_769, 70_000..70_010, 0..1] {
            let sums: Checksums = blocks_in(stretch.clone(), BLOCK_BYTES)
                .map(|block| checksum(&object[block.start as usize..block.end as usize]))
                .collect();
            let mut bytes = object[stretch.start as usize..stretch.end as usize].to_vec();
            for step in [1000, 32_768, 33_333, 100_000] {
                let found = |bytes: &[u8]| super::sums(&scattered(bytes, step), &stretch);
                assert_eq!(found(&bytes).as_ref(), Some(&sums), "{stretch:?} {step}");
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                assert!(found(&bytes).is_some_and(|found| found != sums), "{stretch:?} {step}");
                bytes[last] ^= 1;
            }
            bytes.pop();
            assert_eq!(super::sums(&scattered(&bytes, 1000), &stretch), None, "a byte short");
        }
    }
}
