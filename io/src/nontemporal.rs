//! Copies with non-temporal stores, which bypass the cache.

/// Below this length, waiting for the stores costs more than bypassing the cache saves.
const PLAIN_COPY_BYTES: usize = 4096;

/// Copy `from` to `to`, which have equal length, with stores that bypass the cache where the CPU
/// has them (x86-64; other CPUs use a plain copy). A plain copy first reads the lines that it
/// overwrites. For memory that is not read again soon, these stores move a third fewer bytes and
/// leave the cache contents in place. Short copies are plain.
///
/// # Panics
/// If the lengths differ.
pub fn copy_non_temporal(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "copies are between equal lengths");
    match to.len() < PLAIN_COPY_BYTES {
        true => to.copy_from_slice(from),
        false => past_cache(to, from),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn past_cache(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(target_arch = "x86_64")]
fn past_cache(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// A cache line: stores that fill one leave the core together.
    const LINE: usize = 64;

    let until_line = to.as_ptr().align_offset(LINE).min(to.len());
    let (to_head, to) = to.split_at_mut(until_line);
    let (from_head, from) = from.split_at(until_line);
    to_head.copy_from_slice(from_head);
    let (to_lines, to_tail) = to.as_chunks_mut::<LINE>();
    let (from_lines, from_tail) = from.as_chunks::<LINE>();
    for (to, from) in to_lines.iter_mut().zip(from_lines) {
        let (to, from) = (to.as_mut_ptr().cast::<__m128i>(), from.as_ptr().cast::<__m128i>());
        // SAFETY: both point to 64 bytes, which are four vectors; `to` is a multiple of 64, as the
        // store requires; SSE2 is part of x86-64.
        unsafe {
            let line = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            line.into_iter().enumerate().for_each(|(i, part)| _mm_stream_si128(to.add(i), part));
        }
    }
    to_tail.copy_from_slice(from_tail);
    // Such stores may become visible after later ones. The fence makes them visible to a thread
    // that learns of these bytes through a lock or an atomic.
    // SAFETY: SSE is part of x86-64.
    unsafe { _mm_sfence() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nontemporal_copy_writes_exact_range() {
        let from: Vec<u8> = (0..700u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for start in 0..70 {
            for len in [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 400, 512] {
                for source in [0, 1, 64] {
                    let mut to = vec![0xEE; 700];
                    past_cache(&mut to[start..start + len], &from[source..source + len]);
                    assert_eq!(
                        to[start..start + len],
                        from[source..source + len],
                        "start={start} len={len}"
                    );
                    assert!(to[..start].iter().chain(&to[start + len..]).all(|b| *b == 0xEE));
                }
            }
        }
    }

    #[test]
    fn short_and_long_copies_are_exact() {
        let from: Vec<u8> =
            (0..3 * PLAIN_COPY_BYTES as u32).map(|i| (i * 7 + i / 251) as u8).collect();
        for len in [0, 1, PLAIN_COPY_BYTES - 1, PLAIN_COPY_BYTES, PLAIN_COPY_BYTES + 1, from.len()]
        {
            let mut to = vec![0; len];
            copy_non_temporal(&mut to, &from[..len]);
            assert_eq!(to, from[..len]);
        }
    }

    #[test]
    #[should_panic(expected = "equal lengths")]
    fn copy_of_unequal_lengths_panics() {
        copy_non_temporal(&mut [0; 3], &[0; 4]);
    }
}
