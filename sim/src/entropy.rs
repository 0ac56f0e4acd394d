//! Seeded randomness.

use std::sync::{Mutex, PoisonError};

use pagelith_io::entropy::Entropy;

/// SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA
/// 2014), with the constants of Vigna's public-domain `splitmix64.c`. Every seed is a good seed.
/// The whole state is one number, so a snapshot can contain it.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator seeded with `seed`.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// Sixty-four random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, close enough to uniform for the small `n` of a simulation; 0 if `n` is
    /// 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of a 128-bit product (Lemire 2019, without the rejection step).
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// True once in `n` draws on average; never if `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }

    /// Shuffles `items` (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// The [`Entropy`] of a simulated process: the same seed gives the same bytes.
#[derive(Debug)]
pub struct SimEntropy(Mutex<SplitMix64>);

impl SimEntropy {
    /// A source seeded with `seed`.
    pub fn new(seed: u64) -> SimEntropy {
        SimEntropy(Mutex::new(SplitMix64::new(seed)))
    }

    /// Sixty-four random bits, to seed other parts of a simulation.
    pub fn next_u64(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, out: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_matches_reference_outputs() {
        // The first outputs of splitmix64.c for seed 1234567, as Rosetta Code lists them.
        let mut rng = SplitMix64::new(1_234_567);
        assert_eq!(
            [rng.next_u64(), rng.next_u64(), rng.next_u64()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn entropy_same_seed_gives_same_bytes() {
        let (a, b, c) = (SimEntropy::new(1), SimEntropy::new(1), SimEntropy::new(2));
        let first = a.bytes16();
        assert_eq!(first, b.bytes16());
        assert_ne!(first, c.bytes16());
        assert_ne!(first, a.bytes16());
        let mut odd = [0; 13];
        a.fill(&mut odd);
        assert_ne!(odd[8..], [0; 5]);
    }

    #[test]
    fn below_draws_cover_whole_range() {
        let mut rng = SplitMix64::new(3);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[rng.below(5) as usize] += 1;
        }
        assert!(seen.iter().all(|n| *n > 100), "uneven draws seen={seen:?}");
        assert_eq!(rng.below(0), 0);
        assert!(!rng.one_in(0));
        let mut items = [0, 1, 2, 3, 4, 5, 6, 7];
        rng.shuffle(&mut items);
        assert_ne!(items, [0, 1, 2, 3, 4, 5, 6, 7]);
        items.sort_unstable();
        assert_eq!(items, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
