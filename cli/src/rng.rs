//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
//! small, seedable, and the same on every machine, so that a seed names a run.

use pagelith::AlignedBuf;

const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    /// The stream of a seed.
    pub(crate) fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next number.
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number from `from` to `to`, both included; the bias of the widening multiplication is
    /// below 2^-32 for any range used here.
    pub(crate) fn within(&mut self, from: u64, to: u64) -> u64 {
        let width = u128::from(to.saturating_sub(from)) + 1;
        from + ((u128::from(self.next_u64()) * width) >> 64) as u64
    }

    /// Fill memory with pseudorandom bytes.
    pub(crate) fn fill<'a>(&mut self, memory: impl IntoIterator<Item = &'a mut AlignedBuf>) {
        for word in memory.into_iter().flat_map(|buffer| buffer.chunks_mut(8)) {
            word.copy_from_slice(&self.next_u64().to_le_bytes()[..word.len()]);
        }
    }

    /// A number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// SplitMix64's output function: a bijection that scatters neighbouring numbers.
pub(crate) fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_matches_the_reference_implementation() {
        // The reference implementation's first outputs for seed 1234567
        // (https://prng.di.unimi.it/splitmix64.c).
        let mut r = SplitMix64::new(1_234_567);
        let first = [r.next_u64(), r.next_u64(), r.next_u64()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn range_includes_both_ends_and_nothing_beyond() {
        let mut r = SplitMix64::new(7);
        let drawn: Vec<u64> = (0..200).map(|_| r.within(3, 6)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&6)));
    }
}
