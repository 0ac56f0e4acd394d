//! Which hits are verified, where not all of them are.

/// Says yes to a share of what it is asked, at moments that follow no pattern of the caller's: were every second object
/// verified, of pages that have two each one would never be.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Yes below it; `None` is always yes.
    below: Option<u64>,
    state: u64,
}

impl Sampler {
    /// For a share of `ratio`, from 0 to 1. `seed` is asked for only where it matters.
    pub fn new(ratio: f64, seed: impl FnOnce() -> u64) -> Sampler {
        // Casts saturate, so that 0 is never yes.
        let below = (ratio < 1.0).then_some((ratio * u64::MAX as f64) as u64);
        Sampler { below, state: if ratio > 0.0 && ratio < 1.0 { seed() } else { 0 } }
    }

    /// Whether this one is to be verified.
    pub fn next(&mut self) -> bool {
        let Some(below) = self.below else { return true };
        // SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) < below
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_the_one_asked_for_also_of_every_second() {
        for ratio in [0.0, 0.01, 0.25, 0.5, 0.99, 1.0] {
            let mut sampler = Sampler::new(ratio, || 7);
            let said: Vec<bool> = (0..20_000).map(|_| sampler.next()).collect();
            let share = |s: &mut dyn Iterator<Item = &bool>| s.filter(|yes| **yes).count() as f64 / 10_000.0;
            for half in [share(&mut said.iter().step_by(2)), share(&mut said.iter().skip(1).step_by(2))] {
                assert!((half - ratio).abs() < 0.015, "ratio={ratio} share={half}");
            }
        }
    }
}
