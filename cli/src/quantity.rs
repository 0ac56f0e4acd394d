//! Numbers for people: with one decimal and a unit once they are large.

/// A number of bytes in a binary unit with one decimal.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes}B"),
    }
}

/// A count; from a hundred thousand on in thousands, millions or billions, with one decimal.
pub(crate) fn count(count: u64) -> String {
    let units = [("G", 1_000_000_000), ("M", 1_000_000), ("k", 1000)];
    match units.iter().find(|(_, unit)| count >= 100_000 && count >= *unit) {
        Some((name, unit)) => format!("{:.1}{name}", count as f64 / *unit as f64),
        None => count.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_largest_unit_that_is_not_below_one() {
        let texts = [0, 1023, 1024, 3 << 19, 64 << 30, u64::MAX].map(bytes);
        assert_eq!(texts, ["0B", "1023B", "1.0KiB", "1.5MiB", "64.0GiB", "16777216.0TiB"]);
    }

    #[test]
    fn count_has_a_unit_from_a_hundred_thousand_on() {
        let texts = [0, 99_999, 100_000, 2_340_000, 7_000_000_000].map(count);
        assert_eq!(texts, ["0", "99999", "100.0k", "2.3M", "7.0G"]);
    }
}
