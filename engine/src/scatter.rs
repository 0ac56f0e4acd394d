//! A destination in pieces, addressed as one stretch of bytes.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::fused::{BlockCopy, Stores};
use pagelith_io::stream::copy_past_cache;
use pagelith_layouts::checksum::Checksum;

/// Of the next piece, `len` bytes from `at` on, what overlaps `want`: its range in the piece and in the whole. `at` is
/// where the piece after it begins.
fn overlap(at: &mut u64, len: usize, want: &Range<u64>) -> Option<(Range<usize>, Range<u64>)> {
    let start = *at;
    *at += len as u64;
    let (lo, hi) = (want.start.max(start), want.end.min(*at));
    (lo < hi).then(|| ((lo - start) as usize..(hi - start) as usize, lo..hi))
}

/// Copy `bytes` into `pieces`, beginning at byte `offset` of their concatenation.
pub(crate) fn copy_in(pieces: &mut [Part], offset: u64, bytes: &[u8], stores: Stores) {
    copy_in_with(pieces, offset, bytes, |to, from| match stores {
        Stores::Cached => to.copy_from_slice(from),
        Stores::PastCache => copy_past_cache(to, from),
    });
}

/// Copy a block into `pieces`, as [`copy_in`]; the checksum of what was copied, or `None` if the pieces end before it does.
pub(crate) fn copy_block_in(
    pieces: &mut [Part],
    offset: u64,
    block: &[u8],
    stores: Stores,
) -> Option<Checksum> {
    let mut copy = BlockCopy::new(block.len(), stores);
    copy_in_with(pieces, offset, block, |to, from| copy.piece(to, from));
    copy.finish()
}

fn copy_in_with(pieces: &mut [Part], offset: u64, bytes: &[u8], mut copy: impl FnMut(&mut [u8], &[u8])) {
    let want = offset..offset + bytes.len() as u64;
    let mut at = 0;
    for piece in pieces {
        if let Some((inside, whole)) = overlap(&mut at, piece.len(), &want)
            && let Some(target) = piece.bytes_mut()
        {
            copy(&mut target[inside], &bytes[(whole.start - offset) as usize..(whole.end - offset) as usize]);
        }
    }
}

/// Visit the bytes of `want` in order, piece by piece, until `visit` fails.
pub(crate) fn visit<E>(
    pieces: &[Part],
    want: Range<u64>,
    mut visit: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    pieces.iter().try_for_each(|piece| match overlap(&mut at, piece.len(), &want) {
        Some((inside, _)) => visit(&piece.bytes()[inside]),
        None => Ok(()),
    })
}

/// Visit the bytes of `want` in order, piece by piece, to be written: from which byte of the whole on, and where. `None` if
/// a piece is not to be written.
pub(crate) fn visit_mut(
    pieces: &mut [Part],
    want: Range<u64>,
    mut visit: impl FnMut(u64, &mut [u8]),
) -> Option<()> {
    let mut at = 0;
    pieces.iter_mut().try_for_each(|piece| {
        if let Some((inside, whole)) = overlap(&mut at, piece.len(), &want) {
            visit(whole.start, &mut piece.bytes_mut()?[inside]);
        }
        Some(())
    })
}

/// Overwrite everything with zeros: what arrived was not what was asked for.
pub(crate) fn zero(pieces: &mut [Part]) {
    pieces.iter_mut().filter_map(Part::bytes_mut).for_each(|b| b.fill(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagelith_io::buffer::AlignedBuf;

    fn pieces(lengths: &[usize]) -> Vec<Part> {
        lengths.iter().map(|&n| AlignedBuf::new(n).expect("memory").into_part()).collect()
    }

    fn all(p: &[Part]) -> Vec<u8> {
        p.iter().flat_map(|p| p.bytes().to_vec()).collect()
    }

    #[test]
    fn bytes_land_across_pieces_at_every_offset() {
        let source: Vec<u8> = (1..=20).collect();
        for offset in 0..=20usize {
            for len in 0..=20 - offset {
                let mut p = pieces(&[3, 1, 9, 7]);
                let stores = if offset % 2 == 0 { Stores::Cached } else { Stores::PastCache };
                copy_in(&mut p, offset as u64, &source[..len], stores);
                let mut expected = vec![0; 20];
                expected[offset..offset + len].copy_from_slice(&source[..len]);
                assert_eq!(all(&p), expected, "offset={offset} len={len}");
                let mut seen = Vec::new();
                let want = offset as u64..(offset + len) as u64;
                visit(&p, want, |b| {
                    seen.extend_from_slice(b);
                    Ok::<_, ()>(())
                })
                .expect("visited");
                assert_eq!(seen, source[..len]);
            }
        }
    }

    #[test]
    fn zero_leaves_nothing() {
        let mut p = pieces(&[3, 4]);
        copy_in(&mut p, 0, &[9; 7], Stores::Cached);
        zero(&mut p);
        assert_eq!(all(&p), vec![0; 7]);
    }
}
