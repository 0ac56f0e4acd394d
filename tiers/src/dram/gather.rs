//! A gather list, taken from front to back.

use pagelith_io::stream::copy_past_cache;

/// What is left of a list.
#[derive(Clone)]
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

    /// Fill `to` from the list, which the caller has checked to be long enough.
    pub(super) fn copy_to(&mut self, mut to: &mut [u8]) {
        while !to.is_empty()
            && let Some(piece) = self.piece(to.len())
        {
            let (now, later) = to.split_at_mut(piece.len());
            copy_past_cache(now, piece);
            to = later;
        }
    }

    /// Take `len` bytes; what they are, if they lie side by side.
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let first = self.piece(len)?;
        let mut left = len - first.len();
        while left > 0
            && let Some(piece) = self.piece(left)
        {
            left -= piece.len();
        }
        (first.len() == len).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to cut a list of parts of these lengths into takes of `step` bytes.
    #[test]
    fn copies_and_takes_go_on_where_the_last_one_stopped() {
        let bytes: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        for lengths in [vec![20_000], vec![1, 0, 4999, 5000, 10_000], vec![9999, 1, 10_000]] {
            let mut rest = &bytes[..];
            let cut = |len: &usize| rest.split_off(..*len).unwrap_or_default();
            let parts: Vec<&[u8]> = lengths.iter().map(cut).collect();
            for step in [1, 7, 4096, 5000, 9999, 20_000] {
                let (mut copied, mut taken) = (Gather::new(&parts), Gather::new(&parts));
                let mut borders = lengths.iter().scan(0, |at, len| {
                    *at += len;
                    Some(*at)
                });
                let borders: Vec<usize> = borders.by_ref().collect();
                for (i, expected) in bytes.chunks(step).enumerate() {
                    let mut to = vec![0; expected.len()];
                    copied.copy_to(&mut to);
                    assert_eq!(to, expected, "step={step} i={i}");
                    let inside = i * step..i * step + expected.len();
                    let whole = !borders.iter().any(|b| inside.start < *b && *b < inside.end);
                    assert_eq!(taken.take(expected.len()), whole.then_some(expected), "step={step} i={i}");
                }
            }
        }
    }
}
