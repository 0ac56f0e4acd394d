//! A destination that consists of pieces, addressed as one range of bytes.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::{Copier, CopyMode, SourcePiece};
use pagelith_io::nontemporal::copy_non_temporal;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, block_lengths};

/// The part of the next piece that overlaps `want`: as a range in the piece and in the whole. The
/// piece starts at `at` and has `len` bytes; `at` advances to the start of the following piece.
fn overlap(at: &mut u64, len: usize, want: &Range<u64>) -> Option<(Range<usize>, Range<u64>)> {
    let start = *at;
    *at += len as u64;
    let (lo, hi) = (want.start.max(start), want.end.min(*at));
    (lo < hi).then(|| ((lo - start) as usize..(hi - start) as usize, lo..hi))
}

/// Copy `bytes` into `pieces`, starting at byte `offset` of their concatenation.
pub fn copy_in(pieces: &mut [Part], offset: u64, bytes: &[u8], stores: CopyMode) {
    let want = offset..offset + bytes.len() as u64;
    let mut at = 0;
    for piece in pieces {
        if let Some((inside, whole)) = overlap(&mut at, piece.len(), &want)
            && let Some(target) = piece.bytes_mut()
        {
            let (to, from) = (
                &mut target[inside],
                (whole.start - offset) as usize..(whole.end - offset) as usize,
            );
            match stores {
                CopyMode::Cached => to.copy_from_slice(&bytes[from]),
                CopyMode::NonTemporal => copy_non_temporal(to, &bytes[from]),
            }
        }
    }
}

/// Copy `bytes`, which start at a block boundary, as [`copy_in`]; `sum` receives the checksum of
/// each copied block. False if a piece is read-only or the pieces are too short.
pub fn copy_blocks_in(
    pieces: &mut [Part],
    offset: u64,
    bytes: &[u8],
    copier: &mut Copier,
    sum: impl FnMut(Checksum),
) -> bool {
    let all = bytes.len() as u64;
    let (want, mut at) = (offset..offset + all, 0);
    let target = |piece| target(piece, &mut at, &want);
    let to = pieces.iter_mut().map_while(target).flatten();
    copier.copy(to, [SourcePiece::Private(bytes)], block_lengths(0..all, BLOCK_BYTES), sum)
}

/// The part of the next piece that overlaps `want` (see [`overlap`]), which may be empty; `None` if
/// the piece is read-only.
fn target<'a>(
    piece: &'a mut Part,
    at: &mut u64,
    want: &Range<u64>,
) -> Option<Option<&'a mut [u8]>> {
    match overlap(at, piece.len(), want) {
        Some((inside, _)) => piece.bytes_mut().map(|bytes| Some(&mut bytes[inside])),
        None => Some(None),
    }
}

/// Visit the bytes of `want` in order, piece by piece, until `visit` fails.
pub fn visit<E>(
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

/// Overwrite all pieces with zeros, since the received bytes failed verification.
pub fn zero(pieces: &mut [Part]) {
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
                let stores = if offset % 2 == 0 { CopyMode::Cached } else { CopyMode::NonTemporal };
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
        copy_in(&mut p, 0, &[9; 7], CopyMode::Cached);
        zero(&mut p);
        assert_eq!(all(&p), vec![0; 7]);
    }
}
