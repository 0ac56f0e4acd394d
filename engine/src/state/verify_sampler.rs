//! Random selection of the hits that are verified, if not all of them are.

/// Selects a share of the hits in a pseudo-random order. With a fixed pattern such as every second
/// object, one object of each page with two objects would never be verified.
#[derive(Debug)]
pub(crate) struct VerifySampler {
    /// A hit is selected if its random number is below this; `None` selects every hit.
    threshold: Option<u64>,
    state: u64,
}

impl VerifySampler {
    /// A sampler for a share of `ratio`, from 0 to 1. `seed` is called only for ratios strictly
    /// between.
    pub fn new(ratio: f64, seed: impl FnOnce() -> u64) -> VerifySampler {
        // The cast saturates, so a ratio of 0 selects nothing.
        let threshold = (ratio < 1.0).then_some((ratio * u64::MAX as f64) as u64);
        VerifySampler { threshold, state: if ratio > 0.0 && ratio < 1.0 { seed() } else { 0 } }
    }

    /// Whether the next hit is to be verified.
    pub fn next(&mut self) -> bool {
        let Some(threshold) = self.threshold else { return true };
        // SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) < threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_share_equals_ratio_also_for_every_second_hit() {
        for ratio in [0.0, 0.01, 0.25, 0.5, 0.99, 1.0] {
            let mut sampler = VerifySampler::new(ratio, || 7);
            let sampled: Vec<bool> = (0..20_000).map(|_| sampler.next()).collect();
            let share = |s: &mut dyn Iterator<Item = &bool>| {
                s.filter(|yes| **yes).count() as f64 / 10_000.0
            };
            for half in [
                share(&mut sampled.iter().step_by(2)),
                share(&mut sampled.iter().skip(1).step_by(2)),
            ] {
                assert!((half - ratio).abs() < 0.015, "ratio={ratio} share={half}");
            }
        }
    }
}
