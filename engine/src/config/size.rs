//! A number of bytes as people write it: `64MiB`, `2 GiB`, `4096`.
//!
//! Crates that parse sizes round through `f64` and saturate on overflow. This parser is exact,
//! since configurations are never rounded.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A number of bytes.
///
/// In files and the environment: an integer of bytes, or a string of digits (with an optional
/// decimal fraction), at most one space, and a unit. `B`; `KB`, `MB`, `GB`, `TB` are powers of
/// 1000; `KiB`, `MiB`, `GiB`, `TiB` powers of 1024; each also in all lower or all upper case. A
/// size that is not a whole number of bytes is refused, never rounded.
///
/// ```
/// use pagelith::config::Size;
/// assert_eq!("1.5GiB".parse(), Ok(Size::mib(1536)));
/// assert_eq!(Size::mib(1536).to_string(), "1536MiB");
/// assert!("0.3KiB".parse::<Size>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Why a text is not a [`Size`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text does not start with a plain decimal number.
    #[error("no decimal number before the unit")]
    Number,
    /// The text after the number is not a unit.
    #[error(
        "{0:?} is no unit (B; KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB are powers of 1024)"
    )]
    Unit(String),
    /// The size is not a whole number of bytes.
    #[error("not a whole number of bytes")]
    Fraction,
    /// The size exceeds 2^64 - 1 bytes.
    #[error("more than 2^64 - 1 bytes")]
    TooLarge,
}

/// Units in the order that [`Size`]'s `Display` tries them, with the power of two of each.
const BINARY_UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
const DECIMAL_UNITS: [(&str, u64); 4] =
    [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];
/// Digits after the point that the exact arithmetic holds: 10^18 units of 2^40 fit in 128 bits.
const FRACTION_DIGITS_MAX: usize = 18;

impl Size {
    /// No bytes.
    pub const ZERO: Size = Size(0);

    /// A number of bytes.
    pub const fn from_bytes(bytes: u64) -> Size {
        Size(bytes)
    }

    /// A number of KiB. The argument is 32 bits wide so that no value overflows.
    pub const fn kib(count: u32) -> Size {
        Size((count as u64) << 10)
    }

    /// A number of MiB.
    pub const fn mib(count: u32) -> Size {
        Size((count as u64) << 20)
    }

    /// A number of GiB.
    pub const fn gib(count: u32) -> Size {
        Size((count as u64) << 30)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Size {
    /// In the largest binary unit in which the number is whole, so that the text parses back to the
    /// same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in BINARY_UNITS {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl TryFrom<&str> for Size {
    type Error = SizeError;

    fn try_from(text: &str) -> Result<Size, SizeError> {
        text.parse()
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(number_end);
        if number.is_empty() {
            return Err(SizeError::Number);
        }
        let scale = unit_bytes(rest)?;
        let (whole, fraction) = match number.split_once('.') {
            Some((whole, fraction)) => (whole, Some(fraction)),
            None => (number, None),
        };
        let whole_bytes = digits(whole)?.checked_mul(scale).ok_or(SizeError::TooLarge)?;
        let fraction_bytes =
            fraction.map_or(Ok(0), |fraction| bytes_of_fraction(fraction, scale))?;
        let bytes = whole_bytes.checked_add(fraction_bytes).ok_or(SizeError::TooLarge)?;
        u64::try_from(bytes).map(Size).map_err(|_| SizeError::TooLarge)
    }
}

/// Bytes of the unit spelled by `rest`, the text after the number.
fn unit_bytes(rest: &str) -> Result<u128, SizeError> {
    let unknown = || SizeError::Unit(rest.chars().take(16).collect());
    if rest.is_empty() {
        return Ok(1);
    }
    let unit = rest.strip_prefix(' ').unwrap_or(rest);
    // `Mb` usually means megabits, so mixed case other than the listed one is refused.
    let spells = |name: &str| {
        unit == name || unit == name.to_ascii_lowercase() || unit == name.to_ascii_uppercase()
    };
    if spells("B") {
        return Ok(1);
    }
    let binary =
        BINARY_UNITS.iter().find(|(name, _)| spells(name)).map(|(_, shift)| 1_u128 << shift);
    let decimal =
        || DECIMAL_UNITS.iter().find(|(name, _)| spells(name)).map(|(_, bytes)| u128::from(*bytes));
    binary.or_else(decimal).ok_or_else(unknown)
}

fn digits(text: &str) -> Result<u128, SizeError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(SizeError::Number);
    }
    text.parse().map_err(|_| SizeError::TooLarge)
}

/// Exact bytes of `0.fraction` of a unit of `scale` bytes.
fn bytes_of_fraction(fraction: &str, scale: u128) -> Result<u128, SizeError> {
    let significant = fraction.trim_end_matches('0');
    if significant.is_empty() {
        return digits(fraction).map(|_| 0).or_else(|error| match error {
            SizeError::TooLarge => Ok(0),
            other => Err(other),
        });
    }
    if significant.len() > FRACTION_DIGITS_MAX {
        return Err(if significant.contains('.') {
            SizeError::Number
        } else {
            SizeError::Fraction
        });
    }
    let scaled = digits(significant)? * scale;
    let divisor = 10_u128.pow(significant.len() as u32);
    if scaled.is_multiple_of(divisor) { Ok(scaled / divisor) } else { Err(SizeError::Fraction) }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes or a size such as \"64MiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_sizes_parse() {
        let cases: [(&str, u64); 20] = [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("7 b", 7),
            ("1KB", 1_000),
            ("1 kb", 1_000),
            ("3MB", 3_000_000),
            ("3GB", 3_000_000_000),
            ("2TB", 2_000_000_000_000),
            ("1KiB", 1 << 10),
            ("1KIB", 1 << 10),
            ("64mib", 64 << 20),
            ("2 GiB", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("1.50 GiB", 3 << 29),
            ("0.5KiB", 512),
            ("1.0", 1),
            ("4TiB", 4 << 40),
            ("18446744073709551615", u64::MAX),
            ("0.000000000000000000TiB", 0),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse(), Ok(Size(bytes)), "text={text:?}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        use SizeError::{Fraction, Number, TooLarge};
        let unit = |text: &str| SizeError::Unit(text.to_owned());
        let cases = [
            ("", Number),
            (" 1", Number),
            ("+1", Number),
            ("-1", Number),
            ("MiB", Number),
            (".5GiB", Number),
            ("5.GiB", Number),
            ("1.2.3MiB", Number),
            ("1..0", Number),
            ("1.000000000000000001.0001", Number),
            ("１MiB", Number),
            ("1 ", unit(" ")),
            ("1  MiB", unit("  MiB")),
            ("1\tMiB", unit("\tMiB")),
            ("64MiB ", unit("MiB ")),
            ("64M", unit("M")),
            ("64Mb", unit("Mb")),
            ("64miB", unit("miB")),
            ("64PiB", unit("PiB")),
            ("1e6", unit("e6")),
            ("1_000", unit("_000")),
            ("1,5GiB", unit(",5GiB")),
            ("0x10", unit("x10")),
            ("1.5", Fraction),
            ("0.3KiB", Fraction),
            ("1.0000000000000000001TiB", Fraction),
            ("18446744073709551616", TooLarge),
            ("16777216TiB", TooLarge),
            ("999999999999999999999999999999999999999999", TooLarge),
            ("340282366920938463463374607431768211455TiB", TooLarge),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<Size>(), Err(error), "text={text:?}");
        }
    }

    #[test]
    fn display_is_the_largest_exact_unit() {
        let cases = [
            (0, "0B"),
            (1, "1B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1536B"),
            (3 << 29, "1536MiB"),
            (1 << 30, "1GiB"),
            (5 << 40, "5TiB"),
            (1 << 62, "4194304TiB"),
            (u64::MAX, "18446744073709551615B"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
