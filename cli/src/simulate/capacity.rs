//! Capacities of tiers: a number of blocks, or a share of the blocks of a trace.

use std::fmt;
use std::str::FromStr;

/// A capacity as it was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Capacity {
    /// Blocks.
    Blocks(usize),
    /// Per cent of the different blocks of the trace.
    Percent(f64),
}

impl Capacity {
    /// Blocks for a trace with `unique` different blocks.
    pub(super) fn blocks(self, unique: usize) -> usize {
        match self {
            Capacity::Blocks(blocks) => blocks,
            Capacity::Percent(percent) => (unique as f64 * percent / 100.0) as usize,
        }
    }
}

impl FromStr for Capacity {
    type Err = String;

    fn from_str(text: &str) -> Result<Capacity, String> {
        let Some(percent) = text.strip_suffix('%') else {
            let blocks =
                text.parse().map_err(|_| "is neither a number of blocks nor a share in %")?;
            return Ok(Capacity::Blocks(blocks));
        };
        let percent: f64 = percent.trim().parse().map_err(|_| "is not a share in %")?;
        if !(0.0..=100.0).contains(&percent) {
            return Err("a share is from 0 % to 100 % of the trace's different blocks".to_owned());
        }
        Ok(Capacity::Percent(percent))
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Capacity::Blocks(blocks) => write!(f, "{blocks}"),
            Capacity::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_counts_are_parsed() {
        for (text, blocks) in [("1%", 10), ("0.5%", 5), ("100%", 1000), ("0", 0), ("64", 64)] {
            let capacity: Capacity = text.parse().expect(text);
            assert_eq!((capacity.blocks(1000), capacity.to_string()), (blocks, text.to_owned()));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "%", "101%", "-1%", "nan%", "1.5", "-3", "1 GiB"] {
            assert!(text.parse::<Capacity>().is_err(), "{text}");
        }
    }
}
