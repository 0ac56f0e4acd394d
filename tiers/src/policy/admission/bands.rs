//! Bands of age: half octaves of steps of time.

/// Number of bands.
pub(super) const BANDS: usize = 23;

/// Ages at which bands begin, in steps of 1/512 of the SSD: powers of the square root of two. The
/// last band ends after 4 times the SSD.
pub(super) const STARTS: [u32; BANDS + 1] = [
    0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724, 1024, 1448,
    2048, 2896,
];

/// The band of an age; the last one for all greater ages.
pub(super) fn band_of(age: u32) -> usize {
    STARTS[..BANDS].partition_point(|start| *start <= age) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_age_is_in_the_band_that_it_has_reached() {
        for age in 0..6000 {
            let band = band_of(age);
            assert!(STARTS[band] <= age, "age={age}");
            assert!(band == BANDS - 1 || age < STARTS[band + 1], "age={age}");
        }
    }
}
