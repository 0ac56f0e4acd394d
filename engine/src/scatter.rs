//! A destination in pieces, addressed as one stretch of bytes.

use std::ops::Range;

use pagelith_io::buffer::Part;

/// The pieces that overlap `want`, each with its own overlapping range and that range in the whole.
fn overlaps(
    lengths: impl Iterator<Item = u64>,
    want: Range<u64>,
) -> impl Iterator<Item = (usize, Range<usize>, Range<u64>)> {
    lengths
        .scan(0u64, |at, len| {
            let start = *at;
            *at += len;
            Some((start, start + len))
        })
        .enumerate()
        .filter_map(move |(i, (start, end))| {
            let (lo, hi) = (want.start.max(start), want.end.min(end));
            (lo < hi).then(|| (i, (lo - start) as usize..(hi - start) as usize, lo..hi))
        })
}

/// Copy `bytes` into `pieces`, beginning at byte `offset` of their concatenation.
pub(crate) fn copy_in(pieces: &mut [Part], offset: u64, bytes: &[u8]) {
    let want = offset..offset + bytes.len() as u64;
    let lengths: Vec<u64> = pieces.iter().map(|p| p.len() as u64).collect();
    for (i, inside, whole) in overlaps(lengths.into_iter(), want) {
        if let Some(target) = pieces[i].bytes_mut() {
            let from = (whole.start - offset) as usize..(whole.end - offset) as usize;
            target[inside].copy_from_slice(&bytes[from]);
        }
    }
}

/// Visit the bytes of `want` in order, piece by piece, until `visit` fails.
pub(crate) fn visit<E>(
    pieces: &[Part],
    want: Range<u64>,
    mut visit: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let lengths = pieces.iter().map(|p| p.len() as u64);
    overlaps(lengths, want).try_for_each(|(i, inside, _)| visit(&pieces[i].bytes()[inside]))
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
                copy_in(&mut p, offset as u64, &source[..len]);
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
        copy_in(&mut p, 0, &[9; 7]);
        zero(&mut p);
        assert_eq!(all(&p), vec![0; 7]);
    }
}
